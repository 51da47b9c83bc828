//! JSON views of the core's types and of stored types.
//!
//! These types are for people and pages only. Stored values, and values on which decisions depend, have separate types,
//! from which these are converted.

use std::collections::BTreeMap;

use archipelago_core::diloco::syncer::Status;
use archipelago_core::diloco::{self, FateCounts, FragmentId, Millis, Version};
use archipelago_core::model::{LoraSpec, LoraTargets, ModelSpec, layout};
use archipelago_core::wire::{FrozenForm, LateReason, LearnerId, Refusal};
use serde::{Deserialize, Serialize};

use super::history::loss;
use crate::{meters, status};

/// The core's status of a run.
#[derive(Clone, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Run {
    /// Id of the run, as 16 hex digits.
    pub run: String,
    /// Hash of the run's layout, as 16 hex digits.
    pub layout: String,
    /// Number of parameters that the run trains.
    pub params: u64,
    /// Connected learners.
    pub connected: u32,
    /// Connected learners that hold the parameters and take part in rounds.
    pub live: u32,
    /// All learners ever seen.
    pub learners_total: u32,
    /// Tokens trained by all learners.
    pub tokens_trained: u64,
    /// Merged tokens, which are also the clock of the learning-rate schedule.
    pub tokens_merged: u64,
    /// Participation: merged over trained tokens, 0 to 1.
    pub participation: f64,
    /// Rounds that ended with a merge.
    pub rounds: u64,
    /// Rounds that ended without a merge.
    pub rounds_abandoned: u64,
    /// Rounds in progress.
    pub rounds_open: u32,
    /// Updates received.
    pub updates: u64,
    /// Updates without a fate, in rounds in progress.
    pub updates_pending: u64,
    /// Fates of all other updates.
    pub fates: Fates,
    /// Number of the pass over the text, from 0.
    pub epoch: u32,
    /// Upper bound of the windows trained twice because a lease expired.
    pub regranted_windows: u64,
    /// Measured times.
    pub timing: Timing,
    /// Current maximum of the grace window, in milliseconds.
    pub grace_ms: u64,
    /// Mean of the connected learners' last training losses, in nats per token.
    pub train_loss: Option<f32>,
    /// Id, version and number of values of each fragment.
    pub fragments: Vec<(FragmentId, Version, u64)>,
    /// True if the owner paused the run: no round is launched and no lease is granted.
    pub paused: bool,
    /// True once the last updates are being collected.
    pub finishing: bool,
    /// True if the run is complete: no learner trains any more, and the status stays constant.
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
    /// Merged updates.
    pub merged: u64,
    /// Late updates, by reason.
    pub late: BTreeMap<LateReason, u64>,
    /// Refused updates, by reason.
    pub refused: BTreeMap<Refusal, u64>,
}

impl From<&FateCounts> for Fates {
    fn from(counts: &FateCounts) -> Self {
        Self { merged: counts.merged, late: counts.late.clone(), refused: counts.refused.clone() }
    }
}

/// Moving averages of measured times, in milliseconds; 0 until the first measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Timing {
    /// ξ_step: duration of an inner step of the median live learner.
    pub step_ms: f64,
    /// ξ_launch: time from the launch of a round to the next launch: H/P steps, at least 1 step.
    pub launch_ms: f64,
    /// ξ_quorum: time from the start of a round to its quorum.
    pub quorum_ms: f64,
    /// ξ_sync: time from the end of collecting until the merged fragment is sent.
    pub sync_ms: f64,
    /// Time from the start of a round until an update for it arrives, late ones included.
    pub answer_ms: f64,
}

impl From<diloco::Timing> for Timing {
    fn from(timing: diloco::Timing) -> Self {
        let diloco::Timing { step_ms, launch_ms, quorum_ms, sync_ms, answer_ms } = timing;
        Self { step_ms, launch_ms, quorum_ms, sync_ms, answer_ms }
    }
}

