//! Who leads a fragment: takes it over, and puts each round on the tape before anybody is told.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::crowds::Crowds;
use super::kept::Kept;
use super::measured::Measured;
use super::stage::{Leading, Stage, Step};
use super::terms::OwnerTerms;
use super::work::{Ended, Work};
use super::{Notice, Order, Orders, Record, Reply, state_bytes, state_of};
use crate::diloco::{FragmentState, Launch, Rounds, checksum, cohort};
use crate::wire::{LearnerId, Millis, Round, Version};

/// A gateway that said nothing while an owner would have asked so often is gone.
const SILENT_TIMES: u64 = 10;

/// What an owner is told.
#[derive(Clone, Debug)]
pub enum OwnerInput {
    /// The roster grants it the fragment until then.
    Leased(Millis),
    /// The roster does not.
    NotLeased,
    /// The records of the tape after this number, in order.
    Records(u64, Vec<Record>),
    /// The record of this turn is on the tape, under this number.
    Appended {
        /// As [`Order::Append`] had it.
        turn: u64,
        /// Its number.
        seq: u64,
    },
    /// It is not, for the last record has another number than expected.
    Refused,
    /// What was to be stored under this key is there, or other bytes were before.
    Stored(u64, bool),
    /// What is stored under this key.
    Loaded(u64, Option<Vec<u8>>),
    /// The state that the fragment begins in, version 0.
    Begun(FragmentState),
    /// What a gateway says.
    Reply(Reply),
    /// What the owner of the run has ordered by now.
    Ordered(Orders),
    /// Time has passed: to be told at least every `again_ms`.
    Tick,
}

/// Leads the rounds of one fragment as long as the tape takes its records.
#[derive(Debug)]
pub struct Owner {
    terms: OwnerTerms,
    /// The newest record that it knows.
    last: u64,
    /// Its lease ends then.
    until: Millis,
    stage: Stage,
    /// Counts the records that it made.
    turn: u64,
    measured: Measured,
    /// When something was last asked for that is not there yet.
    asked: Millis,
    /// Who is connected to which gateway.
    here: Crowds,
    ordered: Orders,
    kept: Kept,
    orders: VecDeque<Order>,
}

impl Owner {
    /// One that leads nothing yet.
    #[must_use]
    pub fn new(terms: OwnerTerms) -> Self {
        Self {
            measured: Measured::new(&terms),
            ordered: Orders::none(&terms.rounds, terms.cohort_max),
            kept: Kept::new(terms.states_kept),
            terms,
            last: 0,
            until: Millis(0),
            stage: Stage::Away,
            turn: 0,
            asked: Millis(0),
            here: Crowds::default(),
            orders: VecDeque::new(),
        }
    }

