//! What a world consists of, as plain data.

use std::sync::Arc;

use super::LinkSpec;
use archipelago::diloco::syncer::SyncerConfig;
use archipelago::member::Waits;
use archipelago::wire::{RunId, RunSpec};

/// A syncer, its run, and the machines that come to it.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// The run.
    pub run: RunId,
    /// What the run is.
    pub run_spec: RunSpec,
    /// The syncer's knobs.
    pub syncer: SyncerConfig,
    /// Initial Θ, `[layout.len()]`.
    pub theta: Vec<f32>,
    /// Bytes of the shards that `run_spec.data` names, in order.
    pub shards: Vec<Arc<[u8]>>,
    /// The machines; they are named by their index here.
    pub machines: Vec<MachineSpec>,
    /// How the shells around the cores behave.
    pub shell: ShellSpec,
}

/// One machine with one learner on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineSpec {
    /// Time of an inner step, in milliseconds, at least 1.
    pub step_ms: u64,
    /// Each step takes up to this share more or less, 0 to 1.
    pub jitter: f64,
    /// Its way to the syncer.
    pub link: LinkSpec,
    /// When its learner starts, in milliseconds from the beginning.
    pub starts_ms: u64,
}

impl Default for MachineSpec {
    fn default() -> Self {
        Self { step_ms: 100, jitter: 0.1, link: LinkSpec::default(), starts_ms: 0 }
    }
}

/// What the shells do, as far as it shows in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShellSpec {
    /// Time from the start of a merge to its end, in milliseconds.
    pub merge_ms: u64,
    /// Time between two pings of a connection, in milliseconds.
    pub ping_ms: u64,
    /// How long the learners wait before they connect again, and how long they bear a silence.
    pub waits: Waits,
    /// Time between two snapshots of the syncer, in milliseconds.
    pub snapshot_ms: u64,
    /// Whether messages are really encoded and decoded. Without, they only have a size.
    pub encode: bool,
    /// Whether the data lies on every machine already. Without, each fetches its shards from the syncer over its link.
    pub shards_at_hand: bool,
}

impl Default for ShellSpec {
    fn default() -> Self {
        Self {
            merge_ms: 2,
            ping_ms: 5_000,
            waits: Waits::default(),
            snapshot_ms: 5_000,
            encode: true,
            shards_at_hand: false,
        }
    }
}
