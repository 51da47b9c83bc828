//! Events and reports of a learner for observers.

use std::fmt;
use std::num::NonZeroU32;

use archipelago_core::wire::{Fate, FragmentId, LearnerId, Version};
use serde::Serialize;

/// Event that an observer may want to show. In JSON its name is under `event`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// A connection attempt begins.
    Connecting {
        /// Address of the syncer.
        address: String,
    },
    /// The syncer admitted this learner, and its engine is being built.
    Preparing {
        /// The run, as 16 hex digits.
        run: String,
    },
    /// The syncer admitted this learner, and its engine is ready.
    Welcomed {
        /// The run, as 16 hex digits.
        run: String,
        /// Id of this learner in the run.
        learner: LearnerId,
        /// Number of parameters of the model.
        params: u64,
        /// Description of the engine's device.
        device: String,
        /// Windows in one training step.
        batch: NonZeroU32,
        /// Tokens that this identity had trained on before this process, according to the syncer.
        tokens_trained: u64,
        /// Merged tokens among these.
        tokens_merged: u64,
    },
    /// The first training step is done.
    FirstStep {
        /// Time since the start of the learner, in milliseconds.
        elapsed_ms: u64,
    },
    /// The connection ended.
    Disconnected {
        /// Reason in words.
        reason: String,
        /// Time until the next attempt, in milliseconds.
        retry_ms: u64,
    },
    /// The learner dropped its engine and data, and joins the run from scratch.
    Afresh {
        /// Reason in words.
        reason: String,
    },
    /// Receipt for an update.
    Receipt {
        /// Fragment of the update.
        fragment: FragmentId,
        /// Outcome of the update.
        fate: Fate,
    },
    /// A merged change arrived.
    Merged {
        /// Fragment that changes.
        fragment: FragmentId,
        /// Resulting version.
        version: Version,
    },
    /// A fault that the learner handles by itself, such as a failed transfer that is retried.
    Trouble {
        /// Fault in words.
        reason: String,
    },
    /// Current state; sent about twice a second, and once at the end.
    Progress(Box<Report>),
}

/// State and counters of a learner.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Time since the start of the learner, in milliseconds.
    pub elapsed_ms: u64,
    /// Current activity.
    pub doing: Doing,
    /// Reason for the missing connection; none while the learner is connected.
    pub offline: Option<Offline>,
    /// Part of the training time that the run's owner allows, 0.001 to 1.
    pub share: f64,
    /// Training steps.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens_trained: u64,
    /// Merged tokens by receipt: the mean over fragments, weighted by their numbers of values.
    pub tokens_merged: u64,
    /// Tokens of updates that the syncer received and that have no fate yet: the mean over fragments, weighted by
    /// their numbers of values.
    pub tokens_unsettled: u64,
    /// Merged updates, by receipt.
    pub updates_merged: u64,
    /// Late updates, by receipt.
    pub updates_late: u64,
    /// Refused updates, by receipt.
    pub updates_refused: u64,
    /// Merged tokens of the run that are credited to its schedule, as last reported by the syncer.
    pub clock_tokens: u64,
    /// Mean loss over the tokens since the last report, in nats per token; none without tokens.
    pub loss: Option<f32>,
    /// Learning rate of the last step.
    pub learning_rate: f32,
    /// Tokens per second over the last 10 s, including pauses.
    pub tokens_per_s: f64,
    /// Duration of the last step, in milliseconds.
    pub step_ms: f32,
    /// Fraction of time lost to the exchange and to missing data: their time divided by that time plus the training
    /// time, from the first step on; 0 to 1.
    pub sync_ratio: f64,
    /// Time in training steps, in milliseconds.
    pub train_ms: u64,
    /// Time for messages and for encoding and applying parameters after the first step, in milliseconds.
    pub exchange_ms: u64,
    /// Time without training data after the first step, in milliseconds.
    pub starved_ms: u64,
    /// Payload bytes sent on sockets.
    pub sent_bytes: u64,
    /// Payload bytes received on sockets.
    pub received_bytes: u64,
    /// Bytes of parameters and text fetched over HTTP.
    pub fetched_bytes: u64,
    /// Bytes of the run's frozen weights that are present, from the cache or fetched.
    pub frozen_bytes: u64,
    /// Bytes of all frozen weights; 0 if the run has no frozen weights.
    pub frozen_bytes_total: u64,
}

/// Activity of a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Doing {
    /// It was never admitted by the syncer.
    Connecting,
    /// It fetches the parameters.
    Joining,
    /// It has no data to train on.
    Starved,
    /// It waits because the run's owner paused the run.
    Held,
    /// It trains.
    Training,
    /// The learner's owner paused it.
    Paused,
    /// It leaves the run.
    Leaving,
}

/// Reason for the missing connection, and the time until the next attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Offline {
    /// Reason in words.
    pub reason: String,
    /// Close code, if the syncer gave one; 4014 if the run's owner dropped this learner.
    pub code: Option<u16>,
    /// Time until the next attempt, in milliseconds; 0 while an attempt is in progress.
    pub retry_ms: u64,
}

impl Report {
    /// Returns true if some of the frozen weights are still missing.
    fn is_gathering(&self) -> bool {
        self.doing == Doing::Joining && self.frozen_bytes < self.frozen_bytes_total
    }
}

/// The display form is one sentence without its full stop.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_gathering() {
            let mb = |bytes: u64| bytes as f64 / 1e6;
            let (here, all) = (mb(self.frozen_bytes), mb(self.frozen_bytes_total));
            return write!(f, "joining: {here:.0} of {all:.0} MB of the run's frozen weights received");
        }
        f.write_str(match self.doing {
            Doing::Connecting => "connecting",
            Doing::Joining => "joining: fetching the parameters",
            Doing::Starved => "waiting for data to train on",
            Doing::Held => "waiting: the owner of the run paused it",
            Doing::Training => "training",
            Doing::Paused => "paused",
            Doing::Leaving => "leaving",
        })?;
        if self.share < 1.0 && self.doing == Doing::Training {
            write!(f, ", slowed down by the run's owner to {} % of its pace", self.share * 100.0)?;
        }
        match &self.offline {
            None => Ok(()),
            Some(Offline { reason, retry_ms: 0, .. }) => write!(f, ", reconnecting now because {reason}"),
            Some(Offline { reason, retry_ms, .. }) => {
                write!(f, ", reconnecting in {} s because {reason}", retry_ms.div_ceil(1_000))
            }
        }
    }
}

/// Counters of receipts, and the learning rate of the last step.
#[derive(Default)]
pub(super) struct ReceiptCounts {
    pub(super) updates_merged: u64,
    pub(super) updates_late: u64,
    pub(super) updates_refused: u64,
    /// Sum over merged updates of their tokens times the fraction of the parameters in their fragment.
    pub(super) tokens_merged: f64,
    pub(super) learning_rate: f32,
}
