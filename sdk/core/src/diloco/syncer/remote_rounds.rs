//! Remote rounds: this syncer serves learners as a gateway, and other processes decide on their updates.
//!
//! It admits learners, leases text, asks for progress when a round begins, and forwards the answers. It learns outcomes
//! from the tape of each fragment, which all gateways read. All gateways therefore book the same accounts, and a
//! learner finds its merges from other gateways here.
//!
//! An update belongs to the round in which it was asked for, or to a later one if its sender is known to be connected
//! then: see [`late`]. A returning learner is admitted once every round that was under way is over. None of its updates
//! is then open anywhere: see [`super::LeaderRequest::Introduce`]. This holds if a learner answers each question once
//! and sends an unasked update only before it leaves for good, as learners do.

mod late;

use std::collections::BTreeMap;
use std::sync::Arc;

use late::{Late, Next};

use super::{
    Answer, Event, Followed, LeaderRequest, Output, Paces, Rounds, Syncer, SyncerConfig, SyncerError, plan,
};
use crate::diloco::accounting::LEASE_WINDOWS_MAX;
use crate::diloco::{FragmentState, Layout, Merge, Paced, Part, Timing, UpdateOutcome, Verified};
use crate::wire::{
    ConnId, Fate, FragmentId, LateReason, LearnerId, LeaseGrant, LeaseId, Message, Millis, Refusal, Round,
    RunId, RunSpec, Serial, Version,
};

/// Bits of an epoch number that count epochs; the other bits identify the process.
const EPOCH_BITS: u32 = 16;
/// Size of the range of lease numbers of one process.
const LEASES_OF_A_PROCESS: u64 = 1 << 32;

/// State of remote rounds.
#[derive(Debug)]
pub(super) struct RemoteRounds {
    /// Distinguishes the epochs of this process from those of others.
    salt: u16,
    /// Open questions.
    asked: BTreeMap<(FragmentId, LearnerId), Question>,
    /// Newest known round of each fragment, and the time at which it became known.
    newest: BTreeMap<FragmentId, (Round, Millis)>,
    /// Newest round of each fragment that is known to be over.
    over: BTreeMap<FragmentId, Round>,
    /// Late updates that wait for another round.
    late: Late,
    /// Paces at the last report.
    told: Paces,
    /// Whether the leaders know that the run has enough tokens.
    is_enough: bool,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    /// Time of the question.
    since: Millis,
    /// Round of the answer.
    round: Round,
    /// Newest round in which the learner was asked, at least `round`.
    newest: Round,
}

impl Syncer {
    /// Creates a new run without rounds of its own, from Θ̂ in `hats`, `[P]` of `[fragment_len]`, as computed by
    /// [`crate::diloco::halves::nearest`]. Call [`Self::led_elsewhere`] next.
    ///
    /// # Errors
    /// As [`Self::new`]; [`SyncerError::FragmentCount`] or [`SyncerError::Fragment`] if `hats` do not fit the layout.
    pub fn before_others(
        run: RunId,
        spec: RunSpec,
        config: SyncerConfig,
        layout: &Layout,
        hats: Vec<Arc<Vec<f32>>>,
    ) -> Result<Self, SyncerError> {
        let fragments = plan(&spec, layout)?;
        let (expected, actual) = (usize::from(fragments.count()), hats.len());
        if expected != actual {
            return Err(SyncerError::FragmentCount { expected, actual });
        }
        for (fragment, hat) in fragments.ids().zip(&hats) {
            let (expected, actual) = (fragments.len(fragment), hat.len());
            if expected != actual {
                return Err(SyncerError::Fragment { fragment, expected, actual });
            }
        }
        let states = hats.into_iter().map(|hat| FragmentState::of_hat(Version(0), hat)).collect();
        Self::begin(run, spec, config, fragments, states)
    }

