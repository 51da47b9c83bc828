//! Specification of a world as plain data.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::LinkSpec;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::driver::Waits;
use archipelago_core::wire::{BODY_BYTES_MAX, RunId, RunSpec};

/// A syncer with its run, and the machines that join it.
#[derive(Clone, Debug)]
pub struct WorldSpec {
    /// Id of the run.
    pub run: RunId,
    /// Specification of the run.
    pub run_spec: RunSpec,
    /// Settings of the syncer.
    pub syncer: SyncerConfig,
    /// Initial Θ, `[layout.len()]`.
    pub theta: Vec<f32>,
    /// Content of the shards in `run_spec.data`, in order.
    pub shards: Vec<Arc<[u8]>>,
    /// Machines. Their index here identifies them.
    pub machines: Vec<MachineSpec>,
    /// Behaviour of the programs and systems around the state machines.
    pub shell: ShellSpec,
}

/// Machine with one learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineSpec {
    /// Mean time of an inner step, in milliseconds, at least 1.
    pub step_ms: u64,
    /// Random variation of a step's duration, as a fraction of it, 0 to 1.
    pub jitter: f64,
    /// Link to the syncer.
    pub link: LinkSpec,
    /// Start time of the learner, in milliseconds since the beginning.
    pub starts_ms: u64,
    /// Seconds of the machine's clock per second of the world's clock; near 1.
    pub clock_rate: f64,
    /// Number of windows in the learner's batch; `None` for the run's batch size. The learner's trainer must have the
    /// same batch size.
    pub batch: Option<NonZeroU32>,
}

impl Default for MachineSpec {
    fn default() -> Self {
        let link = LinkSpec::default();
        Self { step_ms: 100, jitter: 0.1, link, starts_ms: 0, clock_rate: 1.0, batch: None }
    }
}

/// Behaviour of the programs and systems around the state machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShellSpec {
    /// Fixed part of a merge's duration, in milliseconds. [`SyncerPace::merge_ps_per_value`] adds to it.
    pub merge_ms: u64,
    /// Duration of the syncer's work by amount.
    pub pace: SyncerPace,
    /// Seconds of the syncer's clock per second of the world's clock; near 1.
    pub clock_rate: f64,
    /// Factor on the size of parameters, at least 1, on links and in the syncer's work. With it, a toy model causes the
    /// load of a larger one.
    pub weight: u32,
    /// Number of bytes per connection that the syncer's operating system buffers before the outbox fills.
    pub socket_bytes: u64,
    /// Minimum of the limit on queued bulk messages per connection. Otherwise the limit is twice the number of
    /// fragments.
    pub bulk_messages_min: usize,
    /// Maximum size of a learner's send queue, in bytes. A learner with a larger one drops the connection.
    pub queue_bytes_max: u64,
    /// Probability that an HTTP response is an error, 0 to 1.
    pub http_failures: f64,
    /// Time between two pings of a connection, in milliseconds.
    pub ping_ms: u64,
    /// Waits of learners before a reconnection, and the longest silence of the syncer that they accept.
    pub waits: Waits,
    /// Time between two snapshots of the syncer, in milliseconds.
    pub snapshot_ms: u64,
    /// Time to write a snapshot, in milliseconds.
    pub save_ms: u64,
    /// Time to sync the tape, in milliseconds; twice that if bodies must be synced before rows. With 0, a sync takes no
    /// time.
    pub sync_ms: u64,
    /// Time that a starting syncer takes to read its disk, in milliseconds.
    pub start_ms: u64,
    /// Whether messages are encoded and decoded. Otherwise only their size is computed.
    pub encode: bool,
    /// Whether every machine already has the data. Otherwise each fetches shards from the syncer over its link.
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

/// Duration of the syncer's work by amount. A picosecond per byte is a microsecond per million bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncerPace {
    /// Time of the actor per input, in microseconds.
    pub input_us: u64,
    /// Time of a reader per byte of an update, in picoseconds.
    pub verify_ps_per_byte: u64,
    /// Time of a merge per value of each update, in picoseconds.
    pub merge_ps_per_value: u64,
    /// Time of the actor per byte that it copies for a snapshot, in picoseconds.
    pub copy_ps_per_byte: u64,
}

impl SyncerPace {
    /// Durations of zero.
    pub const NONE: Self =
        Self { input_us: 0, verify_ps_per_byte: 0, merge_ps_per_value: 0, copy_ps_per_byte: 0 };
}

/// Approximate speed of one core of a small server.
impl Default for SyncerPace {
    fn default() -> Self {
        Self { input_us: 10, verify_ps_per_byte: 3_000, merge_ps_per_value: 2_000, copy_ps_per_byte: 200 }
    }
}
