//! Visible state of a lesson at one time, and the events since the previous frame.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use archipelago_core::diloco::syncer::Event;
use archipelago_core::diloco::{Codec, Decision, Fragments, Layout};
use archipelago_core::wire::{Fate, FragmentId, LateReason, LearnerId, Millis, Refusal, Round, RunSpec};
use serde::Serialize;

use super::setup::BLOCK;
use crate::world::{Cargo, Parcel, Trace, World};

/// State of a lesson at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    /// Time since the beginning, in milliseconds.
    pub now_ms: u64,
    /// State of each island, in order.
    pub islands: Vec<Island>,
    /// State of the run.
    pub run: Totals,
    /// Events since the previous frame.
    pub marks: Vec<Mark>,
}

/// State of one island at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Island {
    /// Current activity.
    pub state: IslandState,
    /// Whether the island is disconnected from the syncer.
    pub partitioned: bool,
    /// Whether the island sends updates of impossible size.
    pub poisoned: bool,
    /// Whether the island sends the opposite of its progress.
    pub lies: bool,
    /// Factor on the duration of the island's steps.
    pub slow: f64,
    /// One-way latency of the island's link, in milliseconds.
    pub latency_ms: u64,
    /// Reason why the island stopped for good, if it did.
    pub stopped: Option<String>,
    /// Number of steps taken.
    pub steps: u64,
    /// Number of tokens in these steps.
    pub tokens: u64,
    /// Number of the island's merged tokens.
    pub merged: u64,
    /// Training loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Mean step time at full speed, in milliseconds.
    pub step_ms: u64,
    /// Number of steps that the island could have taken since it started, at full speed and without a pause.
    pub possible_steps: f64,
}

/// Activity of an island.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum IslandState {
    /// The island has not started yet.
    Expected,
    /// The island computes a step.
    Training,
    /// The island waits for parameters or data.
    Joining,
    /// The island is disconnected and has nothing to do.
    Offline,
    /// The island's process is stopped.
    Dead,
}

/// State of a run at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Latest measured loss of Θ on held-out text, in nats per token.
    pub held_out: Option<f32>,
    /// Entropy of the text in nats per token, a lower bound of any model's loss.
    pub floor: f64,
    /// Number of trained tokens.
    pub tokens_trained: u64,
    /// Number of merged tokens.
    pub tokens_merged: u64,
    /// Merged over trained tokens, 0 to 1.
    pub participation: f64,
    /// Trained tokens over the tokens that the islands could have trained at full speed without a pause, 0 to 1.
    pub goodput: f64,
    /// Number of merged rounds.
    pub rounds: u64,
    /// Number of islands that take part in rounds.
    pub live: u32,
    /// Bytes sent from the islands to the syncer.
    pub bytes_up: u64,
    /// Bytes sent from the syncer to the islands.
    pub bytes_down: u64,
    /// Longest current grace window of any round, in milliseconds.
    pub grace_ms: u64,
    /// Typical time from the launch of a round to its quorum, in milliseconds.
    pub quorum_ms: f64,
    /// Number of refused updates.
    pub refused: u64,
    /// Number of late updates.
    pub late: u64,
}

