//! Incremental weighted median: values are added, removed and changed without visiting all others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Divisor of the mean weight at which a voice is full. Lighter voices count in proportion. Constant of ours.
const FULL_PART: u128 = 4;

/// Sort key of a voice: the bits of its value, a float above 0 whose bits sort like the floats, and its number.
type Key = (u64, u64);

/// Weighted values, one for each number. The effect of a weight is capped at a quarter of the mean weight.
///
/// Sums are integers, so the result depends only on the present voices and not on the order of changes. Of n voices
/// with the sum S of weights, a voice of weight t counts `min(4·n·t, S)`.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightedMedian {
    said: BTreeMap<u64, Voice>,
    by_value: BTreeMap<Key, u64>,
    by_weight: BTreeSet<(u64, u64)>,
    sum: u128,
    /// Smallest weight of a full voice.
    full_from: u64,
    all: Part,
    middle: Option<Middle>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Voice {
    value: f64,
    weight: u64,
}

impl Voice {
    fn key(&self, who: u64) -> Key {
        (self.value.to_bits(), who)
    }
}

/// Sum over some of the voices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// Number of full voices.
    full: u128,
    /// Sum of the weights of the other voices.
    rest: u128,
}

impl Part {
    fn add(&mut self, weight: u64, is_full: bool) {
        if is_full {
            self.full += 1;
        } else {
            self.rest += u128::from(weight);
        }
    }

    fn take(&mut self, weight: u64, is_full: bool) {
        if is_full {
            self.full -= 1;
        } else {
            self.rest -= u128::from(weight);
        }
    }
}

/// Position of the median, and the sum of the voices below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Middle {
    at: Key,
    below: Part,
}

/// Totals over all voices, or over all but one.
#[derive(Clone, Copy)]
struct Scale {
    count: u128,
    sum: u128,
    full_from: u64,
    all: Part,
}

impl Scale {
    fn is_full(&self, weight: u64) -> bool {
        weight >= self.full_from
    }

    fn of(&self, part: Part) -> u128 {
        part.full * self.sum + FULL_PART * self.count * part.rest
    }
}

/// Returns the smallest weight of a full voice.
fn full_from(sum: u128, count: u128) -> u64 {
    u64::try_from(sum.div_ceil((FULL_PART * count).max(1))).unwrap_or(u64::MAX)
}

impl WeightedMedian {
    /// Returns the number of voices.
    pub(super) fn len(&self) -> usize {
        self.said.len()
    }

    /// Sets the voice of `who` to a value and a weight, each above 0, or removes it.
    pub(super) fn set(&mut self, who: u64, says: Option<(f64, u64)>) {
        let says = says.map(|(value, weight)| Voice { value, weight });
        let before = self.said.get(&who).copied();
        if before == says {
            return;
        }
        if let Some(voice) = before {
            self.remove(who, voice);
        }
        if let Some(voice) = says {
            self.insert(who, voice);
        }
        self.weigh();
    }

    /// Returns the smallest value of all voices but `except`.
    pub(super) fn least(&self, except: Option<u64>) -> Option<f64> {
        let mut keys = self.by_value.keys().filter(|(_, who)| Some(*who) != except);
        keys.next().map(|(bits, _)| f64::from_bits(*bits))
    }

    /// Returns the lower median of all voices but `except`: the smallest value up to which half of the total weight
    /// lies.
    pub(super) fn median(&self, except: Option<u64>) -> Option<f64> {
        let middle = self.middle?;
        let Some((who, voice)) = except.and_then(|who| Some((who, *self.said.get(&who)?))) else {
            return Some(f64::from_bits(middle.at.0));
        };
        let (mut scale, mut from) = (self.scale(), middle);
        let key = voice.key(who);
        let is_full = scale.is_full(voice.weight);
        scale.all.take(voice.weight, is_full);
        if key < from.at {
            from.below.take(voice.weight, is_full);
        } else if key == from.at {
            let next = self.by_value.range((Excluded(key), Unbounded)).next();
            match next.or_else(|| self.by_value.range(..key).next_back()) {
                Some((&at, &weight)) => {
                    if at < key {
                        from.below.take(weight, scale.is_full(weight));
                    }
                    from.at = at;
                }
                None => return None,
            }
        }
        let (count, sum) = (scale.count - 1, scale.sum - u128::from(voice.weight));
        let rescaled = Scale { count, sum, full_from: full_from(sum, count), ..scale };
        let (scale, from) = self.rescale(scale, rescaled, from, Some(who));
        Some(f64::from_bits(self.walk(&scale, from, Some(key)).at.0))
    }

    fn scale(&self) -> Scale {
        Scale { count: self.said.len() as u128, sum: self.sum, full_from: self.full_from, all: self.all }
    }

    fn insert(&mut self, who: u64, voice: Voice) {
        let (key, is_full) = (voice.key(who), voice.weight >= self.full_from);
        self.said.insert(who, voice);
        self.by_value.insert(key, voice.weight);
        self.by_weight.insert((voice.weight, who));
        self.sum += u128::from(voice.weight);
        self.all.add(voice.weight, is_full);
        match &mut self.middle {
            Some(middle) if key < middle.at => middle.below.add(voice.weight, is_full),
            Some(_) => {}
            None => self.middle = Some(Middle { at: key, below: Part::default() }),
        }
    }

