//! The owner's orders on the tape, which no crash may revoke.

use std::collections::{BTreeMap, VecDeque};

use super::Violation;
use archipelago_core::diloco::Entry;
use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::wire::{LearnerId, Share};

/// The owner's orders, each with its row.
#[derive(Clone, Debug, Default)]
pub(super) struct Orders(VecDeque<(u64, Entry)>);

impl Orders {
    /// Notes the syncer's decision in row `seq`.
    pub(super) fn note(&mut self, seq: u64, entry: &Entry) {
        let is_order = matches!(
            entry,
            Entry::Held { .. } | Entry::Paced { .. } | Entry::Dropped { .. } | Entry::Finishing
        );
        if is_order {
            self.0.push_back((seq, entry.clone()));
        }
    }

    /// Drops the orders after row `last`, which were never on the disk.
    pub(super) fn cut(&mut self, last: u64) {
        self.0.retain(|(seq, _)| *seq <= last);
    }

    /// Returns true if the last collection has begun.
    pub(super) fn is_finishing(&self) -> bool {
        self.0.iter().any(|(_, entry)| *entry == Entry::Finishing)
    }

    /// Checks that a syncer that restarts from `record` obeys all orders.
    ///
    /// # Errors
    /// [`Violation::OwnerUndone`].
    pub(super) fn check(&self, record: &SyncerRecord) -> Result<(), Violation> {
        let undone = |what: String| Err(Violation::OwnerUndone { what });
        let mut is_held = false;
        let mut reins: BTreeMap<LearnerId, (Share, u32)> = BTreeMap::new();
        for (_, entry) in &self.0 {
            match *entry {
                Entry::Held { held } => is_held = held,
                Entry::Paced { learner, share } => reins.entry(learner).or_insert((Share::FULL, 0)).0 = share,
                Entry::Dropped { learner, wait_ms } => {
                    reins.entry(learner).or_insert((Share::FULL, 0)).1 = wait_ms;
                }
                _ => {}
            }
        }
        if record.held != is_held {
            return undone(format!("the pause state of the run: {is_held}"));
        }
        if record.finishing != self.is_finishing() {
            return undone("the end of the run".to_owned());
        }
        for (learner, (share, wait_ms)) in reins {
            let found = (record.reins.share(learner), record.reins.wait_ms(learner));
            if found != (share, wait_ms) {
                return undone(format!(
                    "learner {learner}, which trains for {} of its time and was sent away for {wait_ms} ms",
                    share.ratio()
                ));
            }
        }
        Ok(())
    }
}
