//! Information that learners really received, which no crash may revoke.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::books::Books;
use archipelago_core::diloco::syncer::Recovery;
use archipelago_core::wire::{ConnId, Fate, FragmentId, LearnerId, LeaseId, Message, Serial, Version};

/// Messages that have left the syncer.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Learner of each connection that was ever welcomed.
    learners: BTreeMap<ConnId, LearnerId>,
    welcomed: BTreeSet<LearnerId>,
    merged: BTreeSet<(LearnerId, FragmentId, Serial)>,
    leases: BTreeMap<LeaseId, LearnerId>,
    /// The newest version of each fragment that any learner knows, and that learner.
    versions: BTreeMap<FragmentId, (Version, LearnerId)>,
}

impl Told {
    /// Notes the learner of a connection; the learner is welcomed once the message leaves.
    pub(super) fn greet(&mut self, conn: ConnId, learner: LearnerId) {
        self.learners.insert(conn, learner);
    }

    /// Notes a message that leaves the syncer.
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

    /// Notes a whole version that a learner gets.
    pub(super) fn version(&mut self, learner: LearnerId, fragment: FragmentId, version: Version) {
        let newest = self.versions.entry(fragment).or_insert((version, learner));
        *newest = (*newest).max((version, learner));
    }

    /// Forgets a learner that had come to nothing, which the syncer removed to make room.
    pub(super) fn forget(&mut self, learner: LearnerId) {
        self.welcomed.remove(&learner);
    }

    /// Returns the number of updates that learners know to be merged.
    pub(super) fn merges(&self) -> u64 {
        self.merged.len() as u64
    }

    /// Drops information newer than the backup that the owner restored; `books` are those of the backup.
    pub(super) fn take_back(&mut self, books: &Books) {
        self.merged.retain(|update| books.has_update(update));
        self.leases.retain(|lease, _| books.has_lease(*lease));
        self.welcomed.clear();
        self.versions.clear();
    }

    /// Checks that the recovered syncer, with `books`, knows everything that learners were told.
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
