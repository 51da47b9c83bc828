//! Columns of the tables, and the status as text.

use serde_json::Value;

use super::folder::FolderStatus;
use super::text::{
    Column, UNKNOWN, ago, count, csv, duration, nats, number, participation, percent, plain, table, text,
};
use crate::status::view::{Evaluation, Point};
use crate::status::{AdapterFacts, AlertView, DiskView, LearnerView, LogView, SeriesView, ServerStatus};

/// Maximum number of rows in a history for people.
const HISTORY_ROWS: usize = 20;

/// Formats the value at a JSON pointer as a cell, which is empty if the value is unknown.
fn cell(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => plain(text),
        Some(other) => other.to_string(),
    }
}

/// CSV columns of a status, which is one row, so that statuses of different times can be joined to a table.
pub const STATUS_CSV: [Column<Value>; 19] = [
    text("run", |status| cell(status, "/run")),
    number("time (s)", |status| cell(status, "/runS")),
    number("learners in rounds", |status| cell(status, "/live")),
    number("learners connected", |status| cell(status, "/connected")),
    number("learners ever seen", |status| cell(status, "/learnersTotal")),
    number("tokens trained", |status| cell(status, "/tokensTrained")),
    number("tokens merged", |status| cell(status, "/tokensMerged")),
    number("participation (0 to 1)", |status| cell(status, "/participation")),
    number("rounds merged", |status| cell(status, "/rounds")),
    number("speed (tokens per s)", |status| cell(status, "/tokensPerS")),
    number("training loss (nats per token)", |status| cell(status, "/trainLoss")),
    number("first held-out loss (nats per token)", |status| cell(status, "/valLossFirst")),
    number("held-out loss (nats per token)", |status| cell(status, "/valLossLast")),
    number("last merge (s ago)", |status| cell(status, "/lastMergeAgeS")),
    text("paused", |status| cell(status, "/paused")),
    text("finished", |status| cell(status, "/finished")),
    text("fault of the disk", |status| cell(status, "/disk/tapeFault")),
    text("fault of the snapshot", |status| cell(status, "/disk/snapshotFault")),
    text("fault of the services", |status| cell(status, "/disk/servicesFault")),
];

/// CSV columns of the log.
pub const EVENTS_CSV: [Column<Value>; 5] = [
    number("time (ms since 1970)", |entry| cell(entry, "/atMs")),
    text("kind", |entry| cell(entry, "/kind")),
    number("learner", |entry| cell(entry, "/learner")),
    text("name", |entry| cell(entry, "/name")),
    text("what happened", |entry| cell(entry, "/text")),
];

/// Columns of the learners, with their contributions over all sessions.
pub const LEARNERS: [Column<LearnerView>; 10] = [
    number("no.", |one| one.learner.to_string()),
    text("name", |one| plain(&one.name)),
    text("kind", |one| one.kind.name().into()),
    text("state", |one| one.state_name().into()),
    number("tokens merged", |one| count(one.tokens_merged)),
    number("share", |one| percent(one.merged_share)),
    number("tokens trained", |one| count(one.tokens_trained)),
    number("updates merged", |one| count(one.fates.merged)),
    number("late", |one| count(one.fates.late.values().sum())),
    number("refused", |one| count(one.fates.refused.values().sum())),
];

/// CSV columns of the learners.
pub const LEARNERS_CSV: [Column<LearnerView>; 12] = [
    number("learner", |one| one.learner.to_string()),
    text("name", |one| plain(&one.name)),
    text("kind", |one| one.kind.name().into()),
    text("device", |one| plain(&one.device)),
    text("state", |one| one.state_name().into()),
    number("tokens merged", |one| one.tokens_merged.to_string()),
    number("share of merged tokens (0 to 1)", |one| one.merged_share.to_string()),
    number("tokens trained", |one| one.tokens_trained.to_string()),
    number("updates", |one| one.updates.to_string()),
    number("updates merged", |one| one.fates.merged.to_string()),
    number("updates late", |one| one.fates.late.values().sum::<u64>().to_string()),
    number("updates refused", |one| one.fates.refused.values().sum::<u64>().to_string()),
];

/// Columns of the log: the age of each event in seconds, and its text.
const EVENTS: [Column<(f64, String)>; 2] =
    [number("when", |(age_s, _)| ago(*age_s)), text("what happened", |(_, text)| text.clone())];

/// Renders the log as a table, newest event first.
pub fn events(log: LogView) -> String {
    let rows: Vec<(f64, String)> = log
        .entries
        .into_iter()
        .map(|entry| (log.now_ms.saturating_sub(entry.at_ms) as f64 / 1e3, plain(&entry.text)))
        .collect();
    if rows.is_empty() {
        return "No such events.".into();
    }
    table(&EVENTS, &rows)
}

/// A row of a history: a point, or a measurement of the held-out loss.
struct HistoryRow {
    point: Option<Point>,
    measured: Option<Evaluation>,
}

