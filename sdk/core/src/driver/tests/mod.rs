//! Tests of a driver with the real syncer's core. Each output of one is at once an input of the other.

mod line;

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use super::*;
use crate::data::{encode_held_out, encode_shard, shard_spec};
use crate::diloco::syncer::{self, Syncer, SyncerConfig, SyncerRecord};
use crate::diloco::{Codec, FragmentState, Fragments, Layout, Replica};
use crate::testing::{Asked, FRAGMENTS, RecordingHost, layout, spec};
use crate::wire::{
    Bye, Challenge, CloseCode, ConnId, FragmentId, Hello, Identity, Message, Progress, RunSpec, Signature,
};

const SECOND_US: u64 = 1_000_000;
const STEP_US: u64 = 100_000;
const CHALLENGE: Challenge = Challenge { run: RunId(7), nonce: [9; 32] };

/// Driver with a complete shell, and a syncer that answers at once.
struct Rig {
    now_us: u64,
    member: LearnerDriver,
    syncer: Syncer,
    layout: Layout,
    shard: Vec<u8>,
    theta: Vec<f32>,
    replica: Option<Replica>,
    /// Current connection, and the number of the next.
    conn: Option<ConnId>,
    next_conn: u64,
    /// Fragments requested while their merge was in progress.
    fetching: Vec<FragmentId>,
    script: Script,
    log: Log,
}

/// Injected faults.
#[derive(Default)]
struct Script {
    /// The address does not answer.
    unreachable: bool,
    /// All messages from and to the syncer are lost.
    mute: bool,
    /// The syncer sends no challenge.
    no_challenge: bool,
    /// Number of shard downloads that fail.
    shards_lost: u32,
    /// Downloads of fragments fail.
    fragments_lost: bool,
    /// Value of all tokens in the held-out windows; `None` if they cannot be fetched.
    held_out: Option<u32>,
    /// Windows per step of the engine; `None` for those of the run.
    batch: Option<u32>,
}

/// Record of the member's actions, with times in microseconds.
#[derive(Default)]
struct Log {
    connects_us: Vec<u64>,
    hellos: Vec<Hello>,
    /// Batches of its `Ready` messages.
    batches: Vec<u32>,
    reports: Vec<Progress>,
    byes: Vec<Bye>,
    closes: Vec<Bye>,
    disconnects: Vec<(u64, String)>,
    rejoin: Vec<String>,
    built_anew: u32,
    shards_us: Vec<u64>,
    fetches_us: Vec<u64>,
    troubles: Vec<String>,
    steps: u64,
    measured: Vec<(u32, Option<f32>)>,
    ends: Vec<End>,
}

fn config() -> DriverConfig {
    DriverConfig {
        learner: LearnerConfig {
            identity: Identity([1; 32]),
            name: "one".to_owned(),
            device: String::new(),
            invite: None,
            serial_first: 1,
        },
        contact_ms_max: None,
        reconnect_ms_max: None,
        waits: Waits::default(),
        seed: 5,
    }
}

impl Rig {
    /// Returns a rig whose member is admitted.
    fn new() -> Self {
        let mut rig = Self::with(config());
        rig.handle(Input::Timeout);
        rig
    }

    /// Returns a rig before the first connection.
    fn with(config: DriverConfig) -> Self {
        let tokens: Vec<u32> = (0..40_000).map(|i| i % 251).collect();
        let shard = encode_shard(&tokens, 2).unwrap();
        let mut run = spec();
        run.data.shards = vec![shard_spec(&shard, 2).unwrap()];
        Self {
            now_us: 0,
            member: LearnerDriver::new(config),
            syncer: syncer(&run),
            layout: layout(),
            shard,
            theta: vec![0.0; layout().len()],
            replica: None,
            conn: None,
            next_conn: 1,
            fetching: Vec::new(),
            script: Script::default(),
            log: Log::default(),
        }
    }

    /// Returns a rig whose member trains.
    fn joined() -> Self {
        let mut rig = Self::new();
        rig.run_for(SECOND_US);
        assert!(rig.log.steps > 0 && rig.member.awaits(), "{:?}", rig.member.state());
        rig
    }