    fn remove(&mut self, who: u64, voice: Voice) {
        let (key, is_full) = (voice.key(who), voice.weight >= self.full_from);
        self.said.remove(&who);
        self.by_value.remove(&key);
        self.by_weight.remove(&(voice.weight, who));
        self.sum -= u128::from(voice.weight);
        self.all.take(voice.weight, is_full);
        let Some(middle) = &mut self.middle else { return };
        if key < middle.at {
            middle.below.take(voice.weight, is_full);
        } else if key == middle.at {
            if let Some((&at, _)) = self.by_value.range(key..).next() {
                middle.at = at;
            } else if let Some((&at, &weight)) = self.by_value.range(..key).next_back() {
                middle.at = at;
                middle.below.take(weight, weight >= self.full_from);
            } else {
                self.middle = None;
            }
        }
    }

    /// Recomputes which voices are full, and the median.
    fn weigh(&mut self) {
        let Some(middle) = self.middle else { return };
        let scale = self.scale();
        let rescaled = Scale { full_from: full_from(scale.sum, scale.count), ..scale };
        let (scale, middle) = self.rescale(scale, rescaled, middle, None);
        (self.full_from, self.all) = (scale.full_from, scale.all);
        self.middle = Some(self.walk(&scale, middle, None));
    }

    /// Moves the voices whose fullness differs between `from` and `to`.
    fn rescale(
        &self,
        from: Scale,
        mut to: Scale,
        mut middle: Middle,
        except: Option<u64>,
    ) -> (Scale, Middle) {
        let least = from.full_from.min(to.full_from);
        let most = from.full_from.max(to.full_from);
        for &(weight, who) in self.by_weight.range((least, 0)..(most, 0)) {
            let Some(voice) = self.said.get(&who).filter(|_| Some(who) != except) else { continue };
            let (was, is) = (from.is_full(weight), to.is_full(weight));
            to.all.take(weight, was);
            to.all.add(weight, is);
            if voice.key(who) < middle.at {
                middle.below.take(weight, was);
                middle.below.add(weight, is);
            }
        }
        (to, middle)
    }

    /// Walks from `middle` to the median of all voices but `except`.
    fn walk(&self, scale: &Scale, mut middle: Middle, except: Option<Key>) -> Middle {
        let half = |part: Part| 2 * scale.of(part) >= scale.of(scale.all);
        let others = |at: &(&Key, &u64)| Some(*at.0) != except;
        while half(middle.below)
            && let Some((&at, &weight)) = self.by_value.range(..middle.at).rev().find(others)
        {
            middle.at = at;
            middle.below.take(weight, scale.is_full(weight));
        }
        loop {
            let Some(&weight) = self.by_value.get(&middle.at) else { return middle };
            let mut upto = middle.below;
            upto.add(weight, scale.is_full(weight));
            if half(upto) {
                return middle;
            }
            let next = self.by_value.range((Excluded(middle.at), Unbounded)).find(others);
            let Some((&at, _)) = next else { return middle };
            middle = Middle { at, below: upto };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Returns the smallest value up to which half of the weight lies.
    fn weighted_lower_median(mut values: Vec<(f64, f64)>) -> f64 {
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = values.iter().map(|(_, weight)| weight).sum();
        let mut below = 0.0;
        let reached = |&&(_, weight): &&(f64, f64)| {
            below += weight;
            2.0 * below >= total
        };
        values.iter().find(reached).or(values.last()).map_or(0.0, |(value, _)| *value)
    }

    /// Computes the median from scratch.
    fn asked(said: &BTreeMap<u64, (f64, u64)>, except: Option<u64>) -> Option<f64> {
        let voices: Vec<_> =
            said.iter().filter(|(who, _)| Some(**who) != except).map(|(_, says)| *says).collect();
        let sum: u64 = voices.iter().map(|(_, weight)| weight).sum();
        let full = 4 * voices.len() as u64;
        let voices: Vec<_> =
            voices.iter().map(|(value, weight)| (*value, (full * weight).min(sum) as f64)).collect();
        (!voices.is_empty()).then(|| weighted_lower_median(voices))
    }

    #[test]
    fn the_median_is_that_of_everybody_however_they_come_and_go() {
        let mut rng = Rng::new(5);
        for people in [3, 9, 60] {
            let (mut voices, mut said) = (WeightedMedian::default(), BTreeMap::new());
            for turn in 0..2_000 {
                let who = u64::from(rng.below(people));
                // Few values and weights of every size: many are equal, and many on either side of a full voice.
                let below = rng.below(10);
                let says = (rng.below(4) > 0)
                    .then(|| (1.0 + f64::from(rng.below(5)), 1 + u64::from(rng.below(1 << below))));
                voices.set(who, says);
                match says {
                    Some(says) => said.insert(who, says),
                    None => said.remove(&who),
                };
                for except in [None, Some(who), Some(u64::from(rng.below(people)))] {
                    assert_eq!(voices.median(except), asked(&said, except), "{people} {turn} {except:?}");
                    let least = said.iter().filter(|(who, _)| Some(**who) != except).map(|(_, says)| says.0);
                    assert_eq!(voices.least(except), least.reduce(f64::min));
                }
            }
        }
    }

    #[test]
    fn many_with_next_to_no_weight_do_not_outvote_a_few_who_have_some() {
        let mut voices = WeightedMedian::default();
        (0..100).for_each(|who| voices.set(who, Some((60_000.0, 1))));
        assert_eq!(voices.median(None), Some(60_000.0));
        (100..110).for_each(|who| voices.set(who, Some((100.0, 1_000_000))));
        assert_eq!(voices.median(None), Some(100.0));
        assert_eq!(voices.median(Some(100)), Some(100.0));
    }
}
