//! Inputs and outputs of the learner.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::diloco::Fragments;
use crate::wire::{Bye, FragmentId, LeaseGrant, LeaseId, Message, Serial, Version, Welcome};

/// Inputs of the learner.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// A connection to the syncer was opened.
    Connected,
    /// The connection was closed.
    Disconnected,
    /// A message was received.
    Message(Message),
    /// The model of [`Output::Build`] is ready. It has these fragments, and trains `batch` windows in one step, at
    /// most [`crate::wire::BATCH_MAX`].
    Built { fragments: Arc<Fragments>, batch: NonZeroU32 },
    /// Θ̂ of one fragment was fetched by HTTP, `[fragment_len]`, at the version that the response named.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// A fetch failed. It is tried again at an [`Input::Timeout`].
    FetchFailed { fragment: FragmentId },
    /// The body for [`Output::Encode`], and the digest of the Θ̂ that it is relative to.
    Encoded { serial: Serial, fragment: FragmentId, body: Vec<u8>, digest: u64 },
    /// One inner step was finished.
    Stepped(Step),
    /// Tokens of the last steps that were routed to each expert of the layout, since the previous report.
    ExpertLoad { seen: Vec<u64> },
    /// The owner paused or resumed training.
    Paused(bool),
    /// The page became hidden or visible.
    Hidden(bool),
    /// [`super::Learner::deadline`] was reached.
    Timeout,
}

/// One inner step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Trained tokens. 0 if the call returned before any, and its time is then part of the next step.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// Duration in milliseconds, without pauses.
    pub step_ms: f32,
}

/// Outputs of the learner, to be carried out in this order before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send a message, or drop it without a connection. The owner of the leases writes their finished windows into a
    /// `Progress` (`data::Feed::progress`).
    Send(Message),
    /// Build the model and the engine of this run, or reuse them if the run is the same; answer with
    /// [`Input::Built`].
    Build(Box<Welcome>),
    /// Fetch Θ̂ of a fragment, at `version` or a later one.
    Fetch { fragment: FragmentId, version: Version },
    /// Code the present progress on a fragment; answer with [`Input::Encoded`], which may come later.
    Encode { serial: Serial, fragment: FragmentId },
    /// The last coded update is part of Θ̂, or of the next one (`Replica::include`).
    Include { fragment: FragmentId },
    /// Apply a merged change (`Replica::apply`).
    Apply { fragment: FragmentId, body: Vec<u8> },
    /// Load a whole Θ̂ (`Replica::load`).
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool },
    /// Train on these windows too.
    Grant(LeaseGrant),
    /// Drop every lease but these.
    RetainLeases(Vec<LeaseId>),
    /// Close the connection and reconnect later, after `wait_ms` if that is not 0.
    Reconnect(Bye),
    /// Close the connection for good; the reason is for the user.
    Stop(Bye),
}
