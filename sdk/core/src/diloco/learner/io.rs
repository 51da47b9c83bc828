//! What goes into the learner and what comes out.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::diloco::Fragments;
use crate::wire::{Bye, FragmentId, LeaseGrant, LeaseId, Message, Serial, Version, Welcome};

/// Something that happened.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// A connection to the syncer stands.
    Connected,
    /// The connection is gone.
    Disconnected,
    /// A message came in.
    Message(Message),
    /// The model of [`Output::Build`] stands; these are its fragments, and `batch` windows are trained on in one step,
    /// at most [`crate::wire::BATCH_MAX`].
    Built { fragments: Arc<Fragments>, batch: NonZeroU32 },
    /// Θ̂ of one fragment came in by HTTP, `[fragment_len]`, at the version that the answer named.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// A fetch failed; it is tried again when the shell says [`Input::Timeout`].
    FetchFailed { fragment: FragmentId },
    /// The body of [`Output::Encode`], and the digest of the Θ̂ that it is relative to.
    Encoded { serial: Serial, fragment: FragmentId, body: Vec<u8>, digest: u64 },
    /// One inner step is done.
    Stepped(Step),
    /// As many tokens of the steps so far, and of none told before, went through each expert of the layout.
    Saw { seen: Vec<u64> },
    /// The owner paused or resumed training.
    Paused(bool),
    /// The page became hidden or visible.
    Hidden(bool),
    /// [`super::Learner::deadline`] has come.
    Timeout,
}

/// One inner step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Tokens trained on; 0 where it went on before any were, and its time is a part of the next one's.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// How long it took, pauses left out, in milliseconds.
    pub step_ms: f32,
}

/// Something to do, in this order, before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send a message; drop it if there is no connection. Who holds the leases writes into a `Progress` what is done of
    /// them (`data::Feed::progress`).
    Send(Message),
    /// Build the model and the engine of this run, or take those of before if the run is the same;
    /// answer with [`Input::Built`].
    Build(Box<Welcome>),
    /// Fetch Θ̂ of a fragment, at `version` or a later one.
    Fetch { fragment: FragmentId, version: Version },
    /// Code the progress on a fragment as of now; answer with [`Input::Encoded`], which may come later.
    Encode { serial: Serial, fragment: FragmentId },
    /// The update that was coded last is part of Θ̂, or of the one that comes next (`Replica::include`).
    Include { fragment: FragmentId },
    /// Take in a merged change (`Replica::apply`).
    Apply { fragment: FragmentId, body: Vec<u8> },
    /// Take in a whole Θ̂ (`Replica::load`).
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool },
    /// Train on these windows too.
    Grant(LeaseGrant),
    /// Forget every lease but these.
    RetainLeases(Vec<LeaseId>),
    /// Close the connection and come back later, after `wait_ms` if that is not 0.
    Reconnect(Bye),
    /// Close the connection and stay away; the reason is for the user.
    Stop(Bye),
}
