//! Checks of receipts: no crash may revoke what a learner received, and each fate is reported in exactly one receipt.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_core::diloco::syncer::Recovery;
use archipelago_core::wire::{ConnId, Fate, FragmentId, LearnerId, LeaseId, Message, Serial, Version};

use super::Violation;
use super::shadow_ledger::ShadowLedger;

/// Log of messages that were really sent to learners.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiptLog {
    /// Learner of each connection that was ever admitted.
    learners: BTreeMap<ConnId, LearnerId>,
    welcomed: BTreeSet<LearnerId>,
    merged: BTreeSet<(LearnerId, FragmentId, Serial)>,
    leases: BTreeMap<LeaseId, LearnerId>,
    /// Newest version of each fragment that was sent to any learner, and that learner.
    versions: BTreeMap<FragmentId, (Version, LearnerId)>,
}

impl ReceiptLog {
    /// Records the learner of a connection before its [`Message::Welcome`] is sent.
    pub(super) fn record_learner(&mut self, conn: ConnId, learner: LearnerId) {
        self.learners.insert(conn, learner);
    }

    /// Records a message that is sent to the learner on `conn`.
    pub(super) fn record_message(&mut self, conn: ConnId, message: &Message) {
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
            Message::Merged(merged) => self.record_version(learner, merged.fragment, merged.version),
            _ => {}
        }
    }

    /// Records that a learner receives a version of a fragment.
    pub(super) fn record_version(&mut self, learner: LearnerId, fragment: FragmentId, version: Version) {
        let newest = self.versions.entry(fragment).or_insert((version, learner));
        *newest = (*newest).max((version, learner));
    }

    /// Removes a learner whose account the syncer deleted to make room.
    pub(super) fn forget(&mut self, learner: LearnerId) {
        self.welcomed.remove(&learner);
    }

    /// Returns the number of merged updates whose learners were notified.
    pub(super) fn merges(&self) -> u64 {
        self.merged.len() as u64
    }

    /// Removes records that are newer than the backup that the owner restored. `shadow` is the ledger at the time of
    /// the backup.
    pub(super) fn restore_backup(&mut self, shadow: &ShadowLedger) {
        self.merged.retain(|update| shadow.has_update(update));
        self.leases.retain(|lease, _| shadow.has_lease(*lease));
        self.welcomed.clear();
        self.versions.clear();
    }

    /// Checks that the recovered syncer, whose ledger should be `shadow`, knows everything that learners were notified
    /// of.
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

/// Receipts that the syncer has sent and whose fate it has not reported as an event yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Receipts {
    sent: BTreeMap<(LearnerId, FragmentId, Serial), Fate>,
}

impl Receipts {
    /// Records a receipt that the syncer sends.
    pub(super) fn record(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial, fate: Fate) {
        self.sent.insert((learner, fragment, serial), fate);
    }

    /// Checks that a receipt for the reported fate was sent if the learner `is_here`, and none otherwise.
    ///
    /// # Errors
    /// [`Violation::Receipt`].
    pub(super) fn check_fate(
        &mut self,
        learner: LearnerId,
        fragment: FragmentId,
        serial: Serial,
        fate: Fate,
        is_here: bool,
    ) -> Result<(), Violation> {
        let told = self.sent.remove(&(learner, fragment, serial));
        let expected = is_here.then_some(fate);
        if told == expected {
            Ok(())
        } else {
            Err(Violation::Receipt { learner, serial, fate: expected, told })
        }
    }

    /// Checks that each receipt's fate was reported.
    ///
    /// # Errors
    /// [`Violation::Receipt`].
    pub(super) fn check(&self) -> Result<(), Violation> {
        match self.sent.first_key_value() {
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
    fn connected_learner_gets_exactly_one_receipt() {
        let merged = Fate::Merged { version: Version(2), weight: 1.0, tokens: 8 };
        let late = Fate::Late(LateReason::StaleBase);
        let check = |sent: Option<Fate>, done: Fate, is_here: bool, expected: bool| {
            let (learner, fragment, serial) = (LearnerId(1), FragmentId(0), Serial(3));
            let mut receipts = Receipts::default();
            if let Some(sent) = sent {
                receipts.record(learner, fragment, serial, sent);
                assert!(receipts.check().is_err(), "nothing was done yet");
            }
            assert_eq!(receipts.check_fate(learner, fragment, serial, done, is_here).is_ok(), expected);
            assert!(receipts.check().is_ok());
        };
        check(Some(merged), merged, true, true);
        check(Some(late), merged, true, false);
        check(None, merged, true, false);
        check(None, merged, false, true);
        check(Some(merged), merged, false, false);
    }
}
