//! Owner routes for personal invites and bans.

use std::sync::Arc;

use archipelago_core::cluster::AdminCommand;
use archipelago_core::wire::{Fingerprint, http as path};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::App;
use super::admin::{check_owner, read, unconfirmed};
use crate::clock::unix_ms;
use crate::cluster_node::AdminBroadcast;
use crate::errors::ServerError;
use crate::invites::{InviteStore, InviteTerms, check_note};

/// Longest lifetime of an invite, in seconds: a hundred years.
const SECONDS_MAX: f64 = 100.0 * 365.25 * 86_400.0;

/// Body of `POST /v1/invites`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NewInvite {
    /// Number of new keys that the invite may admit.
    #[serde(default = "once")]
    uses: u32,
    /// Lifetime in seconds; unlimited if absent.
    expires_s: Option<f64>,
    /// The owner's note.
    #[serde(default)]
    note: String,
}

fn once() -> u32 {
    1
}

/// Body of `POST /v1/bans`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBan {
    /// The key's fingerprint, as in `/v1/learners`.
    fingerprint: String,
    /// The owner's note.
    #[serde(default)]
    note: String,
}

/// `GET /v1/invites`: lists all invites without their secrets.
pub async fn invites(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    owned(&app, &headers, |invite_store| invite_store.invites().map(json)).await
}

/// `POST /v1/invites`: creates an invite. Only this response contains its text.
pub async fn invite(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    owned(&app, &headers, move |invite_store| {
        let NewInvite { uses, expires_s, note } = match read(&body, "{\"uses\": 1, \"expiresS\": 604800}") {
            Ok(asked) => asked,
            Err(why) => return Err(ServerError::Config { why }),
        };
        if let Some(seconds) = expires_s.filter(|seconds| !(*seconds > 0.0 && *seconds <= SECONDS_MAX)) {
            let why = format!(
                "an invite for {seconds} s is out of range: give more than 0 and at most {SECONDS_MAX}"
            );
            return Err(ServerError::Config { why });
        }
        let lasts_ms = expires_s.map(|seconds| (seconds * 1e3) as u64);
        invite_store.invite(&InviteTerms { uses, lasts_ms, note }, unix_ms()).map(json)
    })
    .await
}

/// `POST /v1/invites/{id}/revoke`: revokes an invite. Learners that already used it stay.
pub async fn revoke(State(app): State<Arc<App>>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    owned(&app, &headers, move |invite_store| {
        Ok(match invite_store.revoke(&id, unix_ms())? {
            Some(_) => {
                (StatusCode::OK, "the invite is revoked: it admits no more learners\n").into_response()
            }
            None => {
                (StatusCode::NOT_FOUND, format!("there is no such invite: {} lists them\n", path::INVITES))
                    .into_response()
            }
        })
    })
    .await
}

/// `GET /v1/bans`: lists the bans.
pub async fn bans(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    owned(&app, &headers, |invite_store| invite_store.bans().map(json)).await
}

/// `POST /v1/bans`: bans a key. Its learner is disconnected within a second.
pub async fn ban(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> Response {
    let asked = move |_: &InviteStore| {
        let asked = read(&body, "{\"fingerprint\": \"32 hex digits\", \"note\": \"why\"}");
        let NewBan { fingerprint, note } = asked.map_err(|why| ServerError::Config { why })?;
        check_note(&note)?;
        Ok((named(&fingerprint)?, note))
    };
    let (who, note) = match owners(&app, &headers, asked).await {
        Ok(asked) => asked,
        Err(refused) => return refused,
    };
    let done = "the key is banned\n";
    match &app.admin_broadcast {
        Some(admin_broadcast) => publish(admin_broadcast, AdminCommand::Ban(who, note), done).await,
        None => {
            let ban = move |invite_store: &InviteStore| invite_store.ban(who, &note, unix_ms());
            owned(&app, &headers, move |invite_store| {
                ban(invite_store).map(|_| (StatusCode::OK, done).into_response())
            })
            .await
        }
    }
}

/// `POST /v1/bans/{fingerprint}/lift`: lifts a ban.
pub async fn lift(State(app): State<Arc<App>>, headers: HeaderMap, Path(name): Path<String>) -> Response {
    let lift = if app.admin_broadcast.is_some() { InviteStore::is_banned } else { InviteStore::lift };
    let lifted = move |invite_store: &InviteStore| {
        let who = named(&name)?;
        Ok(lift(invite_store, who)?.then_some(who))
    };
    let done = "the ban is lifted\n";
    match (&app.admin_broadcast, owners(&app, &headers, lifted).await) {
        (_, Err(refused)) => refused,
        (_, Ok(None)) => (StatusCode::NOT_FOUND, "the key was not banned\n").into_response(),
        (Some(admin_broadcast), Ok(Some(who))) => {
            publish(admin_broadcast, AdminCommand::Lift(who), done).await
        }
        (None, Ok(Some(_))) => (StatusCode::OK, done).into_response(),
    }
}

/// Publishes an order about a key to all processes of the run, and returns the response: `done` on success.
async fn publish(admin_broadcast: &AdminBroadcast, command: AdminCommand, done: &'static str) -> Response {
    match admin_broadcast.broadcast(command).await {
        Ok(()) => (StatusCode::OK, done).into_response(),
        Err(error) => unconfirmed(&error),
    }
}

fn named(text: &str) -> Result<Fingerprint, ServerError> {
    text.parse()
        .map_err(|error| ServerError::Config { why: format!("{text:?}: {error}; /v1/learners has them") })
}

fn json<T: Serialize>(value: T) -> Response {
    Json(value).into_response()
}

/// Runs `work` on a blocking thread if the request has the owner's token, and returns the response.
async fn owned(
    app: &App,
    headers: &HeaderMap,
    work: impl FnOnce(&InviteStore) -> Result<Response, ServerError> + Send + 'static,
) -> Response {
    owners(app, headers, work).await.unwrap_or_else(|refused| refused)
}

/// Runs `work` on a blocking thread if the request has the owner's token.
///
/// # Errors
/// The response to send: the owner's token is missing, too many orders wait, or the work failed.
async fn owners<T: Send + 'static>(
    app: &App,
    headers: &HeaderMap,
    work: impl FnOnce(&InviteStore) -> Result<T, ServerError> + Send + 'static,
) -> Result<T, Response> {
    check_owner(app, headers)?;
    let invite_store = Arc::clone(app.context.admission.invite_store());
    match app.orders.carry_out(move || work(&invite_store)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error @ ServerError::Config { .. })) => {
            Err((StatusCode::BAD_REQUEST, format!("{error}\n")).into_response())
        }
        Ok(Err(error)) => {
            tracing::error!(%error, "cannot store the owner's changes of invites and bans");
            Err((StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response())
        }
        Err(error) => Err(error.into_response()),
    }
}
