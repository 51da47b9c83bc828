//! Rollback of harmful merges. The host finds the culprits by measuring, see [`super::Blame`].
//!
//! Each fragment returns to its state before the harm and repeats its merges without the culprits, as soon as no round
//! of it is under way. Learners receive the result like any merge and need not know about the rollback.
//!
//! Attribution finds the learners whose updates raised the loss, by leaving them out and measuring the loss again.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::recovery::{RecoveryError, again, read_kept};
use super::{ContributionVerdict, Event, Output, Syncer};
use crate::diloco::{
    Codec, Correction, Entry, FragmentState, Fragments, MergeEntry, MergeError, MergeFailure, MergeOutcome,
    PROBATION_MS, Remade, RemadeEntry, Rounds, Segment,
};
use crate::wire::{FragmentId, LearnerId, Merged, Millis, Round, Version};

/// Number of harmful incidents after which a learner stays out until the owner lets it back.
pub const HARMS_MAX: u32 = 2;
/// Time for which a learner is sent away after its first harmful incident, in milliseconds.
pub(super) const AWAY_MS: u32 = PROBATION_MS as u32;

/// Level of trust in a learner.
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
    /// State from which each fragment starts again, `[P]`; `None` once its rollback has begun, or if none is pending.
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

    /// Applies a verdict of the loss checks. Proofs of training are lost at a restart. Until a learner is proven again,
    /// no learner's weight is limited to the mean share.
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

/// Replay of a fragment from an earlier state, without the updates of some learners.
///
/// Updates are additive progress, whatever version they started from, so the others count as before. Weights, radii and
/// outer steps stay unchanged.
#[derive(Clone, Debug)]
pub struct Remake {
    fragment: FragmentId,
    segments: Vec<Segment>,
    codec: Codec,
    state: FragmentState,
    without: BTreeSet<LearnerId>,
    until: Version,
}

impl Remake {
    /// Starts a replay of each of the `fragments` from `from`, `[P]`, to the versions `until`, `[P]`.
    #[must_use]
    pub fn all(
        fragments: &Fragments,
        codec: Codec,
        from: &[FragmentState],
        without: &BTreeSet<LearnerId>,
        until: &[Version],
    ) -> Vec<Self> {
        let places = fragments.ids().zip(from.iter().cloned()).zip(until);
        let remake = |((fragment, state), until): ((FragmentId, FragmentState), &Version)| {
            Self::new(fragments, codec, (fragment, state), without.clone(), *until)
        };
        places.filter_map(remake).collect()
    }

    /// Starts a replay of `fragment` from `state` to version `until`. `None` if the fragment does not exist.
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

