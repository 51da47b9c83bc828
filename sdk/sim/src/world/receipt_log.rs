//! Receipts that learners really received: no crash may revoke them, and each settled update has exactly one.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_core::diloco::syncer::Recovery;
use archipelago_core::wire::{ConnId, Fate, FragmentId, LearnerId, LeaseId, Message, Serial, Version};

use super::Violation;
use super::shadow_ledger::ShadowLedger;

/// Messages that have left the syncer.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiptLog {
    /// Learner of each connection that was ever welcomed.
    learners: BTreeMap<ConnId, LearnerId>,
    welcomed: BTreeSet<LearnerId>,
    merged: BTreeSet<(LearnerId, FragmentId, Serial)>,
    leases: BTreeMap<LeaseId, LearnerId>,
    /// The newest version of each fragment that any learner knows, and that learner.
    versions: BTreeMap<FragmentId, (Version, LearnerId)>,
}

impl ReceiptLog {
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

    /// Returns the number of merged updates whose learners know that they were merged.
    pub(super) fn merges(&self) -> u64 {
        self.merged.len() as u64
    }

    /// Drops information newer than the backup that the owner restored; `shadow` is the ledger of the backup.
    pub(super) fn take_back(&mut self, shadow: &ShadowLedger) {
        self.merged.retain(|update| shadow.has_update(update));
        self.leases.retain(|lease, _| shadow.has_lease(*lease));
        self.welcomed.clear();
        self.versions.clear();
    }

    /// Checks that the recovered syncer, with the ledger `shadow`, knows everything that learners were told.
    ///
    /// # Errors
    /// [`Violation::AckedLost`].
    pub(super) fn check(&self, recovery: &Recovery, shadow: &ShadowLedger) -> Result<(), Violation> {
        let ledger = &recovery.record().ledger;
        let lost = |learner: LearnerId, what: String| Err(Violation::AckedLost { learner, what });
        for &(learner, fragment, serial) in &self.merged {
            let known = ledger.account(learner).and_then(|account| account.merged[usize::from(fragment.0)]);
            if known < Some(serial) || !shadow.has_update(&(learner, fragment, serial)) {
                return lost(learner, format!("the merge of its update {serial} on fragment {fragment}"));
            }
        }
        for (&lease, &learner) in &self.leases {
            if !shadow.has_lease(lease) {
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

/// Receipts that the syncer sent before the event that ledger the fate.
#[derive(Clone, Debug, Default)]
pub(super) struct Receipts {
    said: BTreeMap<(LearnerId, FragmentId, Serial), Fate>,
}

impl Receipts {
    /// Notes a receipt that the syncer sends.
    pub(super) fn say(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial, fate: Fate) {
        self.said.insert((learner, fragment, serial), fate);
    }

    /// Checks the receipt of a booked fate; a learner that `is_here` must have one.
    ///
    /// # Errors
    /// [`Violation::Receipt`].
    pub(super) fn settle(
        &mut self,
        learner: LearnerId,
        fragment: FragmentId,
        serial: Serial,
        fate: Fate,
        is_here: bool,
    ) -> Result<(), Violation> {
        let told = self.said.remove(&(learner, fragment, serial));
        let expected = is_here.then_some(fate);
        if told == expected {
            Ok(())
        } else {
            Err(Violation::Receipt { learner, serial, fate: expected, told })
        }
    }

    /// Checks that no receipt is left without a booked fate.
    ///
    /// # Errors
    /// [`Violation::Receipt`].
    pub(super) fn check(&self) -> Result<(), Violation> {
        match self.said.first_key_value() {
            None => Ok(()),
            Some((&(learner, _, serial), &told)) => {
                Err(Violation::Receipt { learner, serial, fate: None, told: Some(told) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::wire::{LateReason, Version};

    use super::*;

    #[test]
    fn whoever_is_here_is_told_what_happened() {
        let merged = Fate::Merged { version: Version(2), weight: 1.0, tokens: 8 };
        let late = Fate::Late(LateReason::StaleBase);
        let check = |said: Option<Fate>, done: Fate, is_here: bool, expected: bool| {
            let (learner, fragment, serial) = (LearnerId(1), FragmentId(0), Serial(3));
            let mut receipts = Receipts::default();
            if let Some(said) = said {
                receipts.say(learner, fragment, serial, said);
                assert!(receipts.check().is_err(), "nothing was done yet");
            }
            assert_eq!(receipts.settle(learner, fragment, serial, done, is_here).is_ok(), expected);
            assert!(receipts.check().is_ok());
        };
        check(Some(merged), merged, true, true);
        check(Some(late), merged, true, false);
        check(None, merged, true, false);
        check(None, merged, false, true);
        check(Some(merged), merged, false, false);
    }
}
