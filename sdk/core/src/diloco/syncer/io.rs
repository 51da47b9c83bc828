//! Inputs and outputs of the syncer.

use serde::{Deserialize, Serialize};

use super::{ContributionVerdict, Followed, LeaderRequest, RemakeJob, Undo};
use crate::diloco::{Decision, Entry, MergeFailure, MergeJob, MergeOutcome, Suspicion, Verified};
use crate::wire::{
    Bye, ConnId, Fate, Fingerprint, FragmentId, Hello, LearnerId, LearnerState, LeaseId, Message, Refusal,
    Round, Serial, Share, Version,
};

/// Input of the syncer.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// A message arrived on a connection. The first one on a connection must be `Hello`.
    Message(ConnId, Message),
    /// The peer gave a sign of life below the level of messages (a pong, or a part of a large message).
    Heard(ConnId),
    /// The connection is gone, for any reason.
    Disconnected(ConnId),
    /// An update arrived and [`super::Syncer::verifier`] has verified it, so that the syncer need not. A shell without
    /// threads passes the message on unverified.
    Update(ConnId, Box<Verified>),
    /// A job from [`Output::Merge`] or [`Output::Remake`] is done, or failed and returns its state.
    Merged(Box<Result<MergeOutcome, Box<MergeFailure>>>),
    /// Merges did harm and are rolled back. A host that sends this must support [`Output::Remake`].
    Undo(Box<Undo>),
    /// The loss checks of [`super::ContributionTest`] changed the verdict on a learner.
    ContributionVerdict { learner: LearnerId, regard: ContributionVerdict },
    /// Collect the last progress of every learner on every fragment, then say goodbye.
    Finish,
    /// The owner pauses or resumes the run. In a paused run nothing is leased, learners wait, and only a last
    /// collection is launched.
    Hold(bool),
    /// Whether decisions currently cannot be stored. Until they can, nothing is launched or leased. Learners keep
    /// training and receive no notice.
    Stall(bool),
    /// The owner sets the fraction of its time that a learner trains.
    Pace { learner: LearnerId, share: Share },
    /// The owner sends a learner away for `wait_ms`, at most [`super::DROP_MS_MAX`]; 0 lets it return.
    Drop { learner: LearnerId, wait_ms: u32 },
    /// The owner banned the identity with this fingerprint, so its connection is closed. The shell, which verifies
    /// identities, keeps it from returning.
    Ban(Fingerprint),
    /// Learner number for a connection that introduced itself, see [`super::LeaderRequest::Introduce`].
    Introduced { conn: ConnId, learner: LearnerId, hello: Box<Hello> },
    /// The leader of a fragment asks a learner for its progress, over the given connection.
    Asked { fragment: FragmentId, learner: LearnerId, conn: ConnId, round: Round },
    /// A forwarded update was not merged.
    Unmerged {
        fragment: FragmentId,
        learner: LearnerId,
        conn: ConnId,
        serial: Serial,
        /// Reason for a refusal; `None` if the update was only late.
        refusal: Option<Refusal>,
    },
    /// The leader of a fragment reports a new version.
    Followed(Box<Followed>),
    /// The leader of a fragment reports that a round ended without a version.
    Over(FragmentId, Round),
    /// The leader of a fragment reports that its last round is over. The run ends when this holds for all fragments.
    Closed(FragmentId),
    /// The number of an [`Output::Probe`] came back on this connection.
    Probed(ConnId, u64),
    /// The time of [`super::Syncer::deadline`] has come.
    Timeout,
}

