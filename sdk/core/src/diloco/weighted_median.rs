//! Incremental weighted median, whose samples change without a pass over all others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Divisor of the mean weight that gives the cap on weights. Our own constant.
const FULL_PART: u128 = 4;

/// Sort key of a sample: the bits of its value and its id. Bits of floats above 0 are ordered as the floats are.
type Key = (u64, u64);

/// Median of weighted samples, each with an id. Weights are capped at a quarter of the mean weight.
///
/// Sums are integers, so the result depends only on the current samples and not on the order of changes. With n samples
/// and the sum S of their weights, the effective weight of a sample of weight t is `min(4·n·t, S)`. A sample is *full*
/// if its weight is capped.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightedMedian {
    /// Samples by id.
    samples: BTreeMap<u64, WeightedSample>,
    /// Weight of each sample, ordered by value.
    by_value: BTreeMap<Key, u64>,
    /// Weight and id of each sample, ordered by weight.
    by_weight: BTreeSet<(u64, u64)>,
    /// Sum of all weights.
    sum: u128,
    /// Smallest weight of a full sample.
    full_from: u64,
    /// Sum over all samples.
    all: Part,
    /// The median; `None` without samples.
    middle: Option<Middle>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct WeightedSample {
    /// Value, above 0.
    value: f64,
    /// Weight, above 0.
    weight: u64,
}

impl WeightedSample {
    fn key(&self, id: u64) -> Key {
        (self.value.to_bits(), id)
    }
}

/// Sum over a set of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// Number of full samples.
    full: u128,
    /// Sum of the weights of all samples that are not full.
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

/// Key of the median sample, and the sum over the samples below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Middle {
    at: Key,
    below: Part,
}

/// Totals over all samples, or over all but one.
#[derive(Clone, Copy)]
struct Scale {
    /// Number of samples.
    count: u128,
    /// Sum of weights.
    sum: u128,
    /// Smallest weight of a full sample.
    full_from: u64,
    /// Sum over these samples.
    all: Part,
}

impl Scale {
    fn is_full(&self, weight: u64) -> bool {
        weight >= self.full_from
    }

    /// Returns the sum of the effective weights of `part`.
    fn of(&self, part: Part) -> u128 {
        part.full * self.sum + FULL_PART * self.count * part.rest
    }
}

/// Returns the smallest weight of a full sample among `count` samples with the sum `sum` of weights.
fn full_from(sum: u128, count: u128) -> u64 {
    u64::try_from(sum.div_ceil((FULL_PART * count).max(1))).unwrap_or(u64::MAX)
}

impl WeightedMedian {
    /// Returns the number of samples.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Sets the sample `id` to a value and a weight, each above 0; `None` removes it.
    pub(super) fn set(&mut self, id: u64, sample: Option<(f64, u64)>) {
        let sample = sample.map(|(value, weight)| WeightedSample { value, weight });
        let before = self.samples.get(&id).copied();
        if before == sample {
            return;
        }
        if let Some(sample) = before {
            self.remove(id, sample);
        }
        if let Some(sample) = sample {
            self.insert(id, sample);
        }
        self.update_median();
    }

    /// Returns the smallest value of the samples other than `except`; `None` without such samples.
    pub(super) fn least(&self, except: Option<u64>) -> Option<f64> {
        let mut keys = self.by_value.keys().filter(|(_, id)| Some(*id) != except);
        keys.next().map(|(bits, _)| f64::from_bits(*bits))
    }

