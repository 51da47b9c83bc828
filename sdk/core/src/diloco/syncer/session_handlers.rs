//! Handlers of sessions: admission of learners, their reports, and their departure.

use super::{Event, LeaderRequest, LeaveCause, Output, Syncer};
use crate::diloco::trust::EXCLUSION_MS;
use crate::diloco::{Entry, Returned, Speed, Verified};
use crate::wire::{
    BATCH_MAX, Bye, CloseCode, ConnId, Fingerprint, Hello, LayoutHash, LearnerId, Message, Millis, Progress,
    RunId, Share, Welcome,
};

/// Reason given to a banned learner.
pub const BANNED: &str = "the owner of the run banned this learner: its key is no longer admitted";

impl Syncer {
    pub(super) fn on_message(&mut self, now: Millis, conn: ConnId, message: Message) {
        let Some(learner) = self.roster.learner(conn) else {
            match message {
                Message::Hello(hello) => self.on_hello(now, conn, Box::new(hello)),
                Message::Bye(_) => {}
                _ => self.refuse(conn, CloseCode::Protocol, "the first message must be Hello".into()),
            }
            return;
        };
        if !self.admits_message(now, conn) {
            return;
        }
        if message.run().is_some_and(|run| !self.is_of_this_run(conn, run)) {
            return;
        }
        match message {
            Message::Ready { layout, batch, .. } => self.on_ready(now, conn, layout, batch),
            Message::Update(update) => {
                let update = self.verifier.verify(update);
                self.on_update(now, conn, learner, update);
            }
            Message::NoUpdate { fragment, .. } => self.on_no_update(now, conn, fragment),
            Message::VersionAck { fragment, version, .. } => self.on_holds(now, conn, fragment, version),
            Message::Progress(progress) => self.on_progress(now, conn, learner, &progress),
            Message::Bye(_) => self.on_bye(conn),
            other => {
                let reason = format!("a learner must not send message {} here", other.tag() as u8);
                self.refuse(conn, CloseCode::Protocol, reason);
            }
        }
    }

    /// Handles an update that the host has verified.
    pub(super) fn on_verified(&mut self, now: Millis, conn: ConnId, update: Verified) {
        let Some(learner) = self.roster.learner(conn) else {
            return self.refuse(conn, CloseCode::Protocol, "the first message must be Hello".into());
        };
        if self.admits_message(now, conn) && self.is_of_this_run(conn, update.run) {
            self.on_update(now, conn, learner, update);
        }
    }

    /// Notes a message on `conn` and returns true if it is within the rate limit. Otherwise closes the connection.
    fn admits_message(&mut self, now: Millis, conn: ConnId) -> bool {
        self.roster.note_activity(now, conn);
        let allowed = self.roster.allows(now, conn, self.schedule.turn().next_round);
        if !allowed {
            let reason =
                "far more messages came than training needs: send what is asked for, and a report a second";
            self.refuse(conn, CloseCode::Protocol, reason.into());
        }
        allowed
    }

    pub(super) fn on_disconnected(&mut self, conn: ConnId) {
        self.remove(conn, LeaveCause::Lost);
    }

    /// Sends `bye` and removes the connection.
    pub(super) fn close(&mut self, conn: ConnId, bye: Bye) {
        let (code, reason) = (bye.code.into(), bye.reason.clone());
        if self.remove(conn, LeaveCause::Closed { code, reason: reason.clone() }).is_none() {
            self.event(Event::TurnedAway { code, reason });
        }
        self.out.push_back(Output::Close(conn, bye));
    }

    pub(super) fn refuse(&mut self, conn: ConnId, code: CloseCode, reason: String) {
        self.close(conn, Bye::new(code, reason));
    }

    /// Ends exclusions that are over, closes silent sessions, and takes back expired leases.
    pub(super) fn expire(&mut self, now: Millis) {
        for learner in self.roster.expire_exclusions(now) {
            self.accounting.note(Entry::Dropped { learner, wait_ms: 0 });
        }
        for conn in self.roster.silent(now) {
            self.refuse(conn, CloseCode::Silent, "nothing was heard for too long: connect again".into());
        }
        let returned = self.accounting.expire(now);
        self.report_returned(returned, true);
    }

    /// Pauses or resumes the run, and informs all learners.
    pub(super) fn on_hold(&mut self, now: Millis, held: bool) {
        if !self.schedule.hold(held) {
            return;
        }
        let everyone: Vec<_> = self.roster.conns().collect();
        self.accounting.note(Entry::Held { held });
        self.out.push_back(Output::Broadcast(everyone.clone(), Message::SetPaused { run: self.run, held }));
        self.event(Event::Held { held });
        for conn in everyone {
            self.lease(now, conn);
        }
    }