/// A decision about a round, with its cause. Times are on the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "decision", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum Decision {
    /// There are too few updates. The round waits for more, at most until `until`.
    AwaitQuorum {
        /// Number of updates that are missing for a quorum.
        missing: u32,
        /// Time at which patience ends.
        until: Millis,
    },
    /// The quorum is reached. The grace window of `graceMs` closes at `until`.
    AwaitGrace {
        /// Length of the grace window, in milliseconds.
        grace_ms: u64,
        /// Time at which the grace window closes.
        until: Millis,
    },
    /// The updates that have arrived are merged.
    Merge {
        /// Reason why the wait ended.
        why: MergeCause,
    },
    /// There is no update to merge.
    Abandon {
        /// Reason why the wait ended.
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

/// Traffic on the WebSockets.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Traffic {
    /// WebSocket bytes from learners while training, including frame headers and pings.
    pub bytes_up: u64,
    /// WebSocket bytes to learners while training, including frame headers and pings.
    pub bytes_down: u64,
    /// Parameters in all updates received.
    pub values_up: u64,
    /// Parameters in all merged fragments sent.
    pub values_down: u64,
    /// Bytes of handshakes and fetched parameters, in both directions.
    pub join_bytes: u64,
    /// Bytes of fetched shards.
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
    /// Merged tokens of the measured parameters.
    pub tokens_merged: u64,
    /// Merged rounds of the measured parameters.
    pub rounds: u64,
    /// Mean held-out loss, in nats per token; `null` in JSON if it is not finite.
    #[serde(deserialize_with = "loss")]
    pub loss: f32,
    /// Total uptime of the run's syncers at the measurement, in seconds.
    pub time_s: f64,
    /// Trusted learner that measured the loss, if the syncer cannot.
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

/// A generated text, with the state of the run at that time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct TextSample {
    /// Total uptime of the run's syncers when the text was generated, in seconds.
    pub time_s: f64,
    /// Merged tokens of the parameters that generated the text.
    pub tokens_merged: u64,
    /// Held-out loss of those parameters, in nats per token; `null` in JSON if it is not finite.
    #[serde(deserialize_with = "loss")]
    pub loss: f32,
    /// The text with its prompt.
    pub text: String,
}

impl From<&status::TextSample> for TextSample {
    fn from(sample: &status::TextSample) -> Self {
        let status::TextSample { time_s, tokens_merged, loss, text } = sample.clone();
        Self { time_s, tokens_merged, loss, text }
    }
}

/// Statistics of a run over a short interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Point {
    /// Total uptime of the run's syncers at the end of the interval, in seconds.
    pub time_s: f64,
    /// Mean training loss over the interval, in nats per token.
    pub train_loss: Option<f32>,
    /// Mean of the tokens trained per second, over the interval.
    pub tokens_per_s: f32,
    /// Participation at the end of the interval: merged over trained tokens, 0 to 1.
    pub participation: f32,
    /// Mean number of learners in rounds, over the interval.
    pub live: f32,
    /// Cumulative WebSocket bytes from learners while training, at the end of the interval.
    pub bytes_up: u64,
    /// Cumulative WebSocket bytes to learners while training, at the end of the interval.
    pub bytes_down: u64,
    /// Merged tokens at the end of the interval.
    pub tokens_merged: u64,
    /// Merged rounds at the end of the interval.
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

/// Adapters that a run trains, and the frozen weights below them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct AdapterFacts {
    /// Rank of each adapter.
    pub rank: u32,
    /// Scale: the product of an adapter is added with the factor alpha divided by rank.
    pub alpha: f32,
    /// Matrices in each layer that have an adapter, as in "q,k,v,o,gate,up,down".
    #[cfg_attr(test, ts(type = "string"))]
    pub targets: LoraTargets,
    /// Number of weights that are not trained.
    pub frozen_params: u64,
    /// Size of the frozen weights, which a learner fetches once, in bytes.
    pub frozen_bytes: u64,
    /// Format of the frozen weights for learners.
    pub frozen_form: FrozenForm,
}

impl AdapterFacts {
    /// Returns the facts about `decoder` if it has adapters. `form` is the format of the frozen weights, `bytes` their
    /// size.
    #[must_use]
    pub fn of(decoder: &ModelSpec, form: FrozenForm, bytes: u64) -> Option<Self> {
        let LoraSpec { rank, alpha, targets } = decoder.lora?;
        let frozen_params = layout(&decoder.base()).ok()?.len() as u64;
        Some(Self { rank, alpha, targets, frozen_params, frozen_bytes: bytes, frozen_form: form })
    }

    /// Describes the adapters in a sentence. `params` is the number of parameters that the run trains.
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
    fn adapters_are_described_with_their_share() {
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