    fn handle(&mut self, input: Input) {
        self.member.handle(self.now_us, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.member.poll() {
            self.carry_out(output);
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Connect => self.connect(),
            Output::Greet { hello, challenge } => {
                assert_eq!((challenge, hello.signature), (CHALLENGE, Signature::NONE));
                self.send(Message::Hello(*hello));
            }
            Output::Send(message) => self.send(message),
            Output::Close(bye) => self.log.closes.push(bye),
            Output::Disconnect { reason, .. } => {
                self.log.disconnects.push((self.now_us, reason));
                self.hang_up();
            }
            Output::Build { welcome, rebuild } => {
                let fragments = self.fragments();
                if rebuild {
                    self.log.built_anew += 1;
                    let codec = Codec::new(&welcome.spec.exchange).unwrap();
                    let policy = welcome.spec.exchange.apply;
                    self.replica = Some(Replica::new(fragments.clone(), codec, policy));
                }
                let batch = NonZeroU32::new(self.script.batch.unwrap_or(welcome.spec.inner.batch)).unwrap();
                self.handle(Input::Built { fragments, batch });
            }
            Output::Afresh { reason } => {
                self.log.rejoin.push(reason);
                self.replica = None;
            }
            Output::Fetch { fragment, .. } if self.script.fragments_lost => {
                self.log.fetches_us.push(self.now_us);
                self.handle(Input::FetchFailed { fragment, reason: "the test says so".to_owned() });
            }
            Output::Fetch { fragment, .. } => self.fetch(fragment),
            Output::FetchShard { shard, body_bytes } => {
                assert_eq!(body_bytes, self.shard.len() as u64);
                self.log.shards_us.push(self.now_us);
                let lost = self.script.shards_lost > 0;
                self.script.shards_lost = self.script.shards_lost.saturating_sub(1);
                let bytes = if lost { Err("the test says so".to_owned()) } else { Ok(self.shard.clone()) };
                self.handle(Input::Shard { shard, bytes });
            }
            Output::Encode { serial, fragment } => {
                let replica = self.replica.as_mut().unwrap();
                let body = replica.encode(fragment, &self.theta).unwrap();
                let digest = replica.digest(fragment);
                self.handle(Input::Encoded { serial, fragment, body, digest });
            }
            Output::Include { fragment } => {
                self.replica.as_mut().unwrap().include(fragment, &mut self.theta).unwrap();
            }
            Output::Apply { fragment, body } => {
                self.replica.as_mut().unwrap().apply(fragment, &body, &mut self.theta).unwrap();
            }
            Output::Load { fragment, values, keep } => {
                let replica = self.replica.as_mut().unwrap();
                replica.load(fragment, &values, keep, &mut self.theta).unwrap();
            }
            output @ (Output::FetchHeldOut { .. } | Output::Measure { .. }) => self.measure(output),
            Output::Trouble { reason } => self.log.troubles.push(reason),
            Output::End(end) => self.log.ends.push(end),
        }
    }

    fn fragments(&self) -> Arc<Fragments> {
        Arc::new(Fragments::plan(&self.layout, NonZeroU16::new(FRAGMENTS).unwrap()))
    }

    fn connect(&mut self) {
        self.log.connects_us.push(self.now_us);
        if self.script.unreachable {
            return self.handle(Input::Closed { code: None, reason: "nobody answers".to_owned() });
        }
        self.conn = Some(ConnId(self.next_conn));
        self.next_conn += 1;
        self.handle(Input::Opened);
        if !self.script.no_challenge {
            self.handle(Input::Message(Message::Challenge(CHALLENGE)));
        }
    }

    fn hang_up(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.syncer(syncer::Input::Disconnected(conn));
        }
    }

    fn send(&mut self, message: Message) {
        match &message {
            Message::Hello(hello) => self.log.hellos.push(hello.clone()),
            Message::Ready { batch, .. } => self.log.batches.push(*batch),
            Message::Progress(progress) => self.log.reports.push(progress.clone()),
            Message::Measured { number, loss, .. } => return self.log.measured.push((*number, *loss)),
            Message::Bye(bye) => self.log.byes.push(bye.clone()),
            _ => {}
        }
        if let Some(conn) = self.conn.filter(|_| !self.script.mute) {
            self.syncer(syncer::Input::Message(conn, message));
        }
    }

