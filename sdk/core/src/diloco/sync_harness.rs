//! Tests of both state machines together without a network: each output is at once the other's input.

mod clock;
mod crash;
mod deaf;
mod doubt;
mod hold;
mod late;
mod pace;
mod rein;
mod rounds;
mod tape;
mod undo;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use super::learner::{self, Learner, LearnerConfig, Step};
use super::syncer::{self, Event, Syncer, SyncerConfig, SyncerRecord};
use super::{Codec, FragmentState, Fragments, Layout, Replica};
use crate::testing::{Asked, Desk, FRAGMENTS, layout, spec};
use crate::wire::{Bye, ConnId, Identity, LeaseGrant, Message, Millis, RunId};

const STEP_MS: u64 = 10;
const STEP_TOKENS: u64 = 8;

/// Snapshot from which a syncer restarts.
type Snapshot = (SyncerRecord, Vec<FragmentState>);

/// One learner with its parameters. A training step moves them towards `target`.
struct Island {
    conn: ConnId,
    core: Learner,
    theta: Vec<f32>,
    replica: Option<Replica>,
    target: f32,
    connected: bool,
    /// Reason for which the syncer closed its last connection, if it did.
    goodbye: Option<Bye>,
    leases: Vec<LeaseGrant>,
    /// Coded bodies that a slow device has not delivered yet.
    held: Option<VecDeque<learner::Input>>,
}

struct Pair {
    now: Millis,
    layout: Layout,
    fragments: Arc<Fragments>,
    syncer: Syncer,
    islands: Vec<Island>,
    events: Vec<Event>,
    finished: bool,
    next_conn: u64,
    boaster: Option<ConnId>,
    /// Connection that reports twenty steps for each one.
    rusher: Option<ConnId>,
    /// Delay of each learner's updates, in milliseconds. Learners without an entry have no delay.
    lags_ms: BTreeMap<usize, u64>,
    /// Step time of each learner, in milliseconds. Learners that are missing here have [`STEP_MS`].
    step_ms: BTreeMap<usize, u64>,
    /// Delayed updates, with their arrival times.
    under_way: Vec<(Millis, ConnId, Message)>,
    /// Learners that receive no parameters.
    deaf: BTreeSet<usize>,
    /// Replay of the tape, compared with the syncer after each step.
    tape: tape::Followed,
}

impl Pair {
    fn new(targets: &[f32]) -> Self {
        Self::with(targets, SyncerConfig::default())
    }

    fn with(targets: &[f32], config: SyncerConfig) -> Self {
        let (layout, spec) = (layout(), spec());
        let theta = vec![0.0; layout.len()];
        let syncer = Syncer::new(RunId(7), spec, config, &layout, &theta).unwrap();
        let tape =
            tape::Followed::from((syncer.record().unwrap(), syncer.states().cloned().collect()), &layout);
        let fragments = Arc::new(Fragments::plan(&layout, NonZeroU16::new(FRAGMENTS).unwrap()));
        let islands = targets.iter().zip(1_u8..).map(|(&target, i)| Island {
            conn: ConnId(0),
            core: process(i, 1),
            theta: theta.clone(),
            replica: None,
            target,
            connected: false,
            goodbye: None,
            leases: Vec::new(),
            held: None,
        });
        let islands = islands.collect();
        let mut pair = Self {
            now: Millis(0),
            layout,
            fragments,
            syncer,
            islands,
            events: vec![],
            finished: false,
            next_conn: 1,
            boaster: None,
            rusher: None,
            lags_ms: BTreeMap::new(),
            step_ms: BTreeMap::new(),
            under_way: Vec::new(),
            deaf: BTreeSet::new(),
            tape,
        };
        for i in 0..targets.len() {
            pair.connect(i);
        }
        pair
    }

    fn connect(&mut self, i: usize) {
        self.islands[i].conn = ConnId(self.next_conn);
        self.islands[i].connected = true;
        self.next_conn += 1;
        self.learner(i, learner::Input::Connected);
    }

    fn disconnect(&mut self, i: usize) {
        self.islands[i].connected = false;
        self.learner(i, learner::Input::Disconnected);
        self.syncer(syncer::Input::Disconnected(self.islands[i].conn));
    }

    fn learner(&mut self, i: usize, input: learner::Input) {
        self.islands[i].core.handle(self.now, input);
        while let Some(output) = self.islands[i].core.poll() {
            self.obey_learner(i, output);
        }
    }

