//! The answers of the routes as tables.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::model::{Adapters, parameters};
use super::text::{Side, UNKNOWN, ago, count, csv, duration, nats, participation, percent, plain, table};

/// Maximum number of rows in a history for people.
const HISTORY_ROWS: usize = 20;

/// The part of `/v1/status` that is shown. Fields that a folder does not provide are optional.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    run: String,
    params: u64,
    connected: u32,
    live: u32,
    learners_total: u32,
    tokens_trained: u64,
    tokens_merged: u64,
    participation: f64,
    rounds: u64,
    train_loss: Option<f64>,
    val_loss_first: Option<f64>,
    val_loss_last: Option<f64>,
    paused: bool,
    finishing: bool,
    finished: bool,
    run_s: f64,
    last_merge_age_s: Option<f64>,
    tokens_per_s: Option<f64>,
    preset: Option<String>,
    adapters: Option<Adapters>,
    corpus: Option<String>,
    disk: Option<Disk>,
    alerts: Option<Vec<Alert>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    text: String,
    for_s: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Disk {
    tape_fault: Option<String>,
    services_fault: Option<String>,
    snapshot_fault: Option<String>,
    snapshot_age_s: Option<f64>,
}

/// Renders the status of a run.
pub fn status(json: &Value) -> Result<String, serde_json::Error> {
    let status = Status::deserialize(json)?;
    let model = match (&status.preset, &status.corpus) {
        (Some(preset), Some(corpus)) => format!(" ({preset}) on {}", plain(corpus)),
        _ => String::new(),
    };
    let is_asked = status.disk.is_some();
    let learners = match is_asked {
        true => format!(
            "{} in rounds, {} connected, {} ever seen",
            status.live, status.connected, status.learners_total
        ),
        false => {
            format!("{} ever seen; who is there now, only a running syncer knows", status.learners_total)
        }
    };
    let speed = status.tokens_per_s.map(|speed| format!(", {} a second", count(speed.round() as u64)));
    let mut rows = vec![
        ("run", format!("{}, for {}", status.run, duration(status.run_s))),
        ("model", format!("{}{model}", parameters(status.params, status.adapters.as_ref()))),
        ("state", state(&status, is_asked).to_owned()),
        ("learners", learners),
        ("participation", merged_share(&status)),
        (
            "tokens",
            format!(
                "{} trained, {} merged in {} rounds{}",
                count(status.tokens_trained),
                count(status.tokens_merged),
                count(status.rounds),
                speed.unwrap_or_default()
            ),
        ),
        (
            "loss",
            format!(
                "{} held out (first {}), {} in training; nats per token, lower is better",
                nats(status.val_loss_last),
                nats(status.val_loss_first),
                nats(status.train_loss)
            ),
        ),
        ("last merge", status.last_merge_age_s.map_or_else(|| UNKNOWN.into(), ago)),
    ];
    if let Some(disk) = &status.disk {
        rows.push(("disk", disk_words(disk)));
        rows.extend(disk.services_fault.as_deref().map(|why| ("services", plain(why))));
    }
    for Alert { text, for_s } in status.alerts.iter().flatten() {
        rows.push(("ALERT", format!("{} On for {}.", plain(text), duration(*for_s))));
    }
    rows.push(("finished", if status.finished { "yes" } else { "no" }.to_owned()));
    Ok(rows.iter().map(|(name, value)| format!("{name:<13}  {value}")).collect::<Vec<_>>().join("\n"))
}

/// Returns the share of trained tokens that is merged into the model, in words.
fn merged_share(status: &Status) -> String {
    match status.tokens_trained {
        0 => UNKNOWN.to_owned(),
        _ => format!("{} of what was trained is in the model", percent(status.participation)),
    }
}

fn state(status: &Status, is_asked: bool) -> &'static str {
    match status {
        Status { finished: true, .. } => "complete",
        Status { finishing: true, .. } => "finishing: the last progress is being collected",
        Status { paused: true, .. } => "paused by its owner",
        Status { disk: Some(Disk { tape_fault: Some(_), .. }), .. } => {
            "standing still: the syncer's disk takes nothing, and learners train on what they have"
        }
        Status { disk: Some(Disk { services_fault: Some(_), .. }), .. } => "standing still: see services",
        _ if !is_asked => "as of the newest decision in its folder",
        Status { live: 0, .. } => "waiting for learners",
        _ => "training",
    }
}

