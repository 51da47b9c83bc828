//! Admin routes: the owner's orders about the run and about single learners.

use std::sync::Arc;

use archipelago_cluster::ServiceError;
use archipelago_core::cluster::AdminCommand;
use archipelago_core::diloco::LearnerId;
use archipelago_core::diloco::syncer::DROP_MS_MAX;
use archipelago_core::wire::Share;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::App;
use crate::actor::OrderOutcome;
use crate::admin_token::is_same;
use crate::clock::unix_ms;
use crate::cluster_node::{AdminBroadcast, OwnerCommand};
use crate::errors::ServerError;

/// `/v1/admin/finish`: collects and merges the last progress of all learners, then ends the run.
pub async fn finish(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    apply_owned(&app, &headers, OwnerCommand::Finish, "the run is finishing\n").await
}

/// `/v1/admin/pause`: starts no rounds and grants no leases until the run is resumed. Learners stay connected and wait.
pub async fn pause(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    apply_owned(&app, &headers, OwnerCommand::Hold(true), "the run is paused\n").await
}

/// `/v1/admin/resume`: resumes a paused run.
pub async fn resume(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    apply_owned(&app, &headers, OwnerCommand::Hold(false), "the run continues\n").await
}

/// Body of `/v1/admin/learners/{id}/pace`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DutyCycleBody {
    /// Fraction of its pace that the owner allows the learner, 0.001 to 1.
    share: f64,
}

/// Body of `/v1/admin/learners/{id}/drop`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drop {
    /// Time during which the learner may not rejoin, in seconds; 0 lets it return immediately.
    seconds: f64,
}

/// `/v1/admin/learners/{id}/pace`: limits a learner to a share of its pace.
pub async fn pace(
    State(app): State<Arc<App>>,
    Path(learner): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    apply_to_learner(&app, &headers, &learner, || {
        let DutyCycleBody { share } = read(&body, "{\"share\": 0.25}")?;
        let share = Share::new(share).map_err(|error| error.to_string())?;
        Ok(move |learner| OwnerCommand::Pace(learner, share))
    })
    .await
}

/// `/v1/admin/learners/{id}/drop`: disconnects a learner and keeps it out for some seconds.
pub async fn drop_learner(
    State(app): State<Arc<App>>,
    Path(learner): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    apply_to_learner(&app, &headers, &learner, || {
        let Drop { seconds } = read(&body, "{\"seconds\": 20}")?;
        let seconds_max = f64::from(DROP_MS_MAX) / 1e3;
        if !(0.0..=seconds_max).contains(&seconds) {
            return Err(format!("{seconds} s is out of range: give 0 to {seconds_max}; 0 lets it come back"));
        }
        let wait_ms = (seconds * 1e3).round() as u32;
        Ok(move |learner| OwnerCommand::Drop(learner, wait_ms))
    })
    .await
}

/// Parses the JSON order in `body`. The error is a sentence that shows `example`.
pub(super) fn read<T: DeserializeOwned>(body: &Bytes, example: &str) -> Result<T, String> {
    serde_json::from_slice(body)
        .map_err(|error| format!("the body is not a valid order ({error}): send JSON such as {example}"))
}

/// Checks the owner's token, and applies the order that `make` returns to the learner whose number is `id`.
async fn apply_to_learner<F: FnOnce(LearnerId) -> OwnerCommand>(
    app: &App,
    headers: &HeaderMap,
    id: &str,
    make: impl FnOnce() -> Result<F, String>,
) -> Response {
    if let Err(refused) = check_owner(app, headers) {
        return refused;
    }
    let Ok(learner) = id.parse().map(LearnerId) else {
        return (
            StatusCode::BAD_REQUEST,
            format!("{id:?} is not a learner: give its number in /v1/learners\n"),
        )
            .into_response();
    };
    let order = match make() {
        Ok(order) => order(learner),
        Err(why) => return (StatusCode::BAD_REQUEST, why + "\n").into_response(),
    };
    apply(app, order, "the learner is told\n").await
}

/// Applies an order in this process, or in all processes of a cluster, and returns the response: `done` on success.
async fn apply(app: &App, order: OwnerCommand, done: &'static str) -> Response {
    let learner = order.learner();
    match &app.admin_broadcast {
        Some(admin_broadcast) => publish(app, admin_broadcast, learner, order.command(unix_ms()), done).await,
        None => order_response(app.context.actor.order(learner, order.input()).await, learner, done),
    }
}

