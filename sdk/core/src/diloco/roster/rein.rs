//! The owner's hand on single learners: how much of its time each may train, and when it may return.
//!
//! Nothing of it is kept in a snapshot: a syncer that starts anew lets everybody go, so that nobody stays slowed down
//! by a lesson that is over.

use super::Roster;
use crate::wire::{LearnerId, Millis, Share};

/// Longest time that a learner may be dropped for, in milliseconds.
pub const DROP_MS_MAX: u32 = 3_600_000;

/// What the owner asks of one learner; none is kept for a learner that is left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rein {
    /// The part of its time.
    pub(super) share: Share,
    /// It may not come back before.
    returns: Option<Millis>,
}

impl Roster {
    /// When `learner` may come back, if the owner dropped it and that moment is not over at `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.reins.get(&learner).and_then(|rein| rein.returns).filter(|&returns| returns > now)
    }

    /// How long `learner` must still stay away, in milliseconds.
    #[must_use]
    pub fn away_ms(&self, now: Millis, learner: LearnerId) -> Option<u32> {
        let returns = self.returns(now, learner)?;
        Some(u32::try_from(returns.since(now)).unwrap_or(DROP_MS_MAX))
    }

    /// Whether the owner has anything asked of `learner`.
    #[must_use]
    pub fn is_reined(&self, learner: LearnerId) -> bool {
        self.reins.contains_key(&learner)
    }

    /// Has `learner` train for `share` of its time.
    pub fn pace(&mut self, learner: LearnerId, share: Share) {
        self.reins.entry(learner).or_default().share = share;
        self.loosen();
    }

    /// Keeps `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it come back.
    pub fn send_away(&mut self, now: Millis, learner: LearnerId, wait_ms: u32) {
        let returns = (wait_ms > 0).then(|| now.after(u64::from(wait_ms.min(DROP_MS_MAX))));
        self.reins.entry(learner).or_default().returns = returns;
        self.loosen();
    }

    /// Forgets what is over.
    pub fn expire_reins(&mut self, now: Millis) {
        for rein in self.reins.values_mut() {
            rein.returns = rein.returns.filter(|&returns| returns > now);
        }
        self.loosen();
    }

    fn loosen(&mut self) {
        self.reins.retain(|_, rein| *rein != Rein::default());
    }
}
