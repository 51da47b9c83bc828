//! What the owner may tell the run.

use std::sync::Arc;

use archipelago::diloco::syncer::Input;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use crate::actor::Command;
use crate::secret::is_same;

/// `/v1/admin/finish`: collect everyone's last progress, then end the run.
pub async fn finish(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    tell(&app, &headers, Input::Finish, "the run finishes\n").await
}

/// `/v1/admin/pause`: begin no round and grant no lease until resumed; learners wait.
pub async fn pause(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    tell(&app, &headers, Input::Hold(true), "the run is paused\n").await
}

/// `/v1/admin/resume`: go on.
pub async fn resume(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    tell(&app, &headers, Input::Hold(false), "the run goes on\n").await
}

async fn tell(app: &App, headers: &HeaderMap, input: Input, done: &'static str) -> Response {
    let shown =
        headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if !shown.is_some_and(|shown| is_same(shown, app.admin_token.as_bytes())) {
        let why = "show the token from admin.token in the run's folder, as `Authorization: Bearer …`\n";
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], why).into_response();
    }
    app.context.actor.tell(Command::Input(input)).await;
    (StatusCode::ACCEPTED, done).into_response()
}
