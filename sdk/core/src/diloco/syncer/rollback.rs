//! Rollback of harmful merges. The host finds the culprits with [`crate::diloco::trust::Attribution`].
//!
//! Each fragment returns to its state before the harm and repeats its merges without the culprits, as soon as it has no
//! round under way. Learners receive the result as they receive a merge, and need not know about the rollback.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::recovery::{RecoveryError, again, read_state};
use super::{DROP_MS_MAX, Event, Output, Syncer};
use crate::diloco::trust::{ContributionVerdict, EXCLUSION_MS};
use crate::diloco::{
    Codec, Correction, Entry, FragmentState, Fragments, MergeEntry, MergeError, MergeFailure, MergeOutcome,
    RollbackEntry, RollbackResult, Rounds, Segment, TrustLevel,
};
use crate::wire::{FragmentId, LearnerId, Merged, Millis, Round, Version};

/// Pending rollbacks.
#[derive(Debug, Default)]
pub(super) struct PendingRollback {
    /// State from which the replay of each fragment starts, `[P]`; `None` once the rollback of the fragment has begun.
    /// Empty if no rollback is pending.
    from: Vec<Option<FragmentState>>,
    /// Row of the tape after which the replay starts.
    after: u64,
    /// Learners whose updates are left out.
    without: BTreeSet<LearnerId>,
}

impl Syncer {
    /// Returns the level of trust in `learner` at `now`.
    #[must_use]
    pub fn trust(&self, now: Millis, learner: LearnerId) -> TrustLevel {
        self.trust.level(self.ledger(), learner, self.returns(now, learner).is_some())
    }

    /// Returns the suspected learners, ordered by id.
    pub fn suspects(&self) -> impl Iterator<Item = LearnerId> {
        self.ledger().suspects()
    }

    /// Returns true while the rollback of any fragment is pending or under way. Until it ends, Θ is not final.
    #[must_use]
    pub fn is_undoing(&self) -> bool {
        self.rollback.from.iter().any(Option::is_some) || self.rounds.iter().any(Rounds::is_rolling_back)
    }

    /// Applies a verdict of the contribution test.
    pub(super) fn on_verdict(&mut self, learner: LearnerId, verdict: ContributionVerdict) {
        if self.trust.judged(&mut self.accounting, learner, verdict) {
            self.event(Event::Doubted { learner, doubt: verdict.suspicion() });
        }
    }

    /// Convicts the culprits, sends them away, and schedules a rollback of all fragments without their updates.
    pub(super) fn on_undo(&mut self, now: Millis, RollbackOrder { from, after, culprits }: RollbackOrder) {
        let culprits: BTreeSet<_> = culprits.into_iter().filter(|learner| self.knows(*learner)).collect();
        if culprits.is_empty() || from.len() != self.rounds.len() || self.schedule.is_over() {
            return;
        }
        for &learner in &culprits {
            let waiting: Vec<_> =
                self.rounds.iter_mut().filter_map(|rounds| rounds.discard(learner)).collect();
            waiting.into_iter().for_each(|outcome| self.record_outcome(outcome));
            self.trust.convicted(&mut self.accounting, learner);
            self.roster.exclude_learner(now, learner, EXCLUSION_MS);
            self.accounting.note(Entry::Dropped { learner, wait_ms: EXCLUSION_MS });
            let record = self.ledger().account(learner).map(|account| &account.trust);
            let (harms, is_banned) =
                record.map_or((0, false), |record| (record.convictions(), record.is_banned()));
            self.event(Event::Blamed { learner, harms });
            if let Some(conn) = self.roster.conn(learner) {
                let wait_ms = if is_banned { DROP_MS_MAX } else { EXCLUSION_MS };
                self.exclude(conn, wait_ms, is_banned);
            }
        }
        self.rollback.without.extend(culprits);
        (self.rollback.from, self.rollback.after) = (from.into_iter().map(Some).collect(), after);
        self.measure();
    }

