//! `/metrics` for Prometheus, by its conventions: base units, monotonic totals, and timestamps in seconds since 1970
//! instead of ages. No label names a learner, because the number of learners is unbounded.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use crate::clock::unix_ms;
use crate::status::ServerStatus;

/// Content type of Prometheus's text format.
const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `/metrics`.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    match app.context.actor.status().await {
        Some(status) => answer(&[(None, *status)]),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
    }
}

/// Returns the metrics of `runs`. Each run's name, if present, becomes a label.
pub fn answer(runs: &[(Option<String>, ServerStatus)]) -> Response {
    ([(header::CONTENT_TYPE, KIND)], render(runs, unix_ms())).into_response()
}

/// Metrics as text, grouped by metric. The description of each metric precedes its lines.
#[derive(Default)]
struct Text {
    /// Name, description and lines of each metric.
    metrics: Vec<(String, String, String)>,
    /// Label of the run whose metrics are being added, if there are several runs.
    run: Option<String>,
}

impl Text {
    fn metric(&mut self, kind: &str, name: &str, label: Option<String>, help: &str, value: f64) {
        let name = format!("archipelago_{name}");
        let labels: Vec<String> = self.run.iter().map(|run| format!("run=\"{run}\"")).chain(label).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let at = self.metrics.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| {
            let about = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            self.metrics.push((name.clone(), about, String::new()));
            self.metrics.len() - 1
        });
        let _ = writeln!(self.metrics[at].2, "{name}{labels} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.metric("counter", name, None, help, value as f64);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.metric("gauge", name, None, help, value);
    }

    fn flag(&mut self, name: &str, help: &str, is_set: bool) {
        self.gauge(name, help, f64::from(u8::from(is_set)));
    }
}

/// Renders all metrics of `runs`. `now_ms` is in milliseconds since 1970.
fn render(runs: &[(Option<String>, ServerStatus)], now_ms: u64) -> String {
    let mut text = Text::default();
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    text.metric("gauge", "build_info", Some(version), "Always 1, with the version of the program.", 1.0);
    for (name, status) in runs {
        text.run.clone_from(name);
        training(&mut text, status);
        server(&mut text, status, now_ms);
    }
    text.metrics.into_iter().map(|(_, about, lines)| about + &lines).collect()
}

/// Adds the metrics of the training.
fn training(text: &mut Text, status: &ServerStatus) {
    let core = &status.core;
    text.counter("trained_tokens_total", "Tokens trained on by all learners.", core.tokens_trained);
    text.counter("merged_tokens_total", "Tokens merged.", core.tokens_merged);
    text.counter("rounds_merged_total", "Rounds that merged a version.", core.rounds);
    text.counter("rounds_abandoned_total", "Rounds that merged nothing.", core.rounds_abandoned);
    text.counter("updates_total", "Updates received.", core.updates);
    text.counter("updates_merged_total", "Updates merged.", core.fates.merged);
    text.counter("updates_late_total", "Updates that came late.", core.fates.late.values().sum());
    text.counter("updates_refused_total", "Updates refused.", core.fates.refused.values().sum());
    // Learners without merged updates may be removed, so this number can fall and is not a total.
    text.gauge("learners_known", "Learners known to the run.", core.learners_total.into());
    text.gauge("learners_connected", "Connected learners.", core.connected.into());
    text.gauge("learners_live", "Learners that take part in rounds.", core.live.into());
    text.gauge("participation_ratio", "Merged tokens over trained tokens.", core.participation);
    text.gauge("step_seconds", "Inner step time of the median live learner.", core.timing.step_ms / 1e3);
    text.gauge("quorum_seconds", "From the start of a round to its quorum.", core.timing.quorum_ms / 1e3);
    text.gauge("sync_seconds", "From the end of collecting to sending.", core.timing.sync_ms / 1e3);
    text.flag("paused", "1 while the owner has paused the run.", core.paused);
    text.flag("finished", "1 once the run is complete.", core.finished);
    if let Some(loss) = status.val_loss_last {
        text.gauge("held_out_loss_nats", "Held-out loss per token.", loss.into());
    }
    if let Some(loss) = core.train_loss {
        text.gauge("train_loss_nats", "Training loss per token, mean of connected learners.", loss.into());
    }
}

/// Adds the metrics of the server process.
fn server(text: &mut Text, status: &ServerStatus, now_ms: u64) {
    let (traffic, disk) = (&status.traffic, &status.disk);
    let ago = |seconds: f64| (now_ms as f64 / 1e3 - seconds).round();
    text.counter("up_bytes_total", "WebSocket bytes from learners while training.", traffic.bytes_up);
    text.counter("down_bytes_total", "WebSocket bytes to learners while training.", traffic.bytes_down);
    text.counter("join_bytes_total", "Bytes of joins and fetched parameters.", traffic.join_bytes);
    text.counter("data_bytes_total", "Bytes of fetched shards.", traffic.data_bytes);
    text.counter("tape_decisions_total", "Decisions on the disk.", disk.decisions);
    text.gauge("tape_update_bytes", "Updates of learners on the disk.", disk.update_bytes as f64);
    text.flag(
        "tape_fault",
        "1 while the disk accepts no writes and the run stands still.",
        disk.tape_fault.is_some(),
    );
    text.flag(
        "services_fault",
        "1 while the shared services of the run do not answer, and nothing is merged.",
        disk.services_fault.is_some(),
    );
    text.gauge("tape_unsaved_decisions", "Decisions that are not yet on the disk.", disk.unsaved as f64);
    if let Some(age_s) = disk.unsaved_age_s {
        let help = "Time of the oldest decision that is not yet on the disk, since 1970.";
        text.gauge("tape_unsaved_timestamp_seconds", help, ago(age_s));
    }
    text.flag(
        "snapshot_fault",
        "1 while the newest snapshot cannot be written.",
        disk.snapshot_fault.is_some(),
    );
    if let Some(age_s) = disk.snapshot_age_s {
        let help = "Time at which this process wrote its newest snapshot, since 1970.";
        text.gauge("snapshot_timestamp_seconds", help, ago(age_s));
    }
    text.gauge("sockets_open", "Open sockets.", status.sockets.into());
    text.gauge("start_time_seconds", "Start time of the server, since 1970.", ago(status.uptime_s));
}
