//! Bodies of the larger messages, the types of their fields, and the WebSocket close codes of both sides.

use std::fmt;

use super::{
    FragmentId, Identity, Invite, LayoutHash, LearnerId, LeaseId, RunId, RunSpec, Serial, Share, Signature,
    VERSION, Version,
};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Opening message of the syncer. The learner signs [`Self::text`], so that a recorded `Hello` cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The run.
    pub run: RunId,
    /// 32 random bytes, unique to this connection.
    #[serde(with = "serde_bytes")]
    pub nonce: [u8; 32],
}

impl Challenge {
    /// Returns the 64 bytes to sign. The purpose, version and run bind the signature to this use; the nonce binds it to
    /// one connection.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let version = VERSION.to_le_bytes();
        [&b"archipelago hello v1\0\0"[..], &version, &self.run.0.to_le_bytes(), &self.nonce].concat()
    }
}

/// A learner's introduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Run that the learner took part in before, if any. The syncer of another run refuses the learner.
    pub run: Option<RunId>,
    /// Parameter layout of that run, if any.
    pub layout: Option<LayoutHash>,
    /// Public key of the learner, the same at each reconnect.
    pub identity: Identity,
    /// The text of the connection's [`Challenge`], signed with that key.
    pub signature: Signature,
    /// Display name, at most 64 bytes.
    pub name: String,
    /// Device of the learner, at most 64 bytes: the name of a [`crate::wire::DeviceKind`], then free text ("cpu, 2
    /// threads").
    pub device: String,
    /// Invite, at most 64 bytes, if the run requires one.
    pub invite: Option<Invite>,
}

/// The syncer's answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The run.
    pub run: RunId,
    /// Id of the learner in this run.
    pub learner: LearnerId,
    /// Description of the run.
    pub spec: RunSpec,
    /// Layout that follows from `spec`. A learner that computes a different one leaves.
    pub layout: LayoutHash,
    /// Current version of each fragment, `[P]`.
    pub versions: Vec<Version>,
    /// Merged tokens credited to the schedule so far: they set the learning rate.
    pub clock_tokens: u64,
    /// Last merged update of this learner for each fragment, `[P]`.
    pub merged: Vec<Option<Serial>>,
    /// Update of this learner without a fate, for each fragment, `[P]`. An update that is neither in `merged` nor
    /// here was lost with a connection; its progress goes into the next update.
    pub unsettled: Vec<Option<Serial>>,
    /// Leases that this learner holds, according to the syncer. The learner drops any other.
    pub leases: Vec<LeaseId>,
    /// Tokens that this learner has trained on, over all its processes.
    pub tokens_trained: u64,
    /// Merged tokens of this learner: the mean over fragments, weighted by their numbers of values.
    pub tokens_merged: u64,
    /// Whether the run is paused, see [`super::Message::SetPaused`].
    pub held: bool,
    /// Part of the training time that the owner allows, see [`super::Message::SetDutyCycle`].
    pub share: Share,
}

/// A learner's progress on one fragment since its last merged update of that fragment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The run.
    pub run: RunId,
    /// The fragment.
    pub fragment: FragmentId,
    /// Number of the update, which [`super::Message::Receipt`] repeats.
    pub serial: Serial,
    /// Version that the sender held when it encoded `body`.
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
    /// Tokens routed to each expert that has tensors in the fragment, in the order of the layout. Empty, and absent
    /// from the wire, in dense models.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "few")]
    pub seen: Vec<u64>,
}

/// Maximum number of experts with tensors in one fragment.
pub const SEEN_MAX: usize = 1 << 16;

/// Deserialises at most [`SEEN_MAX`] numbers. The limit matters because a number may take one byte on the wire and
/// eight in memory.
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

/// Change of one fragment's Θ̂, produced by a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The run.
    pub run: RunId,
    /// The fragment.
    pub fragment: FragmentId,
    /// Version that `body` is added to.
    pub base: Version,
    /// Resulting version.
    pub version: Version,
    /// Merged tokens credited to the schedule, after this round.
    pub clock_tokens: u64,
    /// Coded change of Θ̂, see `diloco::quant`.
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// First 8 bytes of the SHA-256 of `body`, big endian.
    pub checksum: u64,
    /// Digest of the resulting Θ̂, see `diloco::digest`.
    pub digest: u64,
}

/// Outcome of an update. Every update has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The update is part of the fragment's next version.
    Merged {
        /// Version that contains the update.
        version: Version,
        /// Relative weight of the update in the merge, 0 to 1.
        weight: f32,
        /// Tokens of the update that were credited.
        tokens: u64,
    },
    /// The update came after its round, and the run's policy cannot use it any more. The learner keeps the progress,
    /// which goes into its next update.
    Late(LateReason),
    /// The update was refused. The learner keeps the progress.
    Refused(Refusal),
}

/// Reason why an update is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum LateReason {
    /// The round was merged or abandoned before the update came.
    RoundOver,
    /// The update is relative to a version other than the round's.
    StaleBase,
}

/// Reason why an update was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The syncer did not request an update from this learner.
    NotInvited,
    /// An earlier update of this learner on this fragment has no fate yet. The learner must wait for the earlier
    /// receipt.
    Unsettled,
    /// `steps` or `tokens` is 0.
    Empty,
    /// The body has the wrong length for the fragment.
    Shape,
    /// The checksum does not match the body.
    Checksum,
    /// A scale is not finite.
    NotFinite,
    /// The norm per step is far above the norm statistics of the fragment.
    Norm,
    /// The update claims more tokens than were ever leased to this learner.
    Unleased,
}

impl Refusal {
    /// Returns true if the update's content caused the refusal, and not its timing.
    #[must_use]
    pub fn is_of_content(self) -> bool {
        !matches!(self, Self::NotInvited | Self::Unsettled)
    }
}

