//! Admission of connections that introduce themselves.

use super::{Event, HARMS_MAX, LeaderRequest, Output, Syncer};
use crate::wire::{Bye, CloseCode, ConnId, Hello, LayoutHash, LearnerId, Message, Millis, Welcome};

impl Syncer {
    pub(super) fn on_hello(&mut self, now: Millis, conn: ConnId, hello: Box<Hello>) {
        if let Err(bye) = self.judge(&hello) {
            return self.close(conn, bye);
        }
        if self.is_led() {
            return self.request_leader(|| LeaderRequest::Introduce(conn, hello));
        }
        let known = self.ledger().find(&hello.identity);
        self.take_in(now, conn, &hello, known, None);
    }

    /// Admits a connection with the number that its learner has at every gateway.
    pub(super) fn on_introduced(&mut self, now: Millis, conn: ConnId, hello: &Hello, learner: LearnerId) {
        if !self.is_led() || self.roster.learner(conn).is_some() {
            return;
        }
        if let Err(bye) = self.judge(hello) {
            return self.close(conn, bye);
        }
        if self.roster.conn(learner).is_some_and(|newer| newer > conn) {
            // The same learner connected again while this connection waited, so no peer reads it any longer.
            let reason = "a newer connection with the same identity took over";
            return self.refuse(conn, CloseCode::Replaced, reason.into());
        }
        let known = self.knows(learner).then_some(learner);
        self.take_in(now, conn, hello, known, Some(learner));
    }

    /// Admits or turns away a learner, which is `known` if it was here before, under `number` if one is given.
    fn take_in(
        &mut self,
        now: Millis,
        conn: ConnId,
        hello: &Hello,
        known: Option<LearnerId>,
        number: Option<LearnerId>,
    ) {
        if let Some(harms) = known.map(|learner| self.harms(learner)).filter(|&harms| harms >= HARMS_MAX) {
            return self.turn_out(conn, harms);
        }
        // With remote rounds, orders of the owner may be all that is known here about a learner.
        let told_of = number.or(known);
        if let Some(wait_ms) = told_of.and_then(|learner| self.roster.away_ms(now, learner)) {
            return self.turn_away(conn, wait_ms);
        }
        if let Some(ghost) = known.and_then(|learner| self.roster.conn(learner)) {
            let reason = "another connection with the same identity took over".into();
            self.refuse(ghost, CloseCode::Replaced, reason);
        }
        if let Err(full) = self.seat(known) {
            return self.close(conn, full);
        }
        if known.is_none() {
            let roster = &self.roster;
            let needed = |learner| roster.conn(learner).is_some() || roster.is_reined(learner);
            match self.books.make_room(needed) {
                Ok(None) => {}
                Ok(Some(forgotten)) => self.rounds.iter_mut().for_each(|rounds| rounds.forget(forgotten)),
                Err(full) => return self.refuse(conn, CloseCode::Full, full.to_string()),
            }
        }
        self.welcome(now, conn, hello, number);
    }

    /// Checks that a peer can take part in this run.
    fn judge(&self, hello: &Hello) -> Result<(), Bye> {
        let layout = self.fragments.hash();
        if let Some(run) = hello.run.filter(|&run| run != self.run) {
            return Err(Bye::new(CloseCode::WrongRun, self.other_run(run)));
        }
        if let Some(held) = hello.layout.filter(|&held| held != layout) {
            return Err(Bye::new(CloseCode::Layout, layout_reason(layout, held)));
        }
        if self.schedule.is_ending() {
            return Err(Bye::new(CloseCode::Done, "the run is complete"));
        }
        Ok(())
    }

    fn welcome(&mut self, now: Millis, conn: ConnId, hello: &Hello, number: Option<LearnerId>) {
        let (learner, returning) = self.books.enrol(&hello.identity, &hello.name, &hello.device, number);
        if number.is_some() {
            self.credit(learner, hello.run.is_some());
        }
        if hello.run.is_none() {
            // A new process has lost the work of the previous one.
            let returned = self.books.restart(learner);
            self.tell_returned(returned, false);
        }
        self.roster.open(now, conn, learner, hello.run.is_none());
        self.standings.note(self.books.ledger(), learner, false);
        self.downlink.open(conn);
        let ledger = self.books.ledger();
        let account = ledger.account(learner).expect("enrolled above");
        let welcome = Welcome {
            run: self.run,
            learner,
            spec: self.spec.clone(),
            layout: self.fragments.hash(),
            versions: self.rounds.iter().map(|rounds| rounds.version()).collect(),
            clock_tokens: ledger.schedule_tokens(),
            merged: account.merged.clone(),
            unsettled: self.rounds.iter().map(|rounds| rounds.unsettled(learner)).collect(),
            leases: self.books.leased(learner),
            tokens_trained: account.trained(),
            tokens_merged: ledger.tokens_merged(account),
            held: self.schedule.is_held(),
            share: self.share(learner),
        };
        self.out.push_back(Output::Send(conn, Message::Welcome(Box::new(welcome))));
        let (name, device) = (hello.name.clone(), hello.device.clone());
        self.event(Event::Joined { learner, name, device, returning });
    }
}

/// Returns the reason to turn away a learner with another parameter layout.
pub(super) fn layout_reason(ours: LayoutHash, theirs: LayoutHash) -> String {
    format!("this run's parameters are laid out as {ours}, not {theirs}: use the same release as the syncer")
}
