//! Updates that were too late for their round and wait for a later one, for example on links where a body takes longer
//! than a round collects.
//!
//! A learner that moves to another gateway is admitted there once each fragment's tape has one more record than at its
//! arrival. From then on nothing that it sent before may be merged. An update may therefore join a later round only if
//! its sender was connected here when the previous round was already over. Data that lies unread on a socket, or was
//! sent before, proves nothing. The syncer therefore has the peer echo a number, which any connected peer can do. Once
//! the echo is back, the update may join rounds up to the successor of the newest round that was over when the number
//! was made.

use std::collections::BTreeMap;

use crate::diloco::Verified;
use crate::wire::{ConnId, FragmentId, LearnerId, Round};

/// Waiting updates, at most one per learner and fragment.
#[derive(Debug, Default)]
pub(super) struct Late {
    waiting: BTreeMap<(FragmentId, LearnerId), Waiting>,
    /// Counter of the numbers, so that an echo identifies its update.
    numbers: u64,
}

#[derive(Debug)]
struct Waiting {
    conn: ConnId,
    update: Verified,
    /// Newest round that the update may join.
    fit: Option<Round>,
    /// Last number without an echo, and the newest round that its echo permits.
    sent: Option<(u64, Round)>,
    /// Newest round that asked for the update.
    asked: Option<Round>,
}

/// Next action for a question.
#[derive(Debug)]
pub(super) enum Next {
    /// The learner has no waiting update.
    Absent,
    /// The update to forward.
    Found(Box<Verified>),
    /// Have the connection echo this number.
    Send(u64),
    /// An echo is outstanding.
    Wait,
}

impl Late {
    /// Keeps `update`, which came over `conn` when `over` was the newest finished round. Returns the number to echo,
    /// and the older update of the same learner and fragment that it replaces.
    pub(super) fn keep(
        &mut self,
        learner: LearnerId,
        conn: ConnId,
        update: Verified,
        over: Round,
    ) -> (u64, Option<Verified>) {
        let number = self.number();
        let sent = Some((number, after(over)));
        let at = (update.fragment, learner);
        let before = self.waiting.insert(at, Waiting { conn, update, fit: None, sent, asked: None });
        (number, before.map(|before| before.update))
    }

    /// Handles a question to `learner` at `conn` in `round`, when `over` was the newest finished round.
    pub(super) fn ask(
        &mut self,
        (fragment, learner): (FragmentId, LearnerId),
        conn: ConnId,
        round: Round,
        over: Round,
    ) -> Next {
        let number = self.number();
        let at = (fragment, learner);
        let Some(waiting) = self.waiting.get_mut(&at).filter(|waiting| waiting.conn == conn) else {
            return Next::Absent;
        };
        if waiting.fit >= Some(round) {
            let found = self.waiting.remove(&at);
            return found.map_or(Next::Absent, |found| Next::Found(Box::new(found.update)));
        }
        waiting.asked = waiting.asked.max(Some(round));
        if waiting.sent.is_some_and(|(_, fit)| fit >= round) {
            return Next::Wait;
        }
        waiting.sent = Some((number, after(over)));
        Next::Send(number)
    }

    /// Handles an echo. Returns an update, with its learner and round, if that round asked for it and it may join.
    pub(super) fn back(&mut self, conn: ConnId, number: u64) -> Option<(LearnerId, Round, Verified)> {
        let is_it =
            |waiting: &Waiting| waiting.conn == conn && waiting.sent.is_some_and(|(sent, _)| sent == number);
        let (&at, waiting) = self.waiting.iter_mut().find(|(_, waiting)| is_it(waiting))?;
        waiting.fit = waiting.sent.take().map(|(_, fit)| fit);
        let round = waiting.asked.filter(|round| waiting.fit >= Some(*round))?;
        let found = self.waiting.remove(&at)?;
        Some((at.1, round, found.update))
    }

    /// Drops the updates of `learner`, whose connection is gone. The learner keeps its progress.
    pub(super) fn forget(&mut self, learner: LearnerId) {
        self.waiting.retain(|(_, of), _| *of != learner);
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

fn after(round: Round) -> Round {
    Round(round.0.saturating_add(1))
}
