//! What goes into the syncer and what comes out.

use serde::{Deserialize, Serialize};

use super::{Followed, Regard, RemakeJob, Undo, Upward};
use crate::diloco::{Decision, Doubt, Entry, MergeFailure, MergeJob, MergeOutcome, Verified};
use crate::wire::{
    Bye, ConnId, Fate, Fingerprint, FragmentId, Hello, LearnerId, LearnerState, LeaseId, Message, Refusal,
    Round, Serial, Share, Version,
};

/// Something that happened.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// A message came in on a connection. The first one on a connection must be `Hello`.
    Message(ConnId, Message),
    /// The peer showed a sign of life below the level of messages (a pong, a part of a large message).
    Heard(ConnId),
    /// The connection is gone, for whatever reason.
    Disconnected(ConnId),
    /// An update came in that [`super::Syncer::verifier`] has looked into, so that the syncer need not. A shell without
    /// threads hands the message in as it is.
    Update(ConnId, Box<Verified>),
    /// A job from [`Output::Merge`] or [`Output::Remake`] is done, or gives its state back.
    Merged(Box<Result<MergeOutcome, Box<MergeFailure>>>),
    /// Merges did harm: they are undone. A host that hands this in does [`Output::Remake`].
    Undo(Box<Undo>),
    /// What updates of a learner show of whether it trains what it says it does, by [`super::Proofs`], if that is
    /// something else than before.
    Regard { learner: LearnerId, regard: Regard },
    /// Collect everyone's last progress on every fragment, then say goodbye.
    Finish,
    /// Whether the owner holds the run: then nothing but a last collection is launched, nothing is leased, and
    /// learners wait.
    Hold(bool),
    /// Whether decisions cannot be kept at present: then nothing is launched or leased until they can. Learners train
    /// on, and are not told.
    Stall(bool),
    /// The owner has one learner train for this part of its time.
    Pace { learner: LearnerId, share: Share },
    /// The owner sends one learner away for so long, at most [`super::DROP_MS_MAX`]; 0 lets it come back.
    Drop { learner: LearnerId, wait_ms: u32 },
    /// The owner banned whoever has the identity of this fingerprint: its connection is closed. That it does not come
    /// back is for the shell to see to, as it sees to who it is.
    Ban(Fingerprint),
    /// Which number somebody has who introduced itself: see [`super::Upward::Introduce`].
    Introduced { conn: ConnId, learner: LearnerId, hello: Box<Hello> },
    /// Who leads the rounds of a fragment asks a learner by its connection for its progress.
    Asked { fragment: FragmentId, learner: LearnerId, conn: ConnId, round: Round },
    /// An update that was passed on is not merged.
    Unmerged {
        fragment: FragmentId,
        learner: LearnerId,
        conn: ConnId,
        serial: Serial,
        /// What is wrong with it, unless it only came too late.
        refusal: Option<Refusal>,
    },
    /// A fragment has a new version, by the word of who leads its rounds.
    Followed(Box<Followed>),
    /// A round of a fragment is over and led to no version, by the word of who leads them.
    Over(FragmentId, Round),
    /// The last round of a fragment is over, by the word of who led it: the run ends with that of the last one.
    Closed(FragmentId),
    /// A number came back by this connection: see [`Output::Probe`].
    Probed(ConnId, u64),
    /// [`super::Syncer::deadline`] has come.
    Timeout,
}

/// Something to do.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send `message` on one connection.
    Send(ConnId, Message),
    /// Send `message` on several connections; encode it once.
    Broadcast(Vec<ConnId>, Message),
    /// Send the goodbye, then close the connection. No `Disconnected` is expected, one does no harm.
    Close(ConnId, Bye),
    /// Keep this before anybody is told what comes after it: see [`super::Host::record`].
    Record(Entry),
    /// Run the job, here or elsewhere, and bring the result back as an input.
    Merge(Box<MergeJob>),
    /// Have the job follow the tape, here or elsewhere, once the version of its fragment is on it; run it, and bring
    /// the result back as [`Input::Merged`].
    Remake(Box<RemakeJob>),
    /// Pass this on to who leads the rounds: only asked of the host of [`super::Syncer::led_elsewhere`].
    Upward(Upward),
    /// Have the other end of a connection send this number back, as a WebSocket does by itself, and bring it as
    /// [`Input::Probed`], behind all that came by the connection before: only asked of the host of
    /// [`super::Syncer::led_elsewhere`].
    Probe(ConnId, u64),
    /// For logs, the dashboard and tests.
    Event(Event),
    /// The run is complete: everyone has been told, nothing more will come.
    Finished,
}

/// What the syncer did and why.
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
    /// Somebody who is no learner here was turned away: the close code, and what they were told.
    TurnedAway { code: u16, reason: String },
    /// A learner's state changed.
    State { learner: LearnerId, state: LearnerState },
    /// A round began.
    Launched { round: Round, fragment: FragmentId, invited: u32, step_ms: f64 },
    /// A learner answered, `after_ms` after it was asked: with an update of so many countable tokens, or of 0 with
    /// nothing. Without a round its answer waits for the next one.
    Answered { round: Option<Round>, fragment: FragmentId, learner: LearnerId, tokens: u64, after_ms: u64 },
    /// A round has its quorum of so many updates.
    Quorum { round: Round, fragment: FragmentId, updates: u32, after_ms: u64 },
    /// What was decided about a round, each time it changes.
    Decided { round: Round, fragment: FragmentId, decision: Decision },
    /// What became of an update, and in which round if it was part of one.
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
    /// Updates of a learner did harm, for the so many-th time: they are undone, and it is sent away.
    Blamed { learner: LearnerId, harms: u32 },
    /// Updates of a learner do not show that it trains what it says it does: it counts as a newcomer does, and its
    /// tokens count for nothing; or without a `doubt` they show it again.
    Doubted { learner: LearnerId, doubt: Option<Doubt> },
    /// What a fragment was merged to is undone: it has a version of its own now, so far away from the one before.
    Remade { round: Round, fragment: FragmentId, version: Version, norm: f64, sync_ms: u64 },
    /// The owner holds the run, or lets it go on.
    Held { held: bool },
    /// The owner has a learner train for this part of its time, in thousandths.
    Paced { learner: LearnerId, share: Share },
    /// The owner sent a learner away for so long, or with 0 lets it come back.
    Dropped { learner: LearnerId, wait_ms: u32 },
    /// A merge failed; the fragment is as before.
    MergeFailed { round: Round, fragment: FragmentId, error: String },
    /// A lease ran out or was given back; its `windows` left go to others.
    LeaseReturned { learner: LearnerId, lease: LeaseId, windows: u32, expired: bool },
}

/// Why a learner is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum LeaveCause {
    /// It said goodbye.
    Polite,
    /// Its connection broke.
    Lost,
    /// We closed the connection.
    Closed {
        /// The close code.
        code: u16,
        /// What we told it.
        reason: String,
    },
}
