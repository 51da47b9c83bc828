//! What learners were really told, which no crash may take back.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::books::Books;
use archipelago_core::diloco::syncer::Recovery;
use archipelago_core::wire::{ConnId, Fate, FragmentId, LearnerId, LeaseId, Message, Serial, Version};

/// What left the syncer for good.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Who is behind each connection that was ever welcomed.
    learners: BTreeMap<ConnId, LearnerId>,
    welcomed: BTreeSet<LearnerId>,
    merged: BTreeSet<(LearnerId, FragmentId, Serial)>,
    leases: BTreeMap<LeaseId, LearnerId>,
    /// The newest version of each fragment that anybody was told of, and who.
    versions: BTreeMap<FragmentId, (Version, LearnerId)>,
}

impl Told {
    /// The core welcomes a learner; it hears of that once it is told.
    pub(super) fn greet(&mut self, conn: ConnId, learner: LearnerId) {
        self.learners.insert(conn, learner);
    }

    /// A message leaves the syncer.
    pub(super) fn tell(&mut self, conn: ConnId, message: &Message) {
        let Some(&learner) = self.learners.get(&conn) else { return };
        match message {
            Message::Welcome(_) => {
                self.welcomed.insert(learner);
            }
            Message::Receipt { fragment, serial, fate: Fate::Merged { .. }, .. } => {
                self.merged.insert((learner, *fragment, *serial));
            }
            Message::Lease { grant, .. } => {
                self.leases.insert(grant.lease, learner);
            }
            Message::Merged(merged) => self.version(learner, merged.fragment, merged.version),
            _ => {}
        }
    }

    /// A learner gets a version as a whole.
    pub(super) fn version(&mut self, learner: LearnerId, fragment: FragmentId, version: Version) {
        let newest = self.versions.entry(fragment).or_insert((version, learner));
        *newest = (*newest).max((version, learner));
    }

    /// The syncer forgets a learner that came to nothing, to make room: its number is nobody's any more.
    pub(super) fn forget(&mut self, learner: LearnerId) {
        self.welcomed.remove(&learner);
    }

    /// Updates that learners were told are merged.
    pub(super) fn merges(&self) -> u64 {
        self.merged.len() as u64
    }

    /// The owner put an older copy back, of which `books` is true: what was told since is not any more.
    pub(super) fn take_back(&mut self, books: &Books) {
        self.merged.retain(|update| books.has_update(update));
        self.leases.retain(|lease, _| books.has_lease(*lease));
        self.welcomed.clear();
        self.versions.clear();
    }

    /// Whether a syncer that goes on like this, of which `books` is true, knows all of it.
    ///
    /// # Errors
    /// [`Violation::AckedLost`].
    pub(super) fn check(&self, recovery: &Recovery, books: &Books) -> Result<(), Violation> {
        let ledger = &recovery.record().ledger;
        let lost = |learner: LearnerId, what: String| Err(Violation::AckedLost { learner, what });
        for &(learner, fragment, serial) in &self.merged {
            let known = ledger.account(learner).and_then(|account| account.merged[usize::from(fragment.0)]);
            if known < Some(serial) || !books.has_update(&(learner, fragment, serial)) {
                return lost(learner, format!("the merge of its update {serial} on fragment {fragment}"));
            }
        }
        for (&lease, &learner) in &self.leases {
            if !books.has_lease(lease) {
                return lost(learner, format!("lease {lease}"));
            }
        }
        for &learner in &self.welcomed {
            if ledger.account(learner).is_none() {
                return lost(learner, "its number".to_owned());
            }
        }
        for (fragment, &(version, learner)) in &self.versions {
            let there = recovery.states().get(usize::from(fragment.0)).map(|state| state.version);
            if there < Some(version) {
                return lost(learner, format!("version {version} of fragment {fragment}"));
            }
        }
        Ok(())
    }
}