    fn syncer(&mut self, input: syncer::Input) {
        let mut recorder = RecordingHost::default();
        self.syncer.drive(millis(self.now_us), input, &mut recorder);
        for asked in recorder.asked {
            match asked {
                Asked::Send(conns, message) => {
                    conns.into_iter().for_each(|conn| self.deliver(conn, message.clone()));
                }
                Asked::Merge(job) => self.syncer(syncer::Input::Merged(Box::new(job.run()))),
                Asked::Rollback(job) => self.syncer(syncer::Input::Merged(Box::new(job.run()))),
            }
        }
        std::mem::take(&mut self.fetching).into_iter().for_each(|fragment| self.fetch(fragment));
    }

    /// Delivers a fragment at once, or after its merge, as a server does.
    fn fetch(&mut self, fragment: FragmentId) {
        match self.syncer.hat(fragment) {
            Some((version, hat)) => {
                self.handle(Input::Fetched { fragment, version, values: hat.to_vec() });
            }
            None => self.fetching.push(fragment),
        }
    }

    fn deliver(&mut self, conn: ConnId, message: Message) {
        if self.conn == Some(conn) && !self.script.mute {
            self.handle(Input::Message(message));
        }
    }

    /// Advances time by `us` as a shell does: trains if there is a batch, and otherwise waits.
    fn run_for(&mut self, us: u64) {
        let end_us = self.now_us + us;
        while self.now_us < end_us && self.log.ends.is_empty() {
            let batch = self.member.next_batch(self.now_us);
            self.drain();
            if let Some(batch) = batch {
                let windows = self.script.batch.unwrap_or(2);
                assert_eq!(batch.tokens.len() as u32, windows * 5);
                self.now_us += STEP_US;
                self.log.steps += 1;
                let step =
                    Step { tokens: u64::from(windows) * 4, loss: 1.0, busy_us: STEP_US, earlier_us: 0 };
                self.handle(Input::Stepped(step));
            } else {
                let at_us = self.member.deadline(self.now_us).unwrap_or(end_us);
                let at_us = at_us.clamp(self.now_us + 1, end_us);
                let us = at_us - self.now_us;
                self.now_us = at_us;
                self.handle(Input::Waited { us });
            }
            if self.conn.is_some() && self.syncer.deadline(millis(self.now_us)).is_some() {
                self.syncer(syncer::Input::Timeout);
            }
            self.handle(Input::Timeout);
        }
    }

    /// Returns the number of steps in the next `us` microseconds.
    fn steps_in(&mut self, us: u64) -> u64 {
        let before = self.log.steps;
        self.run_for(us);
        self.log.steps - before
    }

    fn merged(&self) -> u64 {
        self.syncer.ledger().accounts().map(|(_, account)| account.fates.merged).sum()
    }

    /// Passes a goodbye of the syncer to the member.
    fn goodbye(&mut self, bye: Bye) {
        self.handle(Input::Message(Message::Bye(bye)));
    }

    fn troubles(&self) -> BTreeMap<&str, u32> {
        let mut troubles = BTreeMap::new();
        for trouble in &self.log.troubles {
            *troubles.entry(trouble.as_str()).or_default() += 1;
        }
        troubles
    }
}

fn syncer(run: &RunSpec) -> Syncer {
    let theta = vec![0.0; layout().len()];
    Syncer::new(RunId(7), run.clone(), SyncerConfig::default(), &layout(), &theta).unwrap()
}

fn bye(code: CloseCode) -> Bye {
    Bye::new(code, "the test says so")
}

#[test]
fn joins_trains_and_is_merged() {
    let mut rig = Rig::new();
    assert_eq!((rig.member.phase(), rig.log.connects_us.as_slice()), (Phase::Training, &[0][..]));
    assert_eq!(rig.steps_in(60 * SECOND_US), 600, "nothing keeps it from training");
    assert!(rig.merged() > 100, "{} merged", rig.merged());
    assert_eq!((rig.log.built_anew, rig.log.hellos.len(), rig.troubles()), (1, 1, BTreeMap::new()));
    let reports = rig.log.reports.len();
    assert!(rig.log.reports[reports - 1].tokens > rig.log.reports[reports - 2].tokens);
}

