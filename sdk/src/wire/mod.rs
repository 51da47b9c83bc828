//! Bytes ⇄ messages. Pure: knows nothing of sockets.

mod ids;
mod messages;
mod spec;

pub use ids::{ConnId, FragmentId, Identity, LayoutHash, LearnerId, LeaseId, Millis, Round, RunId, Version};
pub use messages::{
    Bye, CloseCode, Fate, Hello, LateReason, LearnerState, LeaseGrant, Merged, Message, Progress, Refusal,
    Update, Welcome,
};
pub use spec::{ApplyPolicy, Code, DataSpec, ExchangeSpec, InnerSpec, ModelSpec, RunSpec, ShardSpec};

/// The version spoken here. A peer with another one is refused.
pub const VERSION: u16 = 1;
