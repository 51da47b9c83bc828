//! A member against the real syncer's core; each output is at once the other's input.

mod batch;
mod crash;
mod ends;
mod line;
mod measure;
mod pace;

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use super::*;
use crate::data::{encode_shard, shard_spec};
use crate::diloco::syncer::{self, Syncer, SyncerConfig};
use crate::diloco::{Codec, Fragments, Layout, Replica};
use crate::testing::{Asked, Desk, FRAGMENTS, layout, spec};
use crate::wire::{
    Bye, Challenge, CloseCode, ConnId, FragmentId, Hello, Identity, Message, Progress, RunSpec, Signature,
};

const SECOND_US: u64 = 1_000_000;
const STEP_US: u64 = 100_000;
const CHALLENGE: Challenge = Challenge { run: RunId(7), nonce: [9; 32] };

/// A member with a complete shell, and a syncer that answers at once.
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
    /// Fragments requested during their merge.
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
    unasked: bool,
    /// Number of shard downloads that fail.
    shards_lost: u32,
    /// Downloads of fragments fail.
    fragments_lost: bool,
    /// Token of the held-out windows, if they can be fetched.
    held_out: Option<u32>,
    /// Windows per step of the engine, if different from the run's.
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
    afresh: Vec<String>,
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
    /// An admitted member.
    fn new() -> Self {
        let mut rig = Self::with(config());
        rig.tell(Input::Timeout);
        rig
    }

    /// A member before its first connection.
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

    /// A member that takes part.
    fn joined() -> Self {
        let mut rig = Self::new();
        rig.run_for(SECOND_US);
        assert!(rig.log.steps > 0 && rig.member.awaits(), "{:?}", rig.member.state());
        rig
    }

    fn tell(&mut self, input: Input) {
        self.member.handle(self.now_us, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.member.poll() {
            self.obey(output);
        }
    }

    fn obey(&mut self, output: Output) {
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
            Output::Build { welcome, anew } => {
                let fragments = self.fragments();
                if anew {
                    self.log.built_anew += 1;
                    let codec = Codec::new(&welcome.spec.exchange).unwrap();
                    let policy = welcome.spec.exchange.apply;
                    self.replica = Some(Replica::new(fragments.clone(), codec, policy));
                }
                let batch = NonZeroU32::new(self.script.batch.unwrap_or(welcome.spec.inner.batch)).unwrap();
                self.tell(Input::Built { fragments, batch });
            }
            Output::Afresh { reason } => {
                self.log.afresh.push(reason);
                self.replica = None;
            }
            Output::Fetch { fragment, .. } if self.script.fragments_lost => {
                self.log.fetches_us.push(self.now_us);
                self.tell(Input::FetchFailed { fragment, reason: "the test says so".to_owned() });
            }
            Output::Fetch { fragment, .. } => self.fetch(fragment),
            Output::FetchShard { shard, body_bytes } => {
                assert_eq!(body_bytes, self.shard.len() as u64);
                self.log.shards_us.push(self.now_us);
                let lost = self.script.shards_lost > 0;
                self.script.shards_lost = self.script.shards_lost.saturating_sub(1);
                let bytes = if lost { Err("the test says so".to_owned()) } else { Ok(self.shard.clone()) };
                self.tell(Input::Shard { shard, bytes });
            }
            Output::Encode { serial, fragment } => {
                let replica = self.replica.as_mut().unwrap();
                let body = replica.encode(fragment, &self.theta).unwrap();
                let digest = replica.digest(fragment);
                self.tell(Input::Encoded { serial, fragment, body, digest });
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
            return self.tell(Input::Closed { code: None, reason: "nobody answers".to_owned() });
        }
        self.conn = Some(ConnId(self.next_conn));
        self.next_conn += 1;
        self.tell(Input::Opened);
        if !self.script.unasked {
            self.tell(Input::Message(Message::Challenge(CHALLENGE)));
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
        let mut desk = Desk::default();
        self.syncer.drive(millis(self.now_us), input, &mut desk);
        for asked in desk.asked {
            match asked {
                Asked::Send(conns, message) => {
                    conns.into_iter().for_each(|conn| self.deliver(conn, message.clone()));
                }
                Asked::Merge(job) => self.syncer(syncer::Input::Merged(Box::new(job.run()))),
                Asked::Remake(job) => self.syncer(syncer::Input::Merged(Box::new(job.run()))),
            }
        }
        std::mem::take(&mut self.fetching).into_iter().for_each(|fragment| self.fetch(fragment));
    }

    /// Delivers a fragment, or waits for the end of its merge as a server does.
    fn fetch(&mut self, fragment: FragmentId) {
        match self.syncer.hat(fragment) {
            Some((version, hat)) => {
                self.tell(Input::Fetched { fragment, version, values: hat.to_vec() });
            }
            None => self.fetching.push(fragment),
        }
    }

    fn deliver(&mut self, conn: ConnId, message: Message) {
        if self.conn == Some(conn) && !self.script.mute {
            self.tell(Input::Message(message));
        }
    }

    /// Advances time by `us` as a shell does: trains if there is a batch, and waits otherwise.
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
                self.tell(Input::Stepped(step));
            } else {
                let at_us = self.member.deadline(self.now_us).unwrap_or(end_us);
                let at_us = at_us.clamp(self.now_us + 1, end_us);
                let us = at_us - self.now_us;
                self.now_us = at_us;
                self.tell(Input::Waited { us });
            }
            if self.conn.is_some() && self.syncer.deadline(millis(self.now_us)).is_some() {
                self.syncer(syncer::Input::Timeout);
            }
            self.tell(Input::Timeout);
        }
    }

    /// Number of steps in the next `us`.
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
        self.tell(Input::Message(Message::Bye(bye)));
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

/// Goal: finished leases are dropped once they are reported; otherwise there would soon be too many.
#[test]
fn finished_leases_are_let_go() {
    let mut rig = Rig::joined();
    rig.run_for(1_800 * SECOND_US);
    assert_eq!(rig.troubles(), BTreeMap::new());
    let leases = rig.log.reports.iter().map(|report| report.leases.len()).max();
    assert!(leases < Some(16), "{leases:?} at once");
    assert!(rig.log.steps > 17_000, "{} steps", rig.log.steps);
}

#[test]
fn a_shard_that_does_not_come_is_asked_for_again_later_and_later() {
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
fn a_shard_that_came_and_a_syncer_that_is_back_make_up_for_those_that_did_not_come() {
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
    // It needs the shard again, and its backoff was reset.
    rig.goodbye(bye(CloseCode::WrongRun));
    rig.script.shards_lost = 1;
    rig.run_for(SECOND_US);
    let gaps_ms: Vec<u64> = rig.log.shards_us.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000).collect();
    assert!(gaps_ms.last() <= Some(&250), "{gaps_ms:?}");
    assert_eq!((rig.log.shards_us.len(), rig.script.shards_lost), (asked + 3, 0));
}
