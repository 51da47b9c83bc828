//! JSON views of the core and of snapshots.
//!
//! These types are for people and pages only. Stored values, and values that decisions depend on, have types of their
//! own that convert into these.

use std::collections::BTreeMap;

use archipelago_core::diloco::syncer::Status;
use archipelago_core::diloco::{self, FateCounts, FragmentId, Millis, Version};
use archipelago_core::model::{LoraSpec, LoraTargets, ModelSpec, layout};
use archipelago_core::wire::{FrozenForm, LateReason, LearnerId, Refusal};
use serde::{Deserialize, Serialize};

use super::history::loss;
use crate::{meters, status};

/// State of a run at one moment, from the core.
#[derive(Clone, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Run {
    /// The run, as 16 hex digits.
    pub run: String,
    /// Its layout, as 16 hex digits.
    pub layout: String,
    /// Parameters of the model.
    pub params: u64,
    /// Connections with a learner.
    pub connected: u32,
    /// Connected learners that hold the parameters and take part in rounds.
    pub live: u32,
    /// Learners ever seen.
    pub learners_total: u32,
    /// Tokens trained by all learners.
    pub tokens_trained: u64,
    /// Tokens merged; also the clock of the inner schedule.
    pub tokens_merged: u64,
    /// Participation: merged over trained tokens, 0 to 1.
    pub participation: f64,
    /// Rounds that led to a version.
    pub rounds: u64,
    /// Rounds without a merge.
    pub rounds_abandoned: u64,
    /// Rounds in flight.
    pub rounds_open: u32,
    /// Updates received.
    pub updates: u64,
    /// Updates in open rounds, still without a fate.
    pub updates_pending: u64,
    /// Fates of all other updates.
    pub fates: Fates,
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Upper bound of the windows trained twice because a lease was lost.
    pub regranted_windows: u64,
    /// Measured times.
    pub timing: Timing,
    /// The current upper limit of the grace window, in milliseconds.
    pub grace_ms: u64,
    /// Mean of the connected learners' last training losses, in nats per token.
    pub train_loss: Option<f32>,
    /// Id, version and size of each fragment.
    pub fragments: Vec<(FragmentId, Version, u64)>,
    /// Whether the owner paused the run: nothing is launched or leased.
    pub paused: bool,
    /// Whether the last collection has begun.
    pub finishing: bool,
    /// Whether the run is complete: no learner trains any more, and the figures stay constant.
    pub finished: bool,
}

impl From<Status> for Run {
    fn from(status: Status) -> Self {
        Self {
            run: status.run,
            layout: status.layout,
            params: status.params,
            connected: status.connected,
            live: status.live,
            learners_total: status.learners_total,
            tokens_trained: status.tokens_trained,
            tokens_merged: status.tokens_merged,
            participation: status.participation,
            rounds: status.rounds,
            rounds_abandoned: status.rounds_abandoned,
            rounds_open: status.rounds_open,
            updates: status.updates,
            updates_pending: status.updates_pending,
            fates: (&status.fates).into(),
            epoch: status.epoch,
            regranted_windows: status.regranted_windows,
            timing: status.timing.into(),
            grace_ms: status.grace_ms,
            train_loss: status.train_loss,
            fragments: status.fragments,
            paused: status.paused,
            finishing: status.finishing,
            finished: status.finished,
        }
    }
}

/// Number of updates by fate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Fates {
    /// Merged.
    pub merged: u64,
    /// Late, by reason.
    pub late: BTreeMap<LateReason, u64>,
    /// Refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
}

impl From<&FateCounts> for Fates {
    fn from(counts: &FateCounts) -> Self {
        Self { merged: counts.merged, late: counts.late.clone(), refused: counts.refused.clone() }
    }
}

/// Moving averages of measured times, in milliseconds; 0 until measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Timing {
    /// ξ_step: one inner step of the median live learner.
    pub step_ms: f64,
    /// ξ_launch: from the launch of one round to that of the next; H/P steps, at least 1 step.
    pub launch_ms: f64,
    /// ξ_quorum: from the start of a round to its K-th update.
    pub quorum_ms: f64,
    /// ξ_sync: from the end of collecting to the merged fragment being sent.
    pub sync_ms: f64,
    /// From the start of a round to an update for it, late ones included.
    pub answer_ms: f64,
}