/// Lease of windows `start..start + windows` of one shard, in the order of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    /// Id of the lease in [`Progress`].
    pub lease: LeaseId,
    /// Number of the pass over the data, from 0.
    pub epoch: u32,
    /// Index of the shard.
    pub shard: u32,
    /// First window, in the epoch's order of that shard.
    pub start: u32,
    /// Number of windows, at least 1.
    pub windows: u32,
}

/// Report of a learner about its training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The run.
    pub run: RunId,
    /// Windows trained so far for each lease, in ascending order of leases. A finished lease is reported once on each
    /// connection whose `Welcome` lists it.
    pub leases: Vec<(LeaseId, u32)>,
    /// Steps of this process since it first joined this run or last restarted from scratch.
    pub steps: u64,
    /// Tokens of those steps.
    pub tokens: u64,
    /// Mean step time since the last report with tokens, in milliseconds; 0 before the first. The time of a step
    /// without tokens is added to the next step with tokens.
    pub step_ms: f32,
    /// Mean training loss over the tokens since the last report, in nats per token; NaN without tokens.
    pub loss: f32,
    /// State of the learner.
    pub state: LearnerState,
}

/// Current activity of a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub enum LearnerState {
    /// Fetching parameters or data.
    Joining,
    /// Training.
    Training,
    /// Paused by the person who runs it.
    Paused,
    /// In a hidden browser tab: connected, possibly slow to answer.
    Hidden,
    /// Has no leased windows to train on.
    Starved,
    /// Waits because the owner of the run paused it.
    Held,
}

/// Last message of a connection, with a typed reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bye {
    /// Reason as a number, which is also the WebSocket close code.
    pub code: CloseCode,
    /// Cause and remedy, in one sentence.
    pub reason: String,
    /// Minimum time until the learner may return, in milliseconds; 0 leaves the time to the learner.
    pub wait_ms: u32,
}

impl Bye {
    /// Returns a goodbye with `wait_ms` 0.
    #[must_use]
    pub fn new(code: CloseCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), wait_ms: 0 }
    }
}

/// Reason for the end of a connection. The numbers are on the wire: never change or reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
#[repr(u16)]
pub enum CloseCode {
    /// The learner leaves gracefully, or the run is complete.
    Done = 4000,
    /// The syncer shuts down; come back later.
    Restart = 4001,
    /// The bytes are not a valid message.
    Malformed = 4002,
    /// The peer uses another version of the protocol.
    Version = 4003,
    /// The message belongs to another run.
    WrongRun = 4004,
    /// The learner holds another parameter layout.
    Layout = 4005,
    /// A message or frame is larger than the limit.
    TooLarge = 4006,
    /// The message is not allowed in this state of the connection.
    Protocol = 4007,
    /// Another connection with the same identity replaced this one.
    Replaced = 4008,
    /// The peer was silent for too long.
    Silent = 4009,
    /// The syncer has reached its maximum number of learners.
    Full = 4010,
    /// The peer reads too slowly, and its queue is full.
    SlowReader = 4011,
    /// Too many updates of the learner were refused.
    Untrusted = 4012,
    /// The run requires an invite, and the invite in `Hello` is missing or invalid.
    Invite = 4013,
    /// The owner of the run dropped this learner; it may return after `wait_ms` of the `Bye`.
    Dropped = 4014,
    /// `Hello` is not signed with the key that it names, or that key is invalid.
    Identity = 4015,
    /// The owner of the run banned this learner.
    Banned = 4016,
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
            C::Identity,
            C::Banned,
        ]
        .into_iter()
        .find(|known| *known as u16 == code)
        .ok_or(UnknownCloseCode(code))
    }
}

/// A close code that this version does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("close code {0} is not a close code of this protocol")]
pub struct UnknownCloseCode(pub u16);

/// Kind of device. The text in `Hello` begins with its name; the rest is free text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A browser page, with any engine.
    Browser,
    /// A GPU.
    Gpu,
    /// A CPU.
    Cpu,
    /// A device whose text begins with no known name.
    Other,
}

impl DeviceKind {
    /// All kinds whose name a text can begin with.
    pub const NAMED: [Self; 3] = [Self::Browser, Self::Gpu, Self::Cpu];

    /// Returns the first word of the text in `Hello`.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Other => "other",
        }
    }

    /// Returns the text for a device of this kind: its name and `details`, which may be empty.
    #[must_use]
    pub fn describe(self, details: &str) -> String {
        match details {
            "" => self.name().to_owned(),
            _ => format!("{}, {details}", self.name()),
        }
    }

    /// Returns the kind named by the first word of `device`.
    #[must_use]
    pub fn of(device: &str) -> Self {
        let first = device.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        Self::NAMED.into_iter().find(|kind| first.eq_ignore_ascii_case(kind.name())).unwrap_or(Self::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_described_device_is_of_its_kind() {
        for kind in DeviceKind::NAMED {
            for details in ["", "2 threads", "NVIDIA L4", "WebGPU, Apple M2", "gpu or cpu"] {
                let device = kind.describe(details);
                assert_eq!(DeviceKind::of(&device), kind, "{device}");
            }
        }
    }

    /// Engines describe themselves by the name of the kind and a space.
    #[test]
    fn the_first_word_decides() {
        let check = |device, kind| assert_eq!(DeviceKind::of(device), kind, "{device}");
        check("cpu avx512 2 threads", DeviceKind::Cpu);
        check("GPU llvmpipe vulkan", DeviceKind::Gpu);
        check("gpus", DeviceKind::Other);
        check("by hand", DeviceKind::Other);
        check("", DeviceKind::Other);
    }
}
