//! Who leads a fragment: takes it over, and puts each round on the tape before anybody is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::measured::Measured;
use super::terms::OwnerTerms;
use super::work::{Ended, Work};
use super::{GatewayId, Notice, Order, Record, Reply, state_bytes, state_of};
use crate::diloco::{FragmentState, Rounds, checksum};
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
    /// What a gateway says.
    Reply(Reply),
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
    /// Who is connected to which gateway, and when it last said so.
    here: BTreeMap<GatewayId, (Millis, BTreeSet<LearnerId>)>,
    orders: VecDeque<Order>,
}

#[derive(Debug)]
enum Stage {
    /// Somebody else leads, or nobody.
    Away,
    /// Reads the tape.
    Reading,
    /// Loads the state after the record of this number, whose checksum is known.
    Loading(u64, u64),
    /// Leads.
    Leading(Box<Leading>),
}

/// A fragment that is led.
#[derive(Debug)]
struct Leading {
    rounds: Rounds,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// Nothing is under way since then.
    Resting(Millis),
    /// A round is.
    Working(Box<Work>),
    /// The state that a round led to is being stored, and then its record appended.
    Storing(Arc<Vec<u8>>, Record),
    /// A record is being appended.
    Appending(Record),
}

impl Owner {
    /// One that leads nothing yet.
    #[must_use]
    pub fn new(terms: OwnerTerms) -> Self {
        Self {
            measured: Measured::new(&terms),
            terms,
            last: 0,
            until: Millis(0),
            stage: Stage::Away,
            turn: 0,
            asked: Millis(0),
            here: BTreeMap::new(),
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
            OwnerInput::Reply(reply) => self.on_reply(now, reply),
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
                self.measured.recount(records);
                let merged =
                    (1_u64..).zip(records).collect::<Vec<_>>().into_iter().rev().find_map(|(seq, record)| {
                        match record {
                            Record::Merged { state, .. } => Some((seq, *state)),
                            Record::Took(_) | Record::Abandoned => None,
                        }
                    });
                match merged {
                    Some((seq, sum)) => {
                        self.stage = Stage::Loading(seq, sum);
                        self.ask(now, Order::Load(seq));
                    }
                    None => self.take(now, self.terms.initial.clone()),
                }
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
        // What is damaged or not there yet is asked for again.
        let Some(bytes) = bytes.filter(|bytes| key == seq && checksum(bytes) == sum) else { return };
        if let Some(state) = state_of(Version(seq), self.terms.initial.theta.len(), &bytes) {
            self.take(now, state);
        }
    }

    /// Goes on from `state`, once the tape says so.
    fn take(&mut self, now: Millis, state: FragmentState) {
        let rounds = Rounds::new(self.terms.rounds.clone(), state);
        let record = Record::Took(self.terms.process);
        let step = Step::Appending(record.clone());
        self.stage = Stage::Leading(Box::new(Leading { rounds, step }));
        self.turn += 1;
        self.append(now, record);
    }

    fn on_appended(&mut self, now: Millis, seq: u64) {
        let Stage::Leading(leading) = &mut self.stage else { return };
        let Step::Appending(record) = &leading.step else { return };
        if seq != self.last + 1 {
            return;
        }
        self.measured.count(record);
        self.last = seq;
        leading.step = Step::Resting(now);
        self.orders.push_back(Order::Tell(Notice::Ended(Round(seq))));
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
        leading.step = Step::Appending(record.clone());
        self.turn += 1;
        self.append(now, record);
    }

    fn on_reply(&mut self, now: Millis, reply: Reply) {
        if let Reply::Here { gateway, learners, paces } = reply {
            self.measured.note_paces(now, &self.terms, gateway, paces, learners.len());
            self.here.insert(gateway, (now, learners));
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
            Stage::Away => {}
            Stage::Reading if is_due => self.read(now),
            Stage::Loading(seq, _) if is_due => {
                let seq = *seq;
                self.ask(now, Order::Load(seq));
            }
            Stage::Reading | Stage::Loading(..) => {}
            Stage::Leading(leading) => match &leading.step {
                Step::Resting(since) if now.since(*since) >= self.terms.rest_ms => {
                    if now >= self.measured.may_launch_at(&self.terms) {
                        self.launch(now);
                    }
                }
                Step::Resting(_) => {}
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

    fn launch(&mut self, now: Millis) {
        // Whoever is at a gateway that says nothing any more does not answer.
        let patience_ms = SILENT_TIMES * self.terms.again_ms;
        let measured = &mut self.measured;
        self.here.retain(|gateway, (said, _)| {
            let is_there = now.since(*said) < patience_ms;
            if !is_there {
                measured.forget(*gateway);
            }
            is_there
        });
        let invited: BTreeSet<LearnerId> =
            self.here.values().flat_map(|(_, learners)| learners).copied().collect();
        let Stage::Leading(leading) = &mut self.stage else { return };
        if invited.is_empty() {
            return;
        }
        leading.rounds.unask_all_but(&invited);
        let work = Work::launch(now, &self.terms, &mut leading.rounds, Round(self.last + 1), invited);
        leading.step = Step::Working(Box::new(work));
        self.measured.note_launch(now);
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
                leading.step = Step::Appending(Record::Abandoned);
                self.turn += 1;
                self.append(now, Record::Abandoned);
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