/// Goal: finished leases are dropped once they are reported. Otherwise a report would soon hold too many.
#[test]
fn finished_leases_are_dropped() {
    let mut rig = Rig::joined();
    rig.run_for(1_800 * SECOND_US);
    assert_eq!(rig.troubles(), BTreeMap::new());
    let leases = rig.log.reports.iter().map(|report| report.leases.len()).max();
    assert!(leases < Some(16), "{leases:?} at once");
    assert!(rig.log.steps > 17_000, "{} steps", rig.log.steps);
}

#[test]
fn failed_shard_downloads_are_retried_with_backoff() {
    let mut rig = Rig::with(config());
    rig.script.shards_lost = 4;
    rig.run_for(20 * SECOND_US);
    let gaps_ms: Vec<u64> = rig.log.shards_us.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000).collect();
    assert_eq!(gaps_ms.len(), 4);
    for (gap_ms, ceiling_ms) in gaps_ms.iter().zip([250, 500, 1_000, 2_000]) {
        assert!((ceiling_ms / 2..=ceiling_ms).contains(gap_ms), "{gaps_ms:?}");
    }
    assert_eq!(rig.troubles(), BTreeMap::from([("data did not come: the test says so", 4)]));
    assert!(rig.log.steps > 150, "{} steps", rig.log.steps);
}

#[test]
fn shard_backoff_is_reset_by_a_shard_and_by_reconnection() {
    let mut rig = Rig::with(config());
    rig.script.shards_lost = 8;
    rig.run_for(8 * SECOND_US);
    let asked = rig.log.shards_us.len();
    assert!((5..8).contains(&asked), "{asked}");
    rig.script.shards_lost = 0;
    let cut_us = rig.now_us;
    rig.cut();
    rig.run_for(SECOND_US);
    let back_us = rig.log.shards_us[asked];
    assert!(back_us <= cut_us + 250_000 && rig.log.steps > 0, "asked for after {} µs", back_us - cut_us);
    // The member needs the shard again, and its backoff was reset.
    rig.goodbye(bye(CloseCode::WrongRun));
    rig.script.shards_lost = 1;
    rig.run_for(SECOND_US);
    let gaps_ms: Vec<u64> = rig.log.shards_us.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000).collect();
    assert!(gaps_ms.last() <= Some(&250), "{gaps_ms:?}");
    assert_eq!((rig.log.shards_us.len(), rig.script.shards_lost), (asked + 3, 0));
}

impl Rig {
    /// Acts as a shell that measures: the loss is the number of tokens in the windows.
    fn measure(&mut self, output: Output) {
        match output {
            Output::FetchHeldOut { .. } => {
                let bytes = match self.script.held_out {
                    Some(token) => Ok(encode_held_out(&[token; 10])),
                    None => Err("the test says so".to_owned()),
                };
                self.handle(Input::HeldOut { bytes });
            }
            Output::Measure { number, windows } => {
                self.handle(Input::Measured { number, loss: Some(windows.len() as f32) });
            }
            _ => {}
        }
    }

    /// Breaks the connection.
    fn cut(&mut self) {
        self.hang_up();
        self.handle(Input::Closed { code: None, reason: "it broke".to_owned() });
    }

    fn ask(&mut self, number: u32, versions: &[u64]) {
        let versions = versions.iter().copied().map(Version).collect();
        self.handle(Input::Message(Message::Measure { run: RunId(7), number, versions }));
    }

    fn held(&self) -> Vec<u64> {
        self.member.versions().map(|version| version.unwrap().0).collect()
    }
}

#[test]
fn measurement_waits_for_the_requested_versions() {
    let mut rig = Rig::joined();
    rig.script.held_out = Some(7);
    rig.ask(1, &rig.held());
    assert_eq!(rig.log.measured, [(1, Some(10.0))]);
    // The member does not hold the next versions yet.
    let next: Vec<u64> = rig.held().iter().map(|version| version + 1).collect();
    rig.ask(2, &next);
    assert_eq!(rig.log.measured.len(), 1);
    while rig.log.measured.len() == 1 {
        rig.run_for(SECOND_US);
        assert!(rig.now_us < 600 * SECOND_US, "{:?} of {next:?}", rig.held());
    }
    assert!(rig.held() >= next);
    assert_eq!(rig.log.measured[1], (2, Some(10.0)));
}

