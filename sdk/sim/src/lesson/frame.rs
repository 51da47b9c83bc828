//! Visible state of a lesson at one moment, and the events since the previous one.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use archipelago_core::diloco::syncer::Event;
use archipelago_core::diloco::{Codec, Decision, Fragments, Layout};
use archipelago_core::wire::{Fate, FragmentId, LateReason, LearnerId, Millis, Refusal, Round, RunSpec};
use serde::Serialize;

use super::setup::BLOCK;
use crate::world::{Cargo, Parcel, Trace, World};

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

/// Limit of a parcel's visible codes.
const GLIMPSE: usize = 32;
/// Largest absolute value of the visible codes.
const CODE_MAX: f32 = 7.0;

/// Converter from events and traces to marks; it also keeps counts.
pub(super) struct FrameBuilder {
    codec: Codec,
    fragments: Fragments,
    /// Weights of rounds that are not merged yet: updates are settled before the merge is reported.
    shares: BTreeMap<Round, Vec<Share>>,
    /// Arrival times of the latest updates of each fragment and island, with their L2 norms.
    lengths: BTreeMap<(FragmentId, u32), Vec<(Millis, f64)>>,
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
    pub(super) refused: u64,
    pub(super) late: u64,
}

impl FrameBuilder {
    pub(super) fn new(run: &RunSpec, layout: &Layout) -> Self {
        let count = NonZeroU16::new(run.exchange.fragments).expect("checked");
        Self {
            codec: Codec::new(&run.exchange).expect("the world uses it"),
            fragments: Fragments::plan(layout, count),
            shares: BTreeMap::new(),
            lengths: BTreeMap::new(),
            bytes_up: 0,
            bytes_down: 0,
            refused: 0,
            late: 0,
        }
    }

    /// Returns the marks of `events` and `traces`, each kind sorted by time.
    pub(super) fn tell(
        &mut self,
        world: &World,
        events: Vec<(Millis, Event)>,
        traces: Vec<Trace>,
    ) -> Vec<Mark> {
        let mut marks: Vec<Mark> = traces.into_iter().map(|trace| self.trace(trace)).collect();
        marks.extend(events.into_iter().filter_map(|(at, event)| self.event(world, at.0, event)));
        marks
    }

    fn trace(&mut self, trace: Trace) -> Mark {
        match trace {
            Trace::Step { machine, from, until } => {
                Mark::Step { island: machine, from_ms: from.0, until_ms: until.0 }
            }
            Trace::Applied { machine, fragment, at } => {
                Mark::Applied { island: machine, fragment: fragment.0, at_ms: at.0 }
            }
            Trace::Parcel(parcel) => self.parcel(&parcel),
        }
    }

    fn parcel(&mut self, parcel: &Parcel) -> Mark {
        let (up, what) = match parcel.what {
            Cargo::Collect => (false, ParcelKind::Collect),
            Cargo::Update => (true, ParcelKind::Update),
            Cargo::Merged => (false, ParcelKind::Merged),
            Cargo::Whole => (false, ParcelKind::Whole),
        };
        let values = self.values(parcel.fragment, &parcel.body);
        if up {
            let square: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            let lengths = self.lengths.entry((parcel.fragment, parcel.machine)).or_default();
            lengths.push((parcel.until, square.sqrt()));
        }
        *(if up { &mut self.bytes_up } else { &mut self.bytes_down }) += parcel.bytes;
        Mark::Parcel {
            island: parcel.machine,
            up,
            what,
            round: parcel.round.map(|round| round.0),
            fragment: parcel.fragment.0,
            bytes: parcel.bytes,
            from_ms: parcel.from.0,
            until_ms: parcel.until.0,
            glimpse: self.glimpse(parcel.fragment, &values),
        }
    }

    /// Returns the L2 norm of the latest update that arrived by `at_ms`; earlier ones are dropped.
    fn length_of(&mut self, fragment: FragmentId, island: u32, at_ms: u64) -> f64 {
        let Some(lengths) = self.lengths.get_mut(&(fragment, island)) else { return 0.0 };
        let known = lengths.partition_point(|(until, _)| until.0 <= at_ms);
        lengths.drain(..known.saturating_sub(1));
        lengths.first().filter(|_| known > 0).map_or(0.0, |(_, length)| *length)
    }

    /// Returns the decoded values of a body, or an empty vector if a forged body cannot be decoded.
    fn values(&self, fragment: FragmentId, body: &[u8]) -> Vec<f32> {
        let segments = self.fragments.segments(fragment).unwrap_or_default();
        self.codec.decode(segments, body).unwrap_or_default()
    }

