//! Order of the training data in an epoch, within each shard.
//!
//! The position of a window is computed from its index alone. A lease of a range of indices thus names the same
//! windows for the syncer and the learner, without a table.

use crate::wire::{LeaseGrant, RunSpec, ShardSpec};

use super::shard::{ShardForm, marked};
use crate::rng::{key, mix};

/// Returns the number of windows in a shard of `tokens` tokens, ⌊`tokens` / `context`⌋ − 1, which is the same in
/// every epoch.
///
/// One window less than fits is used, so that the first window can start anywhere in `0..context`. The result is 0
/// for a shard of fewer than 2 · `context` tokens, and if `context` is 0.
#[must_use]
pub fn windows(tokens: u64, context: u32) -> u32 {
    let whole = tokens.checked_div(u64::from(context)).unwrap_or(0);
    u32::try_from(whole.saturating_sub(1)).unwrap_or(u32::MAX)
}

/// A window of the training text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    /// Number of the pass over the data, from 0.
    pub epoch: u32,
    /// Index of the shard.
    pub shard: u32,
    /// Index of the window in the epoch's order of that shard.
    pub index: u32,
}

impl Window {
    /// Returns the window's tokens, `[context + 1]`, with masked ones marked as in [`crate::token`]. `shard` has the
    /// bytes of the window's shard of `run`. Returns `None` if there is no such window.
    #[must_use]
    pub fn tokens(self, run: &RunSpec, shard: &[u8]) -> Option<Vec<u32>> {
        let spec = run.data.shards.get(self.shard as usize)?;
        let order = ShardOrder::new(run.seed, self.epoch, self.shard, spec, run.model.context);
        let start = usize::try_from(order.start(self.index)?).ok()?;
        let length = run.model.context as usize + 1;
        let tokens = marked(shard, usize::try_from(spec.tokens).ok()?, ShardForm::from(&run.data), start);
        let tokens: Vec<u32> = tokens.take(length).collect();
        (tokens.len() == length).then_some(tokens)
    }
}

/// Positions of the windows of one shard in one epoch.
///
/// Windows are `context` tokens apart, so their targets do not overlap and no token is predicted twice. The first
/// window begins at an offset in `0..context`, which is random for each epoch, so that boundaries move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardOrder {
    offset: u32,
    context: u32,
    permutation: Permutation,
}

impl ShardOrder {
    /// Returns the order of shard number `shard`, described by `spec`, in `epoch`.
    #[must_use]
    pub(crate) fn new(seed: u64, epoch: u32, shard: u32, spec: &ShardSpec, context: u32) -> Self {
        let key = |purpose| key(&[seed, u64::from(epoch), u64::from(shard), purpose as u64]);
        let offset = key(Purpose::Offset).checked_rem(u64::from(context)).unwrap_or(0);
        let permutation = Permutation::new(windows(spec.tokens, context), key(Purpose::Windows));
        Self { offset: offset as u32, context, permutation }
    }

    /// Returns the number of windows.
    #[must_use]
    pub(crate) fn windows(&self) -> u32 {
        self.permutation.len
    }

    /// Returns the position of the first token of window `index`, or `None` if there is no such window. All `context
    /// + 1` tokens of the window are in the shard.
    #[must_use]
    pub(crate) fn start(&self, index: u32) -> Option<u64> {
        let place = self.permutation.at(index)?;
        Some(u64::from(self.offset) + u64::from(place) * u64::from(self.context))
    }
}

/// Seeded permutation of `0..len`, computed at any index without a table.
///
/// A Feistel network permutes the smallest range of 2^n numbers that contains `0..len`. A result outside `0..len` is
/// permuted again until it is inside. As `len` is above half of that range, one more time is enough on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Permutation {
    len: u32,
    key: u64,
}

impl Permutation {
    /// Returns the permutation of `0..len` for `key`.
    fn new(len: u32, key: u64) -> Self {
        Self { len, key }
    }

    /// Returns the image of `index`, which is in `0..len`, or `None` if `index` is not.
    fn at(&self, index: u32) -> Option<u32> {
        if index >= self.len {
            return None;
        }
        let mut place = self.network(index);
        while place >= self.len {
            place = self.network(place);
        }
        Some(place)
    }

    /// Permutes `0..2^bits`, the smallest such range that contains `0..len`. The two parts of a number may differ in
    /// width by a bit: each round changes one part by a function of the other, which is invertible for any widths.
    fn network(&self, value: u32) -> u32 {
        let bits = u32::BITS - (self.len - 1).leading_zeros();
        let low_bits = bits / 2;
        let (low_mask, high_mask) = (low_mask(low_bits), low_mask(bits - low_bits));
        let (mut low, mut high) = (value & low_mask, value >> low_bits);
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                high ^= self.scatter(round, low) & high_mask;
            } else {
                low ^= self.scatter(round, high) & low_mask;
            }
        }
        high << low_bits | low
    }

    fn scatter(&self, round: u32, half: u32) -> u32 {
        (mix(self.key ^ (u64::from(round) << 32 | u64::from(half))) >> 32) as u32
    }
}