impl From<diloco::Timing> for Timing {
    fn from(timing: diloco::Timing) -> Self {
        let diloco::Timing { step_ms, launch_ms, quorum_ms, sync_ms, answer_ms } = timing;
        Self { step_ms, launch_ms, quorum_ms, sync_ms, answer_ms }
    }
}

/// A decision about one round, with its cause. Times are on the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "decision", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum Decision {
    /// There are too few updates. A new one changes that, or patience ends at `until`.
    AwaitQuorum {
        /// Updates still needed.
        missing: u32,
        /// Time at which patience ends.
        until: Millis,
    },
    /// The quorum is reached; the window of `graceMs` closes at `until`.
    AwaitGrace {
        /// Length of the window.
        grace_ms: u64,
        /// Time at which the window closes.
        until: Millis,
    },
    /// The present updates are merged.
    Merge {
        /// Cause of the end of the wait.
        why: MergeCause,
    },
    /// There is no update to merge.
    Abandon {
        /// Cause of the end of the wait.
        why: AbandonCause,
    },
}

impl From<diloco::Decision> for Decision {
    fn from(decision: diloco::Decision) -> Self {
        match decision {
            diloco::Decision::AwaitQuorum { missing, until } => Self::AwaitQuorum { missing, until },
            diloco::Decision::AwaitGrace { grace_ms, until } => Self::AwaitGrace { grace_ms, until },
            diloco::Decision::Merge { why } => Self::Merge { why: why.into() },
            diloco::Decision::Abandon { why } => Self::Abandon { why: why.into() },
        }
    }
}

/// Reasons why collecting ended with a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum MergeCause {
    /// Every live invited learner has answered.
    AllAnswered,
    /// The grace window is over.
    GraceOver,
    /// Patience ended below quorum.
    PatienceOver,
}

impl From<diloco::MergeCause> for MergeCause {
    fn from(cause: diloco::MergeCause) -> Self {
        match cause {
            diloco::MergeCause::AllAnswered => Self::AllAnswered,
            diloco::MergeCause::GraceOver => Self::GraceOver,
            diloco::MergeCause::PatienceOver => Self::PatienceOver,
        }
    }
}

/// Reasons why collecting ended without a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum AbandonCause {
    /// Every live invited learner has answered, none with an update.
    NothingNew,
    /// Patience ended without an update.
    PatienceOver,
}

impl From<diloco::AbandonCause> for AbandonCause {
    fn from(cause: diloco::AbandonCause) -> Self {
        match cause {
            diloco::AbandonCause::NothingNew => Self::NothingNew,
            diloco::AbandonCause::PatienceOver => Self::PatienceOver,
        }
    }
}

/// Traffic on the sockets.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Traffic {
    /// WebSocket bytes from learners while training, including frame headers and pings.
    pub bytes_up: u64,
    /// The same to learners.
    pub bytes_down: u64,
    /// Parameters in all updates received.
    pub values_up: u64,
    /// Parameters in all merged fragments sent.
    pub values_down: u64,
    /// Greetings and fetched parameters, both ways.
    pub join_bytes: u64,
    /// Fetched shards.
    pub data_bytes: u64,
}

impl From<meters::Traffic> for Traffic {
    fn from(traffic: meters::Traffic) -> Self {
        let meters::Traffic { bytes_up, bytes_down, values_up, values_down, join_bytes, data_bytes } =
            traffic;
        Self { bytes_up, bytes_down, values_up, values_down, join_bytes, data_bytes }
    }
}

/// One measurement of the held-out loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Evaluation {
    /// Tokens merged into the parameters measured.
    pub tokens_merged: u64,
    /// Rounds merged into the parameters.
    pub rounds: u64,
    /// Mean loss in nats per token; `null` in JSON if it is not finite.
    #[serde(deserialize_with = "loss")]
    pub loss: f32,
    /// Time that the run's syncers had been up, in seconds.
    pub time_s: f64,
    /// The trusted learner that measured it, if the syncer cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, ts(optional))]
    pub measured_by: Option<LearnerId>,
}

impl From<status::Evaluation> for Evaluation {
    fn from(evaluation: status::Evaluation) -> Self {
        let status::Evaluation { tokens_merged, rounds, loss, time_s, measured_by } = evaluation;
        Self { tokens_merged, rounds, loss, time_s, measured_by }
    }
}

