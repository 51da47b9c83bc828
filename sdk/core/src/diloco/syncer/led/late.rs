//! Updates that came too late for the round in which they were asked for. They wait for a later one, as over links so
//! thin that a body takes longer than a round collects.
//!
//! A learner that comes to another gateway is taken in there once each fragment's tape has one record more than when
//! it came, and then nothing that it sent before may be merged any more. So an update may be of a later round only if
//! its sender is known to have been here when the round before that was over already. What lies unread on a socket
//! says nothing of that, and neither does whatever was sent before. Therefore the other end of the connection is asked
//! to send a number back, which needs no more of it than that it is there: an update is of rounds up to the one after
//! the newest that was over when the number was made.

use std::collections::BTreeMap;

use crate::diloco::Verified;
use crate::wire::{ConnId, FragmentId, LearnerId, Round};

/// The updates that wait, at most one of each learner and fragment.
#[derive(Debug, Default)]
pub(super) struct Late {
    waiting: BTreeMap<(FragmentId, LearnerId), Waiting>,
    /// Counts numbers, so that one that comes back says which it was.
    numbers: u64,
}

#[derive(Debug)]
struct Waiting {
    conn: ConnId,
    update: Verified,
    /// It may be of rounds up to this one.
    fit: Option<Round>,
    /// The number that was sent last and has not come back, and up to which round the update may be then.
    sent: Option<(u64, Round)>,
    /// The newest round in which it is asked for.
    asked: Option<Round>,
}

/// What follows from a question about an update.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing of this learner waits.
    Absent,
    /// It is this one.
    Found(Box<Verified>),
    /// Send this number by the connection.
    Send(u64),
    /// A number is on its way.
    Wait,
}

impl Late {
    /// `update` waits, which came by this connection, when `over` was the newest round that is known to be over. Gives
    /// the number to send, and an older one of the same learner and fragment, which nobody will ask for any more.
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

    /// Somebody who leads asks `learner` by this connection in `round`, when `over` was the newest that is known to be
    /// over.
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

    /// A number came back by this connection: an update that is asked for and may be of that round, with whose it is.
    pub(super) fn back(&mut self, conn: ConnId, number: u64) -> Option<(LearnerId, Round, Verified)> {
        let is_it =
            |waiting: &Waiting| waiting.conn == conn && waiting.sent.is_some_and(|(sent, _)| sent == number);
        let (&at, waiting) = self.waiting.iter_mut().find(|(_, waiting)| is_it(waiting))?;
        waiting.fit = waiting.sent.take().map(|(_, fit)| fit);
        let round = waiting.asked.filter(|round| waiting.fit >= Some(*round))?;
        let found = self.waiting.remove(&at)?;
        Some((at.1, round, found.update))
    }

    /// The connection of `learner` is gone, and what it sent stays its own.
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