    fn obey_learner(&mut self, i: usize, output: learner::Output) {
        use learner::{Input, Output};
        let island = &mut self.islands[i];
        match output {
            Output::Send(mut message) if island.connected => {
                let conn = island.conn;
                if let Message::Update(update) = &mut message
                    && self.boaster == Some(conn)
                {
                    (update.steps, update.tokens) = (1, update.tokens * 1_000);
                }
                if let Message::Progress(progress) = &mut message {
                    progress.leases = island.leases.iter().map(|grant| (grant.lease, 0)).collect();
                }
                if self.rusher == Some(conn) {
                    rush(&mut message, &island.leases);
                }
                if let Some(&lag_ms) = self.lags_ms.get(&i)
                    && matches!(message, Message::Update(_))
                {
                    return self.under_way.push((self.now.after(lag_ms), conn, message));
                }
                self.syncer(syncer::Input::Message(conn, message));
            }
            Output::Send(_) => {}
            Output::Build(welcome) => {
                let codec = Codec::new(&welcome.spec.exchange).unwrap();
                island.replica =
                    Some(Replica::new(self.fragments.clone(), codec, welcome.spec.exchange.apply));
                let batch = NonZeroU32::new(welcome.spec.inner.batch).unwrap();
                self.learner(i, Input::Built { fragments: self.fragments.clone(), batch });
            }
            Output::Fetch { .. } if self.deaf.contains(&i) => {}
            Output::Fetch { fragment, .. } => {
                let (version, hat) = self.syncer.hat(fragment).unwrap();
                self.learner(i, Input::Fetched { fragment, version, values: hat.to_vec() });
            }
            Output::Encode { serial, fragment } => {
                let replica = island.replica.as_mut().unwrap();
                let body = replica.encode(fragment, &island.theta).unwrap();
                let digest = replica.digest(fragment);
                let encoded = Input::Encoded { serial, fragment, body, digest };
                match &mut island.held {
                    Some(held) => held.push_back(encoded),
                    None => self.learner(i, encoded),
                }
            }
            Output::Include { fragment } => {
                island.replica.as_mut().unwrap().include(fragment, &mut island.theta).unwrap();
            }
            Output::Apply { fragment, body } => {
                island.replica.as_mut().unwrap().apply(fragment, &body, &mut island.theta).unwrap();
            }
            Output::Load { fragment, values, keep } => {
                let replica = island.replica.as_mut().unwrap();
                replica.load(fragment, &values, keep, &mut island.theta).unwrap();
            }
            Output::Grant(grant) => island.leases.push(grant),
            Output::RetainLeases(known) => island.leases.retain(|grant| known.contains(&grant.lease)),
            Output::Reconnect(bye) | Output::Stop(bye) => {
                (island.connected, island.goodbye) = (false, Some(bye));
            }
        }
    }

    fn syncer(&mut self, input: syncer::Input) {
        let mut desk = Desk::default();
        self.syncer.drive(self.now, input, &mut desk);
        self.events.extend(desk.events);
        desk.entries.iter().for_each(|entry| self.tape.follow(entry));
        self.finished |= desk.finished;
        for asked in desk.asked {
            match asked {
                Asked::Send(conns, message) => {
                    conns.into_iter().for_each(|conn| self.deliver(conn, message.clone()));
                }
                Asked::Merge(job) => {
                    self.tape.keep(&job);
                    self.syncer(syncer::Input::Merged(Box::new(job.run())));
                }
                Asked::Remake(job) => {
                    let remade = self.tape.remake(job);
                    self.syncer(syncer::Input::Merged(Box::new(remade)));
                }
            }
        }
    }

    fn deliver(&mut self, conn: ConnId, message: Message) {
        if let Some(i) = self.islands.iter().position(|island| island.conn == conn && island.connected)
            && !(message.is_bulk() && self.deaf.contains(&i))
        {
            self.learner(i, learner::Input::Message(message));
        }
    }

    fn steps(&mut self, count: u32) {
        for _ in 0..count {
            self.now = self.now.after(STEP_MS);
            let now = self.now;
            let arrived: Vec<_> = self.under_way.extract_if(.., |(at, ..)| *at <= now).collect();
            for (_, conn, message) in arrived {
                self.syncer(syncer::Input::Message(conn, message));
            }
            for i in 0..self.islands.len() {
                let island = &mut self.islands[i];
                let step_ms = self.step_ms.get(&i).copied().unwrap_or(STEP_MS);
                if self.now.0.is_multiple_of(step_ms) && island.core.can_train() {
                    for value in &mut island.theta {
                        *value += 0.01 * (island.target - *value);
                    }
                    let step = Step { tokens: STEP_TOKENS, loss: 1.0, step_ms: step_ms as f32 };
                    self.learner(i, learner::Input::Stepped(step));
                }
            }
            if self.syncer.deadline(self.now).is_some_and(|at| at <= self.now.after(STEP_MS)) {
                self.syncer(syncer::Input::Timeout);
            }
        }
        self.tape.compare(&self.syncer);
    }

    /// Restarts the syncer from `record` and `states`, in a process that starts `started_s` seconds after 1970 began.
    fn restart(&mut self, (record, states): Snapshot, config: SyncerConfig, started_s: u32) {
        self.tape = tape::Followed::from((record.clone(), states.clone()), &self.layout);
        self.syncer = Syncer::restore(record, &self.layout, config, states, started_s).unwrap();
    }

