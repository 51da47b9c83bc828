//! Where a process's training is: each step has a number, which goes wherever its progress goes.

use std::collections::BTreeMap;

use super::spans::Spans;
use archipelago_core::wire::{ApplyPolicy, FragmentId, Serial};

/// Updates of a fragment that are remembered until they are sent.
const CODED_MAX: usize = 8;

/// The steps of one process, followed by what its replica really does, not by what its core counts.
#[derive(Debug)]
pub(super) struct Ghosts {
    policy: ApplyPolicy,
    /// Tokens of all steps up to each.
    tokens: Vec<u64>,
    /// What of each fragment's progress lies in θ and not in Θ̂.
    held: Vec<Spans>,
    /// What the update coded last stands for, until a change includes it or it is of no use any more.
    reported: Vec<Option<Spans>>,
    /// What its policy, or a beginning anew, took away.
    dropped: Vec<Spans>,
    coded: BTreeMap<(FragmentId, Serial), Spans>,
}

impl Ghosts {
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

    /// All that it trained on is gone from θ.
    pub(super) fn begin_anew(&mut self) {
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
        // Where nothing is kept, nothing is to be taken back.
        let is_kept = self.policy != ApplyPolicy::Overwrite;
        self.reported[usize::from(fragment.0)] = is_kept.then(|| held.clone());
        self.coded.insert((fragment, serial), held);
        let of = |(other, _): &&(FragmentId, Serial)| *other == fragment;
        let old = (self.coded.keys().filter(of).count() > CODED_MAX).then(|| self.coded.keys().find(of));
        if let Some(old) = old.flatten().copied() {
            self.coded.remove(&old);
        }
    }

    /// What the update coded last reported is part of Θ̂, or of the one that comes next.
    pub(super) fn include(&mut self, fragment: FragmentId) {
        let p = usize::from(fragment.0);
        if let Some(reported) = self.reported[p].take() {
            self.held[p].remove(&reported);
        }
    }

    /// There is another Θ̂; `keep` is false where progress was not to be kept at all.
    pub(super) fn apply(&mut self, fragment: FragmentId, keep: bool) {
        let p = usize::from(fragment.0);
        match self.policy {
            ApplyPolicy::Keep { .. } if keep => {}
            // A part of it stays, and counts as lost in part.
            ApplyPolicy::Blend { .. } if keep => self.dropped[p].add(&self.held[p]),
            _ => {
                self.dropped[p].add(&self.held[p]);
                self.held[p] = Spans::default();
            }
        }
        // Coded progress is the same from any later Θ̂: it waits until it is included.
        if !keep || self.policy != (ApplyPolicy::Keep { residue: true }) {
            self.reported[p] = None;
        }
    }

    /// What the update numbered `serial` stands for.
    pub(super) fn coded(&self, fragment: FragmentId, serial: Serial) -> Option<&Spans> {
        self.coded.get(&(fragment, serial))
    }

    /// Steps and tokens of `spans`.
    pub(super) fn amount(&self, spans: &Spans) -> (u64, u64) {
        let tokens = |step: u32| self.tokens[step as usize];
        spans.iter().fold((0, 0), |(steps, sum), (start, end)| {
            (steps + u64::from(end - start), sum + tokens(end) - tokens(start))
        })
    }

    /// Whether the numbers that its core counts must be those of the steps; a blend rounds them.
    pub(super) fn is_exact(&self) -> bool {
        !matches!(self.policy, ApplyPolicy::Blend { .. })
    }

    /// The first step whose progress on a fragment is neither in θ, nor in `elsewhere` (given the fragment), nor
    /// dropped.
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
        // Fewer than fit: a step takes a millisecond at least.
        self.tokens.len() as u32 - 1
    }
}
