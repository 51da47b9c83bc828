//! The visible state of a lesson at one moment, and the events since the previous one.

use serde::Serialize;

use archipelago_core::wire::{LateReason, Refusal};

/// A lesson at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    /// Its time, in milliseconds.
    pub now_ms: u64,
    /// The islands, in order.
    pub islands: Vec<Island>,
    /// The run as a whole.
    pub run: Totals,
    /// What happened since the last frame.
    pub marks: Vec<Mark>,
}

/// One island at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Island {
    /// What it does.
    pub state: IslandState,
    /// Cut off from the syncer.
    pub partitioned: bool,
    /// Its updates are forged.
    pub poisoned: bool,
    /// It sends the opposite of what it learnt.
    pub lies: bool,
    /// Its steps take so many times as long as usual.
    pub slow: f64,
    /// One way of its link, in milliseconds.
    pub latency_ms: u64,
    /// Why it stays away for good, if it does.
    pub stopped: Option<String>,
    /// Steps so far.
    pub steps: u64,
    /// Tokens of those steps.
    pub tokens: u64,
    /// Its tokens that are merged.
    pub merged: u64,
    /// Training loss of its last step, in nats per token.
    pub loss: Option<f32>,
    /// Usual time of its steps, in milliseconds.
    pub step_ms: u64,
    /// Steps that it could have taken since it was to come, at full speed and without a pause.
    pub possible_steps: f64,
}

/// What an island does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum IslandState {
    /// It has not come yet.
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
    /// Last measured loss of Θ on text that nobody trains on, in nats per token.
    pub held_out: Option<f32>,
    /// The entropy of the text: no model's loss goes below it.
    pub floor: f64,
    /// Tokens trained on.
    pub tokens_trained: u64,
    /// Tokens merged.
    pub tokens_merged: u64,
    /// Merged of trained, 0 to 1.
    pub participation: f64,
    /// Trained, of what the islands would have trained at full speed without a pause, 0 to 1.
    pub goodput: f64,
    /// Rounds merged.
    pub rounds: u64,
    /// Islands that take part in rounds.
    pub live: u32,
    /// Bytes from the islands to the syncer.
    pub bytes_up: u64,
    /// Bytes from the syncer to the islands.
    pub bytes_down: u64,
    /// Longest wait after the quorum at present, in milliseconds.
    pub grace_ms: u64,
    /// Usual time from the start of a round to its quorum, in milliseconds.
    pub quorum_ms: f64,
    /// Updates refused.
    pub refused: u64,
    /// Updates that came late.
    pub late: u64,
}

/// Something that happened. Islands count from 0, times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Mark {
    /// An island computes a step.
    Step {
        /// Whose.
        island: u32,
        /// From when.
        from_ms: u64,
        /// Until when.
        until_ms: u64,
    },
    /// Something of a fragment travels.
    Parcel {
        /// The island at one end; the syncer is at the other.
        island: u32,
        /// To the syncer.
        up: bool,
        /// What it is.
        what: ParcelKind,
        /// The round that it belongs to.
        round: Option<u64>,
        /// The fragment.
        fragment: u16,
        /// Its bytes.
        bytes: u64,
        /// From when.
        from_ms: u64,
        /// Until when, unless the link is cut.
        until_ms: u64,
        /// Its first values as codes from −7 to 7, 32 at most; none for what carries no code.
        glimpse: Vec<i8>,
    },
    /// The syncer began a round.
    Launched {
        /// Its number.
        round: u64,
        /// The fragment.
        fragment: u16,
        /// When.
        at_ms: u64,
    },
    /// An island's update is in.
    Answered {
        /// For which round; `null` if it came while none collected.
        round: Option<u64>,
        /// Whose.
        island: u32,
        /// When.
        at_ms: u64,
        /// Tokens of progress; 0 if there was none.
        tokens: u64,
    },
    /// A round has K updates.
    Quorum {
        /// Which round.
        round: u64,
        /// When.
        at_ms: u64,
    },
    /// The syncer waits for others.
    Grace {
        /// In which round.
        round: u64,
        /// From when.
        at_ms: u64,
        /// Until when at most.
        until_ms: u64,
    },
    /// A round led to a new version.
    Merged {
        /// Which round.
        round: u64,
        /// The fragment.
        fragment: u16,
        /// When.
        at_ms: u64,
        /// Who is in it, and with which weight.
        shares: Vec<Share>,
        /// L2 length of the merged change over the mean length of the updates in it, weighted as they are: 1 if it is
        /// as long as they are, and 1/√M under a plain mean of M updates that have nothing in common.
        length: f64,
    },
    /// A round led to nothing.
    Abandoned {
        /// Which round.
        round: u64,
        /// When.
        at_ms: u64,
    },
    /// An update was refused.
    Refused {
        /// For which round; `null` if it came while none collected.
        round: Option<u64>,
        /// Whose.
        island: u32,
        /// When.
        at_ms: u64,
        /// Why.
        why: Refusal,
    },
    /// An update came late: its progress rides in the next one.
    Late {
        /// For which round; `null` if it came while none collected.
        round: Option<u64>,
        /// Whose.
        island: u32,
        /// When.
        at_ms: u64,
        /// Why.
        why: LateReason,
    },
    /// An island took a merged fragment in.
    Applied {
        /// Which island.
        island: u32,
        /// The fragment.
        fragment: u16,
        /// When.
        at_ms: u64,
    },
    /// An island takes part in rounds from now on.
    Live {
        /// Which.
        island: u32,
        /// When.
        at_ms: u64,
    },
    /// An island is gone, as far as the syncer knows.
    Left {
        /// Which.
        island: u32,
        /// When.
        at_ms: u64,
    },
    /// The loss of Θ was measured.
    HeldOut {
        /// When.
        at_ms: u64,
        /// In nats per token.
        loss: f32,
        /// Tokens merged then.
        tokens: u64,
    },
}

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum ParcelKind {
    /// The syncer asks for progress.
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
    /// Which island.
    pub island: u32,
    /// Its weight of all, 0 to 1.
    pub share: f32,
}

/// The synchronous twin at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct TwinFrame {
    /// Its time, in milliseconds.
    pub now_ms: u64,
    /// Islands that everybody waits for.
    pub stalled_by: Vec<u32>,
    /// Steps that all took together.
    pub steps: u64,
    /// Tokens of those steps.
    pub tokens: u64,
    /// Trained, of what the islands would have trained at full speed without a pause, 0 to 1.
    pub goodput: f64,
    /// Bytes from and to the islands.
    pub bytes: u64,
    /// Training loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Last measured loss on text that nobody trains on, in nats per token.
    pub held_out: Option<f32>,
    /// What happened since the last frame.
    pub marks: Vec<TwinMark>,
}

/// Something that happened to the twin. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum TwinMark {
    /// A step of all.
    Step {
        /// From when.
        from_ms: u64,
        /// When the slowest had its gradient.
        computed_ms: u64,
        /// When all had the sum.
        until_ms: u64,
    },
    /// All wait for one.
    Stall {
        /// The first one that they wait for.
        island: u32,
        /// From when.
        from_ms: u64,
        /// Until when, once that is known.
        until_ms: Option<u64>,
    },
    /// The loss was measured.
    HeldOut {
        /// When.
        at_ms: u64,
        /// In nats per token.
        loss: f32,
        /// Tokens trained on then.
        tokens: u64,
    },
}