    fn merged(&self) -> BTreeMap<u32, u64> {
        self.syncer.ledger().accounts().map(|(m, account)| (m.0, account.fates.merged)).collect()
    }
}

/// Returns a process of learner `number` whose updates are numbered from `serial_first` on.
fn process(number: u8, serial_first: u64) -> Learner {
    Learner::new(LearnerConfig {
        identity: Identity([number; 32]),
        name: number.to_string(),
        device: String::new(),
        invite: None,
        serial_first,
    })
}

/// Reports twenty steps for each one, and all leases as done.
fn rush(message: &mut Message, leases: &[LeaseGrant]) {
    match message {
        Message::Update(update) => (update.steps, update.tokens) = (20 * update.steps, 20 * update.tokens),
        Message::Progress(progress) => {
            (progress.tokens, progress.step_ms) = (20 * progress.tokens, progress.step_ms / 20.0);
            progress.leases = leases.iter().map(|grant| (grant.lease, grant.windows)).collect();
        }
        _ => {}
    }
}

#[test]
fn two_learners_meet_in_the_middle() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(1_000);
    let theta = pair.syncer.theta().unwrap();
    assert_eq!(theta.len(), pair.layout.len());
    assert!(theta.iter().all(|value| (1.8..2.2).contains(value)), "{theta:?}");

    let status = pair.syncer.status();
    assert!(status.rounds > 300, "{} rounds", status.rounds);
    assert!(status.participation > 0.98, "{}", status.participation);
    assert_eq!(status.updates, status.fates.total() + status.updates_pending);
    for island in &pair.islands {
        let hat = island.replica.as_ref().unwrap().hat();
        for p in pair.fragments.ids() {
            assert_eq!(pair.fragments.gather(p, hat), *pair.syncer.hat(p).unwrap().1);
        }
    }
}

#[test]
fn a_lost_learner_is_not_missed_and_is_merged_again() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    pair.disconnect(1);
    let before = pair.merged();
    pair.steps(100);
    let during = pair.merged();
    assert!(during[&1] >= before[&1] + 40, "{before:?} → {during:?}");
    assert_eq!(during[&2], before[&2]);

    pair.connect(1);
    pair.steps(100);
    let after = pair.merged();
    assert!(after[&2] >= during[&2] + 40, "{during:?} → {after:?}");
    // It trained on alone, and that progress was merged too.
    let status = pair.syncer.status();
    assert!(status.participation > 0.95, "{}", status.participation);
}

#[test]
fn a_restart_goes_on_with_momentum_and_versions() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    let record = pair.syncer.record().unwrap();
    let states: Vec<_> = pair.syncer.states().cloned().collect();
    pair.steps(50);
    pair.disconnect(0);
    pair.disconnect(1);
    pair.restart((record.clone(), states.clone()), SyncerConfig::default(), 0);
    assert!(states.iter().any(|state| state.momentum.iter().any(|value| *value != 0.0)));
    assert_eq!(pair.syncer.states().cloned().collect::<Vec<_>>(), states);
    assert_eq!(pair.syncer.status().rounds, record.rounds_merged);

    pair.connect(0);
    pair.connect(1);
    let before = pair.merged();
    pair.steps(100);
    let after = pair.merged();
    assert!(after.iter().all(|(m, count)| *count > before[m] + 40), "{before:?} → {after:?}");
    let fates = pair.syncer.status().fates;
    assert!(fates.refused.is_empty(), "{fates:?}");
}

#[test]
fn finishing_collects_everything_and_ends() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(50);
    pair.syncer(syncer::Input::Finish);
    pair.steps(1);
    assert!(pair.finished);
    let status = pair.syncer.status();
    assert_eq!((status.connected, status.rounds_open, status.updates_pending), (0, 0, 0));
    assert!(status.participation > 0.999, "{}", status.participation);
}

#[test]
fn boasting_counts_for_nothing() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    let boaster = pair.islands[1].conn;
    // Every update of the second learner claims a thousand times its tokens in one step.
    pair.boaster = Some(boaster);
    let merged = |pair: &Pair| -> Vec<u64> {
        pair.syncer
            .ledger()
            .accounts()
            .map(|(_, account)| pair.syncer.ledger().tokens_merged(account))
            .collect()
    };
    let before = merged(&pair);
    pair.steps(200);
    let after = merged(&pair);
    let gained: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    assert!(gained[1] <= gained[0], "{gained:?}");
}

#[test]
fn a_full_house_lets_a_learner_past_its_own_ghost() {
    let mut pair = Pair::with(&[1.0], SyncerConfig { learners_max: 1, ..SyncerConfig::default() });
    // The syncer does not learn that the first connection is closed.
    pair.connect(0);
    pair.steps(10);
    assert!(pair.islands[0].connected, "{:?}", pair.events);
    assert_eq!(pair.syncer.status().live, 1);
}