    /// Returns the lower median of the samples other than `except`: the smallest value such that the samples up to it
    /// have at least half of the total weight. `None` if there are no such samples.
    pub(super) fn median(&self, except: Option<u64>) -> Option<f64> {
        let middle = self.middle?;
        let Some((id, sample)) = except.and_then(|id| Some((id, *self.samples.get(&id)?))) else {
            return Some(f64::from_bits(middle.at.0));
        };
        let (mut scale, mut from) = (self.scale(), middle);
        let key = sample.key(id);
        let is_full = scale.is_full(sample.weight);
        scale.all.take(sample.weight, is_full);
        if key < from.at {
            from.below.take(sample.weight, is_full);
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
        let (count, sum) = (scale.count - 1, scale.sum - u128::from(sample.weight));
        let rescaled = Scale { count, sum, full_from: full_from(sum, count), ..scale };
        let (scale, from) = self.rescale(scale, rescaled, from, Some(id));
        Some(f64::from_bits(self.walk(&scale, from, Some(key)).at.0))
    }

    fn scale(&self) -> Scale {
        Scale { count: self.samples.len() as u128, sum: self.sum, full_from: self.full_from, all: self.all }
    }

    fn insert(&mut self, id: u64, sample: WeightedSample) {
        let (key, is_full) = (sample.key(id), sample.weight >= self.full_from);
        self.samples.insert(id, sample);
        self.by_value.insert(key, sample.weight);
        self.by_weight.insert((sample.weight, id));
        self.sum += u128::from(sample.weight);
        self.all.add(sample.weight, is_full);
        match &mut self.middle {
            Some(middle) if key < middle.at => middle.below.add(sample.weight, is_full),
            Some(_) => {}
            None => self.middle = Some(Middle { at: key, below: Part::default() }),
        }
    }

    fn remove(&mut self, id: u64, sample: WeightedSample) {
        let (key, is_full) = (sample.key(id), sample.weight >= self.full_from);
        self.samples.remove(&id);
        self.by_value.remove(&key);
        self.by_weight.remove(&(sample.weight, id));
        self.sum -= u128::from(sample.weight);
        self.all.take(sample.weight, is_full);
        let Some(middle) = &mut self.middle else { return };
        if key < middle.at {
            middle.below.take(sample.weight, is_full);
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

    /// Recomputes which samples are full, and the median.
    fn update_median(&mut self) {
        let Some(middle) = self.middle else { return };
        let scale = self.scale();
        let rescaled = Scale { full_from: full_from(scale.sum, scale.count), ..scale };
        let (scale, middle) = self.rescale(scale, rescaled, middle, None);
        (self.full_from, self.all) = (scale.full_from, scale.all);
        self.middle = Some(self.walk(&scale, middle, None));
    }

    /// Corrects the sums of `to` and `middle` for samples that are full in only one of `from` and `to`.
    fn rescale(
        &self,
        from: Scale,
        mut to: Scale,
        mut middle: Middle,
        except: Option<u64>,
    ) -> (Scale, Middle) {
        let least = from.full_from.min(to.full_from);
        let most = from.full_from.max(to.full_from);
        for &(weight, id) in self.by_weight.range((least, 0)..(most, 0)) {
            let Some(sample) = self.samples.get(&id).filter(|_| Some(id) != except) else { continue };
            let (was, is) = (from.is_full(weight), to.is_full(weight));
            to.all.take(weight, was);
            to.all.add(weight, is);
            if sample.key(id) < middle.at {
                middle.below.take(weight, was);
                middle.below.add(weight, is);
            }
        }
        (to, middle)
    }

    /// Moves `middle` sample by sample to the median of the samples other than `except`.
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

    /// Returns the smallest value such that the values up to it have at least half of the total weight.
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
    fn from_scratch(samples: &BTreeMap<u64, (f64, u64)>, except: Option<u64>) -> Option<f64> {
        let others: Vec<_> =
            samples.iter().filter(|(id, _)| Some(**id) != except).map(|(_, sample)| *sample).collect();
        let sum: u64 = others.iter().map(|(_, weight)| weight).sum();
        let full = 4 * others.len() as u64;
        let others: Vec<_> =
            others.iter().map(|(value, weight)| (*value, (full * weight).min(sum) as f64)).collect();
        (!others.is_empty()).then(|| weighted_lower_median(others))
    }

    #[test]
    fn incremental_median_equals_one_from_scratch() {
        let mut rng = Rng::new(5);
        for ids in [3, 9, 60] {
            let (mut median, mut samples) = (WeightedMedian::default(), BTreeMap::new());
            for turn in 0..2_000 {
                let id = u64::from(rng.below(ids));
                // With few values and weights of all sizes, many are equal and many are near the cap.
                let below = rng.below(10);
                let sample = (rng.below(4) > 0)
                    .then(|| (1.0 + f64::from(rng.below(5)), 1 + u64::from(rng.below(1 << below))));
                median.set(id, sample);
                match sample {
                    Some(sample) => samples.insert(id, sample),
                    None => samples.remove(&id),
                };
                for except in [None, Some(id), Some(u64::from(rng.below(ids)))] {
                    assert_eq!(
                        median.median(except),
                        from_scratch(&samples, except),
                        "{ids} {turn} {except:?}"
                    );
                    let least =
                        samples.iter().filter(|(id, _)| Some(**id) != except).map(|(_, sample)| sample.0);
                    assert_eq!(median.least(except), least.reduce(f64::min));
                }
            }
        }
    }

    #[test]
    fn many_light_samples_do_not_determine_the_median() {
        let mut median = WeightedMedian::default();
        (0..100).for_each(|id| median.set(id, Some((60_000.0, 1))));
        assert_eq!(median.median(None), Some(60_000.0));
        (100..110).for_each(|id| median.set(id, Some((100.0, 1_000_000))));
        assert_eq!(median.median(None), Some(100.0));
        assert_eq!(median.median(Some(100)), Some(100.0));
    }
}