    /// Hands the rounds over to other processes. `process` is a random number that identifies this process.
    ///
    /// From now on nothing is launched or merged here. Only Θ̂ of each fragment is kept, and it replaces Θ wherever
    /// parameters are sent, evaluated or exported.
    #[must_use]
    pub fn led_elsewhere(mut self, process: u64) -> Self {
        // Another process may have granted leases to the same learner.
        self.books.number_leases_from(LeaseId((process & 0x7fff_ffff) * LEASES_OF_A_PROCESS));
        let salt = (process >> 48) as u16;
        let (asked, newest, over) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (late, told, is_enough) = (Late::default(), Paces::default(), false);
        self.rounds.iter_mut().for_each(Rounds::keep_hat);
        self.led = Some(RemoteRounds { salt, asked, newest, over, late, told, is_enough });
        self
    }

    /// Returns true if other processes lead the rounds.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.led.is_some()
    }

    /// Forwards a message to the leaders if the rounds are remote.
    pub(super) fn request_leader(&mut self, said: impl FnOnce() -> LeaderRequest) {
        if self.is_led() {
            self.out.push_back(Output::LeaderRequest(said()));
        }
    }

    /// Reports the paces of learners to the leaders if they have changed enough.
    pub(super) fn tell_pace(&mut self) {
        let &Timing { step_ms, answer_ms, .. } = self.schedule.timing();
        let paces = Paces { step_ms, answer_ms };
        let is_news = |told: Paces| is_other(told.step_ms, step_ms) || is_other(told.answer_ms, answer_ms);
        if let Some(led) = self.led.as_mut().filter(|led| is_news(led.told)) {
            led.told = paces;
            self.out.push_back(Output::LeaderRequest(LeaderRequest::Pace(paces)));
        }
    }

    /// Finishes a run that has enough tokens, or tells the leaders once.
    pub(super) fn on_enough(&mut self) {
        let Some(led) = &mut self.led else { return self.finish() };
        if !std::mem::replace(&mut led.is_enough, true) {
            self.request_leader(|| LeaderRequest::Enough);
        }
    }

    /// Handles the end of the last round of `fragment`.
    pub(super) fn on_closed(&mut self, fragment: FragmentId) {
        if self.is_led() {
            self.finish();
            self.schedule.close(fragment);
        }
    }

    /// Returns a lease as learners see it: each process traverses the text in an order of its own.
    pub(super) fn told(&self, grant: LeaseGrant) -> LeaseGrant {
        let Some(led) = &self.led else { return grant };
        let epochs = (1 << EPOCH_BITS) - 1;
        LeaseGrant { epoch: u32::from(led.salt) << EPOCH_BITS | grant.epoch & epochs, ..grant }
    }

    /// Credits tokens of `learner` that other gateways leased. A returning learner with merged updates may hold further
    /// leases. It is credited for those as after a restart.
    pub(super) fn credit(&mut self, learner: LearnerId, returns: bool) {
        let is_merged = self.ledger().account(learner).is_some_and(|account| !account.is_stranger());
        let windows = match returns && is_merged {
            true => 2 * self.leases().epoch_windows().min(u64::from(LEASE_WINDOWS_MAX)),
            false => 0,
        };
        self.books.credit(learner, windows * u64::from(self.spec.model.context));
    }

    /// Handles a question of the fragment's leader to `learner` at `conn` in `round`.
    pub(super) fn on_asked(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        learner: LearnerId,
        conn: ConnId,
        round: Round,
    ) {
        let is_there = self.roster.conn(learner) == Some(conn) && self.roster.is_live(learner);
        let Some(led) = self.led.as_mut().filter(|_| is_there) else { return };
        let is_new = led.newest.get(&fragment).is_none_or(|(newest, _)| *newest < round);
        if is_new {
            led.newest.insert(fragment, (round, now));
            // Rounds of a fragment follow one another.
            led.note_over(fragment, Round(round.0.saturating_sub(1)));
        }
        let over = led.over(fragment);
        let next = led.late.ask((fragment, learner), conn, round, over);
        let at = (fragment, learner);
        let asks = matches!(next, Next::Absent) && !led.asked.contains_key(&at);
        if matches!(next, Next::Absent) {
            // The answer belongs to the round of the question; afterwards the learner is asked again.
            let question = led.asked.entry(at).or_insert(Question { since: now, round, newest: round });
            question.newest = question.newest.max(round);
        }
        if is_new {
            // The allowance of messages depends on the number of rounds.
            self.schedule.take_round();
            let (invited, step_ms) = (self.roster.live().len() as u32, self.schedule.timing().step_ms);
            self.event(Event::Launched { round, fragment, invited, step_ms });
        }
        match next {
            Next::Absent if asks => self.ask(now, fragment, learner, conn),
            Next::Absent | Next::Wait => {}
            Next::Send(number) => self.out.push_back(Output::Probe(conn, number)),
            Next::Found(update) => self.pass_on_in(now, conn, learner, round, *update),
        }
    }

    /// Handles the echo of a number on this connection.
    pub(super) fn on_probed(&mut self, now: Millis, conn: ConnId, number: u64) {
        let back = self.led.as_mut().and_then(|led| led.late.back(conn, number));
        if let Some((learner, round, update)) = back {
            self.pass_on_in(now, conn, learner, round, update);
        }
    }

    fn ask(&mut self, now: Millis, fragment: FragmentId, learner: LearnerId, conn: ConnId) {
        let Some(rounds) = self.rounds.get(usize::from(fragment.0)) else { return };
        self.roster.note_asked(now, learner);
        let collect = Message::Collect { run: self.run, fragment, base: rounds.version() };
        self.out.push_back(Output::Send(conn, collect));
    }

    /// Returns the round of an answer from `learner`.
    ///
    /// # Errors
    /// The newest round, if any, if the answer is late or unasked (a learner that leaves sends what it has). An answer
    /// must belong to a round that was under way while its sender was connected. Otherwise it could be merged after the
    /// sender returned elsewhere.
    fn answered_in(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        learner: LearnerId,
    ) -> Result<Round, Option<Round>> {
        let led = self.led.as_mut().ok_or(None)?;
        let Some(Question { since, round, newest }) = led.asked.remove(&(fragment, learner)) else {
            return Err(led.newest.get(&fragment).map(|(newest, _)| *newest));
        };
        let is_over = led.over(fragment) >= round;
        let after_ms = now.since(since);
        self.roster.note_answer(learner, after_ms);
        self.schedule.note_answer(after_ms);
        if round == newest && !is_over { Ok(round) } else { Err(Some(newest)) }
    }

    /// Forwards an update, or keeps it for a later round.
    pub(super) fn pass_on(&mut self, now: Millis, conn: ConnId, learner: LearnerId, update: Verified) {
        let fragment = update.fragment;
        let answered = self.answered_in(now, fragment, learner);
        if let Ok(round) = answered {
            return self.pass_on_in(now, conn, learner, round, update);
        }
        let Some(led) = &mut self.led else { return };
        let over = led.over(fragment);
        let (number, before) = led.late.keep(learner, conn, update, over);
        self.out.push_back(Output::Probe(conn, number));
        if let Some(before) = before {
            self.lose(fragment, learner, before.serial, before.tokens);
        }
        if let Err(Some(newest)) = answered
            && newest > over
        {
            // The newest round is under way.
            self.on_asked(now, fragment, learner, conn, newest);
        }
    }

    /// Forwards an update for `round`.
    fn pass_on_in(&mut self, now: Millis, conn: ConnId, learner: LearnerId, round: Round, update: Verified) {
        let (fragment, tokens) = (update.fragment, update.tokens);
        let standing = self.standing(now, learner, fragment);
        let since = self.led.as_ref().and_then(|led| led.newest.get(&fragment)).map(|(_, since)| *since);
        let after_ms = now.since(since.unwrap_or(now));
        self.tell_pace();
        self.event(Event::Answered { round: Some(round), fragment, learner, tokens, after_ms });
        let answer = Answer::Update(Box::new(update), standing);
        self.request_leader(|| LeaderRequest::Answer(fragment, learner, conn, round, answer));
    }

    /// Forwards that `learner` has no update. If that is too late for its round and another is under way, asks again.
    pub(super) fn pass_on_nothing(
        &mut self,
        now: Millis,
        conn: ConnId,
        learner: LearnerId,
        fragment: FragmentId,
    ) {
        match self.answered_in(now, fragment, learner) {
            Ok(round) => {
                self.request_leader(|| LeaderRequest::Answer(fragment, learner, conn, round, Answer::Nothing))
            }
            Err(Some(newest)) if self.led.as_ref().is_some_and(|led| newest > led.over(fragment)) => {
                let question = Question { since: now, round: newest, newest };
                if let Some(led) = &mut self.led {
                    led.asked.insert((fragment, learner), question);
                }
                self.ask(now, fragment, learner, conn);
            }
            // The next round asks it again.
            Err(_) => {}
        }
    }

    /// Handles an update of `learner` at `conn` that was not merged.
    pub(super) fn on_unmerged(
        &mut self,
        fragment: FragmentId,
        (learner, conn): (LearnerId, ConnId),
        serial: Serial,
        refusal: Option<Refusal>,
    ) {
        if self.roster.conn(learner) != Some(conn) {
            return;
        }
        match refusal.map(Fate::Refused) {
            None => self.lose(fragment, learner, serial, 0),
            Some(fate) => {
                self.books.note_update(learner);
                self.settle(UpdateOutcome { round: None, fragment, learner, serial, tokens: 0, fate });
                self.heed_refusals(conn, learner, &fate);
            }
        }
    }

    fn lose(&mut self, fragment: FragmentId, learner: LearnerId, serial: Serial, tokens: u64) {
        let fate = Fate::Late(LateReason::RoundOver);
        self.books.note_update(learner);
        self.settle(UpdateOutcome { round: None, fragment, learner, serial, tokens, fate });
    }

    /// Notes a round that was abandoned or passed to another leader.
    pub(super) fn on_over(&mut self, fragment: FragmentId, round: Round) {
        if let Some(led) = &mut self.led {
            led.note_over(fragment, round);
        }
    }

    /// Books a merge that another process decided on, informs its senders, and publishes the change.
    pub(super) fn on_followed(&mut self, now: Millis, followed: Followed) {
        let Followed { merge: entry, led } = followed;
        let (round, fragment) = (entry.round, entry.fragment);
        let Some(ours) = &mut self.led else { return };
        ours.note_over(fragment, round);
        let newest = &ours.newest;
        let Some(rounds) = self.rounds.get_mut(usize::from(fragment.0)) else { return };
        let launched = newest.get(&fragment).filter(|(newest, _)| *newest == round);
        let collect_ms = launched.map_or(0, |(_, since)| now.since(*since));
        let body = led.map(|(state, body)| {
            rounds.follow(state);
            body
        });
        for part in &entry.parts {
            self.books.know(part.learner);
            self.books.note_update(part.learner);
        }
        let paced =
            |part: &Part| Paced { learner: part.learner, tokens: part.tokens, step_ms: part.step_ms() };
        let paces = entry.parts.iter().map(paced).collect();
        let settled = entry.settled().collect();
        let merge = Merge { entry, settled, body: Vec::new(), collect_ms, sync_ms: 0, paces };
        self.announce(now, fragment, merge, body);
    }

    /// Drops all questions to `learner`, and its late updates.
    pub(super) fn forget_questions(&mut self, learner: LearnerId) {
        if let Some(led) = &mut self.led {
            led.asked.retain(|(_, asked), _| *asked != learner);
            led.late.forget(learner);
        }
    }
}

impl RemoteRounds {
    /// Returns the newest round of `fragment` that is known to be over.
    fn over(&self, fragment: FragmentId) -> Round {
        self.over.get(&fragment).copied().unwrap_or(Round(0))
    }

    fn note_over(&mut self, fragment: FragmentId, round: Round) {
        let over = self.over.entry(fragment).or_insert(round);
        *over = (*over).max(round);
    }
}

/// Returns true if two times differ by more than a tenth, which is worth a report.
fn is_other(before: f64, now: f64) -> bool {
    (before - now).abs() > 0.1 * before.max(now)
}

#[cfg(test)]
mod tests;