/// Event of a lesson. Islands are numbered from 0, and times are in milliseconds since the beginning.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum Mark {
    /// An island computed a step.
    Step {
        /// Number of the island.
        island: u32,
        /// Start time of the step.
        from_ms: u64,
        /// End time of the step.
        until_ms: u64,
    },
    /// A message about a fragment was sent.
    Parcel {
        /// Island that sends or receives the message; the syncer is at the other end.
        island: u32,
        /// Whether the message goes to the syncer.
        up: bool,
        /// Kind of message.
        what: ParcelKind,
        /// Round of the message, if it has one.
        round: Option<u64>,
        /// Fragment of the message.
        fragment: u16,
        /// Size of the message, in bytes.
        bytes: u64,
        /// Time at which the message was sent.
        from_ms: u64,
        /// Time at which the message arrives, unless the link is cut.
        until_ms: u64,
        /// The first values as codes from −7 to 7, at most 32; empty if the message has no coded values.
        glimpse: Vec<i8>,
    },
    /// The syncer launched a round.
    Launched {
        /// Number of the round.
        round: u64,
        /// Fragment of the round.
        fragment: u16,
        /// Time of the launch.
        at_ms: u64,
    },
    /// An island's update arrived.
    Answered {
        /// Round of the update; `null` if no round of its fragment was open.
        round: Option<u64>,
        /// Number of the island.
        island: u32,
        /// Time of arrival.
        at_ms: u64,
        /// Number of tokens in the update; 0 if there was no progress.
        tokens: u64,
    },
    /// A round has reached its quorum.
    Quorum {
        /// Number of the round.
        round: u64,
        /// Time of the quorum.
        at_ms: u64,
    },
    /// A grace window began.
    Grace {
        /// Number of the round.
        round: u64,
        /// Start of the grace window.
        at_ms: u64,
        /// Latest end of the grace window.
        until_ms: u64,
    },
    /// A round was merged to a new version.
    Merged {
        /// Number of the round.
        round: u64,
        /// Fragment of the round.
        fragment: u16,
        /// Time of the merge.
        at_ms: u64,
        /// Islands whose updates were merged, with their weights.
        shares: Vec<Share>,
        /// L2 norm of the merged change, divided by the weighted mean norm of its updates. It is 1 if updates and
        /// change are equally long, and 1/√M for the mean of M orthogonal updates.
        length: f64,
    },
    /// A round was abandoned.
    Abandoned {
        /// Number of the round.
        round: u64,
        /// Time of the decision.
        at_ms: u64,
    },
    /// An update was refused.
    Refused {
        /// Round of the update; `null` if no round of its fragment was open.
        round: Option<u64>,
        /// Number of the island.
        island: u32,
        /// Time of the decision.
        at_ms: u64,
        /// Reason of the refusal.
        why: Refusal,
    },
    /// An update was late. Its progress is part of the island's next update.
    Late {
        /// Round of the update; `null` if no round of its fragment was open.
        round: Option<u64>,
        /// Number of the island.
        island: u32,
        /// Time of the decision.
        at_ms: u64,
        /// Reason why the update was late.
        why: LateReason,
    },
    /// An island applied a merged change.
    Applied {
        /// Number of the island.
        island: u32,
        /// Fragment of the change.
        fragment: u16,
        /// Time of the change.
        at_ms: u64,
    },
    /// An island began to take part in rounds.
    Live {
        /// Number of the island.
        island: u32,
        /// Time of the event.
        at_ms: u64,
    },
    /// The syncer removed an island's session.
    Left {
        /// Number of the island.
        island: u32,
        /// Time of the event.
        at_ms: u64,
    },
    /// The held-out loss of Θ was measured.
    HeldOut {
        /// Time of the measurement.
        at_ms: u64,
        /// Loss in nats per token.
        loss: f32,
        /// Number of merged tokens at that time.
        tokens: u64,
    },
}

/// Kind of a message about a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum ParcelKind {
    /// Request for progress, from the syncer.
    Collect,
    /// Update, from an island.
    Update,
    /// Merged change, from the syncer.
    Merged,
    /// Whole fragment, for an island that joins.
    Whole,
}

/// Weight of an island in a merge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct Share {
    /// Number of the island.
    pub island: u32,
    /// Fraction of the total weight, 0 to 1.
    pub share: f32,
}

