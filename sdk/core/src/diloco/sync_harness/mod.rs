//! Tests of syncer and learners together, without a network: each output is at once the input of the other side.

mod rounds;
mod tape;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use super::learner::{Learner, LearnerConfig, Step};
use super::syncer::{Event, Syncer, SyncerConfig, SyncerRecord};
use super::{Codec, FragmentState, Fragments, Layout, Replica, learner, syncer};
use crate::diloco::{binary16, checksum};
use crate::testing::{Asked, FRAGMENTS, RecordingHost, layout, spec};
use crate::wire::{
    Bye, ConnId, FragmentId, Identity, LearnerId, LeaseGrant, Merged, Message, Millis, RunId, Serial, Version,
};
use learner::DrainState;

const STEP_MS: u64 = 10;
const STEP_TOKENS: u64 = 8;

/// Snapshot from which a syncer restarts.
type Snapshot = (SyncerRecord, Vec<FragmentState>);

/// Learner with its parameters. A training step moves them towards `target`.
struct Island {
    conn: ConnId,
    core: Learner,
    theta: Vec<f32>,
    replica: Option<Replica>,
    target: f32,
    connected: bool,
    /// `Bye` with which the syncer closed the last connection, if it did.
    goodbye: Option<Bye>,
    leases: Vec<LeaseGrant>,
    /// Coded bodies that are held back, as by a slow device; `None` if they are delivered at once.
    held: Option<VecDeque<learner::Input>>,
}

