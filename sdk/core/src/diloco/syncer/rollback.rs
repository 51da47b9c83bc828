//! Rollback of harmful merges. The host finds the culprits by measuring, see [`super::Blame`].
//!
//! Each fragment returns to its state before the harm and repeats its merges without the culprits, as soon as no round
//! of it is under way. Learners receive the result like any merge and need not know about the rollback.

use std::collections::BTreeSet;

use super::{ContributionVerdict, Event, Output, Remake, RemakeJob, Syncer, Undo};
use crate::diloco::{
    Entry, FragmentState, MergeError, MergeFailure, MergeOutcome, PROBATION_MS, Remade, RemadeEntry, Rounds,
};
use crate::wire::{FragmentId, LearnerId, Merged, Millis};

/// Harmful incidents after which a learner stays out until the owner lets it back.
pub const HARMS_MAX: u32 = 2;
/// Time for which a learner is sent away after its first harmful incident, in milliseconds.
pub(super) const AWAY_MS: u32 = PROBATION_MS as u32;

/// Trust of a run in a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Newcomer: its updates count little.
    Probation,
    /// Its updates count in full.
    Trusted,
    /// Its updates did harm once or do not show that it trains. It is on probation again.
    Suspect,
    /// Its updates did harm. None are accepted for a while, or until the owner lets it back.
    Out,
}

/// Pending rollbacks.
#[derive(Debug, Default)]
pub(super) struct Undoing {
    /// State from which each fragment starts again, `[P]`; `None` once it has begun or if no rollback is pending.
    from: Vec<Option<FragmentState>>,
    after: u64,
    without: BTreeSet<LearnerId>,
}

impl Syncer {
    /// Returns the trust in `learner` at `now`.
    #[must_use]
    pub fn trust(&self, now: Millis, learner: LearnerId) -> Trust {
        let harms = self.harms(learner);
        if harms >= HARMS_MAX || (harms > 0 && self.returns(now, learner).is_some()) {
            return Trust::Out;
        }
        match (self.is_newcomer(learner), harms > 0 || self.ledger().doubt(learner).is_some()) {
            (false, _) => Trust::Trusted,
            (true, false) => Trust::Probation,
            (true, true) => Trust::Suspect,
        }
    }

    /// Returns the learners suspected of not training, by id.
    pub fn suspects(&self) -> impl Iterator<Item = LearnerId> {
        self.ledger().suspects()
    }

    /// Returns true while the rollback of any fragment is pending or under way. Until it ends, Θ is not final.
    #[must_use]
    pub fn is_undoing(&self) -> bool {
        self.undoing.from.iter().any(Option::is_some) || self.rounds.iter().any(Rounds::is_remaking)
    }

    /// Returns the harmful incidents of `learner` that were not pardoned.
    pub(super) fn harms(&self, learner: LearnerId) -> u32 {
        self.ledger().account(learner).map_or(0, |account| account.harms)
    }

    /// Applies a verdict of the loss checks. ContributionTest are lost at a restart. Until some learner is proven
    /// again, the mean share binds no learner.
    pub(super) fn on_regard(&mut self, learner: LearnerId, regard: ContributionVerdict) {
        if self.knows(learner) {
            self.shown.insert(learner, regard == ContributionVerdict::Proven);
        }
        let doubt = regard.doubt();
        if self.books.suspect(learner, doubt) {
            self.standings.look(self.books.ledger(), learner);
            self.event(Event::Doubted { learner, doubt });
        }
    }

    /// Sends the culprits away and schedules the rollback of all fragments without them.
    pub(super) fn on_undo(&mut self, now: Millis, Undo { from, after, culprits }: Undo) {
        let culprits: BTreeSet<_> = culprits.into_iter().filter(|learner| self.knows(*learner)).collect();
        if culprits.is_empty() || from.len() != self.rounds.len() || self.schedule.is_over() {
            return;
        }
        for &learner in &culprits {
            let waiting: Vec<_> =
                self.rounds.iter_mut().filter_map(|rounds| rounds.discard(learner)).collect();
            waiting.into_iter().for_each(|settled| self.settle(settled));
            self.books.blame(learner);
            self.shown.insert(learner, false);
            self.standings.look(self.books.ledger(), learner);
            self.roster.send_away(now, learner, AWAY_MS);
            self.books.note(Entry::Dropped { learner, wait_ms: AWAY_MS });
            self.event(Event::Blamed { learner, harms: self.harms(learner) });
            if let Some(conn) = self.roster.conn(learner) {
                self.turn_out(conn, self.harms(learner));
            }
        }
        self.undoing.without.extend(culprits);
        (self.undoing.from, self.undoing.after) = (from.into_iter().map(Some).collect(), after);
        self.measure();
    }

    /// Starts the pending rollback of each fragment that has no round under way.
    pub(super) fn remake_due(&mut self, now: Millis) {
        let codec = self.verifier.codec();
        for ((fragment, rounds), from) in
            self.fragments.ids().zip(&mut self.rounds).zip(&mut self.undoing.from)
        {
            if !rounds.is_idle() {
                continue;
            }
            let Some(from) = from.take() else { continue };
            let without = &self.undoing.without;
            let round = self.schedule.take_round();
            let Some(state) = rounds.remake(now, round, without.clone()) else { continue };
            let remake =
                Remake::new(&self.fragments, codec, (fragment, from), without.clone(), state.version);
            let job = remake.map(|remake| RemakeJob { remake, after: self.undoing.after, round, now: state });
            self.out.extend(job.map(|job| Output::Remake(Box::new(job))));
        }
        if !self.is_undoing() {
            self.undoing = Undoing::default();
        }
    }

    /// Takes the outcome of a rollback job.
    pub(super) fn on_remade(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        remade: Result<MergeOutcome, Box<MergeFailure>>,
    ) {
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else { return };
        match remade {
            Ok(outcome) => {
                let Some(Remade { entry, body, sync_ms }) = rounds.remade(now, outcome) else { return };
                let RemadeEntry { round, base, version, checksum, digest, norm, .. } = entry;
                self.books.note(Entry::Remade(entry));
                let (run, clock_tokens) = (self.run, self.ledger().schedule_tokens());
                let merged = Merged { run, fragment, base, version, clock_tokens, body, checksum, digest };
                self.publish(now, merged);
                self.event(Event::Remade { round, fragment, version, norm, sync_ms });
            }
            Err(failure) => self.not_remade(*failure),
        }
    }

    /// Takes back a `job` that the host does not run; its fragment stays as it is.
    pub(super) fn give_back(&mut self, job: RemakeJob) {
        let RemakeJob { round, now, .. } = job;
        let (fragment, error) = (job.remake.theta().0, MergeError::Unread);
        self.not_remade(MergeFailure { round, fragment, state: now, error });
    }

    fn not_remade(&mut self, failure: MergeFailure) {
        let (round, fragment, error) = (failure.round, failure.fragment, failure.error.to_string());
        let rounds = self.rounds.get_mut(usize::from(fragment.0));
        if rounds.is_some_and(|rounds| rounds.not_remade(failure)) {
            self.event(Event::MergeFailed { round, fragment, error });
        }
    }
}
