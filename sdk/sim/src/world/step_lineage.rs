//! Location of each training step's progress. Steps of a process are numbered, and their numbers are followed from θ
//! through updates to Θ̂.

use std::collections::BTreeMap;

use archipelago_core::wire::{ApplyPolicy, FragmentId, Serial};

use super::shadow_ledger::Spans;

/// Maximum number of coded updates of a fragment whose steps are remembered.
const CODED_MAX: usize = 8;

/// Location of the progress of each step of one process. It follows the real replica's operations, not the core's
/// counters.
#[derive(Debug)]
pub(super) struct StepLineage {
    policy: ApplyPolicy,
    /// Number of tokens before each step.
    tokens: Vec<u64>,
    /// For each fragment, the steps whose progress is in θ but not yet in Θ̂, `[P]`.
    held: Vec<Spans>,
    /// For each fragment, the steps in the latest coded update, until a change includes it or it becomes invalid.
    reported: Vec<Option<Spans>>,
    /// For each fragment, the steps whose progress was discarded by the apply policy or because the learner joined
    /// again.
    dropped: Vec<Spans>,
    coded: BTreeMap<(FragmentId, Serial), Spans>,
}

impl StepLineage {
    pub(super) fn new(fragments: u16, policy: ApplyPolicy) -> Self {
        let none = vec![Spans::default(); usize::from(fragments)];
        Self {
            policy,
            tokens: vec![0],
            held: none.clone(),
            reported: vec![None; usize::from(fragments)],
            dropped: none,
            coded: BTreeMap::new(),
        }
    }

    /// Discards all progress in θ, because the learner joins again with new state.
    pub(super) fn discard_progress(&mut self) {
        for (held, dropped) in self.held.iter_mut().zip(&mut self.dropped) {
            dropped.add(held);
            *held = Spans::default();
        }
        self.reported.fill(None);
        self.coded.clear();
    }

    pub(super) fn step(&mut self, tokens: u64) {
        let step = self.steps();
        self.tokens.push(self.tokens[step as usize] + tokens);
        self.held.iter_mut().for_each(|held| held.add(&Spans::of(step, step + 1)));
    }

    pub(super) fn encode(&mut self, fragment: FragmentId, serial: Serial) {
        let held = self.held[usize::from(fragment.0)].clone();
        // Without kept progress, nothing is subtracted when the update is merged.
        let is_kept = self.policy != ApplyPolicy::Overwrite;
        self.reported[usize::from(fragment.0)] = is_kept.then(|| held.clone());
        self.coded.insert((fragment, serial), held);
        let of = |(other, _): &&(FragmentId, Serial)| *other == fragment;
        let old = (self.coded.keys().filter(of).count() > CODED_MAX).then(|| self.coded.keys().find(of));
        if let Some(old) = old.flatten().copied() {
            self.coded.remove(&old);
        }
    }

    /// Removes the steps of the latest coded update from θ's progress, because a change includes them.
    pub(super) fn include(&mut self, fragment: FragmentId) {
        let p = usize::from(fragment.0);
        if let Some(reported) = self.reported[p].take() {
            self.held[p].remove(&reported);
        }
    }

    /// Applies a new Θ̂. If not `keep`, all unmerged progress is discarded.
    pub(super) fn apply(&mut self, fragment: FragmentId, keep: bool) {
        let p = usize::from(fragment.0);
        match self.policy {
            ApplyPolicy::Keep { .. } if keep => {}
            // A part of the progress is kept; all of its steps are treated as possibly lost.
            ApplyPolicy::Blend { .. } if keep => self.dropped[p].add(&self.held[p]),
            _ => {
                self.dropped[p].add(&self.held[p]);
                self.held[p] = Spans::default();
            }
        }
        // If the rounding error is kept, coded progress stays valid with any later Θ̂ until it is included.
        if !keep || self.policy != (ApplyPolicy::Keep { residue: true }) {
            self.reported[p] = None;
        }
    }

    /// Returns the steps in update `serial` of `fragment`.
    pub(super) fn coded(&self, fragment: FragmentId, serial: Serial) -> Option<&Spans> {
        self.coded.get(&(fragment, serial))
    }

    /// Returns the numbers of steps and tokens in `spans`.
    pub(super) fn amount(&self, spans: &Spans) -> (u64, u64) {
        let tokens = |step: u32| self.tokens[step as usize];
        spans.iter().fold((0, 0), |(steps, sum), (start, end)| {
            (steps + u64::from(end - start), sum + tokens(end) - tokens(start))
        })
    }

    /// Returns true if the learner's step and token counts must equal those of the steps. A blend rounds them.
    pub(super) fn is_exact(&self) -> bool {
        !matches!(self.policy, ApplyPolicy::Blend { .. })
    }

    /// Returns the first step whose progress on a fragment is neither in θ, nor discarded, nor in `elsewhere`.
    pub(super) fn missing(&self, elsewhere: impl Fn(FragmentId) -> Spans) -> Option<(FragmentId, u32)> {
        (0..).zip(self.held.iter().zip(&self.dropped)).find_map(|(p, (held, dropped))| {
            let mut left = Spans::of(0, self.steps());
            left.remove(held);
            left.remove(dropped);
            left.remove(&elsewhere(FragmentId(p)));
            Some((FragmentId(p), left.first()?))
        })
    }

    fn steps(&self) -> u32 {
        // The number fits in 32 bits, because a step takes at least a millisecond.
        self.tokens.len() as u32 - 1
    }
}
