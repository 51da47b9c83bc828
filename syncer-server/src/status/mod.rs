//! Run status as JSON: the core's status and the figures that only the server knows.

mod alerts;
mod disk;
mod history;
mod learners;
mod log;
mod rounds;
mod series;
mod tracker;
#[cfg(test)]
mod types;
pub mod view;

use archipelago_core::wire::LearnerId;
use serde::{Deserialize, Serialize};

use crate::meters::Traffic;

pub use alerts::{AlertChange, AlertKind, AlertTerms, AlertView, Alerts, Sight};
pub use disk::{Disk, DiskView, Taped};
pub use history::{Evaluation, History, SAMPLES_MAX, Samples, TextSample};
pub use learners::{
    DeviceKind, FOREMOST_MAX, LearnerView, LearnersByState, LearnersPage, LearnersQuery, PAGE_MAX, Sort,
    Trust, hidden_name, learners_of,
};
pub use log::{EventLog, LOG_MAX, LogEntry, LogEntryView, LogEvent, LogKind, LogQuery, LogView, log_of};
pub use rounds::{Answer, AnswerFate, MergedReport, RoundReport, Rounds, RoundsView};
pub use series::{POINTS_MAX, Point, PointEvent, Series, SeriesView, series_of};
pub use series::{RATE_WINDOW_MS, Rate};
pub use tracker::StatusTracker;
pub use view::AdapterFacts;

/// Figures that the server accumulates over all its starts. Snapshots and the tape's file both keep them; the tape's
/// file is updated more often.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carried {
    /// Traffic on the sockets.
    pub traffic: Traffic,
    /// Measurements of the held-out loss.
    pub history: History,
    /// The course of the run.
    pub series: Series,
    /// Time that the run's syncers were up, in seconds.
    pub run_s: f64,
    /// Source of the text, as in the status; empty if no snapshot has recorded it yet.
    pub corpus: String,
}

impl Carried {
    /// Returns the later of the two by the run's clock.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        if other.run_s > self.run_s { other } else { self }
    }
}

/// Constant facts about the run and its server.
#[derive(Clone, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RunFacts {
    /// The preset's name.
    pub preset: String,
    /// Name of the folder whose model the run started from, if any; the run has the size of that model.
    pub init: Option<String>,
    /// The adapters and their frozen weights, if the run trains adapters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub adapters: Option<AdapterFacts>,
    /// Source of the text.
    pub corpus: String,
    /// Tokens to train on.
    pub corpus_tokens: u64,
    /// Bytes of text per token, on average.
    pub bytes_per_token: f64,
    /// Whether a token is a byte, so that a page can decode it without a request.
    pub token_is_byte: bool,
    /// Lower bound of any model's loss in nats per token, if the text's distribution is known.
    pub entropy_floor: Option<f64>,
    /// Tokens at which the learning rate reaches its minimum.
    pub total_tokens: u64,
    /// Whether learners must show an invite.
    pub invite_required: bool,
    /// Whether the run is for a class: pages show how to join, and the owner steers single learners.
    pub classroom: bool,
    /// Whether the learners' names and devices are hidden.
    pub names_hidden: bool,
    /// Pages to lend a machine, best first, without the invite.
    pub links: Vec<String>,
}

/// A run at one moment, as in `/v1/status`, the event `status` and the last line of `--json`.
#[derive(Clone, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ServerStatus {
    /// State of the core.
    #[serde(flatten)]
    pub core: view::Run,
    /// Constant facts.
    #[serde(flatten)]
    pub facts: RunFacts,
    /// Traffic on the sockets.
    #[serde(flatten)]
    pub traffic: view::Traffic,
    /// Socket bits per uploaded parameter.
    pub bits_per_param_up: Option<f64>,
    /// Socket bits per downloaded parameter.
    pub bits_per_param_down: Option<f64>,
    /// Tokens that all learners trained per second, over the last 10 seconds.
    pub tokens_per_s: f64,
    /// Time since the newest merge of this process, in seconds.
    pub last_merge_age_s: Option<f64>,
    /// Held-out loss before training, in nats per token.
    pub val_loss_first: Option<f32>,
    /// Newest held-out loss, in nats per token.
    pub val_loss_last: Option<f32>,
    /// The trusted learner that measured the newest loss, if the syncer cannot measure it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub val_measured_by: Option<LearnerId>,
    /// Text that the newest parameters wrote.
    pub sample: String,
    /// The foremost learners, sorted by id. Connected learners take precedence, then those with the most merged tokens.
    pub learners: Vec<LearnerView>,
    /// Number of all learners ever seen, by state.
    pub learners_by_state: LearnersByState,
    /// Open sockets, with or without a learner.
    pub sockets: u32,
    /// State of tape and snapshots on disk.
    pub disk: DiskView,
    /// Active alerts for the owner.
    pub alerts: Vec<AlertView>,
    /// Time since the server started, in seconds.
    pub uptime_s: f64,
    /// Time that the run's syncers were up, in seconds; [`SeriesView::time_s`] is on this clock.
    pub run_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run whose held-out loss is no longer a number can be resumed.
    #[test]
    fn snapshots_of_a_run_that_diverged_load() {
        let mut carried = Carried::default();
        for loss in [3.5, f32::NAN] {
            carried.history.push(Evaluation { loss, ..Evaluation::default() }, Some("text".into()));
        }
        let json = serde_json::to_string(&carried).unwrap();
        let history = serde_json::from_str::<Carried>(&json).unwrap().history;
        assert_eq!((history.first(), history.best()), (Some(3.5), Some(3.5)));
        assert!(history.last().unwrap().is_nan());
    }
}