/// Rounds of the network. Four suffice against statistical tests for wide numbers (Luby and Rackoff, 1988). The parts
/// of numbers in a small range are narrow, so two more rounds are used.
const ROUNDS: u32 = 6;

/// Purpose of a random key, so that no two uses share a key. The values are parts of the keys: never change one.
#[derive(Clone, Copy)]
enum Purpose {
    Windows = 1,
    Offset = 2,
}

fn low_mask(bits: u32) -> u32 {
    (1_u32 << bits) - 1
}

/// Returns the position in its shard of the first token of window `index` of a lease. Returns `None` if the lease or
/// the run has no such window.
#[must_use]
pub fn window_start(spec: &RunSpec, grant: &LeaseGrant, index: u32) -> Option<u64> {
    let LeaseGrant { epoch, shard, start, windows, .. } = *grant;
    let shard_spec = spec.data.shards.get(shard as usize).filter(|_| index < windows)?;
    let order = ShardOrder::new(spec.seed, epoch, shard, shard_spec, spec.model.context);
    order.start(start.checked_add(index)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(permutation: Permutation) -> Vec<u32> {
        (0..permutation.len).map(|index| permutation.at(index).unwrap()).collect()
    }

    #[test]
    fn counts_windows() {
        let check = |tokens, context, expected| assert_eq!(windows(tokens, context), expected);
        check(0, 8, 0);
        check(15, 8, 0);
        check(16, 8, 1);
        check(23, 8, 1);
        check(24, 8, 2);
        check(10, 0, 0);
        check(u64::MAX, 1, u32::MAX);
    }

    /// If this test fails, active runs would train on their data in another order.
    #[test]
    fn order_is_frozen() {
        assert_eq!(all(Permutation::new(8, key(&[1, 0, 0]))), [4, 1, 7, 2, 0, 5, 3, 6]);
        let spec = ShardSpec { tokens: 700, sha256: [0; 32] };
        let order = ShardOrder::new(1, 2, 3, &spec, 100);
        let starts: Vec<u64> = (0..6).filter_map(|index| order.start(index)).collect();
        assert_eq!(starts, [23, 323, 423, 523, 123, 223]);
    }

    #[test]
    fn spreads_evenly_over_places() {
        // Number of keys for which index 0 is mapped to each of 5 positions: five standard deviations around 2,000.
        let mut counts = [0_u32; 5];
        for key in 0..10_000 {
            counts[Permutation::new(5, mix(key)).at(0).unwrap() as usize] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(2_000) < 5 * 40), "{counts:?}");
    }

    #[test]
    fn handles_the_whole_range() {
        let widest = Permutation::new(u32::MAX, 3);
        assert!(widest.at(u32::MAX - 1).is_some_and(|place| place < u32::MAX));
        assert_eq!(widest.at(u32::MAX), None);
        assert_eq!(Permutation::new(0, 3).at(0), None);
    }

    proptest! {
        #[test]
        fn is_a_permutation(len in 1_u32..3_000, key: u64) {
            let mut places = all(Permutation::new(len, key));
            places.sort_unstable();
            prop_assert!(places.into_iter().eq(0..len));
        }

        #[test]
        fn epochs_and_shards_differ(seed: u64, epoch in 0_u32..100, shard in 0_u32..100) {
            let spec = ShardSpec { tokens: 10_000, sha256: [0; 32] };
            let starts = |epoch, shard| {
                let order = ShardOrder::new(seed, epoch, shard, &spec, 16);
                (0..order.windows()).map(|i| order.start(i).unwrap()).collect::<Vec<_>>()
            };
            prop_assert_ne!(starts(epoch, shard), starts(epoch + 1, shard));
            prop_assert_ne!(starts(epoch, shard), starts(epoch, shard + 1));
        }

        #[test]
        fn windows_lie_inside_and_their_targets_apart(
            seed: u64, epoch: u32, tokens in 0_u64..5_000, context in 1_u32..100,
        ) {
            let spec = ShardSpec { tokens, sha256: [0; 32] };
            let order = ShardOrder::new(seed, epoch, 0, &spec, context);
            prop_assert_eq!(order.windows(), windows(tokens, context));
            let mut starts: Vec<u64> = (0..order.windows()).map(|i| order.start(i).unwrap()).collect();
            starts.sort_unstable();
            prop_assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == u64::from(context)));
            prop_assert!(starts.last().is_none_or(|last| last + u64::from(context) < tokens));
            prop_assert_eq!(order.start(order.windows()), None);
        }
    }
}