impl HistoryRow {
    /// Formats a value that both points and measurements have.
    fn shared<T: ToString>(&self, of_point: fn(&Point) -> T, of_measured: fn(&Evaluation) -> T) -> String {
        let measured = || self.measured.as_ref().map(of_measured);
        self.point.as_ref().map(of_point).or_else(measured).map(|value| value.to_string()).unwrap_or_default()
    }

    /// Formats a value that only points have.
    fn point<T: ToString>(&self, figure: fn(&Point) -> T) -> String {
        self.point.as_ref().map(|point| figure(point).to_string()).unwrap_or_default()
    }
}

/// CSV columns of a history. The column heads are those of the dashboard's file, so that the dashboard and this program
/// read each other's files.
const HISTORY_CSV: [Column<HistoryRow>; 10] = [
    number("time (s)", |row| row.shared(|point| point.time_s, |one| one.time_s)),
    number("tokens merged", |row| row.shared(|point| point.tokens_merged, |one| one.tokens_merged)),
    number("rounds merged", |row| row.shared(|point| point.rounds, |one| one.rounds)),
    number("training loss (nats per token)", |row| {
        let loss = row.point.as_ref().and_then(|point| point.train_loss);
        loss.map(|loss| loss.to_string()).unwrap_or_default()
    }),
    number("speed (tokens per s)", |row| row.point(|point| point.tokens_per_s)),
    number("participation (0 to 1)", |row| row.point(|point| point.participation)),
    number("learners in rounds", |row| row.point(|point| point.live)),
    number("from learners (bytes)", |row| row.point(|point| point.bytes_up)),
    number("to learners (bytes)", |row| row.point(|point| point.bytes_down)),
    number("held-out loss (nats per token)", |row| {
        row.measured.as_ref().map(|one| one.loss.to_string()).unwrap_or_default()
    }),
];

/// Renders a whole history as CSV, ordered by time: a row for each point and for each measurement.
pub fn history_csv(series: &SeriesView) -> String {
    let measured = series.evaluations.iter().map(|&one| (one.time_s, None, Some(one)));
    let points = series.points().map(|point| (point.time_s, Some(point), None));
    let mut rows: Vec<_> = measured.chain(points).collect();
    rows.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
    let rows: Vec<_> = rows.into_iter().map(|(_, point, measured)| HistoryRow { point, measured }).collect();
    csv(&HISTORY_CSV, &rows)
}

/// Columns of a history for people: points, each with the newest held-out loss at that time.
const HISTORY: [Column<(Point, Option<f32>)>; 7] = [
    number("time", |(point, _)| duration(point.time_s)),
    number("tokens merged", |(point, _)| count(point.tokens_merged)),
    number("training loss", |(point, _)| nats(point.train_loss)),
    number("held-out loss", |(_, loss)| nats(*loss)),
    number("tokens/s", |(point, _)| count(point.tokens_per_s.round() as u64)),
    number("participation", |(point, _)| participation(point.participation.into(), point.tokens_merged)),
    number("learners", |(point, _)| format!("{:.1}", point.live)),
];

/// Renders the history of a run as a table of at most [`HISTORY_ROWS`] rows, including the first and the last point.
pub fn history(series: &SeriesView) -> String {
    let points: Vec<Point> = series.points().collect();
    let shown = points.len().min(HISTORY_ROWS);
    let at = |row| row * points.len().saturating_sub(1) / shown.saturating_sub(1).max(1);
    let with_loss = |point: Point| {
        let measured = series.evaluations.iter().rev().find(|one| one.time_s <= point.time_s);
        (point, measured.map(|one| one.loss))
    };
    let rows: Vec<_> = (0..shown).map(|row| with_loss(points[at(row)])).collect();
    if rows.is_empty() { "Nothing has been measured yet.".into() } else { table(&HISTORY, &rows) }
}

