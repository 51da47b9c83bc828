//! The visible state of a lesson at one moment, and the events since the previous one.

use serde::Serialize;

use archipelago_core::wire::{LateReason, Refusal};

/// A lesson at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    /// Time, in milliseconds.
    pub now_ms: u64,
    /// The islands, in order.
    pub islands: Vec<Island>,
    /// The run as a whole.
    pub run: Totals,
    /// Events since the last frame.
    pub marks: Vec<Mark>,
}

/// One island at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Island {
    /// Current activity.
    pub state: IslandState,
    /// Whether it is cut off from the syncer.
    pub partitioned: bool,
    /// Whether its updates are forged.
    pub poisoned: bool,
    /// Whether it sends the opposite of its progress.
    pub lies: bool,
    /// Factor on the duration of its steps.
    pub slow: f64,
    /// One-way latency of its link, in milliseconds.
    pub latency_ms: u64,
    /// Reason of its permanent stop, if any.
    pub stopped: Option<String>,
    /// Steps so far.
    pub steps: u64,
    /// Tokens of those steps.
    pub tokens: u64,
    /// Its merged tokens.
    pub merged: u64,
    /// Training loss of its last step, in nats per token.
    pub loss: Option<f32>,
    /// Mean time of its steps, in milliseconds.
    pub step_ms: u64,
    /// Steps that it could have taken since its start time, at full speed and without a pause.
    pub possible_steps: f64,
}

/// The activity of an island.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum IslandState {
    /// It has not started yet.
    Expected,
    /// It computes a step.
    Training,
    /// It waits for parameters or data.
    Joining,
    /// It has no connection and nothing to do.
    Offline,
    /// No process runs.
    Dead,
}

/// A run at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Last measured loss of Θ on held-out text, in nats per token.
    pub held_out: Option<f32>,
    /// The entropy of the text, a lower bound of any model's loss.
    pub floor: f64,
    /// Tokens trained.
    pub tokens_trained: u64,
    /// Tokens merged.
    pub tokens_merged: u64,
    /// Merged over trained tokens, 0 to 1.
    pub participation: f64,
    /// Trained tokens over those that the islands could have trained at full speed without a pause, 0 to 1.
    pub goodput: f64,
    /// Rounds merged.
    pub rounds: u64,
    /// Islands that take part in rounds.
    pub live: u32,
    /// Bytes from the islands to the syncer.
    pub bytes_up: u64,
    /// Bytes from the syncer to the islands.
    pub bytes_down: u64,
    /// Longest current wait after the quorum, in milliseconds.
    pub grace_ms: u64,
    /// Typical time from the start of a round to its quorum, in milliseconds.
    pub quorum_ms: f64,
    /// Updates refused.
    pub refused: u64,
    /// Updates that came late.
    pub late: u64,
}

