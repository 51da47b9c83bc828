//! The owner's hand on single learners: how much of its time each may train, and when it may return.
//!
//! Nothing of it is kept in a snapshot: a syncer that starts anew lets everybody go, so that nobody stays slowed down
//! by a lesson that is over.

use super::{Event, Output, Syncer};
use crate::wire::{Bye, CloseCode, ConnId, LearnerId, Message, Millis, Share};

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

impl Syncer {
    /// Whether `learner` has ever been here: orders for another change nothing.
    #[must_use]
    pub fn knows(&self, learner: LearnerId) -> bool {
        self.ledger.account(learner).is_some()
    }

    /// The part of its time that the owner has `learner` train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.reins.get(&learner).map_or(Share::FULL, |rein| rein.share)
    }

    /// When `learner` may come back, if the owner dropped it and that moment is not over at `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.reins.get(&learner).and_then(|rein| rein.returns).filter(|&returns| returns > now)
    }

    pub(super) fn pace(&mut self, learner: LearnerId, share: Share) {
        if !self.knows(learner) || self.share(learner) == share {
            return;
        }
        self.reins.entry(learner).or_default().share = share;
        if let Some(&conn) = self.connections.get(&learner) {
            self.out.push_back(Output::Send(conn, Message::Pace { run: self.run, share }));
        }
        self.event(Event::Paced { learner, share });
        self.loosen();
    }

    /// Sends `learner` away for `wait_ms`; 0 lets one that was sent away come back.
    pub(super) fn drop_learner(&mut self, now: Millis, learner: LearnerId, wait_ms: u32) {
        let wait_ms = wait_ms.min(DROP_MS_MAX);
        if !self.knows(learner) || (wait_ms == 0 && self.returns(now, learner).is_none()) {
            return;
        }
        self.reins.entry(learner).or_default().returns = (wait_ms > 0).then(|| now.after(u64::from(wait_ms)));
        self.event(Event::Dropped { learner, wait_ms });
        if let Some(&conn) = self.connections.get(&learner).filter(|_| wait_ms > 0) {
            self.send_away(conn, wait_ms);
        }
        self.loosen();
    }

    /// Whether `learner` must still stay away; then it has been told for how long.
    pub(super) fn turned_away(&mut self, now: Millis, conn: ConnId, learner: LearnerId) -> bool {
        let Some(returns) = self.returns(now, learner) else { return false };
        let wait_ms = u32::try_from(returns.since(now)).unwrap_or(DROP_MS_MAX);
        self.send_away(conn, wait_ms);
        true
    }

    /// Forgets what is over.
    pub(super) fn expire_reins(&mut self, now: Millis) {
        for rein in self.reins.values_mut() {
            rein.returns = rein.returns.filter(|&returns| returns > now);
        }
        self.loosen();
    }

    fn loosen(&mut self) {
        self.reins.retain(|_, rein| *rein != Rein::default());
    }

    fn send_away(&mut self, conn: ConnId, wait_ms: u32) {
        let reason = "the owner of the run dropped this learner for a while";
        self.close(conn, Bye { wait_ms, ..Bye::new(CloseCode::Dropped, reason) });
    }
}
