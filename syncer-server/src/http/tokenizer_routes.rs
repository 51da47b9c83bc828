//! Routes for generating text with the run's model elsewhere: its shape, and conversion between text and tokens.
//!
//! Texts are in request bodies, because proxies log addresses.

use std::sync::Arc;

use archipelago_core::model::ModelView;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::App;
use super::files::refused;
use super::work_limit::WorkError;
use crate::corpus::Vocabulary;

/// Answers with the model's shape.
pub async fn model(State(app): State<Arc<App>>, Path(run): Path<String>, headers: HeaderMap) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let Some(model) = app.exports.decoder() else {
        let why =
            "the model of this run is not the built-in decoder: only the program that trains it can use it\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    if model.lora.is_some() {
        let why = "this run trains adapters, and pages do not fetch the model that they belong to: its owner can \
             sample from it with `syncer-server sample`\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    }
    let spec = app.exports.spec();
    let token_is_byte = matches!(app.corpus.vocabulary, Vocabulary::Bytes);
    let stops = app.corpus.stops.tokens.clone();
    Json(ModelView { model, fragments: spec.exchange.fragments, token_is_byte, stops }).into_response()
}

/// Answers with the tokens of the text in the body.
pub async fn tokens(
    State(app): State<Arc<App>>,
    Path(run): Path<String>,
    headers: HeaderMap,
    text: String,
) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let corpus = Arc::clone(&app.corpus);
    match looked_up(&app, move || corpus.vocabulary.encode_short(&text)).await {
        Ok(Ok(tokens)) => Json(tokens).into_response(),
        Ok(Err(error)) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")).into_response(),
        Err(error) => error.into_response(),
    }
}

/// Answers with the text of the tokens in the body, a JSON list of numbers below the size of the
/// model's vocabulary.
pub async fn text(
    State(app): State<Arc<App>>,
    Path(run): Path<String>,
    headers: HeaderMap,
    tokens: String,
) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let tokens = match serde_json::from_str::<Vec<u32>>(&tokens) {
        Ok(tokens) => tokens,
        Err(error) => {
            return (StatusCode::BAD_REQUEST, format!("send a list of tokens: {error}\n")).into_response();
        }
    };
    let size = app.exports.decoder().map_or(u32::MAX, |model| model.vocab);
    if let Some(token) = tokens.iter().find(|token| **token >= size) {
        let why =
            format!("there is no token {token}: send numbers below {size}, the size of the vocabulary\n");
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    let corpus = Arc::clone(&app.corpus);
    looked_up(&app, move || corpus.vocabulary.decode(&tokens)).await.into_response()
}

/// Runs `look_up` on a blocking thread, within the limit on work.
async fn looked_up<T: Send + 'static>(
    app: &App,
    look_up: impl FnOnce() -> T + Send + 'static,
) -> Result<T, WorkError> {
    app.work.permit().await?.run(|_| look_up()).await
}
