//! Rounds that are led elsewhere: this syncer faces the learners, and others decide on its updates.
//!
//! It takes learners in, leases them text, asks them when a round begins, and passes on what they answer. What a round
//! came to it is told, by the record of its fragment that all who face learners read. So the accounts of everyone grow
//! from the same records everywhere, and a learner finds here what was merged of it elsewhere.
//!
//! An update is of the round in which it was asked for, or of a later one if its sender is known to be here then: see
//! [`late`]. A learner that comes back is taken in
//! once each round that was under way is over, and then nothing of it is open anywhere: see
//! [`super::Upward::Introduce`]. That holds for who answers each question once, and hands in nothing unasked but before
//! it leaves for good, as learners do.

mod late;

use std::collections::BTreeMap;
use std::sync::Arc;

use late::{Late, Next};

use super::{
    Answer, Event, Followed, Output, Paces, Rounds, Syncer, SyncerConfig, SyncerError, Upward, plan,
};
use crate::diloco::books::LEASE_WINDOWS_MAX;
use crate::diloco::{FragmentState, Layout, Merge, Paced, Part, Settled, Timing, Verified};
use crate::wire::{
    ConnId, Fate, FragmentId, LateReason, LearnerId, LeaseGrant, LeaseId, Message, Millis, Refusal, Round,
    RunId, RunSpec, Serial, Version,
};

/// Bits of the number of an epoch that count epochs; the others tell processes apart.
const EPOCH_BITS: u32 = 16;
/// A process numbers its leases in a range of so many of its own.
const LEASES_OF_A_PROCESS: u64 = 1 << 32;

/// What a syncer knows of rounds that are led elsewhere.
#[derive(Debug)]
pub(super) struct Led {
    /// Tells its epochs from those of others.
    salt: u16,
    /// The questions that are open.
    asked: BTreeMap<(FragmentId, LearnerId), Question>,
    /// The newest round of each fragment that was heard of, and since when.
    newest: BTreeMap<FragmentId, (Round, Millis)>,
    /// The newest round of each fragment that is known to be over.
    over: BTreeMap<FragmentId, Round>,
    /// Updates that wait for a later round than they were asked for in.
    late: Late,
    /// The paces that were told last.
    told: Paces,
    /// Whether it was passed on that the run has its tokens.
    is_enough: bool,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    /// When it was asked.
    since: Millis,
    /// An answer is of this round.
    round: Round,
    /// It is to be asked in this one, which may be a later one.
    newest: Round,
}

impl Syncer {
    /// A new run as one sees it who leads no rounds of it, and begins with these Θ̂, `[P]` of `[fragment_len]`, as
    /// [`crate::diloco::halves::nearest`] gives them: to be led elsewhere ([`Self::led_elsewhere`]).
    ///
    /// # Errors
    /// As [`Self::new`]; [`SyncerError::FragmentCount`] or [`SyncerError::Fragment`] if they do not fit the layout.
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

    /// The same with its rounds led elsewhere, for a process whose number nobody else has, as far as chance goes.
    /// Nothing is launched or merged here from now on, and of each fragment there is Θ̂ alone, which stands for Θ too:
    /// what learners hold is what they are sent, and what is measured and taken home.
    #[must_use]
    pub fn led_elsewhere(mut self, process: u64) -> Self {
        // Another process may have leased to the same learner.
        self.books.number_leases_from(LeaseId((process & 0x7fff_ffff) * LEASES_OF_A_PROCESS));
        let salt = (process >> 48) as u16;
        let (asked, newest, over) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (late, told, is_enough) = (Late::default(), Paces::default(), false);
        self.rounds.iter_mut().for_each(Rounds::keep_hat);
        self.led = Some(Led { salt, asked, newest, over, late, told, is_enough });
        self
    }

