//! Handling of merge and rollback jobs, which turn the updates of rounds into a new version.

use std::collections::BTreeSet;

use super::{PendingUpdate, Phase, RoundTerms, Rounds};
use crate::diloco::trust::{Load, Weights, of_expert, reaching};
use crate::diloco::{
    ExpertWeights, FragmentState, MergeEntry, MergeFailure, MergeJob, MergeOutcome, OuterSpec, Part,
    RollbackEntry, UpdateOutcome, WeightedUpdate, checksum, encode_state,
};
use crate::wire::{Fate, LateReason, LearnerId, Millis, Round, Serial, Version};

/// Number of latest versions that are remembered to compute the age of a base. Our own constant.
const VERSIONS_KEPT: usize = 1_024;

/// Round that is being merged.
#[derive(Debug)]
pub(super) struct Merging {
    round: Round,
    outer: OuterSpec,
    /// As in [`MergeEntry::radii`].
    radii: Vec<f64>,
    /// As in [`MergeEntry::absent`].
    absent: f64,
    /// Merge weights for each expert, `[experts]`.
    experts: Vec<ExpertWeights>,
    shares: Vec<MergeShare>,
    launched: Millis,
    /// Start of the merge job.
    began: Millis,
}

/// One update in a merge.
#[derive(Debug)]
struct MergeShare {
    part: Part,
    /// Share of the sum of all weights, 0 to 1.
    weight: f32,
    /// Time of the request. Steps after it are not part of the update.
    until: Millis,
    /// Time of arrival.
    came: Millis,
}

impl Merging {
    /// Returns the serial number of the update of `learner` in this merge.
    pub(super) fn serial(&self, learner: LearnerId) -> Option<Serial> {
        self.shares
            .iter()
            .map(|share| share.part)
            .find(|part| part.learner == learner)
            .map(|part| part.serial)
    }
}

/// Result of a round that ended in a new version.
#[derive(Clone, Debug, PartialEq)]
pub struct Merge {
    /// Entry for the tape.
    pub entry: MergeEntry,
    /// Outcome of each update, ordered by learner id.
    pub outcomes: Vec<UpdateOutcome>,
    /// Coded change of Θ̂.
    pub body: Vec<u8>,
    /// Duration of the collection, in milliseconds.
    pub collect_ms: u64,
    /// Duration of the merge, in milliseconds.
    pub sync_ms: u64,
    /// Pace of each learner in this merge, ordered by learner id.
    pub paces: Vec<Paced>,
}

/// Pace of a learner, from one merged update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paced {
    /// The learner.
    pub learner: LearnerId,
    /// Credited tokens of the update.
    pub tokens: u64,
    /// Mean time per step in milliseconds, as by `Part::step_ms`; `None` if this process has not seen a previous
    /// update.
    pub step_ms: Option<f64>,
}

impl Rounds {
    /// Ends the collection and moves the updates and the fragment's state into a merge job. `None` if no round
    /// collects. `known` is true if an established learner is connected and expected to answer.
    pub fn merge(&mut self, now: Millis, outer: OuterSpec, known: bool) -> Option<MergeJob> {
        self.collecting()?;
        let state = self.state.take()?;
        let Phase::Collecting(open) = std::mem::replace(&mut self.phase, Phase::Idle) else { return None };
        let loads: Vec<Load> = open.taken.values().map(|taken| self.load(taken)).collect();
        let Weights { updates: weights, absent } =
            self.terms.influence.weights(&loads, self.terms.sync_every, known);
        let turns = open.taken.iter().map(|(learner, taken)| self.turns(*learner, taken.steps));
        let outer = outer.with_step_share(step_share(turns.zip(&weights)));
        let experts = self.expert_weights(open.taken.values(), &loads, known);
        let total = absent + weights.iter().sum::<f64>();
        let mut updates = Vec::with_capacity(open.taken.len());
        let mut shares = Vec::with_capacity(open.taken.len());
        let each = open.taken.into_iter().zip(weights).zip(reaching(&loads)).enumerate();
        for (at, (((learner, taken), weight), reach)) in each {
            let PendingUpdate { serial, base, steps, tokens, trust, until, came, body, checksum, .. } = taken;
            let after_ms = self.came.get(&learner).map(|before| came.since(*before));
            let reach_steps = (reach != steps).then_some(reach);
            let part = Part {
                learner,
                serial,
                base,
                steps,
                tokens,
                weight,
                checksum,
                after_ms,
                reach_steps,
                is_proven: trust.is_proven == Some(true),
            };
            shares.push(MergeShare { part, weight: (weight / total) as f32, until, came });
            let experts = experts.iter().map(|of| of.weights[at]).collect();
            updates.push(WeightedUpdate { learner, weight, experts, steps: reach, body });
        }
        let radii = self.norm_stats.radii(self.terms.norm_ratio_max);
        let (round, launched) = (open.round, open.launched);
        let absent_experts = experts.iter().map(|of| of.absent).collect();
        self.phase = Phase::Merging(Merging {
            round,
            outer,
            radii: radii.clone(),
            absent,
            experts,
            shares,
            launched,
            began: now,
        });
        Some(MergeJob {
            round,
            fragment: self.terms.fragment,
            state,
            absent,
            absent_experts,
            updates,
            segments: self.terms.segments.clone(),
            codec: self.terms.codec,
            rule: self.terms.merge,
            radii,
            outer,
            next: Version(round.0),
        })
    }

