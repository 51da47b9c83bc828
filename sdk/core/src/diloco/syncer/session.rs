//! Who is connected, and what they are leased.

use super::speed::STEP_MS;
use super::{Event, LeaveCause, Output, Syncer};
use crate::data::LEASES_MAX;
use crate::diloco::Millis;
use crate::wire::{
    Bye, CloseCode, ConnId, Hello, LayoutHash, LearnerId, LearnerState, Message, Progress, RunId, Welcome,
};

/// Windows in one lease, at most.
pub(super) const LEASE_WINDOWS_MAX: u32 = 1 << 16;
/// Leases that a learner holds at most: tiny shards must not flood it.
const LEASES_HELD_MAX: usize = LEASES_MAX as usize / 2;

/// One connection with a learner behind it.
pub(super) struct Session {
    pub(super) learner: LearnerId,
    /// Its process held nothing of the run when it came.
    fresh: bool,
    /// It holds the parameters and trains: it is invited to rounds.
    pub(super) live: bool,
    pub(super) state: LearnerState,
    /// Its own moving average of a step, 0 until known.
    pub(super) step_ms: f64,
    /// The shortest it ever claimed, 0 until known: the speed that its claims are held against.
    pub(super) step_ms_min: f64,
    /// Its last mean training loss, in nats per token.
    pub(super) loss: f32,
    heard: Millis,
    /// When it introduced itself.
    pub(super) since: Millis,
}