    /// Takes in what happened; then [`Self::poll`] until there is nothing more.
    pub fn handle(&mut self, now: Millis, input: OwnerInput) {
        match input {
            OwnerInput::Leased(until) => self.on_leased(now, until),
            OwnerInput::NotLeased => self.stage = Stage::Away,
            OwnerInput::Records(after, records) => self.on_records(now, after, &records),
            // Word of a record from before it last took over comes late, and another one may have its number.
            OwnerInput::Appended { turn, seq } if turn == self.turn => self.on_appended(now, seq),
            OwnerInput::Appended { .. } => {}
            OwnerInput::Refused => self.ask(now, Order::Read(self.last)),
            OwnerInput::Stored(key, is_ours) => self.on_stored(now, key, is_ours),
            OwnerInput::Loaded(key, bytes) => self.on_loaded(now, key, bytes),
            OwnerInput::Begun(state) => self.on_begun(now, state),
            OwnerInput::Reply(reply) => self.on_reply(now, reply),
            OwnerInput::Ordered(orders) => self.on_ordered(orders),
            OwnerInput::Tick => self.on_tick(now),
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// The state that it leads learners to; `None` while it does not lead, or is at work on it.
    #[must_use]
    pub fn state(&self) -> Option<&FragmentState> {
        let Stage::Leading(leading) = &self.stage else { return None };
        leading.rounds.state()
    }

    fn on_ordered(&mut self, orders: Orders) {
        self.ordered = orders;
        (self.terms.rounds.quorum, self.terms.rounds.merge) = (orders.quorum, orders.merge);
        if let Stage::Leading(leading) = &mut self.stage {
            leading.rounds.retune(orders.quorum, orders.merge);
        }
    }

    fn on_leased(&mut self, now: Millis, until: Millis) {
        self.until = until;
        if matches!(self.stage, Stage::Away) {
            self.read(now);
        }
    }

    fn on_records(&mut self, now: Millis, after: u64, records: &[Record]) {
        match &self.stage {
            Stage::Reading if after == 0 => {
                self.last = records.len() as u64;
                if records.last() == Some(&Record::Finished) {
                    self.stage = Stage::Over;
                    return;
                }
                self.measured.recount(records);
                let merged: Vec<(u64, u64)> = (1..).zip(records).filter_map(merged).collect();
                let keys: Vec<u64> = merged.iter().map(|(seq, _)| *seq).collect();
                self.orders.extend(self.kept.recall(&keys).map(Order::Forget));
                let Some(&(seq, sum)) = merged.last() else {
                    self.stage = Stage::Beginning;
                    return self.ask(now, Order::Begin);
                };
                self.stage = Stage::Loading(seq, sum);
                self.ask(now, Order::Load(seq));
            }
            Stage::Leading(leading) if after == self.last => {
                let Step::Appending(ours) = &leading.step else { return };
                match records.first() {
                    Some(record) if record == ours => self.on_appended(now, self.last + 1),
                    // Somebody else took over: what was under way is nobody's any more.
                    Some(_) => self.stage = Stage::Away,
                    None => {
                        let record = ours.clone();
                        self.append(now, record);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_loaded(&mut self, now: Millis, key: u64, bytes: Option<Vec<u8>>) {
        let Stage::Loading(seq, sum) = self.stage else { return };
        let Some(bytes) = bytes else {
            // Somebody led on meanwhile, and it is gone: the tape says which one is the newest, after a while.
            (self.stage, self.asked) = (Stage::Reading, now);
            return;
        };
        // What is damaged is asked for again.
        if key != seq || checksum(&bytes) != sum {
            return;
        }
        if let Some(state) = state_of(Version(seq), self.terms.len(), &bytes) {
            self.take(now, state);
        }
    }

    fn on_begun(&mut self, now: Millis, state: FragmentState) {
        // It may have taken so long that somebody else has merged: then the tape refuses what is appended next.
        let is_ours = state.version == Version(0) && state.theta.len() == self.terms.len();
        if is_ours && matches!(self.stage, Stage::Beginning) {
            self.take(now, state);
        }
    }

    /// Goes on from `state`, once the tape says so.
    fn take(&mut self, now: Millis, state: FragmentState) {
        let rounds = Rounds::new(self.terms.rounds.clone(), state);
        let record = Record::Took(self.terms.process);
        let step = Step::Resting(now);
        self.stage = Stage::Leading(Box::new(Leading { rounds, step, since: now, is_last: false }));
        self.put(now, record);
    }

    fn on_appended(&mut self, now: Millis, seq: u64) {
        let Stage::Leading(leading) = &mut self.stage else { return };
        let Step::Appending(record) = &leading.step else { return };
        if seq != self.last + 1 {
            return;
        }
        self.measured.count(record);
        self.last = seq;
        self.orders.push_back(Order::Tell(Notice::Ended(Round(seq))));
        if matches!(record, Record::Finished) {
            self.stage = Stage::Over;
            return;
        }
        let (has_merged, is_last) = (matches!(record, Record::Merged { .. }), leading.is_last);
        leading.step = Step::Resting(now);
        if has_merged {
            self.orders.extend(self.kept.add(seq).into_iter().map(Order::Forget));
        }
        if is_last {
            self.put(now, Record::Finished);
        }
    }

    /// Puts a record onto the tape.
    fn put(&mut self, now: Millis, record: Record) {
        let Stage::Leading(leading) = &mut self.stage else { return };
        leading.step = Step::Appending(record.clone());
        self.turn += 1;
        self.append(now, record);
    }

    fn on_stored(&mut self, now: Millis, key: u64, is_ours: bool) {
        let Stage::Leading(leading) = &mut self.stage else { return };
        let Step::Storing(_, record) = &leading.step else { return };
        if key != self.last + 1 {
            return;
        }
        if !is_ours {
            // No other process stores under this key as long as this one leads.
            self.stage = Stage::Away;
            return;
        }
        let record = record.clone();
        self.put(now, record);
    }

    fn on_reply(&mut self, now: Millis, reply: Reply) {
        if let Reply::Here { gateway, learners, waits, paces } = reply {
            self.measured.note_paces(now, &self.terms, gateway, paces, learners.len());
            let gone = self.here.note(now, gateway, learners, waits);
            if let Stage::Leading(leading) = &mut self.stage {
                gone.into_iter().for_each(|learner| leading.rounds.unask(learner));
                self.go_on(now);
            }
            return;
        }
        let Stage::Leading(leading) = &mut self.stage else { return };
        let Step::Working(work) = &mut leading.step else { return };
        work.take(now, &mut leading.rounds, reply);
        self.go_on(now);
    }

    fn on_tick(&mut self, now: Millis) {
        if now > self.until {
            self.stage = Stage::Away;
            return;
        }
        let is_due = now.since(self.asked) >= self.terms.again_ms;
        match &mut self.stage {
            Stage::Away | Stage::Over => {}
            Stage::Reading if is_due => self.read(now),
            Stage::Loading(seq, _) if is_due => {
                let seq = *seq;
                self.ask(now, Order::Load(seq));
            }
            Stage::Beginning if is_due => self.ask(now, Order::Begin),
            Stage::Reading | Stage::Loading(..) | Stage::Beginning => {}
            Stage::Leading(leading) => match &leading.step {
                Step::Resting(since) => {
                    let rested_ms = now.since(*since);
                    self.rest(now, rested_ms);
                }
                Step::Working(_) => self.go_on(now),
                Step::Storing(bytes, _) if is_due => {
                    let (key, bytes) = (self.last + 1, Arc::clone(bytes));
                    self.ask(now, Order::Store(key, bytes));
                }
                // Nobody knows whether it is there.
                Step::Appending(_) if is_due => self.ask(now, Order::Read(self.last)),
                Step::Storing(..) | Step::Appending(_) => {}
            },
        }
    }

    /// Nothing has been under way for so long, in milliseconds: begins what is due.
    fn rest(&mut self, now: Millis, rested_ms: u64) {
        let is_idle = rested_ms >= self.terms.idle_ms;
        if self.ordered.is_ending {
            let invited = self.who_is_here(now);
            // By then all gateways that are there have said so, also to one that has just taken over.
            let Stage::Leading(leading) = &self.stage else { return };
            let has_heard = now.since(leading.since) >= self.terms.idle_ms;
            if !invited.is_empty() && has_heard {
                self.launch(now, invited, true);
            } else if invited.is_empty() && is_idle {
                self.put(now, Record::Finished);
            }
        } else if self.ordered.is_held {
            if is_idle && self.here.waits() {
                // Whoever waited at a gateway that is gone does so no more.
                self.who_is_here(now);
                if self.here.waits() {
                    self.put(now, Record::Abandoned);
                }
            }
        } else if rested_ms >= self.terms.rest_ms && now >= self.measured.may_launch_at(&self.terms) {
            let here = self.who_is_here(now);
            let needed = if self.measured.has_begun() { 1 } else { self.terms.learners_start.max(1) };
            if here.len() >= needed {
                self.launch(now, here, false);
            } else if is_idle && self.here.waits() {
                self.put(now, Record::Abandoned);
            }
        }
    }

    /// Who is connected to a gateway that is there: whoever is at another one does not answer any more.
    fn who_is_here(&mut self, now: Millis) -> BTreeSet<LearnerId> {
        let silent = self.here.forget_silent(now, SILENT_TIMES * self.terms.again_ms);
        silent.into_iter().for_each(|gateway| self.measured.forget(gateway));
        self.here.everybody()
    }

    /// Launches a round, the last one with everybody who is `here`.
    fn launch(&mut self, now: Millis, here: BTreeSet<LearnerId>, is_last: bool) {
        let Stage::Leading(leading) = &mut self.stage else { return };
        leading.rounds.unask_all_but(&here);
        let (fragment, round) = (self.terms.rounds.fragment, Round(self.last + 1));
        let cohort_max = if is_last { u32::MAX } else { self.ordered.cohort_max };
        let (everybody, rounds) = (here.len(), &leading.rounds);
        let invited = cohort(&here, cohort_max, self.last, |learner| !rounds.is_asked(learner));
        let is_sample = invited.len() < everybody;
        // The last rounds of all fragments are under way together.
        let last_of = is_last.then(|| self.terms.fragments.into());
        let work =
            Work::launch(now, &mut leading.rounds, Launch { round, fragment, invited, last_of }, is_sample);
        (leading.step, leading.is_last) = (Step::Working(Box::new(work)), is_last);
        self.measured.note_launch(now, &self.terms);
        self.go_on(now);
    }

    /// Goes on with the round under way, as far as that goes.
    fn go_on(&mut self, now: Millis) {
        let Stage::Leading(leading) = &mut self.stage else { return };
        let Step::Working(work) = &mut leading.step else { return };
        let ended = work.go_on(now, &self.terms, &mut self.measured, &mut leading.rounds);
        self.orders.extend(work.poll().map(Order::Tell));
        match ended {
            None => {}
            Some(Ended::Merged(merge)) => {
                // The state is at rest once its merge is taken in.
                let Some(state) = leading.rounds.state() else { return };
                let bytes = Arc::new(state_bytes(state));
                let record = Record::Merged { merge, state: checksum(&bytes) };
                leading.step = Step::Storing(Arc::clone(&bytes), record);
                self.ask(now, Order::Store(self.last + 1, bytes));
            }
            Some(Ended::Abandoned) => {
                self.put(now, Record::Abandoned);
            }
        }
    }

    fn read(&mut self, now: Millis) {
        self.stage = Stage::Reading;
        self.ask(now, Order::Read(0));
    }

    /// Appends the record of this turn, perhaps once more.
    fn append(&mut self, now: Millis, record: Record) {
        self.ask(now, Order::Append { turn: self.turn, expect: self.last, record });
    }

    fn ask(&mut self, now: Millis, order: Order) {
        self.asked = now;
        self.orders.push_back(order);
    }
}

/// The number of a record, and the checksum of the state that it led to, if it led to one.
fn merged((seq, record): (u64, &Record)) -> Option<(u64, u64)> {
    let Record::Merged { state, .. } = record else { return None };
    Some((seq, *state))
}
