//! The JSON of `/v1/runs`.

use serde::{Deserialize, Serialize};

use crate::status::ServerStatus;

/// The runs of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RunsView {
    /// The runs, by name.
    pub runs: Vec<RunView>,
    /// True if the server takes orders to create and delete runs; false on a server of one run.
    pub several: bool,
}

/// One run of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RunView {
    /// Name of the run; empty on a server of one run.
    pub name: String,
    /// Path of the run's pages, relative to the server's.
    pub path: String,
    /// Link for lending a machine, with the invite; only for requests with the owner's token.
    pub link: Option<String>,
    /// State of the run.
    pub state: RunState,
    /// Reason of the failure, if the run failed.
    pub why: Option<String>,
    /// Figures of the run, while it is served.
    pub figures: Option<RunFigures>,
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum RunState {
    /// The run is being opened: its text and its tape are read.
    Starting,
    /// Learners may join.
    Open,
    /// The owner paused the run.
    Paused,
    /// The run is complete, and still visible.
    Complete,
    /// The run is archived: stored and not served.
    Archived,
    /// The run failed.
    Failed,
}

impl RunState {
    /// Returns the state in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Open => "open",
            Self::Paused => "paused",
            Self::Complete => "complete",
            Self::Archived => "archived",
            Self::Failed => "failed",
        }
    }
}

/// Figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RunFigures {
    /// The run, as 16 hex digits.
    pub run: String,
    /// Name of the preset, or of the folder whose model it started from.
    pub model: String,
    /// Parameters of the model.
    pub params: u64,
    /// Source of the text.
    pub corpus: String,
    /// Learners that take part in rounds.
    pub live: u32,
    /// Learners ever seen.
    pub learners_total: u32,
    /// Tokens merged.
    pub tokens_merged: u64,
    /// Tokens at which the learning rate reaches its minimum.
    pub total_tokens: u64,
    /// Participation: merged over trained tokens, 0 to 1.
    pub participation: f64,
    /// Newest held-out loss, in nats per token.
    pub val_loss_last: Option<f32>,
    /// True if learners must show an invite.
    pub invite_required: bool,
    /// Active alerts.
    pub alerts: u32,
}

impl RunView {
    /// Creates the view of a served run with this status.
    pub fn served(name: String, path: String, status: ServerStatus) -> Self {
        let state = match (status.core.finished, status.core.paused) {
            (true, _) => RunState::Complete,
            (false, true) => RunState::Paused,
            (false, false) => RunState::Open,
        };
        let figures = RunFigures {
            run: status.core.run,
            model: status.facts.init.unwrap_or(status.facts.preset),
            params: status.core.params,
            corpus: status.facts.corpus,
            live: status.core.live,
            learners_total: status.core.learners_total,
            tokens_merged: status.core.tokens_merged,
            total_tokens: status.facts.total_tokens,
            participation: status.core.participation,
            val_loss_last: status.val_loss_last,
            invite_required: status.facts.invite_required,
            alerts: status.alerts.len() as u32,
        };
        Self { name, path, link: None, state, why: None, figures: Some(figures) }
    }
}
