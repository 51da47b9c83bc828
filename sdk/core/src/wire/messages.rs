//! The messages, as plain data. `WIRE.md` holds the same as tables.

use serde::{Deserialize, Serialize};

use super::{
    FragmentId, Identity, Invite, LayoutHash, LearnerId, LeaseId, Round, RunId, RunSpec, Share, Version,
};

/// Everything that crosses the socket. The tag of each is fixed in the codec.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Learner → syncer: who I am. The first message of a connection.
    Hello(Hello),
    /// Syncer → learner: your id and the run. The answer to `Hello`.
    Welcome(Box<Welcome>),
    /// Learner → syncer: I hold the parameters of this layout and train from now on.
    Ready {
        /// The run.
        run: RunId,
        /// The layout that the learner computed from the run's description.
        layout: LayoutHash,
    },
    /// Syncer → learner: answer with your progress on `fragment` since version `base`.
    Collect {
        /// The run.
        run: RunId,
        /// The round that asks.
        round: Round,
        /// The fragment asked for.
        fragment: FragmentId,
        /// The version that the answer is to be relative to.
        base: Version,
    },
    /// Learner → syncer: my progress on one fragment.
    Update(Update),
    /// Learner → syncer: nothing to report for this round.
    Pass {
        /// The run.
        run: RunId,
        /// The round that it answers.
        round: Round,
        /// The fragment that was asked for.
        fragment: FragmentId,
    },
    /// Syncer → learner: what became of your update. Comes before the round's `Merged`.
    Receipt {
        /// The run.
        run: RunId,
        /// The round of the update.
        round: Round,
        /// The fragment of the update.
        fragment: FragmentId,
        /// What became of it.
        fate: Fate,
    },
    /// Syncer → learners: the merged change of one fragment.
    Merged(Merged),
    /// Syncer → learner: windows to train on.
    Lease {
        /// The run.
        run: RunId,
        /// The windows.
        grant: LeaseGrant,
    },
    /// Syncer → learners: the owner holds the run, or lets it go on. A learner does not train while it is held.
    Hold {
        /// The run.
        run: RunId,
        /// Whether it is held.
        held: bool,
    },
    /// Syncer → learner: the owner has you train for so much of the time that you would train. 1 is all of it.
    Pace {
        /// The run.
        run: RunId,
        /// The part of its time.
        share: Share,
    },
    /// Learner → syncer: how far I am; at least every `PROGRESS_MS`.
    Progress(Progress),
    /// Either way: the last message of a connection.
    Bye(Bye),
}

/// A learner's introduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The run it was part of before, if any; another run refuses it.
    pub run: Option<RunId>,
    /// The layout it holds from before, if any.
    pub layout: Option<LayoutHash>,
    /// Its secret, the same at each reconnect.
    pub identity: Identity,
    /// A name for people, at most 64 bytes.
    pub name: String,
    /// What it computes with, for people ("cpu avx512 2 threads"), at most 64 bytes.
    pub device: String,
    /// What the run's owner asks for from everyone who joins, at most 64 bytes.
    pub invite: Option<Invite>,
}

/// The syncer's answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The run.
    pub run: RunId,
    /// The learner's id in it.
    pub learner: LearnerId,
    /// What the run is.
    pub spec: RunSpec,
    /// The layout that follows from `spec`; a learner that computes another one leaves.
    pub layout: LayoutHash,
    /// Current version of each fragment, `[P]`.
    pub versions: Vec<Version>,
    /// The run's merged tokens so far: the inner schedule's clock.
    pub clock_tokens: u64,
    /// For each fragment, the last round in which an update of this learner was merged, `[P]`.
    /// It settles what a lost connection left open.
    pub merged_rounds: Vec<Option<Round>>,
    /// The leases that the syncer knows this learner to hold; it forgets any other.
    pub leases: Vec<LeaseId>,
    /// Tokens that this learner trained on so far, in all its processes.
    pub tokens_trained: u64,
    /// Its tokens that are merged: the mean over fragments, weighted by their sizes.
    pub tokens_merged: u64,
    /// Whether the owner holds the run, see [`Message::Hold`].
    pub held: bool,
    /// How much of its time the owner has it train, see [`Message::Pace`].
    pub share: Share,
}

/// A learner's progress on one fragment since its last merged update of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The run.
    pub run: RunId,
    /// The round that it answers.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// The version that `body` is relative to.
    pub base: Version,
    /// Inner steps since the last merged update of this fragment, at least 1.
    pub steps: u32,
    /// Tokens of those steps, at least 1.
    pub tokens: u64,
    /// Coded `Θ̂_base − θ`, see `diloco::quant`.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// First 8 bytes of the SHA-256 of `body`, big endian.
    pub checksum: u64,
}

/// The change of one fragment's Θ̂ that a round led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The run.
    pub run: RunId,
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// The version that `body` is added to.
    pub base: Version,
    /// The version that results.
    pub version: Version,
    /// The run's merged tokens after this round.
    pub clock_tokens: u64,
    /// Coded change of Θ̂, see `diloco::quant`.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// First 8 bytes of the SHA-256 of `body`, big endian.
    pub checksum: u64,
}

