//! What is merged in a world, for whoever wants to look into it.

use super::World;
use archipelago_core::diloco::MergeJob;

/// Merges kept until they are taken; the oldest go first.
const MERGES_MAX: usize = 1_024;

impl World {
    /// Begins to keep what is merged; costs memory until [`Self::take_merges`] is called.
    pub fn watch_merges(&mut self) {
        self.merges.get_or_insert_default();
    }

    /// What went into each merge since this was asked last, the oldest first; at most 1,024 are kept.
    pub fn take_merges(&mut self) -> Vec<MergeJob> {
        self.merges.as_mut().map(|merges| merges.drain(..).collect()).unwrap_or_default()
    }

    pub(super) fn note_merge(&mut self, job: &MergeJob) {
        let Some(merges) = &mut self.merges else { return };
        if merges.len() == MERGES_MAX {
            merges.pop_front();
        }
        merges.push_back(job.clone());
    }
}