    /// Stops launching and leasing if `stalled`, otherwise resumes both.
    pub(super) fn on_stall(&mut self, now: Millis, stalled: bool) {
        self.schedule.stall(stalled);
        for conn in self.roster.conns().collect::<Vec<_>>() {
            self.lease(now, conn);
        }
    }

    /// Returns true if `learner` may be part of the run. With remote rounds, it may have joined at another gateway.
    fn may_be(&self, learner: LearnerId) -> bool {
        self.is_led() || self.knows(learner)
    }

    /// Limits the share of its time that `learner` trains, by order of the owner.
    pub(super) fn on_pace(&mut self, learner: LearnerId, share: Share) {
        if !self.may_be(learner) || self.share(learner) == share {
            return;
        }
        self.roster.pace(learner, share);
        self.accounting.note(Entry::Paced { learner, share });
        if let Some(conn) = self.roster.conn(learner) {
            self.out.push_back(Output::Send(conn, Message::SetDutyCycle { run: self.run, share }));
        }
        self.event(Event::Paced { learner, share });
    }

    /// Sends `learner` away for `wait_ms`, by order of the owner; 0 lets it return.
    pub(super) fn on_drop(&mut self, now: Millis, learner: LearnerId, wait_ms: u32) {
        let wait_ms = wait_ms.min(super::DROP_MS_MAX);
        let is_pardoned = wait_ms == 0 && self.trust.pardoned(&mut self.accounting, learner);
        let is_back = wait_ms == 0 && self.returns(now, learner).is_none();
        if !self.may_be(learner) || (is_back && !is_pardoned) {
            return;
        }
        self.roster.exclude_learner(now, learner, wait_ms);
        self.accounting.note(Entry::Dropped { learner, wait_ms });
        self.event(Event::Dropped { learner, wait_ms });
        if let Some(conn) = self.roster.conn(learner).filter(|_| wait_ms > 0) {
            self.reject_connection(conn, wait_ms);
        }
    }

    /// Closes the connection of the learner with this fingerprint, which the owner has banned.
    pub(super) fn on_ban(&mut self, fingerprint: Fingerprint) {
        let learner = self.ledger().at(fingerprint);
        if let Some(conn) = learner.and_then(|learner| self.roster.conn(learner)) {
            self.refuse(conn, CloseCode::Banned, BANNED.into());
        }
    }

    fn on_ready(&mut self, now: Millis, conn: ConnId, held: LayoutHash, batch: u32) {
        let layout = self.fragments.hash();
        if held != layout {
            return self.refuse(conn, CloseCode::Layout, layout_reason(layout, held));
        }
        if !(1..=BATCH_MAX).contains(&batch) {
            let reason = format!("a step of {batch} windows is out of range: train on 1 to {BATCH_MAX}");
            return self.refuse(conn, CloseCode::Protocol, reason);
        }
        let Some(session) = self.roster.ready(conn, batch) else { return };
        let (learner, is_fresh) = (session.learner, session.is_fresh);
        self.trust.ready(self.accounting.ledger(), learner);
        if is_fresh {
            self.rounds.iter_mut().for_each(|rounds| rounds.restart(learner));
        }
        // A returning learner may have trained while it was not connected, so its steps are credited from an earlier
        // time, unless it never had a lease.
        if is_fresh || self.accounting.is_new(learner) {
            self.rounds.iter_mut().for_each(|rounds| rounds.count_from(now, learner));
            self.accounting.count_from(now, learner);
        }
        self.accounting.doubt(learner);
        // The learner may have reported its pace before it was ready.
        self.measure();
        self.ask_again(now, conn, learner);
        self.event(Event::Live { learner });
        self.request_leader(|| LeaderRequest::Came(learner, conn));
        self.lease(now, conn);
    }