/// What became of an update. Every update meets exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It is part of the fragment's next version.
    Merged {
        /// The version that it led to.
        version: Version,
        /// Its share of the merge, 0 to 1.
        weight: f32,
        /// Its tokens, as counted.
        tokens: u64,
    },
    /// The round had ended; the learner keeps the progress, which rides in its next update.
    Late(LateReason),
    /// It was not taken; the learner keeps the progress.
    Refused(Refusal),
}

/// Why an update came late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum LateReason {
    /// The round was merged or given up before it came.
    RoundOver,
    /// It is relative to another version than the round's.
    StaleBase,
}

/// Why an update was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The round never invited this learner, or it answered twice.
    NotInvited,
    /// `steps` or `tokens` is 0.
    Empty,
    /// The body has the wrong length for the fragment.
    Shape,
    /// The checksum does not match the body.
    Checksum,
    /// A scale is not finite.
    NotFinite,
    /// The norm per step is far above what this fragment's updates usually have.
    Norm,
    /// More tokens than were ever leased to this learner.
    Unleased,
}

/// Windows `start..start + windows` of one shard in one epoch's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// Names the lease in [`Progress`].
    pub lease: LeaseId,
    /// The pass over the data, from 0.
    pub epoch: u32,
    /// Index of the shard.
    pub shard: u32,
    /// First window, in the epoch's order of that shard.
    pub start: u32,
    /// Number of windows, at least 1.
    pub windows: u32,
}

/// A learner's own account of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The run.
    pub run: RunId,
    /// For each lease it holds, windows trained so far, in order of the lease.
    pub leases: Vec<(LeaseId, u32)>,
    /// Steps since it first joined this run.
    pub steps: u64,
    /// Tokens since it first joined this run.
    pub tokens: u64,
    /// Moving average of the time of a step, in milliseconds; 0 before the first.
    pub step_ms: f32,
    /// Mean training loss since the last report, in nats per token; NaN if there was no step.
    pub loss: f32,
    /// What it is doing.
    pub state: LearnerState,
}

/// What a learner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub enum LearnerState {
    /// Fetching parameters or data.
    Joining,
    /// Training.
    Training,
    /// Paused by its owner.
    Paused,
    /// In a hidden tab: alive, maybe slow to answer.
    Hidden,
    /// Has no lease to train on.
    Starved,
    /// Waits because the owner holds the run.
    Held,
}

/// A typed goodbye.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Why, as a number that is also the WebSocket close code.
    pub code: CloseCode,
    /// What was wrong and what to do, in one sentence.
    pub reason: String,
    /// Time after which the learner may come back, in milliseconds; 0 leaves it to the learner.
    pub wait_ms: u32,
}

impl Bye {
    /// A goodbye that leaves it to the learner when to come back.
    #[must_use]
    pub fn new(code: CloseCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), wait_ms: 0 }
    }
}

/// Why a connection ends. The numbers are on the wire: never reorder them, never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
#[repr(u16)]
pub enum CloseCode {
    /// The learner leaves politely, or the run is complete.
    Done = 4000,
    /// The syncer shuts down; come back later.
    Restart = 4001,
    /// The bytes are no message of ours.
    Malformed = 4002,
    /// The peer speaks another version.
    Version = 4003,
    /// The message belongs to another run.
    WrongRun = 4004,
    /// The learner holds another parameter layout.
    Layout = 4005,
    /// A message or frame is larger than the limit.
    TooLarge = 4006,
    /// A message that makes no sense in this state.
    Protocol = 4007,
    /// Another connection with the same identity took over.
    Replaced = 4008,
    /// Silent for too long.
    Silent = 4009,
    /// The syncer has as many learners as it takes.
    Full = 4010,
    /// The peer reads too slowly for its queue.
    SlowReader = 4011,
    /// Too many of its updates were refused.
    Untrusted = 4012,
    /// The run takes invited learners only, and this one shows no invite or another.
    Invite = 4013,
    /// The owner of the run dropped this learner; it may come back after the time in `Bye`.
    Dropped = 4014,
}

impl From<CloseCode> for u16 {
    fn from(code: CloseCode) -> Self {
        code as Self
    }
}

impl TryFrom<u16> for CloseCode {
    type Error = UnknownCloseCode;

    fn try_from(code: u16) -> Result<Self, Self::Error> {
        use CloseCode as C;
        [
            C::Done,
            C::Restart,
            C::Malformed,
            C::Version,
            C::WrongRun,
            C::Layout,
            C::TooLarge,
            C::Protocol,
            C::Replaced,
            C::Silent,
            C::Full,
            C::SlowReader,
            C::Untrusted,
            C::Invite,
            C::Dropped,
        ]
        .into_iter()
        .find(|known| *known as u16 == code)
        .ok_or(UnknownCloseCode(code))
    }
}

/// A close code that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("close code {0} is not one of ours")]
pub struct UnknownCloseCode(pub u16);
