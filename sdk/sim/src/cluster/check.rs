//! Invariants of a cluster under any faults.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_core::cluster::{Record, state_of};
use archipelago_core::diloco::syncer::Rollback;
use archipelago_core::diloco::{Entry, MergeEntry, checksum};
use archipelago_core::wire::{LearnerId, Round, Serial, Version};

use super::Cluster;

/// Broken invariant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvariantViolation {
    /// An acknowledged record is not on the tape, or another one has its number.
    #[error("record {0} was acknowledged but is not on the tape")]
    Lost(u64),
    /// A committed record is gone or changed.
    #[error("the tape differs from what it held before")]
    Tape,
    /// A gateway was notified of a round's end before the round's record was on the tape.
    #[error("the end of round {0} was announced before it was on the tape")]
    Early(Round),
    /// A record follows [`Record::Finished`].
    #[error("record {0} comes after the last one")]
    After(u64),
    /// A merge's base, version or round number does not follow from the record before.
    #[error("record {0} is not a version that follows the one before")]
    Chain(u64),
    /// An update was merged twice, or in a round for which it was not sent.
    #[error("update {1} of learner {0} was merged in a round that is not its own, or twice")]
    Twice(LearnerId, Serial),
    /// A merge contains an update that the learner did not send.
    #[error("update {1} of learner {0} was merged but never sent")]
    Stranger(LearnerId, Serial),
    /// A learner got a receipt that contradicts the tape or an earlier receipt.
    #[error("learner {0} got an outcome of update {1} that is not on the tape")]
    Untrue(LearnerId, Serial),
    /// A syncer in one process computes another result for the merge.
    #[error("round {0}, merged in one place, gives another result")]
    Diverged(Round),
}

impl Cluster {
    /// Compares all receipts and notices with the tape, and each merge with that of a syncer in one process.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), InvariantViolation> {
        if self.tape.is_broken {
            return Err(InvariantViolation::Tape);
        }
        if let Some(round) = self.early_end {
            return Err(InvariantViolation::Early(round));
        }
        let tape = self.tape.committed();
        let is_there = |(seq, record): &(&u64, &Record)| tape.get(**seq as usize - 1) == Some(*record);
        if let Some((seq, _)) = self.acknowledged.iter().find(|entry| !is_there(entry)) {
            return Err(InvariantViolation::Lost(*seq));
        }
        if let Some(at) = tape.iter().position(|record| *record == Record::Finished)
            && at + 1 < tape.len()
        {
            return Err(InvariantViolation::After(at as u64 + 2));
        }
        self.check_receipts(tape)?;
        self.check_merges(tape)
    }

    fn check_receipts(&self, tape: &[Record]) -> Result<(), InvariantViolation> {
        for learner in &self.learners {
            for (&serial, &merged) in &learner.receipts {
                let Some((round, _)) = learner.sent.get(&serial) else {
                    return Err(InvariantViolation::Untrue(learner.id, serial));
                };
                // The tape has a merged update in the record with the round's number.
                let record = tape.get(round.0 as usize - 1);
                let on_tape =
                    record.map(|record| record.has_merged(learner.id, serial).then_some(Version(round.0)));
                if learner.has_contradiction || on_tape != Some(merged) {
                    return Err(InvariantViolation::Untrue(learner.id, serial));
                }
            }
        }
        Ok(())
    }

    fn check_merges(&self, tape: &[Record]) -> Result<(), InvariantViolation> {
        let mut before = Version(0);
        let mut merged = BTreeSet::new();
        let (fragments, initial) = (&self.run.fragments, std::slice::from_ref(&self.run.initial));
        let last = Version(tape.len() as u64);
        let rollbacks = Rollback::all(fragments, self.run.codec, initial, &BTreeSet::new(), &[last]);
        let mut alone = rollbacks.into_iter().next();
        for (record, seq) in tape.iter().zip(1..) {
            let Record::Merged { merge, state } = record else { continue };
            let MergeEntry { round, base, version, parts, .. } = &**merge;
            if (*base, *version, *round) != (before, Version(seq), Round(seq)) {
                return Err(InvariantViolation::Chain(seq));
            }
            before = *version;
            let mut bodies = Vec::new();
            for part in parts {
                let sent = self.learners.iter().find(|learner| learner.id == part.learner);
                let Some((sent_for, body)) = sent.and_then(|learner| learner.sent.get(&part.serial)) else {
                    return Err(InvariantViolation::Stranger(part.learner, part.serial));
                };
                if sent_for != round || !merged.insert((part.learner, part.serial)) {
                    return Err(InvariantViolation::Twice(part.learner, part.serial));
                }
                bodies.push(body.clone());
            }
            let diverged = InvariantViolation::Diverged(*round);
            let Some(alone) = &mut alone else { return Err(diverged) };
            let mut bodies = bodies.into_iter();
            let followed =
                alone.follow(&Entry::Merged((**merge).clone()), |_| Ok(bodies.next().unwrap_or_default()));
            let stored = self.archive.get(&seq).filter(|bytes| checksum(bytes) == *state);
            let theirs = stored.and_then(|bytes| state_of(*version, alone.theta().1.len(), bytes));
            let is_same = theirs.is_some_and(|theirs| *theirs.theta == alone.theta().1);
            if followed.is_err() || !is_same {
                return Err(diverged);
            }
        }
        Ok(())
    }

    /// Returns the number of merged updates of each learner, according to the tape.
    #[must_use]
    pub fn merges(&self) -> BTreeMap<LearnerId, usize> {
        let mut merges: BTreeMap<_, _> = self.learners.iter().map(|learner| (learner.id, 0)).collect();
        for record in self.tape.committed() {
            if let Record::Merged { merge, .. } = record {
                for part in &merge.parts {
                    *merges.entry(part.learner).or_default() += 1;
                }
            }
        }
        merges
    }
}
