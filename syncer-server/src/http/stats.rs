//! Routes for the state of the run, for people and programs.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use crate::actor::View;
use crate::status::{LOG_MAX, LearnersQuery, LogQuery, PAGE_MAX};

/// `/readyz`: answers 200 if people and learners may be sent here, otherwise 503. A complete run stays ready, because
/// its pages are still useful.
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

/// Maximum number of separately allocated answers that readers have not yet read.
const UNREAD_MAX: usize = 256;

/// Limit on the number of unread answers, and thereby on their memory.
pub struct Unread(Arc<Semaphore>);

impl Default for Unread {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(UNREAD_MAX)))
    }
}

/// Body of an answer with its permit, which is released when the reader has read the body.
struct Answer<B> {
    body: B,
    _unread: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Answer<Vec<u8>> {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl AsRef<[u8]> for Answer<Arc<str>> {
    fn as_ref(&self) -> &[u8] {
        self.body.as_bytes()
    }
}

/// `/v1/status`. While too many answers are unread, further requests share the answer of the current second, which
/// takes no memory per request.
pub async fn status(State(app): State<Arc<App>>) -> Response {
    let Ok(unread) = Arc::clone(&app.unread.0).try_acquire_owned() else {
        let body = Arc::clone(&app.context.actor.status_watch().borrow());
        return json(Answer { body, _unread: None });
    };
    match app.context.actor.status().await {
        Some(status) => {
            let body = serde_json::to_vec(&status).expect("plain data");
            json(Answer { body, _unread: Some(unread) })
        }
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
                "use offset=0 or more, limit=1 to {PAGE_MAX}, sort=merged, speed, name or state, and no other \
                 parameters\n"
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
            let why = format!("use name=TEXT, limit=1 to {LOG_MAX}, and no other parameters\n");
            (StatusCode::BAD_REQUEST, why).into_response()
        }
    }
}

async fn view(app: &App, view: View) -> Response {
    // All readers share one text of the series, so it needs no permit.
    let unread = match view {
        View::Series => None,
        _ => match Arc::clone(&app.unread.0).try_acquire_owned() {
            Ok(unread) => Some(unread),
            Err(_) => {
                let why = "too many answers wait to be read: try again later\n";
                return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
            }
        },
    };
    match app.context.actor.view(view).await {
        Some(body) => json(Answer { body, _unread: unread }),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
    }
}

fn json(answer: impl AsRef<[u8]> + Send + 'static) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, Bytes::from_owner(answer)).into_response()
}