/// Action for the host.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send `message` on one connection.
    Send(ConnId, Message),
    /// Send `message` on several connections; encode it once.
    Broadcast(Vec<ConnId>, Message),
    /// Send the goodbye, then close the connection. No `Disconnected` is expected, but one does no harm.
    Close(ConnId, Bye),
    /// Store the entry before any later output reaches a peer: see [`super::Host::record`].
    Record(Entry),
    /// Run the job, here or elsewhere, and return the result as an input.
    Merge(Box<MergeJob>),
    /// Let the job follow the tape, here or elsewhere, once the tape has the version of its fragment. Then run it and
    /// return the result as [`Input::Merged`].
    Remake(Box<RemakeJob>),
    /// Forward this to the leaders of the rounds. Only for a host of [`super::Syncer::led_elsewhere`].
    LeaderRequest(LeaderRequest),
    /// Have the peer of a connection echo this number, as a WebSocket does by itself. Return the echo as
    /// [`Input::Probed`], after everything that arrived on the connection before it. Only for a host of
    /// [`super::Syncer::led_elsewhere`].
    Probe(ConnId, u64),
    /// Event for logs, the dashboard and tests.
    Event(Event),
    /// The run is complete: all learners have been informed and no output follows.
    Finished,
}

/// Fact about a run: an action of the syncer, with its details.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Event {
    /// A learner introduced itself.
    Joined { learner: LearnerId, name: String, device: String, returning: bool },
    /// A learner holds the parameters and trains.
    Live { learner: LearnerId },
    /// A learner is gone.
    Left { learner: LearnerId, why: LeaveCause },
    /// A connection that never became a learner was turned away, with this close code and reason.
    TurnedAway { code: u16, reason: String },
    /// A learner's state changed.
    State { learner: LearnerId, state: LearnerState },
    /// A round began.
    Launched { round: Round, fragment: FragmentId, invited: u32, step_ms: f64 },
    /// A learner answered `after_ms` after the question, with an update of `tokens` countable tokens, or with no update
    /// and 0 tokens. Without a round, the answer waits for the next one.
    Answered { round: Option<Round>, fragment: FragmentId, learner: LearnerId, tokens: u64, after_ms: u64 },
    /// A round reached its quorum of `updates` updates.
    Quorum { round: Round, fragment: FragmentId, updates: u32, after_ms: u64 },
    /// The decision about a round changed.
    Decided { round: Round, fragment: FragmentId, decision: Decision },
    /// Fate of an update, with its round if it was part of one.
    Settled {
        round: Option<Round>,
        fragment: FragmentId,
        learner: LearnerId,
        serial: Serial,
        tokens: u64,
        fate: Fate,
    },
    /// A round ended in a new version.
    Merged {
        round: Round,
        fragment: FragmentId,
        version: Version,
        updates: u32,
        tokens: u64,
        norm: f64,
        collect_ms: u64,
        sync_ms: u64,
    },
    /// Updates of a learner did harm, `harms` times so far. They are rolled back, and the learner is sent away.
    Blamed { learner: LearnerId, harms: u32 },
    /// The loss checks do not show that a learner trains as it claims. It counts as a newcomer, and its tokens count
    /// for nothing. Without a `doubt`, the checks clear it.
    Doubted { learner: LearnerId, doubt: Option<Suspicion> },
    /// A fragment was rolled back. It has a new version, at distance `norm` from the one before.
    Remade { round: Round, fragment: FragmentId, version: Version, norm: f64, sync_ms: u64 },
    /// The owner paused or resumed the run.
    Held { held: bool },
    /// The owner set the fraction of its time that a learner trains, in thousandths.
    Paced { learner: LearnerId, share: Share },
    /// The owner sent a learner away for `wait_ms`, or with 0 lets it return.
    Dropped { learner: LearnerId, wait_ms: u32 },
    /// A merge failed; the fragment is unchanged.
    MergeFailed { round: Round, fragment: FragmentId, error: String },
    /// A lease expired or was returned; its remaining `windows` go to other learners.
    LeaseReturned { learner: LearnerId, lease: LeaseId, windows: u32, expired: bool },
}

/// Reason why a learner left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum LeaveCause {
    /// The learner said goodbye.
    Polite,
    /// The connection broke.
    Lost,
    /// The syncer closed the connection.
    Closed {
        /// The close code.
        code: u16,
        /// The reason that the learner was given.
        reason: String,
    },
}
