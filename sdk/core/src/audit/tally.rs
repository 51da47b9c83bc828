//! What a learner counts beside its engine, so that what it says of an update can be checked.

use serde::{Deserialize, Serialize};

use super::Op;
use crate::wire::{ApplyPolicy, LeaseId, Serial};

/// Leases whose progress is remembered: far more than a learner holds at once.
pub(super) const CURSORS_MAX: usize = 256;

/// The run's clock, the progress on each lease, and what each fragment's next update stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Merged tokens of the run, as the syncer last said before the last step.
    pub(super) base: u64,
    /// Own tokens since then.
    pub(super) own: u64,
    /// Windows done of each lease, by ascending lease.
    pub(super) cursors: Vec<(LeaseId, u32)>,
    /// By fragment, `[P]`.
    pub(super) fragments: Vec<Counts>,
}

/// What the next update of a fragment stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) steps: u32,
    pub(super) tokens: u64,
    /// The update that was coded last and is not merged as far as its learner knows, and what that stood for.
    pub(super) sent: Option<(Serial, u32, u64)>,
}

impl Tally {
    /// That of a learner that has done nothing, in a run of so many fragments.
    #[must_use]
    pub fn new(fragments: u16) -> Self {
        Self { fragments: vec![Counts::default(); usize::from(fragments)], ..Self::default() }
    }

    /// What the next update of `fragment` stands for: steps and tokens.
    pub(super) fn counts(&self, fragment: usize) -> Option<&Counts> {
        self.fragments.get(fragment)
    }

    /// Windows done of `lease`; `None` for one of which none is.
    pub(super) fn done(&self, lease: LeaseId) -> Option<u32> {
        let at = self.cursors.binary_search_by_key(&lease, |&(lease, _)| lease).ok()?;
        Some(self.cursors[at].1)
    }

    /// Whether the progress on so old a lease may be forgotten.
    pub(super) fn may_forget(&self, lease: LeaseId) -> bool {
        self.cursors.len() == CURSORS_MAX && self.cursors.first().is_some_and(|&(oldest, _)| lease < oldest)
    }

    /// Takes in `op`, in a run whose windows have so many tokens.
    pub fn take(&mut self, op: &Op, window_tokens: u64, policy: ApplyPolicy) {
        match op {
            Op::Step { base, own, windows } => {
                let count: u64 = windows.iter().map(|&(.., count)| u64::from(count)).sum();
                let tokens = count.saturating_mul(window_tokens);
                (self.base, self.own) = (*base, own.saturating_add(tokens));
                for &(lease, first, count) in windows {
                    self.advance(lease, first.saturating_add(count));
                }
                for counts in &mut self.fragments {
                    counts.steps = counts.steps.saturating_add(1);
                    counts.tokens = counts.tokens.saturating_add(tokens);
                }
            }
            Op::Encode { serial, fragment } => {
                if let Some(counts) = self.fragments.get_mut(usize::from(fragment.0)) {
                    counts.sent = Some((*serial, counts.steps, counts.tokens));
                }
            }
            Op::Include { fragment } => {
                if let Some(counts) = self.fragments.get_mut(usize::from(fragment.0))
                    && let Some((_, steps, tokens)) = counts.sent.take()
                {
                    counts.steps -= steps.min(counts.steps);
                    counts.tokens -= tokens.min(counts.tokens);
                }
            }
            Op::Take { fragment, .. } => {
                if let Some(counts) = self.fragments.get_mut(usize::from(fragment.0)) {
                    counts.keep(policy);
                }
            }
        }
    }

    fn advance(&mut self, lease: LeaseId, done: u32) {
        match self.cursors.binary_search_by_key(&lease, |&(lease, _)| lease) {
            Ok(at) => self.cursors[at].1 = done,
            Err(at) => {
                self.cursors.insert(at, (lease, done));
                if self.cursors.len() > CURSORS_MAX {
                    self.cursors.remove(0);
                }
            }
        }
    }
}

impl Counts {
    /// What `policy` keeps of local progress when a version comes in, as in `learner::track`.
    fn keep(&mut self, policy: ApplyPolicy) {
        match policy {
            ApplyPolicy::Keep { .. } => {}
            ApplyPolicy::Overwrite => (self.steps, self.tokens) = (0, 0),
            ApplyPolicy::Blend { alpha } => {
                self.steps = (f64::from(self.steps) * f64::from(alpha)).ceil() as u32;
                self.tokens = (self.tokens as f64 * f64::from(alpha)).ceil() as u64;
            }
        }
    }
}
