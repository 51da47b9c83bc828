//! Status of a run as JSON: the core's status, and statistics that only the server has.

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

pub use alerts::{AlertChange, AlertInputs, AlertKind, AlertTerms, AlertView, Alerts};
pub use disk::{Disk, DiskView, Taped};
pub use history::{Evaluation, History, SAMPLES_MAX, Samples, TextSample};
pub use learners::{
    DeviceKind, LearnerView, LearnersByState, LearnersPage, LearnersQuery, PAGE_MAX, Sort, TOP_LEARNERS_MAX,
    Trust, hidden_name, learners_of,
};
pub use log::{EventLog, LOG_MAX, LogEntry, LogEntryView, LogEvent, LogKind, LogQuery, LogView, log_of};
pub use rounds::{Answer, AnswerFate, MergedReport, RoundReport, Rounds, RoundsView};
pub use series::{POINTS_MAX, Point, PointEvent, Series, SeriesView, series_of};
pub use series::{RATE_WINDOW_MS, Rate};
pub use tracker::StatusTracker;
pub use view::AdapterFacts;

/// Statistics that the server accumulates over all its starts. Both the snapshots and the tape's file store them; those
/// in the tape's file are updated more often.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunStatistics {
    /// Traffic on the WebSockets.
    pub traffic: Traffic,
    /// Measurements of the held-out loss.
    pub history: History,
    /// Time series of the run.
    pub series: Series,
    /// Total uptime of the run's syncers, in seconds.
    pub run_s: f64,
    /// Name of the text, as in the status; empty if no snapshot has recorded it yet.
    pub corpus: String,
}

impl RunStatistics {
    /// Returns the one of the two with the longer total uptime.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        if other.run_s > self.run_s { other } else { self }
    }
}

/// Facts about the run and its server that do not change.
#[derive(Clone, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RunFacts {
    /// Name of the preset.
    pub preset: String,
    /// Name of the folder whose model the run started from, if any. The run's model then has the size of that model.
    pub init: Option<String>,
    /// Facts about adapters and frozen weights, if the run trains adapters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub adapters: Option<AdapterFacts>,
    /// Name of the text.
    pub corpus: String,
    /// Number of training tokens in the text.
    pub corpus_tokens: u64,
    /// Bytes of text per token, on average.
    pub bytes_per_token: f64,
    /// True if each token is a byte, so that a page can decode tokens without a request.
    pub token_is_byte: bool,
    /// Lower bound of the held-out loss of any model, in nats per token, if the text's distribution is known.
    pub entropy_floor: Option<f64>,
    /// Merged tokens at which the learning rate reaches its minimum.
    pub total_tokens: u64,
    /// True if learners must present an invite.
    pub invite_required: bool,
    /// True if the run is for a class: pages show how to join, and the owner controls single learners.
    pub classroom: bool,
    /// True if the names and devices of learners are hidden.
    pub names_hidden: bool,
    /// Links to the page for joining, best first, without the invite.
    pub links: Vec<String>,
}

/// Status of a run, as in `/v1/status`, the event `status` and the last line of `--json`.
#[derive(Clone, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ServerStatus {
    /// State of the core.
    #[serde(flatten)]
    pub core: view::Run,
    /// Facts that do not change.
    #[serde(flatten)]
    pub facts: RunFacts,
    /// Traffic on the WebSockets.
    #[serde(flatten)]
    pub traffic: view::Traffic,
    /// WebSocket bits per uploaded parameter.
    pub bits_per_param_up: Option<f64>,
    /// WebSocket bits per downloaded parameter.
    pub bits_per_param_down: Option<f64>,
    /// Tokens that all learners together trained per second, over the last 10 seconds.
    pub tokens_per_s: f64,
    /// Time since the newest merge in this process, in seconds.
    pub last_merge_age_s: Option<f64>,
    /// Held-out loss before training, in nats per token.
    pub val_loss_first: Option<f32>,
    /// Newest held-out loss, in nats per token.
    pub val_loss_last: Option<f32>,
    /// Trusted learner that measured the newest loss, if the syncer cannot measure it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub val_measured_by: Option<LearnerId>,
    /// Newest text that the model generated.
    pub sample: String,
    /// The most relevant learners, in order of number. Connected learners take precedence, then those with the most
    /// merged tokens.
    pub learners: Vec<LearnerView>,
    /// Number of learners in each state, of all learners ever seen.
    pub learners_by_state: LearnersByState,
    /// Open WebSockets, with or without a learner.
    pub sockets: u32,
    /// State of tape, snapshots and shared services.
    pub disk: DiskView,
    /// Active alerts for the owner.
    pub alerts: Vec<AlertView>,
    /// Time since the server started, in seconds.
    pub uptime_s: f64,
    /// Total uptime of the run's syncers, in seconds, as in [`SeriesView::time_s`].
    pub run_s: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run whose held-out loss is NaN can be resumed.
    #[test]
    fn snapshots_of_a_run_that_diverged_load() {
        let mut statistics = RunStatistics::default();
        for loss in [3.5, f32::NAN] {
            statistics.history.push(Evaluation { loss, ..Evaluation::default() }, Some("text".into()));
        }
        let json = serde_json::to_string(&statistics).unwrap();
        let history = serde_json::from_str::<RunStatistics>(&json).unwrap().history;
        assert_eq!((history.first(), history.best()), (Some(3.5), Some(3.5)));
        assert!(history.last().unwrap().is_nan());
    }
}