#[test]
fn measurement_without_valid_windows_answers_none() {
    let mut rig = Rig::joined();
    for (number, held_out) in [(1, None), (2, Some(256))] {
        rig.script.held_out = held_out;
        rig.ask(number, &rig.held());
        assert_eq!(rig.log.measured.last(), Some(&(number, None)));
        assert_eq!(rig.log.troubles.len() as u32, number, "{:?}", rig.log.troubles);
    }
    let other = Message::Measure { run: RunId(8), number: 3, versions: vec![] };
    rig.handle(Input::Message(other));
    assert_eq!(rig.log.measured.len(), 2, "of another run it measures nothing");
}

#[test]
fn measurement_request_ends_with_its_connection() {
    let mut rig = Rig::joined();
    rig.script.held_out = Some(7);
    let next: Vec<u64> = rig.held().iter().map(|version| version + 1).collect();
    rig.ask(1, &next);
    rig.cut();
    rig.run_for(60 * SECOND_US);
    assert!(rig.held() >= next);
    assert_eq!(rig.log.measured, []);
}

fn share(ratio: f64) -> Share {
    Share::new(ratio).unwrap()
}

impl Rig {
    fn pace(&mut self, ratio: f64) {
        let learner = self.member.run().unwrap().1;
        self.syncer(syncer::Input::Pace { learner, share: share(ratio) });
    }
}

#[test]
fn a_quarter_of_the_time_is_a_quarter_of_the_steps() {
    for (duty_permille, ratio, steps) in
        [(250, 1.0, 250), (1_000, 0.25, 250), (500, 0.5, 250), (1_000, 1.0, 1_000)]
    {
        let mut rig = Rig::joined();
        rig.handle(Input::Duty { permille: duty_permille });
        rig.pace(ratio);
        let done = rig.steps_in(100 * SECOND_US);
        assert!(done.abs_diff(steps) <= 3, "{duty_permille} ‰ of {ratio}: {done} of 1,000 steps");
        // The syncer plans with the rest.
        let step_ms = rig.log.reports.last().unwrap().step_ms;
        assert!((step_ms - 100.0 * 1_000.0 / steps as f32).abs() < 10.0, "{step_ms} ms");
    }
}

#[test]
fn work_after_the_calls_of_steps_adds_rest() {
    let mut rig = Rig::joined();
    rig.pace(0.5);
    rig.run_for(10 * SECOND_US);
    rig.handle(Input::Worked { us: 3 * SECOND_US });
    assert_eq!(rig.steps_in(2 * SECOND_US), 0);
    assert!(rig.steps_in(4 * SECOND_US) > 5);
}

#[test]
fn raised_duty_cycle_cancels_owed_rest() {
    let mut rig = Rig::joined();
    rig.pace(0.01);
    rig.handle(Input::Duty { permille: 1 });
    rig.run_for(SECOND_US);
    assert_eq!(rig.steps_in(600 * SECOND_US), 0, "hours of rest are owed");
    rig.handle(Input::Duty { permille: 1_000 });
    assert!(rig.steps_in(SECOND_US) > 0);
}

#[test]
fn a_time_without_data_is_no_rest() {
    let mut rig = Rig::joined();
    rig.pace(0.5);
    // Without a syncer the leases eventually run out.
    rig.script.mute = true;
    while !rig.member.is_starved() {
        rig.run_for(SECOND_US);
    }
    rig.run_for(10 * SECOND_US);
    assert!(rig.member.is_starved());
    rig.member.handle(rig.now_us, Input::Waited { us: 600 * SECOND_US });
    rig.member.handle(rig.now_us, Input::Worked { us: 200_000 });
    assert!(rig.member.deadline(rig.now_us).is_some_and(|at| at <= rig.now_us + 200_000));
    assert!(!rig.member.is_starved(), "it rests now");
}

