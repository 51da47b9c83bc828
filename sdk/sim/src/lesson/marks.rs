//! Conversion of a world's events and traces to marks.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use super::stage::BLOCK;
use super::{Mark, ParcelKind, Share};
use crate::world::{Cargo, Parcel, Trace, World};
use archipelago_core::diloco::syncer::Event;
use archipelago_core::diloco::{Codec, Decision, Fragments, Layout};
use archipelago_core::wire::{Fate, FragmentId, LearnerId, Millis, Round, RunSpec};

/// Limit of a parcel's visible codes.
const GLIMPSE: usize = 32;
/// Largest absolute value of the visible codes.
const CODE_MAX: f32 = 7.0;

/// Converter from events and traces to marks; it also keeps counts.
pub(super) struct Teller {
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

impl Teller {
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
    use super::*;
    use crate::lesson::LessonSpec;
    use crate::lesson::stage::Stage;

    #[test]
    fn a_glimpse_is_made_of_codes_wherever_the_largest_of_the_block_lies() {
        let (run, layout) = (Stage::new(LessonSpec::default()).unwrap().run_spec(), Stage::layout());
        let teller = Teller::new(&run, &layout);
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