    /// Takes the next entry of the tape, of any kind. `body` returns the next data recorded with it, of the given
    /// number of bytes, or an error. It is called for all data of the entry or for none.
    ///
    /// # Errors
    /// Each variant of [`RecoveryError`] but `Lease` and `Diverged`.
    pub fn follow(
        &mut self,
        entry: &Entry,
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<(), RecoveryError> {
        match entry {
            Entry::Merged(merge) if self.is_ahead(merge.fragment, merge.version) => {
                again(&self.codec, &self.segments, &mut self.state, merge, &self.without, body)?;
            }
            Entry::Remade(remade) if self.is_ahead(remade.fragment, remade.version) => {
                let [theta, momentum] = read_kept(remade, self.state.theta.len(), body)?;
                let (hat, version) = (Arc::clone(&self.state.hat), remade.version);
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

/// Culprits and the starting point of a rollback.
#[derive(Clone, Debug)]
pub struct Undo {
    /// The last fragments with a normal loss, `[P]`; [`FragmentState::without_hat`] is enough.
    pub from: Vec<FragmentState>,
    /// The newest row of the tape at that time, for the process that runs the [`RemakeJob`]s.
    pub after: u64,
    /// Learners whose updates are left out from there on.
    pub culprits: Vec<LearnerId>,
}

/// Returns the senders of the updates in `entry`; empty if it is no merge.
pub fn senders(entry: &Entry) -> impl Iterator<Item = LearnerId> {
    let parts = if let Entry::Merged(MergeEntry { parts, .. }) = entry { &parts[..] } else { &[] };
    parts.iter().map(|part| part.learner)
}

/// Rollback of one fragment. Let [`Self::remake`] follow the tape from its starting point, then [`Self::run`] the job
/// and return the result like that of a merge.
#[derive(Clone, Debug)]
pub struct RemakeJob {
    /// Replay from the starting point to the present.
    pub remake: Remake,
    /// The row of the tape after which the replay begins.
    pub after: u64,
    pub(super) round: Round,
    pub(super) now: FragmentState,
}

impl RemakeJob {
    /// Returns the fragment.
    #[must_use]
    pub fn fragment(&self) -> FragmentId {
        self.remake.fragment
    }

    /// Returns the round.
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// Computes the change that leads learners to the replayed state.
    ///
    /// # Errors
    /// [`MergeFailure`] with the unchanged state: [`MergeError::Unread`] if the tape was not followed to its end.
    pub fn run(self) -> Result<MergeOutcome, Box<MergeFailure>> {
        let Self { remake, round, now, .. } = self;
        if !remake.is_done() {
            let (fragment, error) = (remake.fragment, MergeError::Unread);
            return Err(Box::new(MergeFailure { round, fragment, state: now, error }));
        }
        let Remake { fragment, segments, codec, state: FragmentState { theta, momentum, .. }, .. } = remake;
        let next = Version(round.0);
        Correction { round, fragment, state: now, theta, momentum, segments, codec, next }.run()
    }
}

/// Smallest gain of a culprit, as a multiple of its equal share of the remaining rise and as a fraction of that rise.
/// With fewer suspects the threshold is higher, because chance makes one look bad more easily. Our own constants.
const SHARES_MIN: f64 = 1.6;
const PART_MIN: f64 = 0.05;
/// Smallest ratio between the gain of any culprit and that of any suspect who is not accused, which is noise. Our own
/// constant.
const NOISE_RATIO: f64 = 3.0;
/// Smallest fraction of the rise that the culprits must explain together; below it, no learner is blamed.
const EXPLAINED_MIN: f64 = 0.5;
/// Largest rise, relative to the good loss, that needs no further search. Our own constant.
const RISE_RATIO_MAX: f64 = 0.02;
/// Maximum number of passes. Each searches the remaining suspects, since one culprit can hide another.
const PASSES_MAX: u32 = 3;

/// State machine that searches for the learners whose updates raised a loss. It names the learners to leave out next,
/// and takes the loss without them.
///
/// It blames at most half of the senders, because a majority cannot be judged.
#[derive(Clone, Debug)]
pub struct Blame {
    good: f64,
    bad: f64,
    /// Loss without the culprits found so far.
    now: f64,
    suspects: Vec<LearnerId>,
    culprits: BTreeSet<LearnerId>,
    passes: u32,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    /// Losses without each suspect in turn; the culprits are left out as well.
    Each(Vec<f64>),
    /// The accused, left out together, and the worst of them with the loss without it alone.
    Together(BTreeSet<LearnerId>, (LearnerId, f64)),
    Over,
}

/// Result of an attribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Learners whose updates did harm, by id, at least one.
    pub culprits: Vec<LearnerId>,
    /// Loss without their updates, in nats per token.
    pub loss: f64,
}

impl Blame {
    /// Starts a search among `suspects`, which sent updates while the loss rose from `good` to `bad`, in nats per
    /// token.
    #[must_use]
    pub fn new(good: f64, bad: f64, suspects: BTreeSet<LearnerId>) -> Self {
        let step = if suspects.is_empty() { Step::Over } else { Step::Each(Vec::new()) };
        // A loss that is not a number counts as the largest that can be compared.
        let bad = bounded(bad, good);
        let (suspects, culprits) = (suspects.into_iter().collect(), BTreeSet::new());
        Self { good, bad, now: bad, suspects, culprits, passes: 0, step }
    }

    /// Returns the learners to leave out next; `None` once the search is over.
    #[must_use]
    pub fn next(&self) -> Option<BTreeSet<LearnerId>> {
        let more = match &self.step {
            Step::Each(losses) => BTreeSet::from([*self.suspects.get(losses.len())?]),
            Step::Together(accused, _) => accused.clone(),
            Step::Over => return None,
        };
        Some(self.culprits.union(&more).copied().collect())
    }

    /// Takes the loss without the learners that [`Self::next`] returned.
    pub fn measured(&mut self, loss: f64) {
        let loss = bounded(loss, self.good);
        match &mut self.step {
            Step::Each(losses) => {
                losses.push(loss);
                if losses.len() == self.suspects.len() {
                    let losses = std::mem::take(losses);
                    self.accuse(&losses);
                }
            }
            Step::Together(accused, (worst, alone)) => {
                let (accused, worst, alone) = (std::mem::take(accused), *worst, *alone);
                // One culprit can make others look guilty. Together they must explain at least as much as the worst
                // alone.
                if loss <= alone {
                    self.convict(accused, loss)
                } else {
                    self.convict(BTreeSet::from([worst]), alone)
                }
            }
            Step::Over => {}
        }
    }

    /// Returns the verdict; `None` if no group of learners explains most of the rise.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let explained = (self.bad - self.now) / (self.bad - self.good);
        let is_found = !self.culprits.is_empty() && explained >= EXPLAINED_MIN;
        is_found.then(|| Verdict { culprits: self.culprits.iter().copied().collect(), loss: self.now })
    }

    /// Accuses suspects by the losses without each of them alone.
    fn accuse(&mut self, losses: &[f64]) {
        let (rise, now) = (self.now - self.good, self.now);
        let mut accused: Vec<_> = losses.iter().copied().zip(self.suspects.iter().copied()).collect();
        accused.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let gains: Vec<f64> = accused.iter().map(|(loss, _)| (now - loss).max(0.0)).collect();
        // Counted over all initial suspects, so that all passes together blame at most half.
        let all = self.suspects.len() + self.culprits.len();
        let most = (all / 2).saturating_sub(self.culprits.len()).min(gains.len().saturating_sub(1));
        let least = rise * (SHARES_MIN / gains.len() as f64).max(PART_MIN);
        // The accused must stand apart from all other suspects.
        let stand_apart =
            |&count: &usize| gains[count - 1] >= least && gains[count - 1] >= NOISE_RATIO * gains[count];
        accused.truncate((1..=most).rev().find(stand_apart).unwrap_or(0));
        match accused.first() {
            Some(&(alone, worst)) => {
                let accused: BTreeSet<_> = accused.into_iter().map(|(_, learner)| learner).collect();
                if accused.len() == 1 {
                    self.convict(accused, alone);
                } else {
                    self.step = Step::Together(accused, (worst, alone));
                }
            }
            _ => self.step = Step::Over,
        }
    }

    fn convict(&mut self, accused: BTreeSet<LearnerId>, loss: f64) {
        self.suspects.retain(|learner| !accused.contains(learner));
        self.culprits.extend(accused);
        self.now = loss;
        self.passes += 1;
        let is_enough = self.now <= self.good * (1.0 + RISE_RATIO_MAX);
        let is_over = is_enough || self.passes == PASSES_MAX || self.suspects.is_empty();
        self.step = if is_over { Step::Over } else { Step::Each(Vec::new()) };
    }
}

/// Returns a finite loss, at most a thousand nats above `good`.
fn bounded(loss: f64, good: f64) -> f64 {
    let most = good + 1e3;
    if loss.is_finite() { loss.min(most) } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search where the loss is 2 plus the contribution of each learner, and was `good` before.
    fn search(good: f64, adds: &[f64]) -> (Option<Verdict>, usize) {
        let learners: Vec<LearnerId> = (1..).map(LearnerId).take(adds.len()).collect();
        let loss = |out: &BTreeSet<LearnerId>| {
            let there = learners.iter().zip(adds).filter(|(learner, _)| !out.contains(learner));
            2.0 + there.map(|(_, add)| add).sum::<f64>()
        };
        let mut blame = Blame::new(good, loss(&BTreeSet::new()), learners.iter().copied().collect());
        let mut trials = 0;
        while let Some(out) = blame.next() {
            blame.measured(loss(&out));
            trials += 1;
            assert!(trials < 100, "it ends");
        }
        (blame.verdict(), trials)
    }

    fn culprits(good: f64, adds: &[f64]) -> Vec<u32> {
        let (verdict, _) = search(good, adds);
        verdict.map_or(Vec::new(), |verdict| verdict.culprits.iter().map(|learner| learner.0).collect())
    }

    #[test]
    fn one_who_did_it_is_found_after_a_trial_for_each() {
        let (verdict, trials) = search(2.0, &[-0.01, 0.4, -0.02, 0.005]);
        assert_eq!(verdict.map(|verdict| verdict.culprits), Some(vec![LearnerId(2)]));
        assert_eq!(trials, 4);
    }

    #[test]
    fn several_are_found_together_also_where_each_did_little_of_it() {
        assert_eq!(culprits(2.0, &[0.2, -0.01, 0.25, -0.01, 0.005, -0.02, 0.001, -0.01]), [1, 3]);
        let mut adds = vec![-0.003; 20];
        adds[..5].fill(0.08);
        assert_eq!(culprits(2.0, &adds), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_hides_behind_another_shows_in_the_next_pass() {
        // The second learner explains less than a tenth of the rise.
        assert_eq!(culprits(2.0, &[9.0, 0.8, -0.01, 0.01, -0.01]), [1, 2]);
        assert_eq!(culprits(2.0, &[5.0, 0.6, 0.7, -0.01, 0.01, -0.01, 0.01, -0.01]), [1, 2, 3]);
    }

    #[test]
    fn nobody_is_blamed_for_what_all_did_or_for_noise() {
        assert_eq!(culprits(2.0, &[0.1, 0.11, 0.09, 0.1]), [0; 0], "all alike");
        assert_eq!(culprits(2.0, &[0.06, -0.02, 0.03, -0.03, 0.02, 0.01]), [0; 0], "noise");
        assert_eq!(culprits(2.0, &[0.5]), [0; 0], "nobody to compare it with");
        assert_eq!(culprits(2.0, &[0.1, 0.06]), [0; 0], "two alike");
        assert_eq!(culprits(2.0, &[0.3, 0.3, 0.3, -0.01, -0.01]), [0; 0], "most of them");
        assert_eq!(culprits(2.0, &[]), [0; 0]);
        assert_eq!(culprits(1.0, &[0.2, -0.01, -0.01, 0.01]), [0; 0], "most of the rise has another cause");
    }

    #[test]
    fn one_of_two_is_blamed_only_for_nearly_all_of_it() {
        assert_eq!(culprits(2.0, &[0.5, 0.01]), [1]);
        assert_eq!(culprits(2.0, &[0.5, 0.2]), [0; 0]);
    }

    #[test]
    fn a_loss_that_is_no_number_is_one_that_rose() {
        let learners = BTreeSet::from([1, 2, 3].map(LearnerId));
        let mut blame = Blame::new(2.0, f64::NAN, learners);
        while let Some(out) = blame.next() {
            blame.measured(if out.contains(&LearnerId(3)) { 2.01 } else { f64::INFINITY });
        }
        assert_eq!(blame.verdict(), Some(Verdict { culprits: vec![LearnerId(3)], loss: 2.01 }));
    }
}