/// An event. Islands count from 0, times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Mark {
    /// An island computes a step.
    Step {
        /// The island.
        island: u32,
        /// Beginning.
        from_ms: u64,
        /// End.
        until_ms: u64,
    },
    /// A message about a fragment travels.
    Parcel {
        /// The island at one end; the syncer is at the other.
        island: u32,
        /// Whether it goes to the syncer.
        up: bool,
        /// The kind of message.
        what: ParcelKind,
        /// The round of the message.
        round: Option<u64>,
        /// The fragment.
        fragment: u16,
        /// Size in bytes.
        bytes: u64,
        /// Beginning.
        from_ms: u64,
        /// End, unless the link is cut.
        until_ms: u64,
        /// Its first values as codes from −7 to 7, at most 32; empty if the message carries no code.
        glimpse: Vec<i8>,
    },
    /// The syncer began a round.
    Launched {
        /// Its number.
        round: u64,
        /// The fragment.
        fragment: u16,
        /// Time.
        at_ms: u64,
    },
    /// An island's update has arrived.
    Answered {
        /// The round; `null` if none was collecting.
        round: Option<u64>,
        /// The island.
        island: u32,
        /// Time.
        at_ms: u64,
        /// Tokens of progress; 0 for no progress.
        tokens: u64,
    },
    /// A round has K updates.
    Quorum {
        /// The round.
        round: u64,
        /// Time.
        at_ms: u64,
    },
    /// The syncer waits for more updates.
    Grace {
        /// The round.
        round: u64,
        /// Beginning.
        at_ms: u64,
        /// Latest end.
        until_ms: u64,
    },
    /// A round led to a new version.
    Merged {
        /// The round.
        round: u64,
        /// The fragment.
        fragment: u16,
        /// Time.
        at_ms: u64,
        /// The islands in the merge, with their weights.
        shares: Vec<Share>,
        /// L2 norm of the merged change over the weighted mean norm of its updates: 1 if they are equally long, and
        /// 1/√M under a plain mean of M orthogonal updates.
        length: f64,
    },
    /// A round was abandoned.
    Abandoned {
        /// The round.
        round: u64,
        /// Time.
        at_ms: u64,
    },
    /// An update was refused.
    Refused {
        /// The round; `null` if none was collecting.
        round: Option<u64>,
        /// The island.
        island: u32,
        /// Time.
        at_ms: u64,
        /// The reason.
        why: Refusal,
    },
    /// An update arrived late; its progress is part of the next one.
    Late {
        /// The round; `null` if none was collecting.
        round: Option<u64>,
        /// The island.
        island: u32,
        /// Time.
        at_ms: u64,
        /// The reason.
        why: LateReason,
    },
    /// An island applied a merged fragment.
    Applied {
        /// The island.
        island: u32,
        /// The fragment.
        fragment: u16,
        /// Time.
        at_ms: u64,
    },
    /// An island takes part in rounds from now on.
    Live {
        /// The island.
        island: u32,
        /// Time.
        at_ms: u64,
    },
    /// An island is gone, as far as the syncer knows.
    Left {
        /// The island.
        island: u32,
        /// Time.
        at_ms: u64,
    },
    /// The loss of Θ was measured.
    HeldOut {
        /// Time.
        at_ms: u64,
        /// In nats per token.
        loss: f32,
        /// Tokens merged at that time.
        tokens: u64,
    },
}

/// The kind of a travelling message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum ParcelKind {
    /// The syncer's request for progress.
    Collect,
    /// An island's progress.
    Update,
    /// The merged change.
    Merged,
    /// A whole fragment, for an island that joins.
    Whole,
}

/// An island's part in a merge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct Share {
    /// The island.
    pub island: u32,
    /// Its share of the total weight, 0 to 1.
    pub share: f32,
}

/// The synchronous twin at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct TwinFrame {
    /// Time, in milliseconds.
    pub now_ms: u64,
    /// Islands that all others wait for.
    pub stalled_by: Vec<u32>,
    /// Common steps of all islands.
    pub steps: u64,
    /// Tokens of those steps.
    pub tokens: u64,
    /// Trained tokens over those that the islands could have trained at full speed without a pause, 0 to 1.
    pub goodput: f64,
    /// Bytes from and to the islands.
    pub bytes: u64,
    /// Training loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Last measured loss on held-out text, in nats per token.
    pub held_out: Option<f32>,
    /// Events since the last frame.
    pub marks: Vec<TwinMark>,
}

/// An event of the twin. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum TwinMark {
    /// A common step.
    Step {
        /// Beginning.
        from_ms: u64,
        /// Time at which the slowest island had its gradient.
        computed_ms: u64,
        /// Time at which all had the sum.
        until_ms: u64,
    },
    /// All wait for one island.
    Stall {
        /// The first island that they wait for.
        island: u32,
        /// Beginning.
        from_ms: u64,
        /// End, once it is known.
        until_ms: Option<u64>,
    },
    /// The loss was measured.
    HeldOut {
        /// Time.
        at_ms: u64,
        /// In nats per token.
        loss: f32,
        /// Tokens trained at that time.
        tokens: u64,
    },
}