    /// Returns the first of `values`, scaled so that the largest of their block is ±7. For a 4-bit code these are the
    /// codes.
    fn glimpse(&self, fragment: FragmentId, values: &[f32]) -> Vec<i8> {
        // A block never crosses a segment.
        let segments = self.fragments.segments(fragment).unwrap_or_default();
        let block_len = segments.first().map_or(0, |segment| segment.len.min(BLOCK)) as usize;
        let block = &values[..values.len().min(block_len)];
        let shown = &block[..block.len().min(GLIMPSE)];
        let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let code = |value: &f32| if largest > 0.0 { (value / largest * CODE_MAX).round() as i8 } else { 0 };
        shown.iter().map(code).collect()
    }

    fn event(&mut self, world: &World, at_ms: u64, event: Event) -> Option<Mark> {
        let island = |learner: LearnerId| world.machine_of(learner);
        Some(match event {
            Event::Launched { round, fragment, .. } => {
                Mark::Launched { round: round.0, fragment: fragment.0, at_ms }
            }
            Event::Answered { round, learner, tokens, .. } => {
                Mark::Answered { round: number(round), island: island(learner)?, at_ms, tokens }
            }
            Event::Quorum { round, .. } => Mark::Quorum { round: round.0, at_ms },
            Event::Decided { round, decision: Decision::AwaitGrace { until, .. }, .. } => {
                Mark::Grace { round: round.0, at_ms, until_ms: until.0 }
            }
            Event::Decided { round, decision: Decision::Abandon { .. }, .. } => {
                Mark::Abandoned { round: round.0, at_ms }
            }
            Event::Settled { round, learner, fate, .. } => {
                return self.settled(round, island(learner)?, at_ms, fate);
            }
            Event::Merged { round, fragment, norm, .. } => {
                let shares = self.shares.remove(&round).unwrap_or_default();
                let mean: f64 = shares
                    .iter()
                    .map(|share| f64::from(share.share) * self.length_of(fragment, share.island, at_ms))
                    .sum();
                let length = if mean > 0.0 { norm / mean } else { 0.0 };
                Mark::Merged { round: round.0, fragment: fragment.0, at_ms, shares, length }
            }
            Event::Live { learner } => Mark::Live { island: island(learner)?, at_ms },
            Event::Left { learner, .. } => Mark::Left { island: island(learner)?, at_ms },
            _ => return None,
        })
    }

    fn settled(&mut self, round: Option<Round>, island: u32, at_ms: u64, fate: Fate) -> Option<Mark> {
        match fate {
            Fate::Merged { weight, .. } => {
                self.shares.entry(round?).or_default().push(Share { island, share: weight });
                None
            }
            Fate::Late(reason) => {
                self.late += 1;
                Some(Mark::Late { round: number(round), island, at_ms, why: reason })
            }
            Fate::Refused(refusal) => {
                self.refused += 1;
                Some(Mark::Refused { round: number(round), island, at_ms, why: refusal })
            }
        }
    }
}

fn number(round: Option<Round>) -> Option<u64> {
    round.map(|round| round.0)
}

#[cfg(test)]
mod tests {
    use super::super::LessonSpec;
    use super::super::setup::LessonSetup;
    use super::*;

    #[test]
    fn a_glimpse_is_made_of_codes_wherever_the_largest_of_the_block_lies() {
        let (run, layout) =
            (LessonSetup::new(LessonSpec::default()).unwrap().run_spec(), LessonSetup::layout());
        let teller = FrameBuilder::new(&run, &layout);
        let fragment = FragmentId(0);
        let segments = teller.fragments.segments(fragment).unwrap();
        let codes: Vec<i8> = (0..GLIMPSE as i8).map(|i| i % 7 - 3).collect();
        let mut values = vec![0.0; segments.iter().map(|segment| segment.len as usize).sum()];
        for (value, code) in values.iter_mut().zip(&codes) {
            *value = f32::from(*code);
        }
        assert!(segments[0].len >= BLOCK);
        values[GLIMPSE + 1] = -7.0;
        let seen = |body: &[u8]| teller.glimpse(fragment, &teller.values(fragment, body));
        assert_eq!(seen(&teller.codec.encode(segments, &values)), codes);
        assert!(seen(&[1, 2, 3]).is_empty(), "no body");
    }
}
