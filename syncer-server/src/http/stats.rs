//! What the run is doing, for people and machines that ask.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use crate::actor::View;
use crate::status::{LOG_MAX, LearnersQuery, LogQuery, PAGE_MAX};

/// `/readyz`: whether people and learners may be sent here. A complete run is there to be looked at.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    match app.context.actor.status().await {
        Some(status) if status.core.finishing == status.core.finished && !*app.stopping.borrow() => {
            match status.disk.tape_fault.or(status.disk.services_fault) {
                Some(fault) => (StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n")).into_response(),
                None => "ready\n".into_response(),
            }
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the run ends\n").into_response(),
    }
}

/// `/v1/status`.
pub async fn status(State(app): State<Arc<App>>) -> Response {
    match app.context.actor.status().await {
        Some(status) => json(serde_json::to_vec(&status).expect("plain data")),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
    }
}

/// `/v1/learners`.
pub async fn learners(
    State(app): State<Arc<App>>,
    query: Result<Query<LearnersQuery>, QueryRejection>,
) -> Response {
    match query {
        Ok(Query(query)) if query.limit > 0 => view(&app, View::Learners(query)).await,
        _ => {
            let why = format!(
                "ask for offset=0 or more, limit=1 to {PAGE_MAX}, sort=merged, speed, name or state, and nothing else\n"
            );
            (StatusCode::BAD_REQUEST, why).into_response()
        }
    }
}

/// `/v1/series`.
pub async fn series(State(app): State<Arc<App>>) -> Response {
    view(&app, View::Series).await
}

/// `/v1/rounds`.
pub async fn rounds(State(app): State<Arc<App>>) -> Response {
    view(&app, View::Rounds).await
}

/// `/v1/log`.
pub async fn log(State(app): State<Arc<App>>, query: Result<Query<LogQuery>, QueryRejection>) -> Response {
    match query {
        Ok(Query(query)) if (1..=LOG_MAX).contains(&query.limit) => view(&app, View::Log(query)).await,
        _ => {
            let why = format!("ask for name=TEXT, limit=1 to {LOG_MAX}, and nothing else\n");
            (StatusCode::BAD_REQUEST, why).into_response()
        }
    }
}

async fn view(app: &App, view: View) -> Response {
    match app.context.actor.view(view).await {
        Some(view) => json(view.as_bytes().to_vec()),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
    }
}

fn json(body: Vec<u8>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, body).into_response()
}
