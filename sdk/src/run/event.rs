//! Events and reports of a run for observers.

use std::fmt;
use std::num::NonZeroU32;

use archipelago_core::wire::{Fate, FragmentId, LearnerId, Version};
use serde::Serialize;

/// Something that a watcher may want to show. As JSON each has its name under `event`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// A connection is being made.
    Connecting {
        /// Where to.
        address: String,
    },
    /// The syncer took this learner in, and its engine is being made.
    Preparing {
        /// The run, as 16 hex digits.
        run: String,
    },
    /// The syncer took this learner in, and it has an engine.
    Welcomed {
        /// The run, as 16 hex digits.
        run: String,
        /// This learner's id in it.
        learner: LearnerId,
        /// Parameters of the model.
        params: u64,
        /// What it is computed with.
        device: String,
        /// Windows of the text in one step.
        batch: NonZeroU32,
        /// Tokens that this identity trained on before this process, as far as the syncer knows.
        tokens_trained: u64,
        /// Those of them that are merged.
        tokens_merged: u64,
    },
    /// The first step of all is done.
    FirstStep {
        /// Time since the run began, in milliseconds.
        elapsed_ms: u64,
    },
    /// The connection is gone.
    Disconnected {
        /// Why.
        reason: String,
        /// When the next attempt is, in milliseconds from now.
        retry_ms: u64,
    },
    /// All that was held is given up, and the run joined as by a newcomer.
    Afresh {
        /// Why.
        reason: String,
    },
    /// What became of an update.
    Receipt {
        /// The fragment.
        fragment: FragmentId,
        /// What became of it.
        fate: Fate,
    },
    /// A merged change was taken in.
    Merged {
        /// The fragment.
        fragment: FragmentId,
        /// Its version from now on.
        version: Version,
    },
    /// Something went wrong that is dealt with: a transfer failed and is tried again, say.
    Trouble {
        /// What and why.
        reason: String,
    },
    /// How things stand; comes about twice a second, and last of all.
    Progress(Box<Report>),
}

/// How things stand.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Time since the run began, in milliseconds.
    pub elapsed_ms: u64,
    /// What it is doing.
    pub doing: Doing,
    /// Why there is no connection, if there is none.
    pub offline: Option<Offline>,
    /// The part of the time it would train that the run's owner has it train, 0.001 to 1.
    pub share: f64,
    /// Steps done.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens_trained: u64,
    /// Tokens that receipts said were merged: the mean over fragments, weighted by their sizes.
    pub tokens_merged: u64,
    /// Tokens that the syncer has got and that have no fate yet: the mean over fragments, weighted by their sizes.
    pub tokens_unsettled: u64,
    /// Updates merged, by receipt.
    pub updates_merged: u64,
    /// Updates that came late, by receipt.
    pub updates_late: u64,
    /// Updates refused, by receipt.
    pub updates_refused: u64,
    /// Merged tokens of the whole run that count for its schedule, as last heard.
    pub clock_tokens: u64,
    /// Mean loss of the tokens since the last report, in nats per token; none without any.
    pub loss: Option<f32>,
    /// Learning rate of the last step.
    pub learning_rate: f32,
    /// Tokens per second over the last 10 s, pauses included.
    pub tokens_per_s: f64,
    /// Time of the last step, in milliseconds.
    pub step_ms: f32,
    /// Time spent on exchange or without data, as a share of that and training; from the first step on.
    pub sync_ratio: f64,
    /// Time in steps, in milliseconds.
    pub train_ms: u64,
    /// Time spent on messages and on coding and taking in parameters after the first step, in milliseconds.
    pub exchange_ms: u64,
    /// Time without data after the first step, in milliseconds.
    pub starved_ms: u64,
    /// Payload bytes sent on sockets.
    pub sent_bytes: u64,
    /// Payload bytes received on sockets.
    pub received_bytes: u64,
    /// Bytes of parameters and text fetched over HTTP.
    pub fetched_bytes: u64,
    /// Bytes of the run's frozen weights that are here, kept by an earlier start or fetched by this one.
    pub frozen_bytes: u64,
    /// Bytes of all of them; 0 where the run trains all its weights.
    pub frozen_bytes_total: u64,
}

/// What a learner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Doing {
    /// It has yet to reach the syncer.
    Connecting,
    /// It fetches the parameters.
    Joining,
    /// It has no data to train on.
    Starved,
    /// The run's owner holds the run.
    Held,
    /// It trains.
    Training,
    /// Its owner paused it.
    Paused,
    /// It says farewell.
    Leaving,
}

/// Why there is no connection, and when there may be one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Offline {
    /// Why.
    pub reason: String,
    /// The close code, if the syncer said why; 4014 if the run's owner dropped this learner.
    pub code: Option<u16>,
    /// Time to the next attempt, in milliseconds; 0 while one is under way.
    pub retry_ms: u64,
}

impl Report {
    /// Returns true if some of the frozen weights are still missing.
    fn is_gathering(&self) -> bool {
        self.doing == Doing::Joining && self.frozen_bytes < self.frozen_bytes_total
    }
}

/// One sentence without its full stop.
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

/// Counts of receipts, and the learning rate of the last step.
#[derive(Default)]
pub(super) struct ReceiptCounts {
    pub(super) updates_merged: u64,
    pub(super) updates_late: u64,
    pub(super) updates_refused: u64,
    /// Merged tokens of each update times its fragment's share of the parameters.
    pub(super) tokens_merged: f64,
    pub(super) learning_rate: f32,
}