    /// Starts the pending rollback of each idle fragment.
    pub(super) fn start_rollbacks(&mut self, now: Millis) {
        let codec = self.verifier.codec();
        for ((fragment, rounds), from) in
            self.fragments.ids().zip(&mut self.rounds).zip(&mut self.rollback.from)
        {
            if !rounds.is_idle() {
                continue;
            }
            let Some(from) = from.take() else { continue };
            let without = &self.rollback.without;
            let round = self.schedule.take_round();
            let Some(state) = rounds.rollback(now, round, without.clone()) else { continue };
            let rollback =
                Rollback::new(&self.fragments, codec, (fragment, from), without.clone(), state.version);
            let job = rollback.map(|rollback| RollbackJob {
                rollback,
                after: self.rollback.after,
                round,
                now: state,
            });
            self.out.extend(job.map(|job| Output::Rollback(Box::new(job))));
        }
        if !self.is_undoing() {
            self.rollback = PendingRollback::default();
        }
    }

    /// Handles the outcome of a rollback job.
    pub(super) fn on_rolled_back(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        rolled_back: Result<MergeOutcome, Box<MergeFailure>>,
    ) {
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else { return };
        match rolled_back {
            Ok(outcome) => {
                let Some(RollbackResult { entry, body, sync_ms }) = rounds.rolled_back(now, outcome) else {
                    return;
                };
                let RollbackEntry { round, base, version, checksum, digest, norm, .. } = entry;
                self.accounting.note(Entry::RolledBack(entry));
                let (run, clock_tokens) = (self.run, self.ledger().schedule_tokens());
                let merged = Merged { run, fragment, base, version, clock_tokens, body, checksum, digest };
                self.publish(now, merged);
                self.event(Event::RolledBack { round, fragment, version, norm, sync_ms });
            }
            Err(failure) => self.on_rollback_failed(*failure),
        }
    }

    /// Takes back a `job` that the host does not run. Its fragment stays unchanged.
    pub(super) fn give_back(&mut self, job: RollbackJob) {
        let RollbackJob { round, now, .. } = job;
        let (fragment, error) = (job.rollback.theta().0, MergeError::Unread);
        self.on_rollback_failed(MergeFailure { round, fragment, state: now, error });
    }

    fn on_rollback_failed(&mut self, failure: MergeFailure) {
        let (round, fragment, error) = (failure.round, failure.fragment, failure.error.to_string());
        let rounds = self.rounds.get_mut(usize::from(fragment.0));
        if rounds.is_some_and(|rounds| rounds.on_rollback_failed(failure)) {
            self.event(Event::MergeFailed { round, fragment, error });
        }
    }
}

/// Replay of a fragment's merges from an earlier state, without the updates of some learners.
///
/// An update is additive progress that does not depend on the version from which it started, so the remaining updates
/// are merged as before. Their weights, norm bounds and outer steps stay unchanged.
#[derive(Clone, Debug)]
pub struct Rollback {
    fragment: FragmentId,
    segments: Vec<Segment>,
    codec: Codec,
    state: FragmentState,
    /// Learners whose updates are left out.
    without: BTreeSet<LearnerId>,
    /// Version at which the replay ends.
    until: Version,
}

impl Rollback {
    /// Starts a replay of each fragment from the states `from`, `[P]`, to the versions `until`, `[P]`.
    #[must_use]
    pub fn all(
        fragments: &Fragments,
        codec: Codec,
        from: &[FragmentState],
        without: &BTreeSet<LearnerId>,
        until: &[Version],
    ) -> Vec<Self> {
        let places = fragments.ids().zip(from.iter().cloned()).zip(until);
        let rollback = |((fragment, state), until): ((FragmentId, FragmentState), &Version)| {
            Self::new(fragments, codec, (fragment, state), without.clone(), *until)
        };
        places.filter_map(rollback).collect()
    }

    /// Starts a replay of `fragment` from `state` to version `until`; `None` if the fragment does not exist.
    pub(super) fn new(
        fragments: &Fragments,
        codec: Codec,
        (fragment, state): (FragmentId, FragmentState),
        without: BTreeSet<LearnerId>,
        until: Version,
    ) -> Option<Self> {
        let segments = fragments.segments(fragment)?.to_vec();
        Some(Self { fragment, segments, codec, state, without, until })
    }

