//! State machine of a fragment's leader. It takes the fragment over, and puts the outcome of each round on the tape
//! before any learner sees its effect.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::active_round::{ActiveRound, Ended};
use super::statistics::{GatewayMembership, Measured, Retention};
use super::{AdminCommands, LeaderOutput, LeaderTerms, Notice, Record, Reply, state_bytes, state_of};
use crate::diloco::{FragmentState, Launch, Rounds, checksum, cohort};
use crate::wire::{LearnerId, Millis, Round, Version};

/// Silence after which a gateway is taken as gone, in multiples of `again_ms`.
const SILENT_TIMES: u64 = 10;

/// Input of a leader.
#[derive(Clone, Debug)]
pub enum LeaderInput {
    /// The roster leases the fragment to this leader until this time.
    Leased(Millis),
    /// The roster does not lease the fragment to this leader.
    NotLeased,
    /// Tape records after this number, in order.
    Records(u64, Vec<Record>),
    /// The record of this turn is on the tape.
    Appended {
        /// Turn of the [`LeaderOutput::Append`].
        turn: u64,
        /// Number of the record.
        seq: u64,
    },
    /// The append was refused, because the last record does not have the expected number.
    Refused,
    /// Bytes are stored under this key: those of this leader (true), or others stored earlier (false).
    Stored(u64, bool),
    /// Bytes under this key; `None` if the key does not exist.
    Loaded(u64, Option<Vec<u8>>),
    /// The initial state of the fragment, version 0.
    Begun(FragmentState),
    /// Reply of a gateway.
    Reply(Reply),
    /// Commands of the owner of the run that are now in force.
    Ordered(AdminCommands),
    /// Time has passed. The driver sends it at least every `again_ms`.
    Tick,
}

/// State machine that leads the rounds of one fragment, as long as the tape accepts its records.
#[derive(Debug)]
pub struct FragmentLeader {
    terms: LeaderTerms,
    /// Number of the newest known record.
    last: u64,
    /// End of the lease.
    until: Millis,
    stage: LeaderPhase,
    /// Number of records that this leader has begun to append.
    turn: u64,
    measured: Measured,
    /// Time of the last request, if it is unanswered.
    asked: Millis,
    /// Connected learners by gateway.
    here: GatewayMembership,
    ordered: AdminCommands,
    kept: Retention,
    orders: VecDeque<LeaderOutput>,
}

impl FragmentLeader {
    /// Returns a leader without a lease.
    #[must_use]
    pub fn new(terms: LeaderTerms) -> Self {
        Self {
            measured: Measured::new(&terms),
            ordered: AdminCommands::none(&terms.rounds, terms.cohort_max),
            kept: Retention::new(terms.states_kept),
            terms,
            last: 0,
            until: Millis(0),
            stage: LeaderPhase::Away,
            turn: 0,
            asked: Millis(0),
            here: GatewayMembership::default(),
            orders: VecDeque::new(),
        }
    }

    /// Handles one input. Call [`Self::poll`] afterwards until it returns `None`.
    pub fn handle(&mut self, now: Millis, input: LeaderInput) {
        match input {
            LeaderInput::Leased(until) => self.on_leased(now, until),
            LeaderInput::NotLeased => self.stage = LeaderPhase::Away,
            LeaderInput::Records(after, records) => self.on_records(now, after, &records),
            // An answer about an earlier record may come late, and a record of another leader may have the same
            // number.
            LeaderInput::Appended { turn, seq } if turn == self.turn => self.on_appended(now, seq),
            LeaderInput::Appended { .. } => {}
            LeaderInput::Refused => self.ask(now, LeaderOutput::Read(self.last)),
            LeaderInput::Stored(key, is_ours) => self.on_stored(now, key, is_ours),
            LeaderInput::Loaded(key, bytes) => self.on_loaded(now, key, bytes),
            LeaderInput::Begun(state) => self.on_begun(now, state),
            LeaderInput::Reply(reply) => self.on_reply(now, reply),
            LeaderInput::Ordered(orders) => self.on_ordered(orders),
            LeaderInput::Tick => self.on_tick(now),
        }
    }

    /// Returns the next output.
    pub fn poll(&mut self) -> Option<LeaderOutput> {
        self.orders.pop_front()
    }