/// Renders the status of a run. `server` is the same status if a running syncer sent it, with more fields.
pub fn status(status: &FolderStatus, server: Option<&ServerStatus>) -> String {
    let core = &status.core;
    let model = match server {
        Some(server) => format!(" ({}) on {}", server.facts.preset, plain(&server.facts.corpus)),
        None => String::new(),
    };
    let adapters = server.and_then(|server| server.facts.adapters.as_ref());
    let learners = match server {
        Some(_) => format!(
            "{} in rounds, {} connected, {} ever seen",
            core.live, core.connected, core.learners_total
        ),
        None => format!("{} ever seen; only a running syncer knows who is connected", core.learners_total),
    };
    let share = match core.tokens_trained {
        0 => UNKNOWN.to_owned(),
        _ => format!("{} of the trained tokens are in the model", percent(core.participation)),
    };
    let speed = server.map(|server| format!(", {} a second", count(server.tokens_per_s.round() as u64)));
    let tokens = format!(
        "{} trained, {} merged in {} rounds{}",
        count(core.tokens_trained),
        count(core.tokens_merged),
        count(core.rounds),
        speed.unwrap_or_default()
    );
    let loss = format!(
        "{} held out (first {}), {} in training; nats per token, lower is better",
        nats(status.val_loss_last),
        nats(status.val_loss_first),
        nats(core.train_loss)
    );
    let mut rows = vec![
        ("run", format!("{}, for {}", core.run, duration(status.run_s))),
        ("model", format!("{}{model}", parameters(core.params, adapters))),
        ("state", state(status, server).to_owned()),
        ("learners", learners),
        ("participation", share),
        ("tokens", tokens),
        ("loss", loss),
        ("last merge", status.last_merge_age_s.map_or_else(|| UNKNOWN.into(), ago)),
    ];
    if let Some(server) = server {
        rows.push(("disk", disk(&server.disk)));
        rows.extend(server.disk.services_fault.as_deref().map(|why| ("services", plain(why))));
        let alert = |AlertView { text, for_s, .. }: &AlertView| {
            ("ALERT", format!("{} On for {}.", plain(text), duration(*for_s)))
        };
        rows.extend(server.alerts.iter().map(alert));
    }
    rows.push(("finished", if core.finished { "yes" } else { "no" }.to_owned()));
    rows.iter().map(|(name, value)| format!("{name:<13}  {value}")).collect::<Vec<_>>().join("\n")
}

/// Describes the number of trained parameters, `params`. If the run trains adapters, `params` are those of `adapters`.
fn parameters(params: u64, adapters: Option<&AdapterFacts>) -> String {
    let trained = format!("{} parameters", count(params));
    let Some(AdapterFacts { rank, targets, frozen_params, .. }) = adapters else { return trained };
    let all = params + frozen_params;
    let share = percent(params as f64 / all.max(1) as f64);
    format!("{trained} of adapters of rank {rank} on {targets}, {share} of {}", count(all))
}

fn state(status: &FolderStatus, server: Option<&ServerStatus>) -> &'static str {
    let core = &status.core;
    match server {
        _ if core.finished => "complete",
        _ if core.finishing => "finishing: the last updates are being collected",
        _ if core.paused => "paused by its owner",
        None => "as of the newest decision in its folder",
        Some(server) if server.disk.tape_fault.is_some() => {
            "standing still: the syncer cannot write to its disk; learners train on what they have"
        }
        Some(server) if server.disk.services_fault.is_some() => "standing still: see services",
        Some(_) if core.live == 0 => "waiting for learners",
        Some(_) => "training",
    }
}

fn disk(disk: &DiskView) -> String {
    let snapshot = disk.snapshot_age_s.map(|age_s| format!("last snapshot {}", ago(age_s)));
    let snapshot = snapshot.unwrap_or_else(|| "no snapshot since the syncer started".into());
    match (&disk.tape_fault, &disk.snapshot_fault) {
        (Some(why), _) => format!("FAULT, the run stands still: {}", plain(why)),
        (None, Some(why)) => format!("FAULT, no snapshot was written: {}", plain(why)),
        (None, None) => format!("fine; {snapshot}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Renders the status of a running syncer.
    fn shown(server: &ServerStatus) -> String {
        let common = serde_json::from_value(serde_json::to_value(server).unwrap()).unwrap();
        status(&common, Some(server))
    }

    #[test]
    fn adapters_are_shown_with_their_share() {
        let mut server = ServerStatus::default();
        server.core.params = 1_000;
        let facts = json!({
            "rank": 8, "alpha": 16.0, "targets": "q,v", "frozenParams": 99_000, "frozenBytes": 1, "frozenForm": "int8",
        });
        server.facts.adapters = Some(serde_json::from_value(facts).unwrap());
        let shown = shown(&server);
        assert!(shown.contains("1,000 parameters of adapters of rank 8 on q,v, 1.0 % of 100,000"), "{shown}");
    }

    #[test]
    fn a_run_whose_disk_is_full_is_not_in_training() {
        let mut server = ServerStatus::default();
        server.core.live = 1;
        assert!(shown(&server).contains("state          training"));
        server.disk.tape_fault = Some("no space left on device".into());
        let text = shown(&server);
        assert!(text.contains("state          standing still") && !text.contains("training\n"), "{text}");
        server.disk.tape_fault = None;
        server.disk.services_fault = Some("NATS does not answer".into());
        let text = shown(&server);
        assert!(text.contains("standing still") && text.contains("services       NATS does"), "{text}");
    }

    #[test]
    fn unknown_figures_are_empty_cells() {
        let status = json!({"run": "ab", "live": 2, "paused": false, "disk": {"tapeFault": "full, alas"}});
        let text = csv(&STATUS_CSV, &[status]);
        let (heads, row) = text.split_once("\r\n").unwrap();
        assert_eq!(heads.split(',').count(), STATUS_CSV.len());
        assert_eq!(row, "ab,,2,,,,,,,,,,,,false,,\"full, alas\",,");
        assert_eq!(csv(&EVENTS_CSV, &[]).lines().count(), 1);
    }
}
