//! `/v1/runs/{run}/history.jsonl` and `/v1/runs/{run}/report.html`: the run to keep, as it is now.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use crate::report::{Story, lines, page};

/// `history.jsonl`.
pub async fn history(State(app): State<Arc<App>>, Path(run): Path<String>) -> Response {
    tell(&app, &run, "history.jsonl", "application/jsonl", |story| lines(&story.carried)).await
}

/// `report.html`.
pub async fn report(State(app): State<Arc<App>>, Path(run): Path<String>) -> Response {
    tell(&app, &run, "report.html", "text/html; charset=utf-8", page).await
}

/// What `tell` makes of the run, as a file to keep. Names and texts in it are strangers'; whatever a browser makes of
/// them, it is to load and run nothing.
async fn tell(
    app: &App,
    run: &str,
    name: &str,
    kind: &'static str,
    tell: impl FnOnce(&Story) -> String + Send + 'static,
) -> Response {
    if run != app.run {
        let why = format!("this is run {}\n", app.run);
        return (StatusCode::NOT_FOUND, why).into_response();
    }
    let Some(story) = app.context.actor.story().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response();
    };
    // A crowd is sorted and a thousand points are drawn: not on the thread that answers others.
    let Ok(body) = tokio::task::spawn_blocking(move || tell(&story)).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the report could not be made\n").into_response();
    };
    let disposition = format!("attachment; filename=\"archipelago-{run}-{name}\"");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; sandbox"),
        ),
        (header::CONTENT_DISPOSITION, disposition.try_into().expect("digits and hyphens")),
    ];
    (headers, body).into_response()
}
