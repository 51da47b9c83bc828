//! What the run is doing, for people and machines; and the one thing that they may tell it.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use archipelago::diloco::syncer::Input;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream};
use tokio::sync::{broadcast, watch};

use super::App;
use crate::actor::Command;
use crate::status::ServerStatus;

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
        Some(status) => {
            let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
            (headers, serde_json::to_string(&status).expect("plain data")).into_response()
        }
        None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
    }
}

/// `/v1/events`: the status every second as `status`, and what the core does as `run`.
pub async fn events(State(app): State<Arc<App>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let sources = Sources {
        status: app.context.actor.status_watch(),
        events: app.context.actor.events(),
        stopping: app.stopping.clone(),
        first: true,
    };
    let stream = stream::unfold(sources, |mut sources| async move {
        let event = sources.next().await?;
        Some((Ok(event), sources))
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}

struct Sources {
    status: watch::Receiver<Arc<str>>,
    events: broadcast::Receiver<Arc<str>>,
    stopping: watch::Receiver<bool>,
    first: bool,
}

impl Sources {
    async fn next(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.first) {
            let status = Arc::clone(&self.status.borrow_and_update());
            return Some(Event::default().event("status").data(status));
        }
        tokio::select! {
            changed = self.status.changed() => {
                changed.ok()?;
                let status = Arc::clone(&self.status.borrow_and_update());
                Some(Event::default().event("status").data(status))
            }
            event = self.events.recv() => match event {
                Ok(event) => Some(Event::default().event("run").data(event)),
                // The status tells what was missed.
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    Some(Event::default().event("lagged").data(missed.to_string()))
                }
                Err(broadcast::error::RecvError::Closed) => None,
            },
            _ = self.stopping.wait_for(|stopping| *stopping) => None,
        }
    }
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
    gauge("uptime_seconds", "Time since the server started.", status.uptime_s);
    if let Some(loss) = status.val_loss_last {
        gauge("held_out_loss_nats", "Held-out loss per token.", loss.into());
    }
    if let Some(loss) = core.train_loss {
        gauge("train_loss_nats", "Training loss per token, mean of connected learners.", loss.into());
    }
    text
}

/// `/v1/admin/finish`: collect everyone's last progress, then end the run.
pub async fn finish(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let shown =
        headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if !shown.is_some_and(|shown| is_same(shown, app.admin_token.as_bytes())) {
        let why = "show the token from admin.token in the run's folder, as `Authorization: Bearer …`\n";
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], why).into_response();
    }
    app.context.actor.tell(Command::Input(Input::Finish)).await;
    (StatusCode::ACCEPTED, "the run finishes\n").into_response()
}

/// Compares without telling by its time how much was right.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
}