    /// Returns the newest state, or `None` while the fragment is not led or a merge is using the state.
    #[must_use]
    pub fn state(&self) -> Option<&FragmentState> {
        let LeaderPhase::Leading(leading) = &self.stage else { return None };
        leading.rounds.state()
    }

    fn on_ordered(&mut self, orders: AdminCommands) {
        self.ordered = orders;
        (self.terms.rounds.quorum, self.terms.rounds.merge) = (orders.quorum, orders.merge);
        if let LeaderPhase::Leading(leading) = &mut self.stage {
            leading.rounds.retune(orders.quorum, orders.merge);
        }
    }

    fn on_leased(&mut self, now: Millis, until: Millis) {
        self.until = until;
        if matches!(self.stage, LeaderPhase::Away) {
            self.read(now);
        }
    }

    fn on_records(&mut self, now: Millis, after: u64, records: &[Record]) {
        match &self.stage {
            LeaderPhase::Reading if after == 0 => {
                self.last = records.len() as u64;
                if records.last() == Some(&Record::Finished) {
                    self.stage = LeaderPhase::Over;
                    return;
                }
                self.measured.recount(records);
                let merged: Vec<(u64, u64)> = (1..).zip(records).filter_map(merged).collect();
                let keys: Vec<u64> = merged.iter().map(|(seq, _)| *seq).collect();
                self.orders.extend(self.kept.recall(&keys).map(LeaderOutput::Forget));
                let Some(&(seq, sum)) = merged.last() else {
                    self.stage = LeaderPhase::Beginning;
                    return self.ask(now, LeaderOutput::Begin);
                };
                self.stage = LeaderPhase::Loading(seq, sum);
                self.ask(now, LeaderOutput::Load(seq));
            }
            LeaderPhase::Leading(leading) if after == self.last => {
                let Step::Appending(ours) = &leading.step else { return };
                match records.first() {
                    Some(record) if record == ours => self.on_appended(now, self.last + 1),
                    // Another leader took over, and this leader's unfinished work is void.
                    Some(_) => self.stage = LeaderPhase::Away,
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
        let LeaderPhase::Loading(seq, sum) = self.stage else { return };
        let Some(bytes) = bytes else {
            // Another leader has led and stopped meanwhile. A later read of the tape returns the newest state.
            (self.stage, self.asked) = (LeaderPhase::Reading, now);
            return;
        };
        // A damaged state is loaded again.
        if key != seq || checksum(&bytes) != sum {
            return;
        }
        if let Some(state) = state_of(Version(seq), self.terms.len(), &bytes) {
            self.take(now, state);
        }
    }

    fn on_begun(&mut self, now: Millis, state: FragmentState) {
        // Another leader may have merged meanwhile; the tape then refuses the next append.
        let is_ours = state.version == Version(0) && state.theta.len() == self.terms.len();
        if is_ours && matches!(self.stage, LeaderPhase::Beginning) {
            self.take(now, state);
        }
    }

    /// Starts leading from `state`: appends the takeover to the tape.
    fn take(&mut self, now: Millis, state: FragmentState) {
        let rounds = Rounds::new(self.terms.rounds.clone(), state);
        let record = Record::Took(self.terms.process);
        let step = Step::Resting(now);
        self.stage = LeaderPhase::Leading(Box::new(Leading { rounds, step, since: now, is_last: false }));
        self.put(now, record);
    }

    fn on_appended(&mut self, now: Millis, seq: u64) {
        let LeaderPhase::Leading(leading) = &mut self.stage else { return };
        let Step::Appending(record) = &leading.step else { return };
        if seq != self.last + 1 {
            return;
        }
        self.measured.count(record);
        self.last = seq;
        self.orders.push_back(LeaderOutput::Tell(Notice::Ended(Round(seq))));
        if matches!(record, Record::Finished) {
            self.stage = LeaderPhase::Over;
            return;
        }
        let (has_merged, is_last) = (matches!(record, Record::Merged { .. }), leading.is_last);
        leading.step = Step::Resting(now);
        if has_merged {
            self.orders.extend(self.kept.add(seq).into_iter().map(LeaderOutput::Forget));
        }
        if is_last {
            self.put(now, Record::Finished);
        }
    }

    /// Appends a new record to the tape.
    fn put(&mut self, now: Millis, record: Record) {
        let LeaderPhase::Leading(leading) = &mut self.stage else { return };
        leading.step = Step::Appending(record.clone());
        self.turn += 1;
        self.append(now, record);
    }

    fn on_stored(&mut self, now: Millis, key: u64, is_ours: bool) {
        let LeaderPhase::Leading(leading) = &mut self.stage else { return };
        let Step::Storing(_, record) = &leading.step else { return };
        if key != self.last + 1 {
            return;
        }
        if !is_ours {
            // Another process stored the state of this round, so it leads now.
            self.stage = LeaderPhase::Away;
            return;
        }
        let record = record.clone();
        self.put(now, record);
    }

    fn on_reply(&mut self, now: Millis, reply: Reply) {
        if let Reply::Here { gateway, learners, waits, paces } = reply {
            self.measured.note_paces(now, &self.terms, gateway, paces, learners.len());
            let gone = self.here.note(now, gateway, learners, waits);
            if let LeaderPhase::Leading(leading) = &mut self.stage {
                gone.into_iter().for_each(|learner| leading.rounds.cancel_request(learner));
                self.advance(now);
            }
            return;
        }
        let LeaderPhase::Leading(leading) = &mut self.stage else { return };
        let Step::Working(work) = &mut leading.step else { return };
        work.take(now, &mut leading.rounds, reply);
        self.advance(now);
    }

    fn on_tick(&mut self, now: Millis) {
        if now > self.until {
            self.stage = LeaderPhase::Away;
            return;
        }
        let is_due = now.since(self.asked) >= self.terms.again_ms;
        match &mut self.stage {
            LeaderPhase::Away | LeaderPhase::Over => {}
            LeaderPhase::Reading if is_due => self.read(now),
            LeaderPhase::Loading(seq, _) if is_due => {
                let seq = *seq;
                self.ask(now, LeaderOutput::Load(seq));
            }
            LeaderPhase::Beginning if is_due => self.ask(now, LeaderOutput::Begin),
            LeaderPhase::Reading | LeaderPhase::Loading(..) | LeaderPhase::Beginning => {}
            LeaderPhase::Leading(leading) => match &leading.step {
                Step::Resting(since) => {
                    let rested_ms = now.since(*since);
                    self.rest(now, rested_ms);
                }
                Step::Working(_) => self.advance(now),
                Step::Storing(bytes, _) if is_due => {
                    let (key, bytes) = (self.last + 1, Arc::clone(bytes));
                    self.ask(now, LeaderOutput::Store(key, bytes));
                }
                // The record may be on the tape or not.
                Step::Appending(_) if is_due => self.ask(now, LeaderOutput::Read(self.last)),
                Step::Storing(..) | Step::Appending(_) => {}
            },
        }
    }

    /// Starts the next action that is due, after `rested_ms` milliseconds without work.
    fn rest(&mut self, now: Millis, rested_ms: u64) {
        let is_idle = rested_ms >= self.terms.idle_ms;
        if self.ordered.is_ending {
            let invited = self.live_learners(now);
            // After `idle_ms` all live gateways have reported, even to a new leader.
            let LeaderPhase::Leading(leading) = &self.stage else { return };
            let has_heard = now.since(leading.since) >= self.terms.idle_ms;
            if !invited.is_empty() && has_heard {
                self.launch(now, invited, true);
            } else if invited.is_empty() && is_idle {
                self.put(now, Record::Finished);
            }
        } else if self.ordered.is_held {
            if is_idle && self.here.waits() {
                // A learner that waited at a silent gateway no longer waits.
                self.live_learners(now);
                if self.here.waits() {
                    self.put(now, Record::Abandoned);
                }
            }
        } else if rested_ms >= self.terms.rest_ms && now >= self.measured.may_launch_at(&self.terms) {
            let here = self.live_learners(now);
            let needed = if self.measured.has_begun() { 1 } else { self.terms.learners_start.max(1) };
            if here.len() >= needed {
                self.launch(now, here, false);
            } else if is_idle && self.here.waits() {
                self.put(now, Record::Abandoned);
            }
        }
    }

    /// Forgets silent gateways, and returns the learners at all others.
    fn live_learners(&mut self, now: Millis) -> BTreeSet<LearnerId> {
        let silent = self.here.forget_silent(now, SILENT_TIMES * self.terms.again_ms);
        silent.into_iter().for_each(|gateway| self.measured.forget(gateway));
        self.here.all_learners()
    }

    /// Launches a round. The last round invites all learners in `here`, other rounds at most `cohort_max` of them.
    fn launch(&mut self, now: Millis, here: BTreeSet<LearnerId>, is_last: bool) {
        let LeaderPhase::Leading(leading) = &mut self.stage else { return };
        leading.rounds.cancel_other_requests(&here);
        let (fragment, round) = (self.terms.rounds.fragment, Round(self.last + 1));
        let cohort_max = if is_last { u32::MAX } else { self.ordered.cohort_max };
        let (all_learners, rounds) = (here.len(), &leading.rounds);
        let invited = cohort(&here, cohort_max, self.last, |learner| !rounds.is_asked(learner));
        let is_sample = invited.len() < all_learners;
        // The last rounds of all fragments overlap.
        let last_of = is_last.then(|| self.terms.fragments.into());
        let work = ActiveRound::launch(
            now,
            &mut leading.rounds,
            Launch { round, fragment, invited, last_of },
            is_sample,
        );
        (leading.step, leading.is_last) = (Step::Working(Box::new(work)), is_last);
        self.measured.note_launch(now, &self.terms);
        self.advance(now);
    }

    /// Advances the current round as far as possible.
    fn advance(&mut self, now: Millis) {
        let LeaderPhase::Leading(leading) = &mut self.stage else { return };
        let Step::Working(work) = &mut leading.step else { return };
        let ended = work.advance(now, &self.terms, &mut self.measured, &mut leading.rounds);
        self.orders.extend(work.poll().map(LeaderOutput::Tell));
        match ended {
            None => {}
            Some(Ended::Merged(merge)) => {
                // The state is available again once the merge is complete.
                let Some(state) = leading.rounds.state() else { return };
                let bytes = Arc::new(state_bytes(state));
                let record = Record::Merged { merge, state: checksum(&bytes) };
                leading.step = Step::Storing(Arc::clone(&bytes), record);
                self.ask(now, LeaderOutput::Store(self.last + 1, bytes));
            }
            Some(Ended::Abandoned) => {
                self.put(now, Record::Abandoned);
            }
        }
    }

    fn read(&mut self, now: Millis) {
        self.stage = LeaderPhase::Reading;
        self.ask(now, LeaderOutput::Read(0));
    }

    /// Appends the record of the current turn, possibly again.
    fn append(&mut self, now: Millis, record: Record) {
        self.ask(now, LeaderOutput::Append { turn: self.turn, expect: self.last, record });
    }

    fn ask(&mut self, now: Millis, order: LeaderOutput) {
        self.asked = now;
        self.orders.push_back(order);
    }
}

/// Returns the number of a record and the checksum of its state, or `None` if it is not the record of a merge.
fn merged((seq, record): (u64, &Record)) -> Option<(u64, u64)> {
    let Record::Merged { state, .. } = record else { return None };
    Some((seq, *state))
}

/// Phase of a leader.
#[derive(Debug)]
pub(super) enum LeaderPhase {
    /// Not leading; another process may lead.
    Away,
    /// Reading the tape.
    Reading,
    /// Loading the state with this number, which must have this checksum.
    Loading(u64, u64),
    /// Waiting for the initial state of a fragment that was never merged.
    Beginning,
    /// Leading.
    Leading(Box<Leading>),
    /// The last round is over: the run has ended.
    Over,
}

/// State of a fragment while this process leads it.
#[derive(Debug)]
pub(super) struct Leading {
    pub(super) rounds: Rounds,
    pub(super) step: Step,
    /// Start of the leadership.
    pub(super) since: Millis,
    /// True if the current round is the last one.
    pub(super) is_last: bool,
}

/// Current activity of a process that leads.
#[derive(Debug)]
pub(super) enum Step {
    /// Idle since this time.
    Resting(Millis),
    /// Conducting a round.
    Working(Box<ActiveRound>),
    /// Storing the merged state, before its record is appended.
    Storing(Arc<Vec<u8>>, Record),
    /// Appending a record.
    Appending(Record),
}