    fn on_progress(&mut self, now: Millis, conn: ConnId, learner: LearnerId, progress: &Progress) {
        let step_ms = progress.step_ms;
        if !(step_ms.is_finite() && step_ms >= 0.0) {
            let reason = format!(
                "a step of {step_ms} ms is out of range: report the time of one step, or 0 if it is unknown"
            );
            return self.refuse(conn, CloseCode::Protocol, reason);
        }
        let changed = self.roster.report(conn, progress.step_ms, progress.loss, progress.state);
        self.roster.note_steps(now, conn, progress.steps);
        let tokens_per_ms = self.step_tokens(learner) as f64 / self.step_ms_credited(now, learner);
        let is_live = self.roster.is_live(learner);
        let returned = self.accounting.report(now, learner, progress, tokens_per_ms, is_live);
        self.report_returned(returned, false);
        if changed {
            self.event(Event::State { learner, state: progress.state });
        }
        self.measure();
        self.lease(now, conn);
        if progress.steps > 0 {
            let follow = self.downlink.trains(now, conn);
            self.follow(conn, follow);
        }
    }

    fn on_bye(&mut self, conn: ConnId) {
        if let Some(learner) = self.remove(conn, LeaveCause::Polite) {
            let returned = self.accounting.release(learner);
            self.report_returned(returned, false);
        }
    }

    /// Leases text to the learner at `conn`, unless the run is paused, stalled or over.
    fn lease(&mut self, now: Millis, conn: ConnId) {
        let learner = self.roster.learner(conn).filter(|_| !self.schedule.is_still());
        let session = learner.and_then(|learner| self.roster.session(learner));
        let Some(session) = session.filter(|session| session.is_live) else { return };
        let learner = session.learner;
        let (step_ms, batch) = (session.step_ms, session.batch.max(1));
        let pace = Speed { step_ms, step_ms_least: self.roster.step_ms_least(learner), batch };
        for grant in self.accounting.grant(now, learner, &pace) {
            let grant = self.with_process_epoch(grant);
            self.out.push_back(Output::Send(conn, Message::Lease { run: self.run, grant }));
        }
    }

    fn remove(&mut self, conn: ConnId, why: LeaveCause) -> Option<LearnerId> {
        let Some(learner) = self.roster.close(conn) else {
            self.request_leader(|| LeaderRequest::Gone(conn));
            return None;
        };
        self.trust.left(learner);
        self.downlink.close(conn);
        self.rounds.iter_mut().for_each(|rounds| rounds.cancel_request(learner));
        self.measure();
        self.forget_requests(learner);
        self.event(Event::Left { learner, why });
        self.request_leader(|| LeaderRequest::Left(learner, conn));
        Some(learner)
    }

    /// Updates the statistics over connected learners: the longest merged time and the median step time.
    pub(super) fn measure(&mut self) {
        self.trust.measure(self.accounting.ledger());
        if let Some(step_ms) = self.roster.step_ms() {
            self.schedule.note_step(step_ms);
        }
        self.report_pace();
    }

    pub(super) fn report_returned(&mut self, returned: Vec<Returned>, expired: bool) {
        for Returned { learner, lease, windows } in returned {
            self.event(Event::LeaseReturned { learner, lease, windows, expired });
        }
    }

    pub(super) fn reject_connection(&mut self, conn: ConnId, wait_ms: u32) {
        let reason = "the owner of the run dropped this learner for a while";
        self.close(conn, Bye { wait_ms, ..Bye::new(CloseCode::Dropped, reason) });
    }

    /// Sends away a convicted learner for `wait_ms`, or until the owner lets it back.
    pub(super) fn exclude(&mut self, conn: ConnId, wait_ms: u32, is_banned: bool) {
        let reason = match is_banned {
            true => "what this learner sent made the model worse again: ask the owner of the run",
            false => "what this learner sent made the model worse, so the syncer rolled it back",
        };
        self.close(conn, Bye { wait_ms, ..Bye::new(CloseCode::Dropped, reason) });
    }

    /// Returns true if a message at `conn` is for this run. Otherwise closes the connection.
    fn is_of_this_run(&mut self, conn: ConnId, run: RunId) -> bool {
        if run != self.run {
            self.refuse(conn, CloseCode::WrongRun, self.other_run(run));
        }
        run == self.run
    }

    pub(super) fn other_run(&self, run: RunId) -> String {
        format!("this is run {}, not {run}: join it again", self.run)
    }
}

/// Time after which a learner without a seat may return, in milliseconds. Our own constant.
const FULL_WAIT_MS: u32 = 10_000;

impl Syncer {
    /// Frees a seat for an arriving learner if none is free. `known` is its number if the ledger has one.
    ///
    /// # Errors
    /// The `Bye` to send if the learner gets no seat, with the time after which it may return.
    pub(super) fn seat(&mut self, known: Option<LearnerId>) -> Result<(), Bye> {
        let seats = self.config.learners_max as usize;
        let leaves = self.trust.seat(self.ledger(), known, seats, self.roster.len()).map_err(full)?;
        if let Some(conn) = leaves.and_then(|learner| self.roster.conn(learner)) {
            self.close(conn, full("one that trained for longer needs the seat".to_owned()));
        }
        Ok(())
    }
}