/// State of the synchronous twin at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct TwinFrame {
    /// Time since the beginning, in milliseconds.
    pub now_ms: u64,
    /// Islands for which all others wait.
    pub stalled_by: Vec<u32>,
    /// Number of steps, which all islands take together.
    pub steps: u64,
    /// Number of tokens in these steps.
    pub tokens: u64,
    /// Trained tokens over the tokens that the islands could have trained at full speed without a pause, 0 to 1.
    pub goodput: f64,
    /// Bytes sent to and from all islands.
    pub bytes: u64,
    /// Training loss of the last step, in nats per token.
    pub loss: Option<f32>,
    /// Latest measured loss on held-out text, in nats per token.
    pub held_out: Option<f32>,
    /// Events since the previous frame.
    pub marks: Vec<TwinMark>,
}

/// Event of the twin. Times are in milliseconds since the beginning.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub enum TwinMark {
    /// The islands took a step together.
    Step {
        /// Start time of the step.
        from_ms: u64,
        /// Time at which the slowest island had computed its gradient.
        computed_ms: u64,
        /// Time at which all islands had received the sum of gradients.
        until_ms: u64,
    },
    /// All islands wait for a missing one.
    Stall {
        /// The first missing island.
        island: u32,
        /// Start of the wait.
        from_ms: u64,
        /// End of the wait; `null` while it lasts.
        until_ms: Option<u64>,
    },
    /// The held-out loss was measured.
    HeldOut {
        /// Time of the measurement.
        at_ms: u64,
        /// Loss in nats per token.
        loss: f32,
        /// Number of trained tokens at that time.
        tokens: u64,
    },
}

/// Maximum number of a message's codes to show.
const GLIMPSE: usize = 32;
/// Largest magnitude of a shown code.
const CODE_MAX: f32 = 7.0;

/// Builder of a frame's events from the world's events and traces. It also keeps the frame's counters.
pub(super) struct FrameBuilder {
    codec: Codec,
    fragments: Fragments,
    /// Weights of the updates in rounds whose merge was not reported yet. The fates of updates are reported first.
    shares: BTreeMap<Round, Vec<Share>>,
    /// Arrival time and L2 norm of the latest updates of each fragment and island.
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

    /// Returns the marks of `traces`, followed by those of `events`, each in chronological order.
    pub(super) fn marks(
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

    /// Returns the L2 norm of the latest update that had arrived by `at_ms`, or 0. Discards older entries.
    fn length_of(&mut self, fragment: FragmentId, island: u32, at_ms: u64) -> f64 {
        let Some(lengths) = self.lengths.get_mut(&(fragment, island)) else { return 0.0 };
        let known = lengths.partition_point(|(until, _)| until.0 <= at_ms);
        lengths.drain(..known.saturating_sub(1));
        lengths.first().filter(|_| known > 0).map_or(0.0, |(_, length)| *length)
    }

    /// Returns the decoded values of a body; empty if a forged body cannot be decoded.
    fn values(&self, fragment: FragmentId, body: &[u8]) -> Vec<f32> {
        let segments = self.fragments.segments(fragment).unwrap_or_default();
        self.codec.decode(segments, body).unwrap_or_default()
    }

    /// Returns the first of `values`, scaled so that the largest magnitude in their block is 7. For a 4-bit code the
    /// results are the codes.
    fn glimpse(&self, fragment: FragmentId, values: &[f32]) -> Vec<i8> {
        // A block never extends beyond a segment.
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
        let builder = FrameBuilder::new(&run, &layout);
        let fragment = FragmentId(0);
        let segments = builder.fragments.segments(fragment).unwrap();
        let codes: Vec<i8> = (0..GLIMPSE as i8).map(|i| i % 7 - 3).collect();
        let mut values = vec![0.0; segments.iter().map(|segment| segment.len as usize).sum()];
        for (value, code) in values.iter_mut().zip(&codes) {
            *value = f32::from(*code);
        }
        assert!(segments[0].len >= BLOCK);
        values[GLIMPSE + 1] = -7.0;
        let seen = |body: &[u8]| builder.glimpse(fragment, &builder.values(fragment, body));
        assert_eq!(seen(&builder.codec.encode(segments, &values)), codes);
        assert!(seen(&[1, 2, 3]).is_empty(), "no body");
    }
}