fn disk_words(disk: &Disk) -> String {
    let snapshot = disk.snapshot_age_s.map(|age_s| format!("last snapshot {}", ago(age_s)));
    let snapshot = snapshot.unwrap_or_else(|| "no snapshot since the syncer started".into());
    match (&disk.tape_fault, &disk.snapshot_fault) {
        (Some(why), _) => format!("FAULT, the run stands still: {}", plain(why)),
        (None, Some(why)) => format!("FAULT, no snapshot was written: {}", plain(why)),
        (None, None) => format!("fine; {snapshot}"),
    }
}

/// The JSON of `/v1/series`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Series {
    time_s: Vec<f64>,
    tokens_merged: Vec<u64>,
    rounds: Vec<u64>,
    train_loss: Vec<Option<f64>>,
    tokens_per_s: Vec<f64>,
    participation: Vec<f64>,
    live: Vec<f64>,
    bytes_up: Vec<u64>,
    bytes_down: Vec<u64>,
    evaluations: Vec<Evaluation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Evaluation {
    time_s: f64,
    tokens_merged: u64,
    rounds: u64,
    loss: f64,
}

/// Renders the history of a run in at most [`HISTORY_ROWS`] rows, including the first and the last point.
pub fn history(json: &Value) -> Result<String, serde_json::Error> {
    let series = Series::deserialize(json)?;
    let points = series.time_s.len();
    let shown = points.min(HISTORY_ROWS);
    let mut rows = Vec::new();
    for at in (0..shown).map(|row| row * points.saturating_sub(1) / shown.saturating_sub(1).max(1)) {
        let Some(&time_s) = series.time_s.get(at) else { continue };
        let measured = series.evaluations.iter().rev().find(|one| one.time_s <= time_s);
        let figure = |column: &[f64]| column.get(at).copied().unwrap_or_default();
        rows.push(vec![
            duration(time_s),
            count(series.tokens_merged.get(at).copied().unwrap_or_default()),
            nats(series.train_loss.get(at).copied().flatten()),
            nats(measured.map(|one| one.loss)),
            count(figure(&series.tokens_per_s).round() as u64),
            participation(
                figure(&series.participation),
                series.tokens_merged.get(at).copied().unwrap_or_default(),
            ),
            format!("{:.1}", figure(&series.live)),
        ]);
    }
    if rows.is_empty() {
        return Ok("Nothing has been measured yet.".into());
    }
    let heads = [
        ("time", Side::Right),
        ("tokens merged", Side::Right),
        ("training loss", Side::Right),
        ("held-out loss", Side::Right),
        ("tokens/s", Side::Right),
        ("participation", Side::Right),
        ("learners", Side::Right),
    ];
    Ok(table(&heads, &rows))
}

/// Heads of the dashboard's file, so that each program reads the files of the other.
const HISTORY_HEADS: [&str; 10] = [
    "time (s)",
    "tokens merged",
    "rounds merged",
    "training loss (nats per token)",
    "speed (tokens per s)",
    "participation (0 to 1)",
    "learners in rounds",
    "from learners (bytes)",
    "to learners (bytes)",
    "held-out loss (nats per token)",
];

/// Renders a whole history: a row for each point and for each measurement, by time.
pub fn history_csv(json: &Value) -> Result<String, serde_json::Error> {
    let series = Series::deserialize(json)?;
    let mut rows: Vec<(f64, Vec<String>)> = series
        .evaluations
        .iter()
        .map(|one| {
            let mut cells = vec![String::new(); HISTORY_HEADS.len()];
            cells[0] = one.time_s.to_string();
            cells[1] = one.tokens_merged.to_string();
            cells[2] = one.rounds.to_string();
            cells[9] = one.loss.to_string();
            (one.time_s, cells)
        })
        .collect();
    for (at, time_s) in series.time_s.iter().enumerate() {
        let total = |column: &[u64]| column.get(at).map(u64::to_string).unwrap_or_default();
        let figure = |column: &[f64]| column.get(at).map(f64::to_string).unwrap_or_default();
        let loss = series.train_loss.get(at).copied().flatten();
        let cells = vec![
            time_s.to_string(),
            total(&series.tokens_merged),
            total(&series.rounds),
            loss.map(|loss| loss.to_string()).unwrap_or_default(),
            figure(&series.tokens_per_s),
            figure(&series.participation),
            figure(&series.live),
            total(&series.bytes_up),
            total(&series.bytes_down),
            String::new(),
        ];
        rows.push((*time_s, cells));
    }
    rows.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(_, cells)| cells).collect();
    Ok(csv(&HISTORY_HEADS, &rows).trim_end().to_owned())
}

