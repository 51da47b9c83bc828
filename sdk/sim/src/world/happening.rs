//! Timed events of a world.

use std::sync::Arc;

use archipelago_core::diloco::syncer::Input;
use archipelago_core::diloco::{MergeFailure, MergeOutcome};
use archipelago_core::wire::{ConnId, FragmentId, Millis, Version};

use super::Fault;
use super::link::Way;
use super::payload::Payload;
use super::snapshot::Snapshot;

/// An event with its own time.
#[derive(Debug)]
pub(super) enum Happening {
    Fault(Fault),
    /// A process's connection request, its `attempt`-th, reaches the syncer.
    Knock {
        machine: u32,
        life: u32,
        attempt: u32,
    },
    /// The answer reaches the process: a connection, or a refusal.
    Dialled {
        machine: u32,
        life: u32,
        attempt: u32,
        conn: Option<ConnId>,
    },
    ToSyncer {
        conn: ConnId,
        payload: Payload,
    },
    ToLearner {
        conn: ConnId,
        payload: Payload,
    },
    /// One end learns that the connection is gone.
    LostAtSyncer {
        conn: ConnId,
    },
    LostAtLearner {
        conn: ConnId,
    },
    /// The syncer's end must ping.
    PingDue {
        conn: ConnId,
    },
    /// A ping reaches the learner's end of the connection, where kernel and shell answer.
    Ping {
        conn: ConnId,
    },
    Pong {
        conn: ConnId,
    },
    StepDone {
        machine: u32,
        life: u32,
        step_ms: u64,
    },
    WakeLearner {
        machine: u32,
        life: u32,
        at: Millis,
    },
    WakeSyncer {
        generation: u32,
        at: Millis,
    },
    MergeDone {
        generation: u32,
        result: Box<Result<MergeOutcome, Box<MergeFailure>>>,
    },
    /// A request for a fragment reaches the syncer.
    AskFragment {
        machine: u32,
        life: u32,
        downloads: u32,
        fragment: FragmentId,
    },
    /// The answer reaches the process.
    FragmentCame {
        machine: u32,
        life: u32,
        downloads: u32,
        fragment: FragmentId,
        answer: Option<(Version, Arc<Vec<f32>>)>,
    },
    /// A request for a shard reaches the syncer.
    AskShard {
        machine: u32,
        life: u32,
        shard: u32,
    },
    ShardCame {
        machine: u32,
        life: u32,
        shard: u32,
        here: bool,
    },
    Snapshot {
        generation: u32,
    },
    /// A snapshot is on the disk.
    Saved {
        generation: u32,
        snapshot: Box<Snapshot>,
    },
    /// The tape is on the disk up to row `seq`.
    Taped {
        generation: u32,
        seq: u64,
    },
    /// A failed write is retried.
    RetryTape {
        generation: u32,
    },
    /// A syncer has read its disk.
    Started {
        generation: u32,
    },
    /// A loss measurement is due.
    Look,
    /// A link has finished its current transmission.
    LinkFree {
        machine: u32,
        way: Way,
        at: Millis,
    },
    /// The reader of a connection has checked an input.
    Read {
        generation: u32,
        input: Box<Input>,
    },
    /// The syncer's actor has finished its current work.
    ActorFree {
        generation: u32,
        at: Millis,
    },
}

impl Happening {
    /// Returns the connection that the event uses, if it is an open one.
    pub(super) fn conn(&self) -> Option<ConnId> {
        match self {
            Self::ToSyncer { conn, .. }
            | Self::ToLearner { conn, .. }
            | Self::LostAtSyncer { conn }
            | Self::LostAtLearner { conn }
            | Self::Ping { conn }
            | Self::Pong { conn } => Some(*conn),
            _ => None,
        }
    }
}
