//! Reasons for the end of a connection: the WebSocket close codes of both sides.

use serde::{Deserialize, Serialize};

/// Reason for the end of a connection. The numbers are on the wire: never reorder them, never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
#[repr(u16)]
pub enum CloseCode {
    /// The learner leaves politely, or the run is complete.
    Done = 4000,
    /// The syncer shuts down; come back later.
    Restart = 4001,
    /// The bytes are not a valid message.
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
    /// The peer was silent for too long.
    Silent = 4009,
    /// The syncer has reached its maximum number of learners.
    Full = 4010,
    /// The peer reads too slowly, and its queue is full.
    SlowReader = 4011,
    /// Too many updates of the learner were refused.
    Untrusted = 4012,
    /// The run requires an invite, and the learner shows none or a wrong one.
    Invite = 4013,
    /// The owner of the run dropped this learner; it may come back after the time in `Bye`.
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
