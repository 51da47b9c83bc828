//! From what a round collected to a new version.

use super::{Phase, Rounds, Taken};
use crate::diloco::{FragmentState, MergeFailure, MergeJob, MergeOutcome, OuterSpec, Settled, Weighted};
use crate::wire::{Fate, LateReason, LearnerId, Millis, Round, Version};

/// A round that is being merged.
#[derive(Debug)]
pub(super) struct Merging {
    round: Round,
    shares: Vec<MergeShare>,
    launched: Millis,
    began: Millis,
}

/// One learner's part in a merge.
#[derive(Debug)]
struct MergeShare {
    learner: LearnerId,
    /// Of all weights, 0 to 1.
    weight: f32,
    tokens: u64,
}

/// A round that ended in a new version.
#[derive(Clone, Debug, PartialEq)]
pub struct Merge {
    /// The round.
    pub round: Round,
    /// The version before, which the coded change is relative to.
    pub base: Version,
    /// The version that it led to.
    pub version: Version,
    /// The update of each learner, by id.
    pub settled: Vec<Settled>,
    /// Coded change of Θ̂.
    pub body: Vec<u8>,
    /// Checksum of `body`.
    pub checksum: u64,
    /// L2 norm of the merged delta, before the outer step.
    pub norm: f64,
    /// Time of collecting, in milliseconds.
    pub collect_ms: u64,
    /// Time of merging, in milliseconds.
    pub sync_ms: u64,
}

impl Rounds {
    /// Ends collecting, and hands what is in to a job with the fragment's state. `None` if no round collects.
    pub fn merge(&mut self, now: Millis, outer: OuterSpec) -> Option<MergeJob> {
        self.collecting()?;
        let state = self.state.take()?;
        let Phase::Collecting(open) = std::mem::replace(&mut self.phase, Phase::Idle) else { return None };
        let mut updates = Vec::with_capacity(open.taken.len());
        let mut shares = Vec::with_capacity(open.taken.len());
        let total: f64 = open.taken.values().map(weight).sum();
        for (learner, taken) in open.taken {
            let weight = weight(&taken);
            shares.push(MergeShare { learner, weight: (weight / total) as f32, tokens: taken.tokens });
            updates.push(Weighted { learner, weight, body: taken.body });
        }
        let (round, launched) = (open.round, open.launched);
        self.phase = Phase::Merging(Merging { round, shares, launched, began: now });
        Some(MergeJob {
            round,
            fragment: self.terms.fragment,
            state,
            updates,
            segments: self.terms.segments.clone(),
            codec: self.terms.codec,
            rule: self.terms.merge,
            outer,
            next: Version(round.0),
        })
    }

    /// Takes in what a job led to; `None` if it is not the one under way.
    pub fn merged(&mut self, now: Millis, outcome: MergeOutcome) -> Option<Merge> {
        let MergeOutcome { round, state, body, checksum, norm, .. } = outcome;
        let (base, version) = (self.version, state.version);
        let merging = self.take_back(round, state)?;
        let settled = merging.shares.into_iter().map(|MergeShare { learner, weight, tokens }| {
            self.counted.insert(learner, merging.launched);
            let fate = Fate::Merged { version, weight, tokens };
            Settled { round, fragment: self.terms.fragment, learner, tokens, fate }
        });
        let settled = settled.collect();
        let collect_ms = merging.began.since(merging.launched);
        let sync_ms = now.since(merging.began);
        Some(Merge { round, base, version, settled, body, checksum, norm, collect_ms, sync_ms })
    }

    /// Takes the state back from a job that failed; the updates count as late, so that their senders keep them.
    /// `None` if it is not the job under way.
    pub fn failed(&mut self, failure: MergeFailure) -> Option<Vec<Settled>> {
        let MergeFailure { round, state, .. } = failure;
        let merging = self.take_back(round, state)?;
        let fate = Fate::Late(LateReason::RoundOver);
        let fragment = self.terms.fragment;
        let settled = |share: MergeShare| {
            let MergeShare { learner, tokens, .. } = share;
            Settled { round, fragment, learner, tokens, fate }
        };
        Some(merging.shares.into_iter().map(settled).collect())
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

/// `w = tokens · tokens / steps`: quantity times quality (Decoupled DiLoCo).
fn weight(taken: &Taken) -> f64 {
    let tokens = taken.tokens as f64;
    tokens * tokens / f64::from(taken.steps)
}
