//! The owner's hand on single learners: how much of its time each may train, and when it may return.
//!
//! It outlives the syncer's process: what the owner was told holds until it takes that back, or its time is over. How
//! much of that time was over when a process ended is not kept, so that the next one lets it begin anew.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Roster;
use crate::wire::{LearnerId, Millis, Share};

/// Longest time that a learner may be dropped for, in milliseconds.
pub const DROP_MS_MAX: u32 = 3_600_000;

/// What the owner asks of single learners; none is kept for a learner that is left alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reins(BTreeMap<LearnerId, Rein>);

/// What the owner asks of one learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rein {
    /// The part of its time.
    share: Share,
    /// For how long it was sent away, in milliseconds; 0 if it was not.
    wait_ms: u32,
    /// When that is over; not known of one that was sent away in an earlier process, before time is looked at.
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
    /// Whether everybody is left alone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Has `learner` train for `share` of its time.
    pub(in crate::diloco) fn pace(&mut self, learner: LearnerId, share: Share) {
        self.change(learner, |rein| rein.share = share);
    }

    /// Keeps `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it come back.
    pub(in crate::diloco) fn send_away(&mut self, learner: LearnerId, wait_ms: u32) {
        self.change(learner, |rein| (rein.wait_ms, rein.returns) = (wait_ms.min(DROP_MS_MAX), None));
    }

    /// The part of its time that `learner` is to train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.0.get(&learner).map_or(Share::FULL, |rein| rein.share)
    }

    /// For how long `learner` was sent away, in milliseconds; 0 if it was not, or that time is over.
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

    /// The same as a later process finds it.
    fn kept(&self) -> Self {
        let kept = |(learner, rein): (&LearnerId, &Rein)| (*learner, Rein { returns: None, ..*rein });
        Self(self.0.iter().map(kept).collect())
    }

    /// Notes until when those are away whose time has begun by `now`.
    fn begin(&mut self, now: Millis) {
        for rein in self.0.values_mut() {
            rein.returns = rein.returns.or_else(|| rein.returns(now));
        }
    }
}

impl Roster {
    /// What the owner asks of single learners, as a later process finds it.
    #[must_use]
    pub fn reins(&self) -> Reins {
        self.reins.kept()
    }

    /// When `learner` may come back, if the owner dropped it and that moment is not over at `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.reins.0.get(&learner)?.returns(now)
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
        self.reins.0.contains_key(&learner)
    }

    /// Has `learner` train for `share` of its time.
    pub fn pace(&mut self, learner: LearnerId, share: Share) {
        self.reins.pace(learner, share);
    }

    /// Keeps `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it come back.
    pub fn send_away(&mut self, now: Millis, learner: LearnerId, wait_ms: u32) {
        self.reins.send_away(learner, wait_ms);
        self.reins.begin(now);
    }

    /// Lets those come back whose time is over, and gives them.
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
