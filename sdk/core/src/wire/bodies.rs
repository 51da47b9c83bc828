//! What the larger messages hold, and the types of their fields.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    CloseCode, FragmentId, Identity, Invite, LayoutHash, LearnerId, LeaseId, RunId, RunSpec, Serial, Share,
    Signature, VERSION, Version,
};

/// What the syncer opens a connection with: who comes signs [`Self::text`], so that nobody can say a `Hello` that
/// somebody else said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The run.
    pub run: RunId,
    /// 32 random bytes that no other connection was ever given.
    #[serde(with = "serde_bytes")]
    pub nonce: [u8; 32],
}

impl Challenge {
    /// The text that is signed, 64 bytes. It names what it is for, the version and the run, so that it serves no other
    /// purpose, and the nonce, so that it serves one connection.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let version = VERSION.to_le_bytes();
        [&b"archipelago hello v1\0\0"[..], &version, &self.run.0.to_le_bytes(), &self.nonce].concat()
    }
}

/// A learner's introduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The run it was part of before, if any; another run refuses it.
    pub run: Option<RunId>,
    /// The layout it holds from before, if any.
    pub layout: Option<LayoutHash>,
    /// Its public key, the same at each reconnect.
    pub identity: Identity,
    /// The text of the connection's [`Challenge`], signed with that key.
    pub signature: Signature,
    /// A name for people, at most 64 bytes.
    pub name: String,
    /// What it computes with, at most 64 bytes: the name of a [`crate::wire::DeviceKind`], then words for people
    /// ("cpu, 2 threads").
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
    /// The run's merged tokens so far that count for its schedule: the clock of the learning rate.
    pub clock_tokens: u64,
    /// For each fragment, the last update of this learner that was merged, `[P]`, and…
    pub merged: Vec<Option<Serial>>,
    /// …the one that the syncer holds and has not settled yet, `[P]`. Together they settle what a lost connection
    /// left open: an update in neither is lost, and its progress goes into the next one.
    pub unsettled: Vec<Option<Serial>>,
    /// The leases that the syncer knows this learner to hold; it forgets any other.
    pub leases: Vec<LeaseId>,
    /// Tokens that this learner trained on so far, in all its processes.
    pub tokens_trained: u64,
    /// Its tokens that are merged: the mean over fragments, weighted by their sizes.
    pub tokens_merged: u64,
    /// Whether the owner holds the run, see [`super::Message::Hold`].
    pub held: bool,
    /// How much of its time the owner has it train, see [`super::Message::Pace`].
    pub share: Share,
}

/// A learner's progress on one fragment since its last merged update of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The run.
    pub run: RunId,
    /// The fragment.
    pub fragment: FragmentId,
    /// Names it in [`super::Message::Receipt`].
    pub serial: Serial,
    /// The version that its sender held.
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
    /// Of the tokens, those that went through each expert that the fragment has a part of, in the order of the layout.
    /// Left out where there is nothing to tell, as in dense models.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "few")]
    pub seen: Vec<u64>,
}

/// Most experts of a fragment.
pub const SEEN_MAX: usize = 1 << 16;

/// Numbers, at most [`SEEN_MAX`]: one takes a byte on the wire and eight in memory.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    struct Few;

    impl<'de> Visitor<'de> for Few {
        type Value = Vec<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {SEEN_MAX} numbers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Vec<u64>, A::Error> {
            let mut seen = Vec::new();
            while let Some(number) = numbers.next_element()? {
                if seen.len() == SEEN_MAX {
                    return Err(serde::de::Error::invalid_length(SEEN_MAX + 1, &self));
                }
                seen.push(number);
            }
            Ok(seen)
        }
    }

    deserializer.deserialize_seq(Few)
}

/// The change of one fragment's Θ̂ that a round led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The run.
    pub run: RunId,
    /// The fragment.
    pub fragment: FragmentId,
    /// The version that `body` is added to.
    pub base: Version,
    /// The version that results.
    pub version: Version,
    /// The run's merged tokens after this round that count for its schedule.
    pub clock_tokens: u64,
    /// Coded change of Θ̂, see `diloco::quant`.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// First 8 bytes of the SHA-256 of `body`, big endian.
    pub checksum: u64,
    /// Digest of the Θ̂ that results, see `diloco::digest`.
    pub digest: u64,
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
    /// It came after its round, and the run's policy cannot use it any more; the learner keeps the progress, which
    /// rides in its next update.
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
    /// Nobody asked this learner.
    NotInvited,
    /// Another update of this learner on this fragment is not settled yet: the next one goes out after its receipt.
    Unsettled,
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

impl Refusal {
    /// Whether something is wrong with what the update holds, and not with when it came.
    #[must_use]
    pub fn is_of_content(self) -> bool {
        !matches!(self, Self::NotInvited | Self::Unsettled)
    }
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
    /// For each lease it holds, windows trained so far, in order of the lease; a finished one once on each connection
    /// whose `Welcome` lists it.
    pub leases: Vec<(LeaseId, u32)>,
    /// Steps of this process since it first joined this run, or began it afresh.
    pub steps: u64,
    /// Tokens of these steps.
    pub tokens: u64,
    /// Mean time of a step of those since the last report that was of any, in milliseconds; 0 before the first. A step
    /// that no tokens came of counts with the next one that some came of.
    pub step_ms: f32,
    /// Mean training loss of the tokens since the last report, in nats per token; NaN if there were none.
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