    /// Replays the next entry of the tape; entries that do not concern the fragment have no effect. `body` is called
    /// with a number of bytes and returns the next body of the entry. It is called for all bodies of the entry or for
    /// none.
    ///
    /// # Errors
    /// Any variant of [`RecoveryError`] except `Lease`, `NoFragment` and `Diverged`.
    pub fn follow(
        &mut self,
        entry: &Entry,
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<(), RecoveryError> {
        match entry {
            Entry::Merged(merge) if self.is_ahead(merge.fragment, merge.version) => {
                again(&self.codec, &self.segments, &mut self.state, merge, &self.without, body)?;
            }
            Entry::RolledBack(rolled_back) if self.is_ahead(rolled_back.fragment, rolled_back.version) => {
                let [theta, momentum] = read_state(rolled_back, self.state.theta.len(), body)?;
                let (hat, version) = (Arc::clone(&self.state.hat), rolled_back.version);
                self.state = FragmentState { version, theta, hat, momentum };
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns true once the replay has reached its last version.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.version == self.until
    }

    /// Returns the fragment and its Θ, `[fragment_len]`.
    #[must_use]
    pub fn theta(&self) -> (FragmentId, &[f32]) {
        (self.fragment, &self.state.theta)
    }

    fn is_ahead(&self, fragment: FragmentId, version: Version) -> bool {
        fragment == self.fragment && version > self.state.version && version <= self.until
    }
}

/// Order to roll back, with the culprits and the starting point.
#[derive(Clone, Debug)]
pub struct RollbackOrder {
    /// Fragment states at the last normal held-out loss, `[P]`. Θ̂ is not needed: see [`FragmentState::without_hat`].
    pub from: Vec<FragmentState>,
    /// Newest row of the tape that `from` includes, after which the replay of each [`RollbackJob`] starts.
    pub after: u64,
    /// Learners whose updates after that row are left out.
    pub culprits: Vec<LearnerId>,
}

/// Returns the senders of the updates in `entry`; empty if it is not a merge.
pub fn senders(entry: &Entry) -> impl Iterator<Item = LearnerId> {
    let parts = if let Entry::Merged(MergeEntry { parts, .. }) = entry { &parts[..] } else { &[] };
    parts.iter().map(|part| part.learner)
}

/// Rollback job of one fragment. The host passes the rows of the tape after [`Self::after`] to [`Self::rollback`], then
/// calls [`Self::run`], and returns the result as that of a merge.
#[derive(Clone, Debug)]
pub struct RollbackJob {
    /// Replay from the starting point to the current version.
    pub rollback: Rollback,
    /// Row of the tape after which the replay starts.
    pub after: u64,
    pub(super) round: Round,
    /// Current state of the fragment.
    pub(super) now: FragmentState,
}

impl RollbackJob {
    /// Returns the fragment.
    #[must_use]
    pub fn fragment(&self) -> FragmentId {
        self.rollback.fragment
    }

    /// Returns the round.
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// Sets Θ and the momentum to the replayed ones, and codes the change for learners.
    ///
    /// # Errors
    /// [`MergeFailure`] with the unchanged state: [`MergeError::Unread`] if the replay has not reached its last
    /// version, [`MergeError::State`] if the starting state does not fit the fragment.
    pub fn run(self) -> Result<MergeOutcome, Box<MergeFailure>> {
        let Self { rollback, round, now, .. } = self;
        if !rollback.is_done() {
            let (fragment, error) = (rollback.fragment, MergeError::Unread);
            return Err(Box::new(MergeFailure { round, fragment, state: now, error }));
        }
        let Rollback { fragment, segments, codec, state: FragmentState { theta, momentum, .. }, .. } =
            rollback;
        let next = Version(round.0);
        Correction { round, fragment, state: now, theta, momentum, segments, codec, next }.run()
    }
}
