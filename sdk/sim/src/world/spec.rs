//! What a world consists of, as plain data.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::LinkSpec;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::member::Waits;
use archipelago_core::wire::{BODY_BYTES_MAX, RunId, RunSpec};

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
    /// Seconds that its clock counts in one of the world's; near 1.
    pub clock_rate: f64,
    /// Windows of a step of its learner; `None` for as many as the run says. Its trainer must be made for as many.
    pub batch: Option<NonZeroU32>,
}

impl Default for MachineSpec {
    fn default() -> Self {
        let link = LinkSpec::default();
        Self { step_ms: 100, jitter: 0.1, link, starts_ms: 0, clock_rate: 1.0, batch: None }
    }
}

/// What the shells do, as far as it shows in the world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShellSpec {
    /// Time from the start of a merge to its end, in milliseconds, beside what its values take.
    pub merge_ms: u64,
    /// What the syncer's work takes.
    pub pace: SyncerPace,
    /// Seconds that the syncer's clock counts in one of the world's; near 1.
    pub clock_rate: f64,
    /// How many bytes one byte of parameters counts for on links and in the syncer's work, at least 1: so a toy weighs
    /// what a model does.
    pub weight: u32,
    /// Bytes to one connection that the syncer's system takes before its outbox fills.
    pub socket_bytes: u64,
    /// Messages with parameters that may wait for one connection in any case, beside two turns of all fragments.
    pub bulk_messages_min: usize,
    /// Bytes that may wait at a learner to be sent; with more it drops the connection.
    pub queue_bytes_max: u64,
    /// Share of answers over HTTP that are errors, 0 to 1.
    pub http_failures: f64,
    /// Time between two pings of a connection, in milliseconds.
    pub ping_ms: u64,
    /// How long the learners wait before they connect again, and how long they bear a silence.
    pub waits: Waits,
    /// Time between two snapshots of the syncer, in milliseconds.
    pub snapshot_ms: u64,
    /// Time until a snapshot is on the disk, in milliseconds.
    pub save_ms: u64,
    /// Time until what is written of the tape is on the disk, in milliseconds, and as much again where bodies are
    /// written before it; with 0 it is there at once.
    pub sync_ms: u64,
    /// Time from the start of a syncer until it has read what is on the disk, in milliseconds.
    pub start_ms: u64,
    /// Whether messages are really encoded and decoded. Without, they only have a size.
    pub encode: bool,
    /// Whether the data lies on every machine already. Without, each fetches its shards from the syncer over its link.
    pub shards_at_hand: bool,
}

impl Default for ShellSpec {
    fn default() -> Self {
        Self {
            merge_ms: 2,
            pace: SyncerPace::default(),
            clock_rate: 1.0,
            weight: 1,
            bulk_messages_min: 2_048,
            socket_bytes: 64 << 10,
            queue_bytes_max: 2 * u64::from(BODY_BYTES_MAX),
            http_failures: 0.0,
            ping_ms: 5_000,
            waits: Waits::default(),
            snapshot_ms: 5_000,
            save_ms: 20,
            sync_ms: 0,
            start_ms: 0,
            encode: true,
            shards_at_hand: false,
        }
    }
}

/// What the syncer's work takes of its time, by amount; a picosecond for each of a million bytes is a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncerPace {
    /// The actor, for each thing that comes in, in microseconds.
    pub input_us: u64,
    /// A reader, for each byte of an update, in picoseconds.
    pub verify_ps_per_byte: u64,
    /// A merge, for each value of each update, in picoseconds.
    pub merge_ps_per_value: u64,
    /// The actor, for each byte that it copies for a snapshot, in picoseconds.
    pub copy_ps_per_byte: u64,
}

impl SyncerPace {
    /// Its work takes no time.
    pub const NONE: Self =
        Self { input_us: 0, verify_ps_per_byte: 0, merge_ps_per_value: 0, copy_ps_per_byte: 0 };
}

/// About what one core of a small server does.
impl Default for SyncerPace {
    fn default() -> Self {
        Self { input_us: 10, verify_ps_per_byte: 3_000, merge_ps_per_value: 2_000, copy_ps_per_byte: 200 }
    }
}
