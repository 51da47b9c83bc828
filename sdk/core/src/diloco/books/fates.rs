//! Counting what became of updates.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::wire::{Fate, LateReason, Refusal};

/// How many updates met which fate.
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
    /// All updates with a fate.
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

    /// Takes the counts of `other` away, which are in it.
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

/// A reason of which nothing is left is as if it had never been.
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