/// A text that the model wrote, with the state of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct TextSample {
    /// Time that the run's syncers had been up, in seconds.
    pub time_s: f64,
    /// Tokens merged into the parameters that wrote it.
    pub tokens_merged: u64,
    /// Held-out loss of those parameters, in nats per token; `null` in JSON if it is not finite.
    #[serde(deserialize_with = "loss")]
    pub loss: f32,
    /// The text, prompt included.
    pub text: String,
}

impl From<&status::TextSample> for TextSample {
    fn from(sample: &status::TextSample) -> Self {
        let status::TextSample { time_s, tokens_merged, loss, text } = sample.clone();
        Self { time_s, tokens_merged, loss, text }
    }
}

/// A run at one moment, or averaged over a short interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Point {
    /// Uptime of the run's syncers, in seconds.
    pub time_s: f64,
    /// Mean training loss in the interval, in nats per token.
    pub train_loss: Option<f32>,
    /// Mean tokens trained per second.
    pub tokens_per_s: f32,
    /// Participation at the end of the interval: merged over trained tokens, 0 to 1.
    pub participation: f32,
    /// Mean number of learners in rounds.
    pub live: f32,
    /// WebSocket bytes from learners up to the end of the interval.
    pub bytes_up: u64,
    /// The same to learners.
    pub bytes_down: u64,
    /// Tokens merged up to the end of the interval.
    pub tokens_merged: u64,
    /// Rounds merged up to the end of the interval.
    pub rounds: u64,
}

impl From<status::Point> for Point {
    fn from(point: status::Point) -> Self {
        Self {
            time_s: point.time_s,
            train_loss: point.train_loss,
            tokens_per_s: point.tokens_per_s,
            participation: point.participation,
            live: point.live,
            bytes_up: point.bytes_up,
            bytes_down: point.bytes_down,
            tokens_merged: point.tokens_merged,
            rounds: point.rounds,
        }
    }
}

/// Adapters on weights that are not trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct AdapterFacts {
    /// Rank of each adapter.
    pub rank: u32,
    /// Scale: each adapter adds this divided by the rank, times its product.
    pub alpha: f32,
    /// The matrices of a layer that have an adapter, as "q,k,v,o,gate,up,down".
    #[cfg_attr(test, ts(type = "string"))]
    pub targets: LoraTargets,
    /// Weights that are not trained.
    pub frozen_params: u64,
    /// Size of the frozen weights that a learner fetches once, in bytes.
    pub frozen_bytes: u64,
    /// Format of the frozen weights on the wire.
    pub frozen_form: FrozenForm,
}

impl AdapterFacts {
    /// Returns the facts for the model `decoder` if it has adapters, on weights sent as `form` in `bytes`.
    #[must_use]
    pub fn of(decoder: &ModelSpec, form: FrozenForm, bytes: u64) -> Option<Self> {
        let LoraSpec { rank, alpha, targets } = decoder.lora?;
        let frozen_params = layout(&decoder.base()).ok()?.len() as u64;
        Some(Self { rank, alpha, targets, frozen_params, frozen_bytes: bytes, frozen_form: form })
    }

    /// Describes the adapters of a run that trains `params` parameters.
    #[must_use]
    pub fn describe(&self, params: u64) -> String {
        let Self { rank, targets, frozen_params, frozen_bytes, frozen_form, .. } = self;
        let share = 100.0 * params as f64 / (params + frozen_params) as f64;
        format!(
            "adapters of rank {rank} on {targets}: {params} parameters are trained, {share:.2} % of all; learners \
             fetch the other {frozen_params} once, {:.1} MB as {frozen_form}",
            *frozen_bytes as f64 / 1e6
        )
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::Preset;

    use super::*;

    #[test]
    fn the_share_that_is_trained_is_told() {
        let lora = Some(LoraSpec { rank: 8, alpha: 16.0, targets: "q,v".parse().unwrap() });
        let decoder = ModelSpec { lora, ..Preset::Tiny.model(256) };
        let facts = AdapterFacts::of(&decoder, FrozenForm::Int8, 2_500_000).unwrap();
        assert_eq!(facts.frozen_params, layout(&decoder.base()).unwrap().len() as u64);
        let words = facts.describe(facts.frozen_params);
        for part in ["rank 8 on q,v", "50.00 % of all", "2.5 MB as int8"] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(AdapterFacts::of(&decoder.base(), FrozenForm::F16, 1), None);
    }
}
