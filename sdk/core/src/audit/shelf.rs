//! What was published lately.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::wire::{FragmentId, Version};

/// Versions of each fragment that are kept: a span takes in one or two.
const VERSIONS_MAX: usize = 8;
/// Values of the run's clock that are kept.
const CLOCKS_MAX: usize = 4_096;

/// Θ̂ of the last versions of each fragment, four bytes a value each, and the values of the run's clock.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pub(super) hats: BTreeMap<(FragmentId, Version), Arc<Vec<f32>>>,
    pub(super) clocks: BTreeSet<u64>,
}

impl Shelf {
    /// `version` of `fragment` is published.
    pub(super) fn publish(&mut self, fragment: FragmentId, version: Version, hat: Arc<Vec<f32>>) {
        self.hats.insert((fragment, version), hat);
        let of_it = (fragment, Version(0))..=(fragment, Version(u64::MAX));
        let kept: Vec<_> = self.hats.range(of_it).map(|(&key, _)| key).collect();
        for key in kept.iter().take(kept.len().saturating_sub(VERSIONS_MAX)) {
            self.hats.remove(key);
        }
    }

    /// The run's clock is at `tokens`.
    pub(super) fn tick(&mut self, tokens: u64) {
        self.clocks.insert(tokens);
        if self.clocks.len() > CLOCKS_MAX {
            self.clocks.pop_first();
        }
    }
}
