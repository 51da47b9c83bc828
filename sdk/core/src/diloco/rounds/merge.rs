//! From what a round collected to a new version.

use super::influence::{Load, Weights, of_expert, reaching};
use super::{Phase, RoundTerms, Rounds, Taken};
use crate::diloco::{
    ExpertWeights, FragmentState, MergeEntry, MergeFailure, MergeJob, MergeOutcome, OuterSpec, Part, Settled,
    Weighted,
};
use crate::wire::{Fate, LateReason, LearnerId, Millis, Round, Serial, Version};

/// Versions that are remembered, to know how old a base is; constant of ours.
const VERSIONS_KEPT: usize = 1_024;

/// A round that is being merged.
#[derive(Debug)]
pub(super) struct Merging {
    round: Round,
    outer: OuterSpec,
    /// As [`crate::diloco::MergeJob`] has them.
    radii: Vec<f64>,
    absent: f64,
    /// The weights for each expert.
    experts: Vec<ExpertWeights>,
    shares: Vec<MergeShare>,
    launched: Millis,
    began: Millis,
}

/// One learner's part in a merge.
#[derive(Debug)]
struct MergeShare {
    part: Part,
    /// Of all weights, 0 to 1.
    weight: f32,
    /// Steps after that moment are not in it.
    until: Millis,
    /// When its update came.
    came: Millis,
}

impl Merging {
    /// The update of `learner` that is part of it.
    pub(super) fn serial(&self, learner: LearnerId) -> Option<Serial> {
        self.shares
            .iter()
            .map(|share| share.part)
            .find(|part| part.learner == learner)
            .map(|part| part.serial)
    }
}

/// A round that ended in a new version.
#[derive(Clone, Debug, PartialEq)]
pub struct Merge {
    /// What the tape is to have of it.
    pub entry: MergeEntry,
    /// The update of each learner, by id.
    pub settled: Vec<Settled>,
    /// Coded change of Θ̂.
    pub body: Vec<u8>,
    /// Time of collecting, in milliseconds.
    pub collect_ms: u64,
    /// Time of merging, in milliseconds.
    pub sync_ms: u64,
    /// What it says of each learner's pace, by id.
    pub paces: Vec<Paced>,
}

/// What a merged update says of its learner's pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paced {
    /// The learner.
    pub learner: LearnerId,
    /// Tokens of the update that count.
    pub tokens: u64,
    /// Time since its last one on this fragment came over the steps of this one, in milliseconds; `None` for the first.
    pub step_ms: Option<f64>,
}

