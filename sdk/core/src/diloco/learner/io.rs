//! What goes into the learner and what comes out.

use std::sync::Arc;

use crate::diloco::Fragments;
use crate::wire::{Bye, FragmentId, LeaseGrant, LeaseId, Message, Round, Version, Welcome};

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
    /// The model of [`Output::Build`] stands; these are its fragments.
    Built(Arc<Fragments>),
    /// Θ̂ of one fragment came in by HTTP, `[fragment_len]`, at the version that the answer named.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// A fetch failed; it is tried again when the shell says [`Input::Timeout`].
    FetchFailed { fragment: FragmentId },
    /// The body of [`Output::Encode`].
    Encoded { round: Round, fragment: FragmentId, body: Vec<u8> },
    /// One inner step is done.
    Stepped(Step),
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
    /// Tokens trained on.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// How long it took, pauses left out, in milliseconds.
    pub step_ms: f32,
    /// Windows done of each lease held, by lease (`data::Feed::progress`).
    pub leases: Vec<(LeaseId, u32)>,
}

/// Something to do, in this order, before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send a message; drop it if there is no connection.
    Send(Message),
    /// Build the model and the engine of this run, or take those of before if the run is the same;
    /// answer with [`Input::Built`].
    Build(Box<Welcome>),
    /// Fetch Θ̂ of a fragment, at `version` or a later one.
    Fetch { fragment: FragmentId, version: Version },
    /// Code the progress on a fragment as of now; answer with [`Input::Encoded`]. That may come later:
    /// after a new version of the fragment or another round on it the body is dropped, and what it held
    /// goes into the next one.
    Encode { round: Round, fragment: FragmentId },
    /// Take in a merged change (`Replica::apply`).
    Apply { fragment: FragmentId, body: Vec<u8>, included: bool },
    /// Take in a whole Θ̂ (`Replica::load`).
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool, included: bool },
    /// Train on these windows too.
    Grant(LeaseGrant),
    /// Forget every lease but these.
    RetainLeases(Vec<LeaseId>),
    /// Close the connection and come back later, after `wait_ms` if that is not 0.
    Reconnect(Bye),
    /// Close the connection and stay away; the reason is for the user.
    Stop(Bye),
}
