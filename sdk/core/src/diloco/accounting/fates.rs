//! Counts of update fates.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::wire::{Fate, LateReason, Refusal};

/// Number of updates for each fate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FateCounts {
    /// Merged.
    pub merged: u64,
    /// Late, by reason.
    pub late: BTreeMap<LateReason, u64>,
    /// Refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
}

impl FateCounts {
    /// Returns the number of updates with a fate.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.merged + self.late.values().sum::<u64>() + self.refused.values().sum::<u64>()
    }

    /// Adds the counts of `other`.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.merged += other.merged;
        for (reason, count) in &other.late {
            *self.late.entry(*reason).or_default() += count;
        }
        for (reason, count) in &other.refused {
            *self.refused.entry(*reason).or_default() += count;
        }
    }

    /// Subtracts the counts of `other`, which are part of these.
    pub(super) fn take_all(&mut self, other: &Self) {
        self.merged -= other.merged;
        take(&mut self.late, &other.late);
        take(&mut self.refused, &other.refused);
    }

    pub(super) fn add(&mut self, fate: &Fate) {
        *match fate {
            Fate::Merged { .. } => &mut self.merged,
            Fate::Late(reason) => self.late.entry(*reason).or_default(),
            Fate::Refused(reason) => self.refused.entry(*reason).or_default(),
        } += 1;
    }
}

/// Subtracts `others`, and removes the reasons whose count becomes 0.
fn take<K: Copy + Ord>(counts: &mut BTreeMap<K, u64>, others: &BTreeMap<K, u64>) {
    for (reason, count) in others {
        if let Some(left) = counts.get_mut(reason) {
            *left -= count;
            if *left == 0 {
                counts.remove(reason);
            }
        }
    }
}