impl Rounds {
    /// Ends collecting, and hands what is in to a job with the fragment's state. `None` if no round collects. `known`:
    /// somebody who need not prove itself any more is there and answers.
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
            let Taken { serial, base, steps, tokens, repute, until, came, body, checksum, .. } = taken;
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
                is_shown: repute.is_shown == Some(true),
            };
            shares.push(MergeShare { part, weight: (weight / total) as f32, until, came });
            let experts = experts.iter().map(|of| of.weights[at]).collect();
            updates.push(Weighted { learner, weight, experts, steps: reach, body });
        }
        let radii = self.usual.radii(self.terms.norm_ratio_max);
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

    /// Takes in what a round led to which was led elsewhere, of which Θ̂ is kept alone.
    pub(crate) fn follow(&mut self, state: FragmentState) {
        let FragmentState { version, hat, .. } = state;
        self.version = version;
        self.state = Some(FragmentState::of_hat(version, hat));
    }

    /// Keeps Θ̂ alone, for others lead from now on.
    pub(crate) fn keep_hat(&mut self) {
        if let Some(state) = self.state.take() {
            self.follow(state);
        }
    }

    /// Takes in what a job led to; `None` if it is not the one under way.
    pub fn merged(&mut self, now: Millis, outcome: MergeOutcome) -> Option<Merge> {
        let MergeOutcome { round, state, body, checksum, digest, norm, .. } = outcome;
        let (base, version) = (self.version, state.version);
        let merging = self.take_back(round, state)?;
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
        let settled = shares.into_iter().map(|MergeShare { part, weight, until, .. }| {
            let Part { learner, serial, tokens, .. } = part;
            self.counted.insert(learner, until);
            let fate = Fate::Merged { version, weight, tokens };
            Settled { round: Some(round), fragment, learner, serial, tokens, fate }
        });
        let settled = settled.collect();
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
        Some(Merge { entry, settled, body, collect_ms, sync_ms, paces })
    }

    /// Takes the state back from a job that failed; the updates count as late, so that their senders keep them.
    /// `None` if it is not the job under way.
    pub fn failed(&mut self, failure: MergeFailure) -> Option<Vec<Settled>> {
        let MergeFailure { round, state, .. } = failure;
        let merging = self.take_back(round, state)?;
        let fate = Fate::Late(LateReason::RoundOver);
        let fragment = self.terms.fragment;
        let settled = |share: MergeShare| {
            let Part { learner, serial, tokens, .. } = share.part;
            Settled { round: Some(round), fragment, learner, serial, tokens, fate }
        };
        Some(merging.shares.into_iter().map(settled).collect())
    }

    /// No further round comes: what waits for one is late.
    pub fn end(&mut self) -> Vec<Settled> {
        let (fragment, fate) = (self.terms.fragment, Fate::Late(LateReason::RoundOver));
        let late = std::mem::take(&mut self.early).into_iter();
        late.map(|(learner, Taken { serial, tokens, .. })| Settled {
            round: None,
            fragment,
            learner,
            serial,
            tokens,
            fate,
        })
        .collect()
    }

    /// Notes that the fragment came to `version`.
    pub(super) fn note_version(&mut self, version: Version) {
        self.versions.push_back(version);
        if self.versions.len() > VERSIONS_KEPT {
            self.versions.pop_front();
        }
    }

    /// Turns of the fragment whose steps an update of `learner` holds, at least 1: it may have missed some, and it may
    /// have stood still in some of those.
    fn turns(&self, learner: LearnerId, steps: u32) -> f64 {
        let before = self.merged_to.get(&learner).copied();
        let known = before.map_or(0, |before| self.versions.partition_point(|version| *version <= before));
        let since = (self.versions.len() - known + 1) as f64;
        since.min(f64::from(steps) / f64::from(self.terms.sync_every)).max(1.0)
    }

    fn load(&self, taken: &Taken) -> Load {
        let newer = self.versions.len() - self.versions.partition_point(|&version| version <= taken.base);
        let &Taken { steps, tokens, repute, .. } = taken;
        Load { steps, tokens, age: newer as u32, repute }
    }

    /// What updates weigh for each expert of the fragment.
    fn expert_weights<'a>(
        &self,
        taken: impl Iterator<Item = &'a Taken> + Clone,
        loads: &[Load],
        known: bool,
    ) -> Vec<ExpertWeights> {
        let RoundTerms { experts, influence, sync_every, .. } = &self.terms;
        let of = |at| taken.clone().map(move |taken| taken.seen[at]);
        (0..experts.len()).map(|at| of_expert(influence, loads, of(at), *sync_every, known)).collect()
    }

    fn take_back(&mut self, round: Round, state: FragmentState) -> Option<Merging> {
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

/// The share of the outer step that a merge takes, above 0 to 1, by the turns and the weight of each of its updates.
///
/// Θ moves in each turn by what learners did in a turn. What one of them did in turns that it missed comes in one
/// update, as long as all of those; others moved Θ meanwhile as if there were none but them. Taken whole it would count
/// for as often as it was missed.
fn step_share<'a>(updates: impl Iterator<Item = (f64, &'a f64)>) -> f64 {
    let (mut share, mut total) = (0.0, 0.0);
    for (turns, weight) in updates {
        share += weight / turns;
        total += weight;
    }
    if share > 0.0 { share / total } else { 1.0 }
}