    /// Replaces the state by Θ̂ and the version of `state`, the result of a remote round.
    pub(crate) fn follow(&mut self, state: FragmentState) {
        let FragmentState { version, hat, .. } = state;
        self.version = version;
        self.state = Some(FragmentState::of_hat(version, hat));
    }

    /// Drops Θ and the momentum, because other processes lead the rounds from now on.
    pub(crate) fn keep_hat(&mut self) {
        if let Some(state) = self.state.take() {
            self.follow(state);
        }
    }

    /// Handles the outcome of a merge job; `None` if it is not the job under way.
    pub fn merged(&mut self, now: Millis, outcome: MergeOutcome) -> Option<Merge> {
        let MergeOutcome { round, state, body, checksum, digest, norm, .. } = outcome;
        let (base, version) = (self.version, state.version);
        let merging = self.take_merging(round, state)?;
        self.note_version(version);
        let Merging { outer, radii, absent, experts, shares, launched, began, .. } = merging;
        let (fragment, rule) = (self.terms.fragment, self.terms.merge);
        let parts = shares.iter().map(|share| share.part).collect();
        let paced = |MergeShare { part, came, .. }: &MergeShare| {
            self.came.insert(part.learner, *came);
            self.merged_to.insert(part.learner, version);
            Paced { learner: part.learner, tokens: part.tokens, step_ms: part.step_ms() }
        };
        let paces = shares.iter().map(paced).collect();
        let outcomes = shares.into_iter().map(|MergeShare { part, weight, until, .. }| {
            let Part { learner, serial, tokens, .. } = part;
            self.credited.insert(learner, until);
            let fate = Fate::Merged { version, weight, tokens };
            UpdateOutcome { round: Some(round), fragment, learner, serial, tokens, fate }
        });
        let outcomes = outcomes.collect();
        let entry = MergeEntry {
            round,
            fragment,
            base,
            version,
            rule,
            outer,
            radii,
            parts,
            absent,
            experts,
            checksum,
            digest,
            norm,
        };
        let (collect_ms, sync_ms) = (began.since(launched), now.since(began));
        Some(Merge { entry, outcomes, body, collect_ms, sync_ms, paces })
    }

    /// Takes the state back from a failed merge job and returns its updates as late, so that their senders keep their
    /// progress. `None` if it is not the job under way.
    pub fn failed(&mut self, failure: MergeFailure) -> Option<Vec<UpdateOutcome>> {
        let MergeFailure { round, state, .. } = failure;
        let merging = self.take_merging(round, state)?;
        let fate = Fate::Late(LateReason::RoundOver);
        let fragment = self.terms.fragment;
        let outcomes = |share: MergeShare| {
            let Part { learner, serial, tokens, .. } = share.part;
            UpdateOutcome { round: Some(round), fragment, learner, serial, tokens, fate }
        };
        Some(merging.shares.into_iter().map(outcomes).collect())
    }

    /// Returns the updates that wait for a next round as late, because the run is over.
    pub fn end(&mut self) -> Vec<UpdateOutcome> {
        let (fragment, fate) = (self.terms.fragment, Fate::Late(LateReason::RoundOver));
        let late = std::mem::take(&mut self.early).into_iter();
        late.map(|(learner, PendingUpdate { serial, tokens, .. })| UpdateOutcome {
            round: None,
            fragment,
            learner,
            serial,
            tokens,
            fate,
        })
        .collect()
    }

    /// Adds a new version of the fragment to the latest versions.
    pub(super) fn note_version(&mut self, version: Version) {
        self.versions.push_back(version);
        if self.versions.len() > VERSIONS_KEPT {
            self.versions.pop_front();
        }
    }

    /// Returns the number of merges of the fragment that an update of `learner` spans, at least 1: the merges since its
    /// last merged update, but at most `steps / H`, since the learner may have been idle during some of them.
    fn turns(&self, learner: LearnerId, steps: u32) -> f64 {
        let before = self.merged_to.get(&learner).copied();
        let known = before.map_or(0, |before| self.versions.partition_point(|version| *version <= before));
        let since = (self.versions.len() - known + 1) as f64;
        since.min(f64::from(steps) / f64::from(self.terms.sync_every)).max(1.0)
    }

    fn load(&self, taken: &PendingUpdate) -> Load {
        let newer = self.versions.len() - self.versions.partition_point(|&version| version <= taken.base);
        let &PendingUpdate { steps, tokens, trust, .. } = taken;
        Load { steps, tokens, age: newer as u32, trust }
    }

