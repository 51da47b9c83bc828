//! What it takes to write with the run's model elsewhere: its shape, and its vocabulary to and fro.
//!
//! Texts come in bodies: addresses stand in the logs of whatever is between.

use std::sync::Arc;

use archipelago_core::model::ModelView;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::App;
use super::files::refused;
use crate::corpus::Vocabulary;

/// Texts that are made tokens at once, and those that may wait for a turn.
const TURNS: usize = 2;
const WAITING_MAX: usize = 64;

/// How long whoever finds no turn had better wait, in seconds.
const RETRY_S: u16 = 2;

/// The turns of those who ask for tokens.
pub struct Spelling {
    turns: Semaphore,
    waiting: Semaphore,
}

impl Default for Spelling {
    fn default() -> Self {
        Self { turns: Semaphore::new(TURNS), waiting: Semaphore::new(WAITING_MAX) }
    }
}

/// The model's shape.
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
        let why = "this run trains adapters, and pages do not fetch the model that they belong to: its owner writes \
                   with it by `syncer-server sample`\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    }
    let spec = app.exports.spec();
    let token_is_byte = matches!(app.corpus.vocabulary, Vocabulary::Bytes);
    let stops = app.corpus.stops.tokens.clone();
    Json(ModelView { model, fragments: spec.exchange.fragments, token_is_byte, stops }).into_response()
}

/// The tokens of the text in the body.
pub async fn tokens(
    State(app): State<Arc<App>>,
    Path(run): Path<String>,
    headers: HeaderMap,
    text: String,
) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    let turn = match app.spelling.waiting.try_acquire() {
        Ok(_waiting) => app.spelling.turns.acquire().await.ok(),
        Err(_) => None,
    };
    let Some(_turn) = turn else {
        let retry = [(header::RETRY_AFTER, RETRY_S.to_string())];
        return (StatusCode::SERVICE_UNAVAILABLE, retry, "many others write: come again\n").into_response();
    };
    let corpus = Arc::clone(&app.corpus);
    let encoded = tokio::task::spawn_blocking(move || corpus.vocabulary.encode_short(&text)).await;
    match encoded {
        Ok(Ok(tokens)) => Json(tokens).into_response(),
        Ok(Err(error)) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
    }
}

/// The text of the tokens in the body, a list of numbers. One that is outside the vocabulary is none.
pub async fn text(
    State(app): State<Arc<App>>,
    Path(run): Path<String>,
    headers: HeaderMap,
    tokens: String,
) -> Response {
    if let Some(refused) = refused(&app, &run, &headers) {
        return refused;
    }
    match serde_json::from_str::<Vec<u32>>(&tokens) {
        Ok(tokens) => app.corpus.vocabulary.decode(&tokens).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("send a list of tokens: {error}\n")).into_response(),
    }
}