impl Syncer {
    pub(super) fn on_message(&mut self, now: Millis, conn: ConnId, message: Message) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            match message {
                Message::Hello(hello) => self.on_hello(now, conn, &hello),
                Message::Bye(_) => {}
                _ => self.refuse(conn, CloseCode::Protocol, "the first message must be Hello".into()),
            }
            return;
        };
        session.heard = now;
        if let Some(run) = run_of(&message).filter(|&run| run != self.run) {
            let reason = format!("this is run {}, not {run}: join it afresh", self.run);
            return self.refuse(conn, CloseCode::WrongRun, reason);
        }
        match message {
            Message::Ready { layout, .. } => self.on_ready(now, conn, layout),
            Message::Update(update) => self.on_update(now, conn, update),
            Message::Pass { round, fragment, .. } => self.on_pass(now, conn, round, fragment),
            Message::Progress(progress) => self.on_progress(now, conn, &progress),
            Message::Bye(_) => self.on_bye(conn),
            other => {
                let reason = format!("a learner must not send message {} here", other.tag() as u8);
                self.refuse(conn, CloseCode::Protocol, reason);
            }
        }
    }

    pub(super) fn on_heard(&mut self, now: Millis, conn: ConnId) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.heard = now;
        }
    }

    pub(super) fn on_disconnected(&mut self, conn: ConnId) {
        self.remove(conn, LeaveCause::Lost);
    }

    /// Says goodbye to `conn` and forgets it.
    pub(super) fn close(&mut self, conn: ConnId, bye: Bye) {
        let cause = LeaveCause::Closed { code: bye.code.into(), reason: bye.reason.clone() };
        self.remove(conn, cause);
        self.out.push_back(Output::Close(conn, bye));
    }

    /// Closes silent sessions and takes back lost leases.
    pub(super) fn expire(&mut self, now: Millis) {
        self.expire_reins(now);
        let silent = self.sessions.iter().filter(|(_, session)| self.silent_at(session) <= now);
        for conn in silent.map(|(&conn, _)| conn).collect::<Vec<_>>() {
            self.refuse(conn, CloseCode::Silent, "nothing was heard for too long: connect again".into());
        }
        for back in self.leases.expire(now, now.after(self.config.lease_idle_ms_max)) {
            let (learner, lease, windows) = (back.learner, back.lease, back.windows);
            self.return_supply(learner, windows);
            self.event(Event::LeaseReturned { learner, lease, windows, expired: true });
        }
    }

    /// When `session` counts as gone if nothing is heard of it.
    pub(super) fn silent_at(&self, session: &Session) -> Millis {
        let patience = match session.state {
            LearnerState::Hidden | LearnerState::Paused => self.config.hidden_ms_max,
            // A step may take longer than the silence allowed; the learner speaks between steps.
            _ => self.config.silent_ms_max.max((4.0 * session.step_ms) as u64),
        };
        session.heard.after(patience)
    }

    pub(super) fn refuse(&mut self, conn: ConnId, code: CloseCode, reason: String) {
        self.close(conn, Bye::new(code, reason));
    }

    fn on_hello(&mut self, now: Millis, conn: ConnId, hello: &Hello) {
        let layout = self.fragments.hash();
        if let Some(run) = hello.run.filter(|&run| run != self.run) {
            let reason = format!("this is run {}, not {run}: join it afresh", self.run);
            return self.refuse(conn, CloseCode::WrongRun, reason);
        }
        if let Some(held) = hello.layout.filter(|&held| held != layout) {
            return self.refuse(conn, CloseCode::Layout, layout_reason(layout, held));
        }
        if self.finishing.is_some() {
            return self.refuse(conn, CloseCode::Done, "the run is complete".into());
        }
        let known = self.ledger.find(&hello.identity);
        if known.is_some_and(|learner| self.turned_away(now, conn, learner)) {
            return;
        }
        if let Some(&ghost) = known.and_then(|learner| self.connections.get(&learner)) {
            let reason = "another connection with the same identity took over".into();
            self.refuse(ghost, CloseCode::Replaced, reason);
        }
        if self.sessions.len() >= self.config.learners_max as usize {
            let reason = format!("{} learners are connected, which is the limit", self.config.learners_max);
            return self.refuse(conn, CloseCode::Full, reason);
        }
        let full = known.is_none() && self.ledger.len() >= self.config.identities_max as usize;
        if full && !self.make_room() {
            let reason =
                format!("{} identities have been here, which is the limit", self.config.identities_max);
            return self.refuse(conn, CloseCode::Full, reason);
        }
        let (learner, returning) = self.ledger.enrol(&hello.identity, &hello.name, &hello.device);
        if hello.run.is_none() {
            // A new process: whatever the one before was doing is lost.
            self.release_leases(learner);
            self.ledger.restart(learner);
        }
        let session = Session {
            learner,
            fresh: hello.run.is_none(),
            live: false,
            state: LearnerState::Joining,
            step_ms: 0.0,
            step_ms_min: 0.0,
            loss: f32::NAN,
            heard: now,
            since: now,
        };
        self.sessions.insert(conn, session);
        self.connections.insert(learner, conn);
        let account = self.ledger.account(learner).expect("enrolled above");
        let welcome = Welcome {
            run: self.run,
            learner,
            spec: self.spec.clone(),
            layout,
            versions: self.versions.clone(),
            clock_tokens: self.ledger.clock_tokens(),
            merged_rounds: account.merged_rounds.clone(),
            leases: self.leases.leases(learner),
            tokens_trained: account.trained(),
            tokens_merged: self.ledger.merged_tokens(account),
            held: self.held,
            share: self.share(learner),
        };
        self.out.push_back(Output::Send(conn, Message::Welcome(Box::new(welcome))));
        let (name, device) = (hello.name.clone(), hello.device.clone());
        self.event(Event::Joined { learner, name, device, returning });
    }

    fn on_ready(&mut self, now: Millis, conn: ConnId, held: LayoutHash) {
        let layout = self.fragments.hash();
        if held != layout {
            return self.refuse(conn, CloseCode::Layout, layout_reason(layout, held));
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        session.live = true;
        session.state = LearnerState::Training;
        let (learner, fresh) = (session.learner, session.fresh);
        // Whoever was never leased anything has nothing from before, whatever it says.
        let new = self.ledger.account(learner).is_some_and(|account| account.leased_tokens == 0);
        if fresh || new {
            // One that comes back may have trained for as long as it was away.
            for fragment in self.fragments.ids() {
                self.counted.entry((learner, fragment)).or_insert(now);
            }
        } else {
            // A grant may have been lost with the connection; one that arrived changes nothing.
            for grant in self.leases.untouched(learner) {
                self.out.push_back(Output::Send(conn, Message::Lease { run: self.run, grant }));
            }
        }
        self.ask_again(conn, learner);
        self.event(Event::Live { learner });
        self.lease(now, conn);
    }

    fn on_progress(&mut self, now: Millis, conn: ConnId, progress: &Progress) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let learner = session.learner;
        let step_ms = f64::from(progress.step_ms);
        if STEP_MS.contains(&step_ms) {
            session.step_ms = step_ms;
            session.step_ms_min =
                if session.step_ms_min > 0.0 { session.step_ms_min.min(step_ms) } else { step_ms };
        }
        if progress.loss.is_finite() {
            session.loss = progress.loss;
        }
        let changed = session.state != progress.state;
        session.state = progress.state;
        let live = session.live;
        self.ledger.report(learner, progress.tokens);
        if live {
            // One that takes no step, in a hidden tab or a long pause, names no lease that came after its last.
            self.leases.extend(learner, now.after(self.config.lease_idle_ms_max));
        }
        for &(lease, done) in &progress.leases {
            self.leases.progress(learner, lease, done, now.after(self.config.lease_idle_ms_max));
        }
        if changed {
            self.event(Event::State { learner, state: progress.state });
        }
        self.measure_step();
        self.lease(now, conn);
    }

    fn on_bye(&mut self, conn: ConnId) {
        let learner = self.remove(conn, LeaveCause::Polite);
        if let Some(learner) = learner {
            self.release_leases(learner);
        }
    }

    /// Keeps the learner supplied for about `lease_ms`.
    pub(super) fn lease(&mut self, now: Millis, conn: ConnId) {
        if self.held {
            return;
        }
        let Some(session) = self.sessions.get(&conn).filter(|session| session.live) else { return };
        let learner = session.learner;
        let batch = self.spec.inner.batch.max(1);
        let wanted = self.lease_steps(learner, session.step_ms).saturating_mul(batch);
        // No learner may hold more than an eighth of the data, or others would have none.
        let share = u32::try_from(self.leases.epoch_windows() / 8).unwrap_or(u32::MAX);
        let wanted = wanted.min(LEASE_WINDOWS_MAX).min(share).max(batch);
        let mut held = self.leases.remaining(learner);
        // A grant ends with its shard, so that it may take several to have a batch at all.
        let enough = wanted.div_ceil(2).max(batch);
        while held < enough
            && self.leases.leases(learner).len() < LEASES_HELD_MAX
            && self.may_lease(now, learner)
        {
            let expires = now.after(self.config.lease_idle_ms_max);
            let grant = self.leases.grant(learner, wanted - held, expires);
            held += grant.windows;
            self.supply(learner, grant.windows);
            let tokens = u64::from(grant.windows) * u64::from(self.spec.model.context);
            if let Some(account) = self.ledger.account_mut(learner) {
                account.leased_tokens = account.leased_tokens.saturating_add(tokens);
            }
            self.out.push_back(Output::Send(conn, Message::Lease { run: self.run, grant }));
        }
    }

    /// Forgets an identity that came to nothing, if there is one that is gone.
    fn make_room(&mut self) -> bool {
        let holders = self.leases.holders();
        let (connections, reins) = (&self.connections, &self.reins);
        let evicted = self.ledger.evict(|learner| {
            !connections.contains_key(&learner)
                && !reins.contains_key(&learner)
                && !holders.contains(&learner)
        });
        let Some(evicted) = evicted else { return false };
        self.counted.retain(|(learner, _), _| *learner != evicted);
        self.supplies.remove(&evicted);
        true
    }

    fn release_leases(&mut self, learner: LearnerId) {
        for back in self.leases.release(learner) {
            let (lease, windows) = (back.lease, back.windows);
            self.return_supply(learner, windows);
            self.event(Event::LeaseReturned { learner, lease, windows, expired: false });
        }
    }

    fn remove(&mut self, conn: ConnId, why: LeaveCause) -> Option<LearnerId> {
        let learner = self.sessions.remove(&conn)?.learner;
        self.connections.remove(&learner);
        self.measure_step();
        self.event(Event::Left { learner, why });
        Some(learner)
    }

    /// ξ_step of the (lower) median live learner: neither a crawling nor a boasting one moves it.
    fn measure_step(&mut self) {
        let live = self.sessions.values().filter(|session| session.live && session.step_ms > 0.0);
        let mut times: Vec<f64> = live.map(|session| session.step_ms).collect();
        times.sort_by(f64::total_cmp);
        if let Some(&median) = times.get(times.len().saturating_sub(1) / 2) {
            self.timing.step_ms = median;
            let steps = f64::from(self.spec.exchange.sync_every) / f64::from(self.fragments.count());
            self.timing.launch_ms = median * steps.max(1.0);
        }
    }
}

fn layout_reason(ours: LayoutHash, theirs: LayoutHash) -> String {
    format!("this run's parameters are laid out as {ours}, not {theirs}: use the same release as the syncer")
}

fn run_of(message: &Message) -> Option<RunId> {
    match message {
        Message::Ready { run, .. }
        | Message::Collect { run, .. }
        | Message::Pass { run, .. }
        | Message::Receipt { run, .. }
        | Message::Hold { run, .. }
        | Message::Pace { run, .. }
        | Message::Lease { run, .. } => Some(*run),
        Message::Update(update) => Some(update.run),
        Message::Merged(merged) => Some(merged.run),
        Message::Progress(progress) => Some(progress.run),
        Message::Welcome(welcome) => Some(welcome.run),
        Message::Hello(_) | Message::Bye(_) => None,
    }
}
