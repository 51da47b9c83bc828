//! Specification of a world, as plain data.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::LinkSpec;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::driver::Waits;
use archipelago_core::wire::{BODY_BYTES_MAX, RunId, RunSpec};

/// A syncer, its run, and the machines that join it.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// The run's id.
    pub run: RunId,
    /// The run's specification.
    pub run_spec: RunSpec,
    /// The syncer's settings.
    pub syncer: SyncerConfig,
    /// Initial Θ, `[layout.len()]`.
    pub theta: Vec<f32>,
    /// Bytes of the shards that `run_spec.data` names, in order.
    pub shards: Vec<Arc<[u8]>>,
    /// The machines; their names are their indices here.
    pub machines: Vec<MachineSpec>,
    /// Behaviour of the shells around the cores.
    pub shell: ShellSpec,
}

/// One machine with one learner on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineSpec {
    /// Time of an inner step, in milliseconds, at least 1.
    pub step_ms: u64,
    /// Random variation of a step's duration, as a share of it, 0 to 1.
    pub jitter: f64,
    /// The link to the syncer.
    pub link: LinkSpec,
    /// Start time of its learner, in milliseconds from the beginning.
    pub starts_ms: u64,
    /// Seconds of its clock per second of the world; near 1.
    pub clock_rate: f64,
    /// Windows in each step of its learner; `None` follows the run. Its trainer must be made for the same number.
    pub batch: Option<NonZeroU32>,
}

impl Default for MachineSpec {
    fn default() -> Self {
        let link = LinkSpec::default();
        Self { step_ms: 100, jitter: 0.1, link, starts_ms: 0, clock_rate: 1.0, batch: None }
    }
}

/// Behaviour of the shells, as far as it affects the world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShellSpec {
    /// Fixed duration of a merge, in milliseconds; its values add to it.
    pub merge_ms: u64,
    /// Speed of the syncer's work.
    pub pace: SyncerPace,
    /// Seconds of the syncer's clock per second of the world; near 1.
    pub clock_rate: f64,
    /// Bytes that one byte of parameters counts for on links and in the syncer's work, at least 1. It gives a toy the
    /// weight of a model.
    pub weight: u32,
    /// Bytes for one connection that the syncer's system buffers before its outbox fills.
    pub socket_bytes: u64,
    /// Lower bound of the limit on queued messages with parameters for one connection, which otherwise is two turns of
    /// all fragments.
    pub bulk_messages_min: usize,
    /// Largest send queue of a learner, in bytes; with more it drops the connection.
    pub queue_bytes_max: u64,
    /// Share of HTTP responses that are errors, 0 to 1.
    pub http_failures: f64,
    /// Time between two pings of a connection, in milliseconds.
    pub ping_ms: u64,
    /// The learners' waits before a reconnection, and the longest silence that they accept.
    pub waits: Waits,
    /// Time between two snapshots of the syncer, in milliseconds.
    pub snapshot_ms: u64,
    /// Time to write a snapshot to the disk, in milliseconds.
    pub save_ms: u64,
    /// Time to sync the tape, in milliseconds; twice that if bodies are written before the rows. With 0 a sync is
    /// instantaneous.
    pub sync_ms: u64,
    /// Time that a starting syncer needs to read its disk, in milliseconds.
    pub start_ms: u64,
    /// Whether messages are really encoded and decoded. Otherwise they only have a size.
    pub encode: bool,
    /// Whether every machine already has the data. Otherwise each fetches its shards from the syncer over its link.
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

/// Cost of the syncer's work, by amount. One picosecond per byte is one microsecond for a million bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncerPace {
    /// Time of the actor for each input, in microseconds.
    pub input_us: u64,
    /// Time of a reader for each byte of an update, in picoseconds.
    pub verify_ps_per_byte: u64,
    /// Time of a merge for each value of each update, in picoseconds.
    pub merge_ps_per_value: u64,
    /// Time of the actor for each byte copied for a snapshot, in picoseconds.
    pub copy_ps_per_byte: u64,
}

impl SyncerPace {
    /// Work that takes no time.
    pub const NONE: Self =
        Self { input_us: 0, verify_ps_per_byte: 0, merge_ps_per_value: 0, copy_ps_per_byte: 0 };
}

/// Approximately one core of a small server.
impl Default for SyncerPace {
    fn default() -> Self {
        Self { input_us: 10, verify_ps_per_byte: 3_000, merge_ps_per_value: 2_000, copy_ps_per_byte: 200 }
    }
}
