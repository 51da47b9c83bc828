#![doc = include_str!("WIRE.md")]

mod bodies;
mod chunk;
mod codec;
mod frozen;
pub mod http;
mod ids;
mod messages;
mod spec;
mod table;
#[cfg(test)]
pub(crate) mod tests;

pub use bodies::{
    Bye, Challenge, CloseCode, DeviceKind, Fate, Hello, LateReason, LearnerState, LeaseGrant, Merged,
    Progress, Refusal, UnknownCloseCode, Update, Welcome,
};
pub use chunk::{Assembler, frames};
pub use codec::{BodyFault, DecodeError, MAGIC, decode, encode};
pub use frozen::{
    FROZEN_PART_BYTES, FROZEN_PART_BYTES_MAX, FROZEN_PARTS_MAX, Frozen, FrozenForm, PartsError, UnknownForm,
};
pub use ids::{
    ConnId, Fingerprint, FingerprintError, FragmentId, Identity, Invite, LayoutHash, LearnerId, LeaseId,
    Round, RunId, Serial, Share, ShareError, Signature, Version,
};
pub use messages::{Class, Message, Sender, Tag};
pub use spec::{
    ARCHITECTURE_BYTES_MAX, ARCHITECTURE_NAME_BYTES_MAX, ApplyPolicy, Architecture, Code, DataSpec,
    ExchangeSpec, InnerSpec, MergeClass, Mixture, Model, Optimiser, RunSpec, ShardSpec,
    TENSOR_NAME_BYTES_MAX, Tensor,
};

pub use crate::text::{CLOSE_REASON_BYTES_MAX, clip};
pub use crate::time::Millis;

/// Version of the protocol. A peer with another version is refused.
pub const VERSION: u16 = 8;

/// The WebSocket subprotocol of this version.
pub const SUBPROTOCOL: &str = "archipelago.8";

/// Bytes of a header: magic 4, version 2, tag 1, reserved 1, body length 4.
pub const HEADER_BYTES: usize = 12;

/// Maximum size of a frame, in bytes, headers included. A larger message is sent in chunks.
pub const CHUNK_BYTES: u32 = 64 << 10;

/// Maximum size of a message's body, in bytes, checked before allocation.
pub const BODY_BYTES_MAX: u32 = 64 << 20;

/// Maximum size of a body that a syncer accepts before `Hello`, in bytes.
pub const GREETING_BYTES_MAX: u32 = 4 << 10;

/// Maximum number of incomplete chunked messages on one connection, in each direction.
pub const PARTIALS_MAX: u32 = 4;

/// Maximum length of the name and of the device in [`Hello`], in bytes.
pub const NAME_BYTES_MAX: u32 = 64;

/// Maximum length of the invite in [`Hello`], in bytes.
pub const INVITE_BYTES_MAX: u32 = 64;

/// Maximum length of the reason in [`Bye`], in bytes.
pub const REASON_BYTES_MAX: u32 = 512;

/// Maximum number of windows in one step of a learner.
pub const BATCH_MAX: u32 = 4_096;

/// Maximum time between two [`Progress`] messages of a learner, in milliseconds.
pub const PROGRESS_MS: u64 = 1_000;
