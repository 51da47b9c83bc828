//! Report files of a run: its series as lines of JSON and as a TensorBoard event file, and a self-contained page.
//!
//! | file | concept |
//! |---|---|
//! | `page` | `report.html`, and an HTML writer that escapes foreign text |
//! | `tensorboard` | event files of TensorBoard |

mod page;
mod tensorboard;

use std::cmp::Reverse;
use std::path::Path;

use archipelago_core::diloco::Account;
use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::wire::{LearnerId, RunId, RunSpec};
use serde::Serialize;

use crate::errors::ServerError;
use crate::status::{Evaluation, Point, RunStatistics, hidden_name, view};
use crate::store::{Store, decoder, write_file};
use crate::tape::later_figures;

pub(crate) use page::Html;
pub use page::page;
pub(crate) use page::{HEAD, curve};
pub use tensorboard::tensorboard;

/// Destinations and options of reports.
#[derive(Clone, Copy, Debug)]
pub struct Reports<'a> {
    /// Existing folder for `history.jsonl` and `report.html`.
    pub out: &'a Path,
    /// Folder for a TensorBoard event file, if requested. It is created if missing.
    pub tensorboard: Option<&'a Path>,
    /// True if numbers replace the names of learners.
    pub hides_names: bool,
}

/// Writes reports on the newest snapshot of the run in `dir`.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: the folder has no run, or no snapshot of it.
/// - `DirCorrupt`: no snapshot is intact.
/// - `Disk`: a file cannot be read or written.
pub fn report(dir: &Path, reports: Reports<'_>) -> Result<(), ServerError> {
    let store = Store::open_read_only(dir);
    let none = || ServerError::NoSnapshot { dir: dir.to_owned() };
    let manifest = store.begun()?;
    let snapshot = store.latest(manifest.run)?.ok_or_else(none)?;
    let params = manifest.layout()?.len() as u64;
    let statistics = later_figures(&store, manifest.run, snapshot.statistics)?;
    let report = RunReport::new(&snapshot.record, params, statistics, reports.hides_names);
    write_file(&reports.out.join("history.jsonl"), history_lines(&report.statistics).as_bytes())?;
    write_file(&reports.out.join("report.html"), page(&report).as_bytes())?;
    let written_s = modified_s(&store.dir().join("snapshots"));
    reports.tensorboard.map_or(Ok(()), |folder| tensorboard(&report, folder, written_s).map(drop))
}

/// Returns the time of the last change in `folder`, in seconds since 1970; 0 if the system does not report it.
fn modified_s(folder: &Path) -> f64 {
    let modified = std::fs::metadata(folder).and_then(|metadata| metadata.modified());
    let since = modified.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.unwrap_or_default().as_secs_f64()
}

/// Data of a report on a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Id of the run.
    pub run: RunId,
    /// Specification of the run.
    pub spec: RunSpec,
    /// Number of parameters that the run trains.
    pub params: u64,
    /// True if the model is the built-in decoder.
    pub is_decoder: bool,
    /// True if the run is complete.
    pub is_over: bool,
    /// Number of rounds that ended with a merge.
    pub rounds: u64,
    /// Merged tokens.
    pub tokens_merged: u64,
    /// Participation: merged over trained tokens, 0 to 1.
    pub participation: f64,
    /// Learners, in descending order of merged tokens.
    pub contributors: Vec<Contributor>,
    /// Series, measurements and generated texts.
    pub statistics: RunStatistics,
}

/// A learner and its contribution to the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contributor {
    /// Name of the learner.
    pub name: String,
    /// The learner's own description of its device.
    pub device: String,
    /// Merged tokens of the learner.
    pub tokens_merged: u64,
    /// Number of updates that the learner sent.
    pub updates: u64,
}

impl RunReport {
    /// Creates the data of a report from `record` and `statistics`. `params` is the number of trained parameters. If
    /// `hides_names`, numbers replace the learners' names, and devices are left out.
    #[must_use]
    pub fn new(record: &SyncerRecord, params: u64, statistics: RunStatistics, hides_names: bool) -> Self {
        let ledger = &record.ledger;
        let contributor = |(learner, account): (LearnerId, &Account)| Contributor {
            name: if hides_names { hidden_name(learner) } else { account.name.clone() },
            device: if hides_names { String::new() } else { account.device.clone() },
            tokens_merged: ledger.tokens_merged(account),
            updates: account.updates,
        };
        let mut contributors: Vec<Contributor> = ledger.accounts().map(contributor).collect();
        contributors.sort_by_key(|contributor| Reverse(contributor.tokens_merged));
        Self {
            run: record.run,
            spec: record.spec.clone(),
            params,
            is_decoder: decoder(&record.spec.model).is_ok_and(|decoder| decoder.is_some()),
            is_over: record.finished,
            rounds: record.rounds_merged,
            tokens_merged: ledger.clock_tokens(),
            participation: ledger.participation(),
            contributors,
            statistics,
        }
    }
}

/// Line of `history.jsonl` for a measurement of the held-out loss.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Measurement {
    time_s: f64,
    tokens_merged: u64,
    rounds: u64,
    val_loss: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_by: Option<LearnerId>,
}