#[test]
fn a_paused_member_trains_nothing_and_stays_connected() {
    let mut rig = Rig::joined();
    rig.handle(Input::Paused(true));
    assert_eq!((rig.steps_in(600 * SECOND_US), rig.member.state()), (0, LearnerState::Paused));
    assert_eq!(rig.log.disconnects, []);
    rig.handle(Input::Paused(false));
    assert!(rig.steps_in(SECOND_US) >= 9);
    rig.handle(Input::Hidden(true));
    assert_eq!(rig.member.state(), LearnerState::Hidden);
}

#[test]
fn batch_of_the_engine_is_used_and_reported() {
    let mut rig = Rig::with(config());
    rig.script.batch = Some(1);
    rig.handle(Input::Timeout);
    assert_eq!(rig.steps_in(60 * SECOND_US), 600, "leases of any batch are enough for it");
    rig.cut();
    rig.run_for(60 * SECOND_US);
    assert_eq!(rig.log.batches, [1, 1], "it says so on each connection");
    let learners: Vec<_> = rig.syncer.learners().collect();
    assert_eq!(learners.iter().map(|learner| learner.batch).collect::<Vec<_>>(), [1]);
    let (trained, merged) = (learners[0].tokens_trained, learners[0].tokens_merged);
    assert!(merged > trained / 2 && trained <= 4 * rig.log.steps, "{merged} of {trained} tokens merged");
}

impl Rig {
    fn snapshot(&self) -> (SyncerRecord, Vec<FragmentState>) {
        (self.syncer.record().unwrap(), self.syncer.states().cloned().collect())
    }

    /// Crashes the syncer, which returns at once with the state of `snapshot`.
    fn crash(&mut self, (record, states): (SyncerRecord, Vec<FragmentState>)) {
        self.conn = None;
        let started_s = u32::try_from(self.now_us / SECOND_US).unwrap();
        self.syncer =
            Syncer::restore(record, &self.layout, SyncerConfig::default(), states, started_s).unwrap();
        self.handle(Input::Closed { code: None, reason: "the syncer crashed".to_owned() });
    }

    fn regranted_windows(&self) -> u64 {
        self.syncer.leases().regranted_windows()
    }
}

/// Goal: no learner starves after a crash, regardless of leases begun, finished or granted since the snapshot.
#[test]
fn no_crash_starves_a_learner() {
    let mut rig = Rig::joined();
    for age_s in [1, 7, 20, 45, 100, 300] {
        let snapshot = rig.snapshot();
        rig.run_for(age_s * SECOND_US);
        for crash in 0..5 {
            rig.crash(snapshot.clone());
            let steps = rig.steps_in(7 * SECOND_US);
            assert_eq!(steps, 70, "crash {crash}, {age_s} s after the snapshot: it stood still");
        }
    }
    assert!(rig.troubles().is_empty(), "{:?}", rig.troubles());
}

/// Goal: a learner reports leases that it finished after the snapshot, so that their windows are not leased again.
#[test]
fn windows_finished_after_the_snapshot_are_not_leased_again() {
    let mut rig = Rig::joined();
    rig.run_for(3 * SECOND_US);
    let snapshot = rig.snapshot();
    let held = rig.syncer.leases().leases(LearnerId(1));
    rig.run_for(100 * SECOND_US);
    assert!(held.iter().all(|lease| !rig.syncer.leases().leases(LearnerId(1)).contains(lease)));
    let reports = rig.log.reports.len();
    rig.crash(snapshot);
    rig.run_for(SECOND_US);
    let first: Vec<_> = rig.log.reports[reports].leases.iter().map(|&(lease, _)| lease).collect();
    assert_eq!(first, held, "it names what it holds of what the syncer knows");
    assert_eq!(rig.regranted_windows(), 0);
    assert!(held.iter().all(|lease| !rig.syncer.leases().leases(LearnerId(1)).contains(lease)));
}

/// Goal: the syncer notices at once that a grant was lost with its connection.
#[test]
fn lost_grant_is_leased_again() {
    let mut rig = Rig::joined();
    rig.member.supply.feed().unwrap().retain(&[]);
    rig.cut();
    assert!(rig.steps_in(5 * SECOND_US) > 45);
    assert!(rig.regranted_windows() > 0);
}