/// Publishes an order to all processes of the run and returns the response: `done` on success. `learner` is the learner
/// that the order concerns, if any; this process must know it.
pub(super) async fn publish(
    app: &App,
    admin_broadcast: &AdminBroadcast,
    learner: Option<LearnerId>,
    command: AdminCommand,
    done: &'static str,
) -> Response {
    let may = app.context.actor.may_order(learner).await;
    if may != Some(OrderOutcome::Taken) {
        return order_response(may, learner, done);
    }
    match admin_broadcast.broadcast(command).await {
        Ok(()) => order_response(may, learner, done),
        Err(error) => unconfirmed(&error),
    }
}

/// Returns the response to an order that may not have reached all processes of the run.
pub(super) fn unconfirmed(error: &ServiceError) -> Response {
    let why = format!(
        "the order may not have been recorded: check whether it took effect, and repeat it if not. {error}\n"
    );
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

/// Returns the response for an order's outcome: `done` if the order was applied. `learner` is the learner that the
/// order concerns, if any. No outcome means that the server stops.
pub(super) fn order_response(
    outcome: Option<OrderOutcome>,
    learner: Option<LearnerId>,
    done: &'static str,
) -> Response {
    match outcome {
        Some(OrderOutcome::Taken) => (StatusCode::ACCEPTED, done).into_response(),
        Some(OrderOutcome::NoSuchLearner) => {
            let id = learner.unwrap_or_default();
            let why = format!("this run has had no learner {id}: /v1/learners lists them\n");
            (StatusCode::NOT_FOUND, why).into_response()
        }
        Some(OrderOutcome::RunOver) => {
            let why = "the run is complete: its model and its figures stay, but it takes no more orders\n";
            (StatusCode::CONFLICT, why).into_response()
        }
        Some(OrderOutcome::PastStop(counted)) => {
            let why = format!(
                "the run has counted {counted} merged tokens, so this stop would end the run now: use finish for \
                 that, or give more tokens, or 0 for no stop\n"
            );
            (StatusCode::BAD_REQUEST, why).into_response()
        }
        None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops: the order was not delivered\n")
            .into_response(),
    }
}

async fn apply_owned(app: &App, headers: &HeaderMap, order: OwnerCommand, done: &'static str) -> Response {
    if let Err(refused) = check_owner(app, headers) {
        return refused;
    }
    apply(app, order, done).await
}

/// Checks that the request has the owner's token or the host's. The error is the response to send.
#[expect(clippy::result_large_err, reason = "it is the answer, and made at once")]
pub(super) fn check_owner(app: &App, headers: &HeaderMap) -> Result<(), Response> {
    let is_host = shows_token(headers, app.host_token.as_deref());
    if is_host || bearer(headers).is_some_and(|shown| app.owner.is(shown)) {
        return Ok(());
    }
    let why = "send the token from admin.token in the run's folder, as `Authorization: Bearer …`\n";
    Err((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], why).into_response())
}

/// Returns true if the request's bearer token is one of `tokens`.
pub fn shows_token<'a>(headers: &HeaderMap, tokens: impl IntoIterator<Item = &'a str>) -> bool {
    bearer(headers).is_some_and(|shown| tokens.into_iter().any(|token| is_same(shown, token.as_bytes())))
}

/// Returns the bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
}

/// Applies an order of the owner in this process. It may have been given to another process of the run.
pub async fn apply_admin_command(app: Arc<App>, command: AdminCommand) {
    let actor = &app.context.actor;
    let invite_store = Arc::clone(app.context.admission.invite_store());
    let done = match command {
        AdminCommand::Settings(words) => app.settings.apply(actor, &words).await,
        AdminCommand::Ban(fingerprint, note) => {
            blocking(move || invite_store.ban(fingerprint, &note, unix_ms())).await.map(drop)
        }
        AdminCommand::Lift(fingerprint) => blocking(move || invite_store.lift(fingerprint)).await.map(drop),
        command => {
            if let Some(order) = OwnerCommand::of(&command, unix_ms()) {
                // The learner concerned may join this process later.
                actor.order(None, order.input()).await;
            }
            Ok(())
        }
    };
    if let Err(why) = done {
        tracing::error!("an order of the owner is not carried out here: {why}");
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("a background task panicked".to_owned()),
    }
}