/// Syncer with its learners, in virtual time.
struct Pair {
    now: Millis,
    layout: Layout,
    fragments: Arc<Fragments>,
    syncer: Syncer,
    islands: Vec<Island>,
    events: Vec<Event>,
    finished: bool,
    next_conn: u64,
    /// Connection whose updates claim a thousand times their tokens in one step.
    boaster: Option<ConnId>,
    /// Connection that claims twenty times its steps and tokens.
    rusher: Option<ConnId>,
    /// Delay of the updates of each learner, in milliseconds; 0 for learners without an entry.
    lags_ms: BTreeMap<usize, u64>,
    /// Step time of each learner, in milliseconds; [`STEP_MS`] for learners without an entry.
    step_ms: BTreeMap<usize, u64>,
    /// Delayed updates, with their arrival times.
    under_way: Vec<(Millis, ConnId, Message)>,
    /// Learners that receive no parameters.
    deaf: BTreeSet<usize>,
    /// Replay of the tape, which is compared with the syncer after each call of `steps`.
    tape: tape::ReplayedTape,
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
            tape::ReplayedTape::from((syncer.record().unwrap(), syncer.states().cloned().collect()), &layout);
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
        let mut recorder = RecordingHost::default();
        self.syncer.drive(self.now, input, &mut recorder);
        self.events.extend(recorder.events);
        recorder.entries.iter().for_each(|entry| self.tape.follow(entry));
        self.finished |= recorder.finished;
        for asked in recorder.asked {
            match asked {
                Asked::Send(conns, message) => {
                    conns.into_iter().for_each(|conn| self.deliver(conn, message.clone()));
                }
                Asked::Merge(job) => {
                    self.tape.keep(&job);
                    self.syncer(syncer::Input::Merged(Box::new(job.run())));
                }
                Asked::Rollback(job) => {
                    let rolled_back = self.tape.rollback(job);
                    self.syncer(syncer::Input::Merged(Box::new(rolled_back)));
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

    /// Restarts the syncer from `record` and `states`, in a process that starts at Unix time `started_s`, in seconds.
    fn restart(&mut self, (record, states): Snapshot, config: SyncerConfig, started_s: u32) {
        self.tape = tape::ReplayedTape::from((record.clone(), states.clone()), &self.layout);
        self.syncer = Syncer::restore(record, &self.layout, config, states, started_s).unwrap();
    }

    fn merged(&self) -> BTreeMap<u32, u64> {
        self.syncer.ledger().accounts().map(|(m, account)| (m.0, account.fates.merged)).collect()
    }
}

/// Creates a process of learner `number` whose updates are numbered from `serial_first` on.
fn process(number: u8, serial_first: u64) -> Learner {
    Learner::new(LearnerConfig {
        identity: Identity([number; 32]),
        name: number.to_string(),
        device: String::new(),
        invite: None,
        serial_first,
    })
}

/// Multiplies claimed steps, tokens and speed by twenty, and reports all leases as done.
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
fn two_learners_converge_to_their_mean() {
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
fn lost_learner_delays_nobody_and_is_merged_again() {
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
    // The learner trained without a connection, and that progress was merged, too.
    let status = pair.syncer.status();
    assert!(status.participation > 0.95, "{}", status.participation);
}

#[test]
fn restart_continues_with_momentum_and_versions() {
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
fn finish_merges_all_progress_and_ends_the_run() {
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
fn inflated_tokens_are_not_credited() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    let boaster = pair.islands[1].conn;
    // Each update of the second learner claims a thousand times its tokens in one step.
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
fn full_run_admits_a_learner_in_place_of_its_own_stale_connection() {
    let mut pair = Pair::with(&[1.0], SyncerConfig { learners_max: 1, ..SyncerConfig::default() });
    // The syncer does not get the close of the first connection.
    pair.connect(0);
    pair.steps(10);
    assert!(pair.islands[0].connected, "{:?}", pair.events);
    assert_eq!(pair.syncer.status().live, 1);
}

impl Pair {
    fn snapshot(&self) -> Snapshot {
        (self.syncer.record().unwrap(), self.syncer.states().cloned().collect())
    }

    /// Disconnects all learners, and restarts the syncer from `snapshot` in a process that starts at Unix time
    /// `started_s`, in seconds.
    fn crash(&mut self, snapshot: Snapshot, started_s: u32) {
        for island in &mut self.islands {
            island.connected = false;
            island.core.handle(self.now, learner::Input::Disconnected);
        }
        self.restart(snapshot, SyncerConfig::default(), started_s);
    }

    fn versions(&self) -> Vec<Version> {
        self.syncer.states().map(|state| state.version).collect()
    }
}

#[test]
fn restarts_from_one_snapshot_lead_to_different_versions() {
    let mut pair = Pair::new(&[1.0, 2.0]);
    pair.steps(50);
    let snapshot = pair.snapshot();
    let lives = [1_000, 1_001].map(|started_s| {
        pair.crash(snapshot.clone(), started_s);
        pair.connect(0);
        pair.connect(1);
        pair.steps(50);
        pair.versions()
    });
    assert!(lives[0].iter().zip(&lives[1]).all(|(one, other)| one != other), "{lives:?}");
    assert!(lives[1].iter().all(|version| version.0 >> 32 == 1_001), "{lives:?}");
}

#[test]
fn learner_takes_its_new_number_after_a_lost_enrolment() {
    let before_anyone = Pair::new(&[]).snapshot();
    let mut pair = Pair::new(&[1.0, 2.0]);
    pair.steps(50);
    pair.crash(before_anyone, 1_000);
    pair.connect(1);
    pair.connect(0);
    pair.steps(50);
    let numbers: Vec<_> = pair.islands.iter().map(|island| island.core.run().unwrap().1).collect();
    assert_eq!(numbers, [LearnerId(2), LearnerId(1)]);
}

#[test]
fn progress_of_a_learner_with_a_lost_enrolment_is_not_refused() {
    let before_anyone = Pair::new(&[]).snapshot();
    let mut pair = Pair::new(&[1.0, 2.0]);
    pair.steps(4_000);
    pair.crash(before_anyone, 1_000);
    pair.connect(0);
    pair.connect(1);
    pair.steps(4_000);
    let status = pair.syncer.status();
    assert!(status.fates.refused.is_empty(), "{:?}", status.fates);
    assert!(pair.merged().values().all(|count| *count > 40), "{:?}", pair.merged());
}

/// Creates a syncer with two learners. The first learner holds another Θ̂ than the syncer published.
fn one_drifted() -> Pair {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(50);
    let wrong: Vec<_> = pair.fragments.ids().map(|p| (p, vec![0.5; pair.fragments.len(p)])).collect();
    let Island { replica, theta, .. } = &mut pair.islands[0];
    for (fragment, values) in wrong {
        replica.as_mut().unwrap().load(fragment, &values, true, theta).unwrap();
    }
    pair
}

/// Goal: a wrong Θ̂ is fetched again, and pending requests are then answered. Only progress on the wrong Θ̂ is lost.
#[test]
fn wrong_theta_hat_is_fetched_again() {
    let mut pair = one_drifted();
    let before = pair.merged()[&1];
    pair.steps(100);
    assert!(pair.merged()[&1] > before + 40, "{before} → {:?}", pair.merged());
    let (_, account) = pair.syncer.ledger().accounts().next().unwrap();
    let least = account.tokens_merged.iter().min().unwrap();
    assert!(*least > before + 40, "{before} → {account:?}: each fragment of it is merged again");
}

/// Goal: a wrong Θ̂ is fetched again even if the connection is lost before the fetch.
#[test]
fn wrong_theta_hat_is_fetched_again_after_a_lost_connection() {
    let mut pair = one_drifted();
    pair.deaf.insert(0);
    pair.steps(50);
    let before = pair.merged()[&1];
    pair.disconnect(0);
    pair.deaf.clear();
    pair.connect(0);
    pair.steps(100);
    assert!(pair.merged()[&1] > before + 40, "{before} → {:?}", pair.merged());
    for fragment in pair.fragments.ids() {
        let held = pair.islands[0].replica.as_ref().unwrap().digest(fragment);
        assert_eq!(held, binary16::digest(&pair.syncer.hat(fragment).unwrap().1), "{fragment}");
    }
}

/// Goal: a learner that leaves with an update in flight also sends its later progress, even if it never holds the
/// version that includes the update.
#[test]
fn leaving_learner_sends_progress_after_an_update_in_flight() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    pair.lags_ms.insert(1, 5 * STEP_MS);
    pair.steps(30);
    pair.deaf.insert(1);
    pair.learner(1, learner::Input::Paused(true));
    pair.islands[1].core.drain(pair.now);
    pair.learner(1, learner::Input::Timeout);
    let over = (0..50).any(|_| {
        pair.steps(1);
        pair.islands[1].core.drain_state() == DrainState::Drained
    });
    assert!(pair.islands[1].core.tokens_unsettled().all(|tokens| tokens == 0), "all of it was settled");
    let (_, account) = pair.syncer.ledger().accounts().nth(1).unwrap();
    let trained = account.trained();
    assert!(over && account.tokens_merged.iter().all(|&merged| merged == trained), "{over}, {account:?}");
}

/// Goal: a learner that fetches older parameters than requested, as from a stale cache, waits before it fetches again.
#[test]
fn fetch_of_an_older_version_is_repeated_later() {
    let mut pair = Pair::new(&[1.0]);
    pair.steps(20);
    let fragment = FragmentId(0);
    let (held, hat) = pair.syncer.hat(fragment).map(|(version, hat)| (version, hat.to_vec())).unwrap();
    let body = vec![1];
    let after_a_gap = Merged {
        run: RunId(7),
        fragment,
        base: Version(held.0 + 1),
        version: Version(held.0 + 2),
        clock_tokens: 0,
        checksum: checksum(&body),
        body,
        digest: 0,
    };
    let mut fetches = |after_ms, input| {
        pair.now = pair.now.after(after_ms);
        let core = &mut pair.islands[0].core;
        core.handle(pair.now, input);
        std::iter::from_fn(|| core.poll()).filter(|out| matches!(out, learner::Output::Fetch { .. })).count()
    };
    assert_eq!(fetches(0, learner::Input::Message(Message::Merged(after_a_gap))), 1);
    let old = || learner::Input::Fetched { fragment, version: held, values: hat.clone() };
    assert_eq!(fetches(0, old()), 0, "at once");
    assert_eq!(fetches(500, learner::Input::Timeout), 0);
    assert_eq!(fetches(500, learner::Input::Timeout), 1);
    assert_eq!(fetches(0, old()), 0, "as often as it is so");
}

impl Pair {
    /// Returns the serial numbers and fragments of the bodies that learner `i` holds back.
    fn held(&self, i: usize) -> impl Iterator<Item = (Serial, FragmentId)> {
        self.islands[i].held.iter().flatten().map(|input| match input {
            learner::Input::Encoded { serial, fragment, .. } => (*serial, *fragment),
            other => panic!("{other:?}"),
        })
    }

    /// Holds back the bodies of learner `i`, and runs steps until there are `count` bodies of one fragment.
    fn hold(&mut self, i: usize, count: usize) {
        self.islands[i].held = Some(VecDeque::new());
        let held = |pair: &Self, p| pair.held(i).filter(|(_, fragment)| *fragment == p).count();
        while !self.fragments.ids().any(|p| held(self, p) == count) {
            self.steps(1);
        }
    }

    /// Delivers the oldest body that learner `i` holds back.
    fn bring(&mut self, i: usize) {
        let encoded = self.islands[i].held.as_mut().and_then(VecDeque::pop_front).unwrap();
        self.learner(i, encoded);
    }

    /// Returns the number of received updates of this learner.
    fn updates(&self, learner: u32) -> u64 {
        self.syncer.ledger().accounts().find(|(m, _)| m.0 == learner).unwrap().1.updates
    }

    /// Ends the run, and checks that every token of every learner was merged exactly once.
    fn finish_exactly(mut self) {
        for i in 0..self.islands.len() {
            for encoded in self.islands[i].held.take().into_iter().flatten() {
                self.learner(i, encoded);
            }
        }
        self.lags_ms.clear();
        self.steps(500);
        self.syncer(syncer::Input::Finish);
        self.steps(1);
        assert!(self.finished);
        for (m, account) in self.syncer.ledger().accounts() {
            let trained = account.trained();
            assert!(trained > 0);
            assert!(account.tokens_merged.iter().all(|&merged| merged == trained), "{m:?}: {account:?}");
        }
        // A learner differs from Θ̂ only by coding errors, so no update was added twice or left out.
        for island in &self.islands {
            let hat = island.replica.as_ref().unwrap().hat();
            let apart = island.theta.iter().zip(hat).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 0.01, "{apart}");
        }
    }
}

#[test]
fn late_body_joins_the_next_round() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    pair.hold(1, 1);
    let fragment = pair.held(1).next().unwrap().1;
    let before: Vec<_> = pair.islands[1].core.versions().collect();
    let changed = |pair: &Pair| {
        let versions = pair.islands[1].core.versions().collect::<Vec<_>>();
        versions[usize::from(fragment.0)] != before[usize::from(fragment.0)]
    };
    // The other learner continues the run until the held body is of an old version.
    while !changed(&pair) {
        pair.steps(1);
    }
    let (updates, merged) = (pair.updates(2), pair.merged()[&2]);
    pair.bring(1);
    assert_eq!((pair.updates(2), pair.merged()[&2]), (updates + 1, merged), "it waits for a round");
    pair.steps(20);
    assert_eq!(pair.merged()[&2], merged + 1);
    pair.finish_exactly();
}

/// Goal: with any round trip, all progress is merged, and no update is late.
#[test]
fn progress_over_slow_links_is_merged_completely() {
    for lag_ms in [30, 80, 300, 3_000] {
        let mut pair = Pair::new(&[1.0, 1.0]);
        pair.lags_ms.insert(1, lag_ms);
        pair.steps(900);
        let account = |pair: &Pair, learner: usize| {
            let (_, account) = pair.syncer.ledger().accounts().nth(learner).unwrap();
            (account.fates.clone(), pair.syncer.ledger().tokens_merged(account), account.trained())
        };
        let (fates, merged, trained) = account(&pair, 1);
        assert_eq!((fates.late.len(), fates.refused.len()), (0, 0), "{lag_ms} ms: {fates:?}");
        // The progress since the last answer is not merged yet.
        let steps_open = 2 * lag_ms / STEP_MS + 20;
        assert!(merged + steps_open * STEP_TOKENS > trained, "{lag_ms} ms: {merged} of {trained}");
        let (near, ..) = account(&pair, 0);
        assert!(near.merged > 400, "{lag_ms} ms: the near one waits for nobody: {near:?}");
        pair.finish_exactly();
    }
}

/// Goal: no progress is lost if a learner leaves with `drain` and `leave`.
#[test]
fn leaving_learner_sends_all_progress() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(150);
    pair.islands[1].core.drain(pair.now);
    while let Some(output) = pair.islands[1].core.poll() {
        pair.obey_learner(1, output);
    }
    let said = |pair: &Pair| pair.syncer.ledger().accounts().nth(1).unwrap().1.tokens_trained;
    let at_first = said(&pair);
    pair.islands[1].core.leave(pair.now);
    while let Some(output) = pair.islands[1].core.poll() {
        pair.obey_learner(1, output);
    }
    assert_eq!(said(&pair), at_first, "it is known at once what it trained");
    // Merged tokens and those of received updates are all tokens of the learner.
    let unsettled: Vec<_> = pair.islands[1].core.tokens_unsettled().collect();
    let (_, account) = pair.syncer.ledger().accounts().nth(1).unwrap();
    let handed_in: Vec<_> = account.tokens_merged.iter().zip(&unsettled).map(|(a, b)| a + b).collect();
    assert!(unsettled.iter().any(|&tokens| tokens > 0), "{unsettled:?}");
    assert_eq!(handed_in, vec![account.trained(); unsettled.len()], "{account:?}");
    pair.islands[1].connected = false;
    pair.steps(30);
    let (_, account) = pair.syncer.ledger().accounts().nth(1).unwrap();
    let trained = account.trained();
    assert!(trained > 0 && account.tokens_merged.iter().all(|&merged| merged == trained), "{account:?}");
}

/// Goal: if a connection is lost after an update was sent, the update is merged exactly once after the reconnection.
#[test]
fn lost_connection_neither_loses_nor_repeats_an_update() {
    for away in [0, 1, 7, 40] {
        let mut pair = Pair::new(&[1.0, 1.0]);
        pair.lags_ms.insert(1, 50);
        for _ in 0..20 {
            pair.steps(13);
            pair.disconnect(1);
            if away % 2 == 0 {
                // Updates in flight are lost with the connection.
                let conn = pair.islands[1].conn;
                pair.under_way.retain(|(_, other, _)| *other != conn);
            }
            pair.steps(away);
            pair.connect(1);
        }
        pair.finish_exactly();
    }
}