/// Renders `history.jsonl`: one JSON object per line, ordered by time, with the names and units of `/v1/series`. Lines
/// with `valLoss` are measurements of the held-out loss; all others are points of the series.
#[must_use]
pub fn history_lines(statistics: &RunStatistics) -> String {
    let point = |point: &Point| {
        let line = serde_json::to_string(&view::Point::from(*point)).expect("plain data");
        (point.time_s, line)
    };
    let measured = |one: &Evaluation| {
        let Evaluation { time_s, tokens_merged, rounds, loss, measured_by } = *one;
        let line = Measurement { time_s, tokens_merged, rounds, val_loss: loss, measured_by };
        (time_s, serde_json::to_string(&line).expect("plain data"))
    };
    let points = statistics.series.points().map(point);
    let mut lines: Vec<_> = points.chain(statistics.history.evaluations.iter().map(measured)).collect();
    lines.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    lines.into_iter().map(|(_, line)| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use archipelago_core::diloco::syncer::{Syncer, SyncerConfig};
    use archipelago_core::wire::{DataSpec, ShardSpec};

    use super::*;

    /// Creates the data of a run that has merged nothing yet, with these statistics.
    pub(in crate::report) fn report_of(statistics: RunStatistics) -> RunReport {
        let config = crate::ServeConfig::default();
        let shards = vec![ShardSpec { tokens: 100_000, sha256: [7; 32] }];
        let data = DataSpec { token_bytes: 2, masks: false, shards };
        let model = crate::config::preset(&config).unwrap().model(256).into();
        let spec = crate::config::run_spec(&config, model, data).unwrap();
        let layout = crate::prepare::layout(&spec).unwrap();
        let theta = vec![0.0; layout.len()];
        let syncer = Syncer::new(RunId(7), spec, SyncerConfig::default(), &layout, &theta).unwrap();
        RunReport::new(&syncer.record_amid(), layout.len() as u64, statistics, false)
    }

    fn contributor(name: &str, tokens_merged: u64) -> Contributor {
        Contributor { name: name.into(), device: "cpu".into(), tokens_merged, updates: 1 }
    }

    #[test]
    fn foreign_text_is_escaped() {
        let mut report = report_of(RunStatistics::default());
        report.contributors = vec![contributor("</td><script>alert(1)</script>", 3)];
        report.tokens_merged = 4;
        report.statistics.corpus = "<img src=x>".into();
        let evaluation =
            Evaluation { tokens_merged: 1, rounds: 1, loss: 2.0, time_s: 1.0, measured_by: None };
        report.statistics.history.push(evaluation, Some("</pre><script>".into()));
        let page = page(&report);
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert!(
            page.contains("&lt;/td&gt;&lt;script&gt;alert(1)") && page.contains("&lt;/pre&gt;"),
            "{page}"
        );
        assert!(page.contains("75.0 %"), "{page}");
    }

    #[test]
    fn the_page_loads_nothing() {
        let page = page(&report_of(RunStatistics::default()));
        for outside in ["src=", "href=", "url(", "@import", "https://"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("not measured") && page.contains("No learner yet."));
    }

    #[test]
    fn the_page_has_curves_and_settings() {
        let mut statistics = RunStatistics::default();
        for rounds in 0..40 {
            let evaluation = Evaluation {
                tokens_merged: 1_000 * rounds,
                rounds,
                loss: 5.0,
                time_s: rounds as f64,
                measured_by: None,
            };
            statistics.history.push(evaluation, Some(format!("text {rounds}.")));
            let point = Point { time_s: rounds as f64, train_loss: Some(4.0), live: 2.0, ..Point::default() };
            statistics.series.push(point);
        }
        let page = page(&report_of(statistics));
        assert_eq!(page.matches("class=\"line\"").count(), 3, "two of losses and one of learners");
        assert_eq!(page.matches("at a held-out loss of").count(), 8);
        assert!(page.contains("text 0.") && page.contains("text 39."));
        assert!(page.contains("exchange.sync_every") && page.contains("model.layers"));
    }

    #[test]
    fn many_contributors_are_summed_up() {
        let mut report = report_of(RunStatistics::default());
        report.contributors = (0..250).map(|number| contributor(&format!("learner {number}."), 10)).collect();
        report.tokens_merged = 2_500;
        let page = page(&report);
        assert!(page.contains("learner 199.") && !page.contains("learner 200."));
        assert!(page.contains("50 more") && page.contains("20.0 %"));
    }

    #[test]
    fn points_and_measurements_are_in_the_order_of_time() {
        let mut statistics = RunStatistics::default();
        for second in [1.0, 3.0] {
            let (train_loss, live) = ((second > 2.0).then_some(1.5), 2.0);
            statistics.series.push(Point {
                time_s: second,
                train_loss,
                live,
                tokens_merged: 7,
                ..Point::default()
            });
        }
        let evaluation = Evaluation {
            tokens_merged: 7,
            rounds: 4,
            loss: 2.5,
            time_s: 2.0,
            measured_by: Some(LearnerId(3)),
        };
        statistics.history.push(evaluation, None);
        let rest = r#""tokensPerS":0.0,"participation":0.0,"live":2.0,"bytesUp":0,"bytesDown":0"#;
        let rest = format!(r#"{rest},"tokensMerged":7,"rounds":0}}"#);
        let expected = [
            format!(r#"{{"timeS":1.0,"trainLoss":null,{rest}"#),
            r#"{"timeS":2.0,"tokensMerged":7,"rounds":4,"valLoss":2.5,"measuredBy":3}"#.to_owned(),
            format!(r#"{{"timeS":3.0,"trainLoss":1.5,{rest}"#),
        ];
        assert_eq!(history_lines(&statistics).lines().collect::<Vec<_>>(), expected);
        assert_eq!(history_lines(&RunStatistics::default()), "");
    }
}