    /// Whether its rounds are led elsewhere.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.led.is_some()
    }

    /// Passes something on, if rounds are led elsewhere.
    pub(super) fn upward(&mut self, said: impl FnOnce() -> Upward) {
        if self.is_led() {
            self.out.push_back(Output::Upward(said()));
        }
    }

    /// Passes on how fast learners are, where that is news.
    pub(super) fn tell_pace(&mut self) {
        let &Timing { step_ms, answer_ms, .. } = self.schedule.timing();
        let paces = Paces { step_ms, answer_ms };
        let is_news = |told: Paces| is_other(told.step_ms, step_ms) || is_other(told.answer_ms, answer_ms);
        if let Some(led) = self.led.as_mut().filter(|led| is_news(led.told)) {
            led.told = paces;
            self.out.push_back(Output::Upward(Upward::Pace(paces)));
        }
    }

    /// The run has the tokens that it was to have: it finishes, or whoever leads it is told, once.
    pub(super) fn on_enough(&mut self) {
        let Some(led) = &mut self.led else { return self.finish() };
        if !std::mem::replace(&mut led.is_enough, true) {
            self.upward(|| Upward::Enough);
        }
    }

    /// The last round of `fragment` is over.
    pub(super) fn on_closed(&mut self, fragment: FragmentId) {
        if self.is_led() {
            self.finish();
            self.schedule.close(fragment);
        }
    }

    /// A lease as learners are told: each process goes through the text in an order of its own.
    pub(super) fn told(&self, grant: LeaseGrant) -> LeaseGrant {
        let Some(led) = &self.led else { return grant };
        let epochs = (1 << EPOCH_BITS) - 1;
        LeaseGrant { epoch: u32::from(led.salt) << EPOCH_BITS | grant.epoch & epochs, ..grant }
    }

    /// What is merged of `learner` elsewhere was leased to it there. One that comes back, and of which something is
    /// merged, may have been leased more: that counts of what it hands in, as after a restart.
    pub(super) fn credit(&mut self, learner: LearnerId, returns: bool) {
        let is_merged = self.ledger().account(learner).is_some_and(|account| !account.is_stranger());
        let windows = match returns && is_merged {
            true => 2 * self.leases().epoch_windows().min(u64::from(LEASE_WINDOWS_MAX)),
            false => 0,
        };
        self.books.credit(learner, windows * u64::from(self.spec.model.context));
    }

    /// Who leads the fragment asks `learner` by `conn` for its progress in `round`.
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
            // What it answers is of the round in which it was asked; then it is asked once more.
            let question = led.asked.entry(at).or_insert(Question { since: now, round, newest: round });
            question.newest = question.newest.max(round);
        }
        if is_new {
            // How much learners may say goes by the rounds that there were.
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

    /// A number came back by this connection.
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

    /// The round that an answer of `learner` is of.
    ///
    /// # Errors
    /// It is too late for that, or nobody asked, as when it hands in what it has before it leaves: an answer must be of
    /// a round that was under way when its sender was here, or it might be merged after its sender came back
    /// elsewhere. Gives the newest round, if there was one.
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

    /// An update that came in: passes it on, or keeps it for a later round.
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
            // That round is under way.
            self.on_asked(now, fragment, learner, conn, newest);
        }
    }

    /// Passes on an update for this round.
    fn pass_on_in(&mut self, now: Millis, conn: ConnId, learner: LearnerId, round: Round, update: Verified) {
        let (fragment, tokens) = (update.fragment, update.tokens);
        let standing = self.standing(now, learner, fragment);
        let since = self.led.as_ref().and_then(|led| led.newest.get(&fragment)).map(|(_, since)| *since);
        let after_ms = now.since(since.unwrap_or(now));
        self.tell_pace();
        self.event(Event::Answered { round: Some(round), fragment, learner, tokens, after_ms });
        let answer = Answer::Update(Box::new(update), standing);
        self.upward(|| Upward::Answer(fragment, learner, conn, round, answer));
    }

    /// `learner` has nothing to report. If that is too late, and another round is under way, it is asked once more.
    pub(super) fn pass_on_nothing(
        &mut self,
        now: Millis,
        conn: ConnId,
        learner: LearnerId,
        fragment: FragmentId,
    ) {
        match self.answered_in(now, fragment, learner) {
            Ok(round) => self.upward(|| Upward::Answer(fragment, learner, conn, round, Answer::Nothing)),
            Err(Some(newest)) if self.led.as_ref().is_some_and(|led| newest > led.over(fragment)) => {
                let question = Question { since: now, round: newest, newest };
                if let Some(led) = &mut self.led {
                    led.asked.insert((fragment, learner), question);
                }
                self.ask(now, fragment, learner, conn);
            }
            // It is asked in the next one.
            Err(_) => {}
        }
    }

    /// An update of `learner`, sent by `conn`, was not merged.
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
                self.settle(Settled { round: None, fragment, learner, serial, tokens: 0, fate });
                self.heed_refusals(conn, learner, &fate);
            }
        }
    }

    fn lose(&mut self, fragment: FragmentId, learner: LearnerId, serial: Serial, tokens: u64) {
        let fate = Fate::Late(LateReason::RoundOver);
        self.books.note_update(learner);
        self.settle(Settled { round: None, fragment, learner, serial, tokens, fate });
    }

    /// A round came to nothing, or to another owner.
    pub(super) fn on_over(&mut self, fragment: FragmentId, round: Round) {
        if let Some(led) = &mut self.led {
            led.note_over(fragment, round);
        }
    }

    /// Takes in a merge that others decided on: books it, tells those whose updates are in it, and all what follows.
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

    /// Nobody asks `learner` anything any more.
    pub(super) fn forget_questions(&mut self, learner: LearnerId) {
        if let Some(led) = &mut self.led {
            led.asked.retain(|(_, asked), _| *asked != learner);
            led.late.forget(learner);
        }
    }
}

impl Led {
    /// The newest round of `fragment` that is known to be over.
    fn over(&self, fragment: FragmentId) -> Round {
        self.over.get(&fragment).copied().unwrap_or(Round(0))
    }

    fn note_over(&mut self, fragment: FragmentId, round: Round) {
        let over = self.over.entry(fragment).or_insert(round);
        *over = (*over).max(round);
    }
}

/// Whether a time is another one, by more than a tenth: what changes with each answer need not be told each time.
fn is_other(before: f64, now: f64) -> bool {
    (before - now).abs() > 0.1 * before.max(now)
}

#[cfg(test)]
mod tests;