/// A learner in `/v1/learners`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Learner {
    learner: u32,
    name: String,
    kind: String,
    device: String,
    state: Option<String>,
    tokens_trained: u64,
    tokens_merged: u64,
    merged_share: f64,
    updates: u64,
    fates: Fates,
}

#[derive(Deserialize)]
struct Fates {
    merged: u64,
    late: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
}

/// Renders the learners with their contributions over all sessions.
pub fn learners(json: &[Value]) -> Result<String, serde_json::Error> {
    let heads = [
        ("no.", Side::Right),
        ("name", Side::Left),
        ("kind", Side::Left),
        ("state", Side::Left),
        ("tokens merged", Side::Right),
        ("share", Side::Right),
        ("tokens trained", Side::Right),
        ("updates merged", Side::Right),
        ("late", Side::Right),
        ("refused", Side::Right),
    ];
    let mut rows = Vec::new();
    for one in json {
        let one = Learner::deserialize(one)?;
        rows.push(vec![
            one.learner.to_string(),
            plain(&one.name),
            one.kind,
            one.state.unwrap_or_else(|| "away".into()),
            count(one.tokens_merged),
            percent(one.merged_share),
            count(one.tokens_trained),
            count(one.fates.merged),
            count(one.fates.late.values().sum()),
            count(one.fates.refused.values().sum()),
        ]);
    }
    if rows.is_empty() { Ok("Nobody has taken part yet.".into()) } else { Ok(table(&heads, &rows)) }
}

/// Renders the same as [`learners`] for programs.
pub fn learners_csv(json: &[Value]) -> Result<String, serde_json::Error> {
    let heads = [
        "learner",
        "name",
        "kind",
        "device",
        "state",
        "tokens merged",
        "share of merged tokens (0 to 1)",
        "tokens trained",
        "updates",
        "updates merged",
        "updates late",
        "updates refused",
    ];
    let mut rows = Vec::new();
    for one in json {
        let one = Learner::deserialize(one)?;
        rows.push(vec![
            one.learner.to_string(),
            plain(&one.name),
            one.kind,
            plain(&one.device),
            one.state.unwrap_or_else(|| "away".into()),
            one.tokens_merged.to_string(),
            one.merged_share.to_string(),
            one.tokens_trained.to_string(),
            one.updates.to_string(),
            one.fates.merged.to_string(),
            one.fates.late.values().sum::<u64>().to_string(),
            one.fates.refused.values().sum::<u64>().to_string(),
        ]);
    }
    Ok(csv(&heads, &rows).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_told_with_their_share() {
        let json = serde_json::json!({
            "run": "ab", "params": 1_000, "connected": 1, "live": 1, "learnersTotal": 1, "tokensTrained": 0,
            "tokensMerged": 0, "participation": 0, "rounds": 0, "paused": false, "finishing": false,
            "finished": false, "runS": 1, "adapters": { "rank": 8, "targets": "q,v", "frozenParams": 99_000 },
        });
        let shown = status(&json).unwrap();
        assert!(shown.contains("of adapters of rank 8 on q,v, 1"), "{shown}");
    }

    #[test]
    fn a_run_whose_disk_is_full_is_not_in_training() {
        let mut json = serde_json::json!({
            "run": "ab", "params": 1, "connected": 1, "live": 1, "learnersTotal": 1, "tokensTrained": 0,
            "tokensMerged": 0, "participation": 0, "rounds": 0, "paused": false, "finishing": false,
            "finished": false, "runS": 1, "disk": { "tapeFault": null },
        });
        assert!(status(&json).unwrap().contains("state          training"));
        json["disk"]["tapeFault"] = "no space left on device".into();
        let shown = status(&json).unwrap();
        assert!(shown.contains("state          standing still") && !shown.contains("training\n"), "{shown}");
        json["disk"] = serde_json::json!({ "tapeFault": null, "servicesFault": "NATS does not answer" });
        let shown = status(&json).unwrap();
        assert!(shown.contains("standing still") && shown.contains("services       NATS does"), "{shown}");
    }
}
