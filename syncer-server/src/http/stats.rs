//! What the run is doing, for people and machines that ask.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use crate::actor::View;
use crate::status::{LearnersQuery, PAGE_MAX, ServerStatus};

/// `/readyz`: whether learners may come.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    match app.context.actor.status().await {
        Some(status) if !status.core.finishing && !*app.stopping.borrow() => "ready\n".into_response(),
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

/// `/metrics` for Prometheus. No label names a learner: they come and go without end.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    match app.context.actor.status().await {
        Some(status) => {
            let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
            (headers, render(&status)).into_response()
        }
        None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
    }
}

fn render(status: &ServerStatus) -> String {
    let core = &status.core;
    let mut text = String::new();
    let mut metric = |kind: &str, name: &str, help: &str, value: f64| {
        write!(
            text,
            "# HELP archipelago_{name} {help}\n# TYPE archipelago_{name} {kind}\narchipelago_{name} {value}\n"
        )
        .expect("a String takes everything");
    };
    let mut counter = |name: &str, help: &str, value: u64| metric("counter", name, help, value as f64);
    counter("trained_tokens_total", "Tokens trained on by all learners.", core.tokens_trained);
    counter("merged_tokens_total", "Tokens merged.", core.tokens_merged);
    counter("rounds_merged_total", "Rounds that led to a version.", core.rounds);
    counter("rounds_abandoned_total", "Rounds that led to nothing.", core.rounds_abandoned);
    counter("updates_total", "Updates taken in.", core.updates);
    counter("updates_merged_total", "Updates merged.", core.fates.merged);
    counter("updates_late_total", "Updates that came late.", core.fates.late.values().sum());
    counter("updates_refused_total", "Updates refused.", core.fates.refused.values().sum());
    counter("up_bytes_total", "WebSocket bytes from learners while training.", status.traffic.bytes_up);
    counter("down_bytes_total", "WebSocket bytes to learners while training.", status.traffic.bytes_down);
    counter("join_bytes_total", "Bytes of greetings and fetched parameters.", status.traffic.join_bytes);
    counter("data_bytes_total", "Bytes of fetched shards.", status.traffic.data_bytes);
    counter("learners_seen_total", "Learners ever seen.", core.learners_total.into());
    let mut gauge = |name: &str, help: &str, value: f64| metric("gauge", name, help, value);
    gauge("learners_connected", "Connections with a learner behind them.", core.connected.into());
    gauge("learners_live", "Learners that take part in rounds.", core.live.into());
    gauge("sockets_open", "Open sockets.", status.sockets.into());
    gauge("participation_ratio", "Tokens merged of tokens trained.", core.participation);
    gauge("trained_tokens_per_second", "Tokens trained on in a second, lately.", status.tokens_per_s);
    gauge("step_seconds", "Inner step of the median live learner.", core.timing.step_ms / 1e3);
    gauge("quorum_seconds", "From the start of a round to its quorum.", core.timing.quorum_ms / 1e3);
    gauge("sync_seconds", "From the end of collecting to sending.", core.timing.sync_ms / 1e3);
    gauge("paused", "1 while the owner holds the run.", f64::from(u8::from(core.paused)));
    gauge("uptime_seconds", "Time since the server started.", status.uptime_s);
    if let Some(loss) = status.val_loss_last {
        gauge("held_out_loss_nats", "Held-out loss per token.", loss.into());
    }
    if let Some(loss) = core.train_loss {
        gauge("train_loss_nats", "Training loss per token, mean of connected learners.", loss.into());
    }
    text
}