fn full(why: String) -> Bye {
    let reason = format!("{why}: come back in {} s", FULL_WAIT_MS / 1_000);
    Bye { wait_ms: FULL_WAIT_MS, ..Bye::new(CloseCode::Full, reason) }
}

impl Syncer {
    pub(super) fn on_hello(&mut self, now: Millis, conn: ConnId, hello: Box<Hello>) {
        if let Err(bye) = self.check_hello(&hello) {
            return self.close(conn, bye);
        }
        if self.is_led() {
            return self.request_leader(|| LeaderRequest::Introduce(conn, hello));
        }
        let known = self.ledger().find(&hello.identity);
        self.admit(now, conn, &hello, known, None);
    }

    /// Admits a connection under the number that the leaders assigned to its learner.
    pub(super) fn on_introduced(&mut self, now: Millis, conn: ConnId, hello: &Hello, learner: LearnerId) {
        if !self.is_led() || self.roster.learner(conn).is_some() {
            return;
        }
        if let Err(bye) = self.check_hello(hello) {
            return self.close(conn, bye);
        }
        if self.roster.conn(learner).is_some_and(|newer| newer > conn) {
            // The learner connected again while this connection waited, so this one is stale.
            let reason = "a newer connection with the same identity took over";
            return self.refuse(conn, CloseCode::Replaced, reason.into());
        }
        let known = self.knows(learner).then_some(learner);
        self.admit(now, conn, hello, known, Some(learner));
    }

    /// Admits a learner or turns it away. `known` is its number if the ledger has one; `number` is the number that
    /// remote leaders assigned to it.
    fn admit(
        &mut self,
        now: Millis,
        conn: ConnId,
        hello: &Hello,
        known: Option<LearnerId>,
        number: Option<LearnerId>,
    ) {
        let account = known.and_then(|learner| self.ledger().account(learner));
        if account.is_some_and(|account| account.trust.is_banned()) {
            return self.exclude(conn, super::DROP_MS_MAX, true);
        }
        // With remote rounds, orders of the owner may be all that is known here about a learner.
        let told_of = number.or(known);
        let is_convicted = account.is_some_and(|account| account.trust.convictions() > 0);
        if let Some((learner, wait_ms)) =
            told_of.and_then(|learner| Some((learner, self.roster.away_ms(now, learner)?)))
        {
            // An owner can send a convicted learner away, too. Only the length of the time tells the cause.
            return match is_convicted && self.roster.exclusion_ms(learner) == EXCLUSION_MS {
                true => self.exclude(conn, wait_ms, false),
                false => self.reject_connection(conn, wait_ms),
            };
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
            let needed = |learner| roster.conn(learner).is_some() || roster.is_restricted(learner);
            match self.accounting.evict_identity(needed) {
                Ok(None) => {}
                Ok(Some(forgotten)) => self.rounds.iter_mut().for_each(|rounds| rounds.forget(forgotten)),
                Err(full) => return self.refuse(conn, CloseCode::Full, full.to_string()),
            }
        }
        self.welcome(now, conn, hello, number);
    }

    /// Checks that a peer has the run and the layout of this syncer, and that the run is not ending.
    fn check_hello(&self, hello: &Hello) -> Result<(), Bye> {
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
        let (learner, returning) = self.accounting.enrol(&hello.identity, &hello.name, &hello.device, number);
        if number.is_some() {
            self.credit(learner, hello.run.is_some());
        }
        if hello.run.is_none() {
            // A new process does not have the progress of the previous one.
            let returned = self.accounting.restart(learner);
            self.report_returned(returned, false);
        }
        self.roster.open(now, conn, learner, hello.run.is_none());
        self.trust.joined(self.accounting.ledger(), learner);
        self.downlink.open(conn);
        let ledger = self.accounting.ledger();
        let account = ledger.account(learner).expect("enrolled above");
        let welcome = Welcome {
            run: self.run,
            learner,
            spec: self.spec.clone(),
            layout: self.fragments.hash(),
            versions: self.rounds.iter().map(|rounds| rounds.version()).collect(),
            clock_tokens: ledger.schedule_tokens(),
            merged: account.merged.clone(),
            unsettled: self.rounds.iter().map(|rounds| rounds.unresolved(learner)).collect(),
            leases: self.accounting.leased(learner),
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