    /// Returns the merge weights of updates for each expert of the fragment, `[experts]`.
    fn expert_weights<'a>(
        &self,
        taken: impl Iterator<Item = &'a PendingUpdate> + Clone,
        loads: &[Load],
        known: bool,
    ) -> Vec<ExpertWeights> {
        let RoundTerms { experts, influence, sync_every, .. } = &self.terms;
        let of = |at| taken.clone().map(move |taken| taken.seen[at]);
        (0..experts.len()).map(|at| of_expert(influence, loads, of(at), *sync_every, known)).collect()
    }

    fn take_merging(&mut self, round: Round, state: FragmentState) -> Option<Merging> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Merging(merging) if merging.round == round => {
                self.version = state.version;
                self.state = Some(state);
                Some(merging)
            }
            other => {
                self.phase = other;
                None
            }
        }
    }
}

/// Returns the fraction of the outer step that a merge takes, above 0 and at most 1. `updates` has, for each update,
/// the number of merges that it spans and its weight.
///
/// Each merge moves Θ by the progress of one turn. A learner that missed merges sends the progress of several turns in
/// one update, although the merges that it missed already moved Θ. In full, its update would move Θ as far again for
/// each missed merge.
fn step_share<'a>(updates: impl Iterator<Item = (f64, &'a f64)>) -> f64 {
    let (mut share, mut total) = (0.0, 0.0);
    for (turns, weight) in updates {
        share += weight / turns;
        total += weight;
    }
    if share > 0.0 { share / total } else { 1.0 }
}

/// Rollback under way.
#[derive(Debug)]
pub(super) struct RollingBack {
    round: Round,
    without: BTreeSet<LearnerId>,
    began: Millis,
}

/// Result of the rollback of a fragment.
#[derive(Clone, Debug, PartialEq)]
pub struct RollbackResult {
    /// Entry for the tape.
    pub entry: RollbackEntry,
    /// Coded change of Θ̂.
    pub body: Vec<u8>,
    /// Duration of the rollback, in milliseconds.
    pub sync_ms: u64,
}

impl Rounds {
    /// Starts a rollback without the updates of the learners in `without`, with a round number of its own. Returns the
    /// fragment's state for the job; `None` while a round is under way.
    pub fn rollback(
        &mut self,
        now: Millis,
        round: Round,
        without: BTreeSet<LearnerId>,
    ) -> Option<FragmentState> {
        if !self.is_idle() {
            return None;
        }
        let state = self.state.take()?;
        self.phase = Phase::RollingBack(RollingBack { round, without, began: now });
        Some(state)
    }

    /// Returns true while a rollback is under way.
    #[must_use]
    pub fn is_rolling_back(&self) -> bool {
        matches!(self.phase, Phase::RollingBack(_))
    }

    /// Handles the outcome of a rollback job; `None` if it is not the job under way.
    pub fn rolled_back(&mut self, now: Millis, outcome: MergeOutcome) -> Option<RollbackResult> {
        let MergeOutcome { round, fragment, state, body, checksum: sum, digest, norm } = outcome;
        let (base, version) = (self.version, state.version);
        let kept = checksum(&encode_state(&state));
        let RollingBack { without, began, .. } = self.end_remaking(round, state)?;
        self.note_version(version);
        let without = without.into_iter().collect();
        let entry =
            RollbackEntry { round, fragment, base, version, without, kept, checksum: sum, digest, norm };
        Some(RollbackResult { entry, body, sync_ms: now.since(began) })
    }

    /// Takes the state back from a failed rollback job. Returns false if it is not the job under way.
    pub fn on_rollback_failed(&mut self, failure: MergeFailure) -> bool {
        self.end_remaking(failure.round, failure.state).is_some()
    }

    /// Drops the pending update of `learner` and returns it as late.
    pub fn discard(&mut self, learner: LearnerId) -> Option<UpdateOutcome> {
        // The time of the exclusion must not count as time between merged updates.
        self.came.remove(&learner);
        let fragment = self.terms.fragment;
        let late = |round, PendingUpdate { serial, tokens, .. }: PendingUpdate| {
            let fate = Fate::Late(LateReason::RoundOver);
            UpdateOutcome { round, fragment, learner, serial, tokens, fate }
        };
        if let Some(taken) = self.early.remove(&learner) {
            return Some(late(None, taken));
        }
        let open = self.collecting_mut()?;
        let taken = open.taken.remove(&learner)?;
        Some(late(Some(open.round), taken))
    }

    fn end_remaking(&mut self, round: Round, state: FragmentState) -> Option<RollingBack> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::RollingBack(rolling_back) if rolling_back.round == round => {
                self.version = state.version;
                self.state = Some(state);
                Some(rolling_back)
            }
            other => {
                self.phase = other;
                None
            }
        }
    }
}
