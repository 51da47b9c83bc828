//! The owner's restrictions on single learners: their share of training time, and temporary removal.
//!
//! Restrictions outlive the syncer's process. They hold until the owner lifts them or their time is over. Elapsed
//! time is not stored, so the time starts again in the next process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Roster;
use crate::wire::{LearnerId, Millis, Share};

/// Longest time that a learner may be dropped for, in milliseconds.
pub const DROP_MS_MAX: u32 = 3_600_000;

/// Restrictions on learners; a learner without restrictions has no entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reins(BTreeMap<LearnerId, Rein>);

/// Restrictions on one learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rein {
    /// Part of its time that the learner trains.
    share: Share,
    /// Time for which the learner was sent away, in milliseconds; 0 if it was not.
    wait_ms: u32,
    /// End of that time. Unknown for a restriction from an earlier process, until the time is first checked.
    #[serde(skip)]
    returns: Option<Millis>,
}

impl Rein {
    const NONE: Self = Self { share: Share::FULL, wait_ms: 0, returns: None };

    fn returns(&self, now: Millis) -> Option<Millis> {
        let begins_anew = (self.wait_ms > 0).then(|| now.after(u64::from(self.wait_ms)));
        self.returns.or(begins_anew).filter(|&returns| returns > now)
    }
}

impl Reins {
    /// Returns true if there are no restrictions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the part of its time that `learner` trains.
    pub(in crate::diloco) fn pace(&mut self, learner: LearnerId, share: Share) {
        self.change(learner, |rein| rein.share = share);
    }

    /// Sends `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it return.
    pub(in crate::diloco) fn send_away(&mut self, learner: LearnerId, wait_ms: u32) {
        self.change(learner, |rein| (rein.wait_ms, rein.returns) = (wait_ms.min(DROP_MS_MAX), None));
    }

    /// Returns the part of its time that `learner` trains.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.0.get(&learner).map_or(Share::FULL, |rein| rein.share)
    }

    /// Returns the time for which `learner` was sent away, in milliseconds; 0 if it was not, or that time is over.
    #[must_use]
    pub fn wait_ms(&self, learner: LearnerId) -> u32 {
        self.0.get(&learner).map_or(0, |rein| rein.wait_ms)
    }

    fn change(&mut self, learner: LearnerId, change: impl FnOnce(&mut Rein)) {
        let rein = self.0.entry(learner).or_insert(Rein::NONE);
        change(rein);
        if *rein == Rein::NONE {
            self.0.remove(&learner);
        }
    }

    /// Returns the restrictions as a later process reads them.
    fn kept(&self) -> Self {
        let kept = |(learner, rein): (&LearnerId, &Rein)| (*learner, Rein { returns: None, ..*rein });
        Self(self.0.iter().map(kept).collect())
    }

    /// Starts the time of restrictions from an earlier process at `now`.
    fn begin(&mut self, now: Millis) {
        for rein in self.0.values_mut() {
            rein.returns = rein.returns.or_else(|| rein.returns(now));
        }
    }
}

impl Roster {
    /// Returns the restrictions as a later process reads them.
    #[must_use]
    pub fn reins(&self) -> Reins {
        self.reins.kept()
    }

    /// Returns the time at which `learner` may return, if the owner sent it away and that time is after `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.reins.0.get(&learner)?.returns(now)
    }

    /// Returns how long `learner` must still stay away, in milliseconds.
    #[must_use]
    pub fn away_ms(&self, now: Millis, learner: LearnerId) -> Option<u32> {
        let returns = self.returns(now, learner)?;
        Some(u32::try_from(returns.since(now)).unwrap_or(DROP_MS_MAX))
    }

    /// Returns true if there is a restriction on `learner`.
    #[must_use]
    pub fn is_reined(&self, learner: LearnerId) -> bool {
        self.reins.0.contains_key(&learner)
    }

    /// Sets the part of its time that `learner` trains.
    pub fn pace(&mut self, learner: LearnerId, share: Share) {
        self.reins.pace(learner, share);
    }

    /// Sends `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it return.
    pub fn send_away(&mut self, now: Millis, learner: LearnerId, wait_ms: u32) {
        self.reins.send_away(learner, wait_ms);
        self.reins.begin(now);
    }

    /// Lifts the restrictions whose time is over, and returns their learners.
    pub fn expire_reins(&mut self, now: Millis) -> Vec<LearnerId> {
        self.reins.begin(now);
        let is_over = |rein: &Rein| rein.wait_ms > 0 && rein.returns(now).is_none();
        let over: Vec<_> =
            self.reins.0.iter().filter(|(_, rein)| is_over(rein)).map(|(learner, _)| *learner).collect();
        for &learner in &over {
            self.reins.send_away(learner, 0);
        }
        over
    }
}
