//! Access to the merges and decisions of a world.

use super::World;
use archipelago_core::diloco::syncer::{ContributionVerdict, Input};
use archipelago_core::diloco::{Entry, MergeJob};
use archipelago_core::wire::LearnerId;

/// Merges kept until they are taken; the oldest go first.
const MERGES_MAX: usize = 1_024;

impl World {
    /// Begins to keep merge jobs, which costs memory until [`Self::take_merges`] is called.
    pub fn watch_merges(&mut self) {
        self.merges.get_or_insert_default();
    }

    /// Takes the merge jobs since the last call, oldest first; at most 1,024 are kept.
    pub fn take_merges(&mut self) -> Vec<MergeJob> {
        self.merges.as_mut().map(|merges| merges.drain(..).collect()).unwrap_or_default()
    }

    /// Begins to keep the syncer's decisions, which costs memory until [`Self::take_entries`] is called.
    pub fn watch_entries(&mut self) {
        self.entries.get_or_insert_default();
    }

    /// Takes the syncer's decisions since the last call, oldest first.
    pub fn take_entries(&mut self) -> Vec<Entry> {
        self.entries.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Tells the syncer whether the updates of `learner` show real training.
    pub fn regard(&mut self, learner: LearnerId, regard: ContributionVerdict) {
        self.tell_syncer(Input::ContributionVerdict { learner, regard });
    }

    pub(super) fn note_entry(&mut self, entry: &Entry) {
        if let Some(entries) = &mut self.entries {
            entries.push(entry.clone());
        }
    }

    pub(super) fn note_merge(&mut self, job: &MergeJob) {
        let Some(merges) = &mut self.merges else { return };
        if merges.len() == MERGES_MAX {
            merges.pop_front();
        }
        merges.push_back(job.clone());
    }
}
