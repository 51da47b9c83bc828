//! The checker at syncs of the tape, at crashes that revoke unsynced decisions, and at recoveries.

use std::collections::VecDeque;

use super::Violation;
use super::audit::Audit;
use super::books::{Booked, Books};
use super::receipts::Receipts;
use archipelago_core::diloco::Entry;
use archipelago_core::diloco::syncer::{Recovery, Syncer};
use archipelago_core::wire::{ConnId, FragmentId, Message, Version};

/// Books, and the later decisions by row, in order.
pub(super) type Kept = (Books, VecDeque<(u64, Booked)>);

impl Audit {
    /// Books the syncer's decision in row `seq`.
    pub(super) fn on_entry(&mut self, seq: u64, entry: &Entry) {
        self.orders.note(seq, entry);
        match entry {
            Entry::Leased { learner, grant } => self.book(seq, Booked::Granted(*learner, *grant)),
            &Entry::Forgotten { learner } => self.told.forget(learner),
            &Entry::Returned { lease, windows, .. } => self.book(seq, Booked::TakenBack(lease, windows)),
            Entry::Merged(merge) => {
                for part in &merge.parts {
                    let (learner, fragment, serial) = (part.learner, merge.fragment, part.serial);
                    let steps = self.homes.get(&learner).and_then(|&machine| {
                        let (life, steps) = self.sent.get(&(machine, fragment, serial))?;
                        Some(((machine, *life), steps.clone()))
                    });
                    let tokens = part.tokens;
                    self.merged.insert((learner, fragment, serial), tokens);
                    self.book(seq, Booked::Merged { learner, fragment, serial, tokens, steps });
                }
            }
            _ => {}
        }
    }

    /// Notes that everything up to row `seq` is on the disk.
    pub(super) fn on_safe(&mut self, seq: u64) {
        self.safe = self.safe.max(seq);
        while let Some((_, booked)) = self.booked.pop_front_if(|(booked, _)| *booked <= seq) {
            if let Booked::Merged { fragment, serial, steps: Some(((machine, _), _)), .. } = &booked {
                self.sent.remove(&(*machine, *fragment, *serial));
            }
            // The entry was booked before, and any violation was reported then.
            let _ = self.kept.book(&booked);
        }
    }

    /// Notes a message that really leaves the syncer.
    pub(super) fn on_told(&mut self, conn: ConnId, message: &Message) {
        self.told.tell(conn, message);
    }

    /// Notes a version of a fragment that really leaves the syncer for a machine.
    pub(super) fn on_told_version(&mut self, machine: u32, fragment: FragmentId, version: Version) {
        let learner = self.homes.iter().find(|(_, home)| **home == machine).map(|(learner, _)| *learner);
        if let Some(learner) = learner {
            self.told.version(learner, fragment, version);
        }
    }

    /// Returns the number of updates that learners know to be merged.
    pub(super) fn told_merges(&self) -> u64 {
        self.told.merges()
    }

    /// Returns the books that are certainly on the disk, and the decisions that may be. The next start shows which of
    /// these a crash kept.
    pub(super) fn kept(&self) -> Kept {
        (self.kept.clone(), self.booked.clone())
    }

    /// Notes that the owner restored a backup, with the checker's knowledge at backup time.
    pub(super) fn on_put_back(&mut self, (books, booked): Kept) {
        for (place, steps) in self.books.all_steps() {
            self.undone.entry(*place).or_default().add(steps);
        }
        self.told.take_back(&books);
        (self.kept, self.booked, self.safe) = (books, booked, 0);
    }

    /// Checks a recovery from a tape that ends with row `last`.
    pub(super) fn on_recovered(&mut self, last: u64, recovery: &Recovery) {
        if last < self.safe {
            self.verify(Err(Violation::RowsLost { safe: self.safe, last }));
        }
        self.on_safe(last);
        // Decisions that never reached the disk are void.
        self.booked.clear();
        self.books = self.kept.clone();
        self.merged.clear();
        let told = self.told.check(recovery, &self.books);
        self.verify(told);
        self.orders.cut(last);
        self.finishing = self.orders.is_finishing();
        let obeyed = self.orders.check(recovery.record());
        self.verify(obeyed);
        let exact = self.books.check(&recovery.record().ledger, |_| None);
        self.verify(exact);
        for (fragment, state) in (0..).map(FragmentId).zip(recovery.states()) {
            self.note_content(fragment, state);
        }
    }

    /// Resets the state of the syncer's process before it serves.
    pub(super) fn on_started(&mut self, syncer: &Syncer) {
        self.receipts = Receipts::default();
        let versions = syncer.fragments().ids().zip(syncer.states());
        self.versions = versions.map(|(fragment, state)| (fragment, state.version)).collect();
        self.learners.clear();
        self.pending.clear();
        self.changes.clear();
        self.in_flight.clear();
        self.launched = None;
    }

    fn book(&mut self, seq: u64, booked: Booked) {
        let result = self.books.book(&booked);
        self.verify(result);
        self.booked.push_back((seq, booked));
    }
}
