//! Cluster of one fragment in virtual time: two leader processes, gateways and learners, with an unreliable tape, blob
//! store, roster and bus.
//!
//! The state machines are those of [`archipelago_core::cluster`]. This module contains only the services between them,
//! and faults. [`Cluster::check`] compares all receipts and notices with the tape, and each merge with that of a syncer
//! in one process.

mod check;
mod service;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use archipelago_core::cluster::{
    AdminCommands, AsBytes, FragmentLeader, Gateway, GatewayId, GatewayInput, GatewayOutput, GatewayTerms,
    LeaderInput, LeaderOutput, LeaderTerms, Notice, ProcessId, Record, UnresolvedUpdate,
};
use archipelago_core::diloco::{
    Codec, FragmentState, Fragments, Layout, MergeRule, OuterSpec, QuorumPolicy, RoundTerms, Segment,
    SenderInfo, SenderTrust, Tensor, Timing, TrustLevel, Verifier, WeightBounds, checksum,
};
use archipelago_core::model::Preset;
use archipelago_core::wire::{
    ApplyPolicy, Code, ConnId, ExchangeSpec, FragmentId, LearnerId, MergeClass, Millis, Round, RunId, Serial,
    Update, Version,
};

use crate::world::{Queue, Rng};
use service::{PendingAppend, ReplicatedTape, Service};

pub use check::InvariantViolation;

/// Time between two ticks of the state machines, in milliseconds.
const TICK_MS: u64 = 100;
/// Duration of a lease, in milliseconds.
const LEASE_MS: u64 = 3_000;

/// Fault rates and delays of bus and services.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransportFaults {
    /// Probability that a message is lost, on the bus or to or from a service.
    pub loss: f64,
    /// Probability that a bus message arrives twice.
    pub twice: f64,
    /// Maximum delay in milliseconds. Messages may overtake each other.
    pub delay_ms: u64,
    /// Maximum write time of a tape replica, in milliseconds.
    pub disk_ms: u64,
}

/// Process with its current faults.
#[derive(Debug)]
struct Process<T, I> {
    machine: T,
    /// Number of restarts. Messages to an earlier incarnation are lost.
    life: u32,
    /// End of the current or last pause.
    paused: Millis,
    /// End of the current or last disconnection.
    apart: Millis,
    /// Time by which the process overestimates its lease, in milliseconds.
    late_ms: u64,
    /// Inputs that arrived during a pause.
    backlog: VecDeque<I>,
}

#[derive(Debug)]
enum ClusterEvent {
    Tick,
    FragmentLeader(usize, u32, LeaderInput),
    Gateway(usize, u32, GatewayInput),
    /// A leader's request reaches the service that executes it.
    LeaderOutput(usize, u32, LeaderOutput),
    /// A gateway's read request reaches the tape.
    Read(usize, u32, u64),
    /// The tape's leader replica has copied its log to this replica.
    Copied(usize),
    /// Time to check whether an appended record is committed.
    Await(usize, u32, PendingAppend),
    Elect,
    Restart,
    /// A learner receives a request from its gateway, on the connection with this number.
    Asked(usize, u32, Round),
    /// A learner has made the progress that was requested.
    Trained(usize, u32, Round),
    Receipt(usize, u32, Serial, Option<Version>),
    Connect(usize),
    /// A gateway notices that a learner's connection is closed.
    Left(usize, u32, usize, u32),
    Fault(ClusterFault),
}

/// Cluster in virtual time. A seed and a sequence of calls determine all events.
#[derive(Debug)]
pub struct Cluster {
    now: Millis,
    rng: Rng,
    faults: TransportFaults,
    queue: Queue<ClusterEvent>,
    run: RunConstants,
    leaders: Vec<Process<FragmentLeader, LeaderInput>>,
    gateways: Vec<Process<Gateway, GatewayInput>>,
    learners: Vec<ClusterLearner>,
    tape: ReplicatedTape,
    /// Blobs in the store.
    blobs: BTreeMap<u64, Arc<Vec<u8>>>,
    /// All blobs that were ever stored, so that merges with deleted ones can be checked.
    archive: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Commands of the run's owner, which all leader processes read.
    commands: AdminCommands,
    /// Index and incarnation of the process that leads the fragment, and the end of its lease.
    lease: Option<(usize, u32, Millis)>,
    /// Records whose append was acknowledged to a leader, by number.
    acknowledged: BTreeMap<u64, Record>,
    early_end: Option<Round>,
    processes: u64,
}

impl Cluster {
    /// Creates a cluster of two leader processes, `gateways` gateways and `learners` learners.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn new(seed: u64, gateways: usize, learners: u32, faults: TransportFaults) -> Self {
        let run = run(seed);
        let commands = AdminCommands::none(&run.leader_terms.rounds, run.leader_terms.cohort_max);
        let mut cluster = Self {
            now: Millis(0),
            rng: Rng::stream(seed, 0xc1),
            faults,
            queue: Queue::new(),
            run,
            leaders: Vec::new(),
            gateways: Vec::new(),
            learners: (1..=learners).map(|id| ClusterLearner::new(LearnerId(id))).collect(),
            tape: ReplicatedTape::default(),
            blobs: BTreeMap::new(),
            archive: BTreeMap::new(),
            commands,
            lease: None,
            acknowledged: BTreeMap::new(),
            early_end: None,
            processes: 0,
        };
        for _ in 0..2 {
            let machine = cluster.new_leader();
            cluster.leaders.push(process(machine));
        }
        for at in 0..gateways {
            let machine = cluster.new_gateway(at);
            cluster.gateways.push(process(machine));
        }
        cluster.tape.elect();
        (0..learners as usize).for_each(|learner| cluster.plan_in(0, ClusterEvent::Connect(learner)));
        cluster.plan_in(0, ClusterEvent::Tick);
        cluster
    }

    /// Processes all events of the next `ms` milliseconds.
    pub fn run_for(&mut self, ms: u64) {
        let until = Millis(self.now.0 + ms);
        while let Some((at, what)) = self.queue.next_until(until) {
            self.now = at;
            self.process_event(what);
        }
        self.now = until;
    }

    /// Changes the commands of the run's owner. Each leader process reads them at its next tick.
    pub fn command(&mut self, change: impl FnOnce(&mut AdminCommands)) {
        change(&mut self.commands);
    }

    /// Returns the number of merges on the tape.
    #[must_use]
    pub fn versions(&self) -> usize {
        self.tape.committed().iter().filter(|record| matches!(record, Record::Merged { .. })).count()
    }

    /// Returns the records on the tape.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        self.tape.committed()
    }

    fn process_event(&mut self, what: ClusterEvent) {
        match what {
            ClusterEvent::Tick => self.tick(),
            ClusterEvent::FragmentLeader(at, life, input) => self.leader_input(at, life, input),
            ClusterEvent::Gateway(at, life, input) => self.gateway_input(at, life, input),
            ClusterEvent::LeaderOutput(at, life, order) => self.execute(at, life, order),
            ClusterEvent::Read(at, life, after) => {
                if let Some(records) = self.tape.read(after) {
                    self.answer_gateway(at, life, GatewayInput::Records(after, records));
                }
            }
            ClusterEvent::Copied(replica) => self.tape.copy(replica),
            ClusterEvent::Await(at, life, awaited) => self.await_commit(at, life, awaited),
            ClusterEvent::Elect => self.tape.elect(),
            ClusterEvent::Restart => self.tape.restart(),
            ClusterEvent::Asked(at, epoch, round) => {
                let learner = &self.learners[at];
                if learner.epoch == epoch && learner.unsettled.is_none() {
                    let ms = self.rng.between(5, 150);
                    self.plan_in(ms, ClusterEvent::Trained(at, epoch, round));
                }
            }
            ClusterEvent::Trained(at, epoch, round) => self.send_update(at, epoch, round),
            ClusterEvent::Receipt(at, epoch, serial, merged) => {
                let learner = &mut self.learners[at];
                if learner.epoch == epoch {
                    learner.record_receipt(serial, merged);
                }
            }
            ClusterEvent::Connect(at) => self.connect(at),
            ClusterEvent::Left(gateway, life, at, epoch) => {
                let input = GatewayInput::Left(self.learners[at].id, conn(epoch));
                self.gateway_input(gateway, life, input);
            }
            ClusterEvent::Fault(fault) => self.apply_fault(fault),
        }
    }

    fn tick(&mut self) {
        self.plan_in(TICK_MS, ClusterEvent::Tick);
        for at in 0..self.leaders.len() {
            let life = self.leaders[at].life;
            self.leader_input(at, life, LeaderInput::Ordered(self.commands));
            self.leader_input(at, life, LeaderInput::Tick);
            self.claim(at);
        }
        for at in 0..self.gateways.len() {
            let life = self.gateways[at].life;
            self.gateway_input(at, life, GatewayInput::Tick);
        }
        // Replicas without the whole log get another copy.
        self.copy_to_all();
    }

    fn leader_input(&mut self, at: usize, life: u32, input: LeaderInput) {
        let (now, process) = (self.now, &mut self.leaders[at]);
        let is_tick = matches!(input, LeaderInput::Tick);
        for input in process.take(now, life, input, is_tick) {
            process.machine.handle(now, input);
        }
        while let Some(order) = self.leaders[at].machine.poll() {
            match order {
                LeaderOutput::Tell(notice) => self.broadcast(at, &notice),
                order => self.ship(Service::FragmentLeader(at), ClusterEvent::LeaderOutput(at, life, order)),
            }
        }
    }

    fn gateway_input(&mut self, at: usize, life: u32, input: GatewayInput) {
        let (now, process) = (self.now, &mut self.gateways[at]);
        let is_tick = matches!(input, GatewayInput::Tick);
        for input in process.take(now, life, input, is_tick) {
            process.machine.handle(input);
        }
        while let Some(order) = self.gateways[at].machine.poll() {
            match order {
                GatewayOutput::Ask(learner, conn, round) => {
                    self.send_to_learner(learner, conn, |at, epoch| ClusterEvent::Asked(at, epoch, round))
                }
                GatewayOutput::Receipt(learner, conn, serial, merged) => {
                    self.send_to_learner(learner, conn, |at, epoch| {
                        ClusterEvent::Receipt(at, epoch, serial, merged)
                    })
                }
                GatewayOutput::Refused(learner, conn, serial, _) => {
                    self.send_to_learner(learner, conn, |at, epoch| {
                        ClusterEvent::Receipt(at, epoch, serial, None)
                    })
                }
                GatewayOutput::Reply(reply) => {
                    for leader in 0..self.leaders.len() {
                        let life = self.leaders[leader].life;
                        let input = LeaderInput::Reply(round_trip(&reply));
                        self.ship_between(at, leader, ClusterEvent::FragmentLeader(leader, life, input));
                    }
                }
                GatewayOutput::Read(after) => {
                    self.ship(Service::Gateway(at), ClusterEvent::Read(at, life, after))
                }
                // The simulated learners need only receipts.
                GatewayOutput::Seen(..) => {}
            }
        }
    }

    fn broadcast(&mut self, leader: usize, notice: &Notice) {
        if let Notice::Ended(round) = notice
            && round.0 > self.tape.committed().len() as u64
        {
            self.early_end = Some(*round);
        }
        for at in 0..self.gateways.len() {
            let (life, input) = (self.gateways[at].life, GatewayInput::Notice(round_trip(notice)));
            self.ship_between(at, leader, ClusterEvent::Gateway(at, life, input));
        }
    }

    /// Sends a message to a learner over connection `conn`. It has no effect if that connection is closed on arrival.
    fn send_to_learner(
        &mut self,
        learner: LearnerId,
        conn: ConnId,
        what: impl FnOnce(usize, u32) -> ClusterEvent,
    ) {
        let (index, epoch) = (learner.0 as usize - 1, conn.0 as u32);
        let ms = self.rng.between(1, 40);
        let at = self.learners[index].downlink.after(Millis(self.now.0 + ms));
        self.queue.plan(at, what(index, epoch));
    }

    /// Sends a message from a learner to its gateway, if it is connected.
    fn send_to_gateway(&mut self, at: usize, input: GatewayInput) {
        if let Some(gateway) = self.learners[at].gateway {
            let (life, ms) = (self.gateways[gateway].life, self.rng.between(1, 40));
            let at = self.learners[at].uplink.after(Millis(self.now.0 + ms));
            self.queue.plan(at, ClusterEvent::Gateway(gateway, life, input));
        }
    }

    fn connect(&mut self, at: usize) {
        let gateway = self.rng.below(self.gateways.len() as u64) as usize;
        let learner = &mut self.learners[at];
        learner.epoch += 1;
        let before = learner.gateway.replace(gateway);
        let (id, epoch, unsettled) = (learner.id, learner.epoch, learner.unsettled);
        if let Some(before) = before {
            let (life, ms) = (self.gateways[before].life, self.rng.between(1, 500));
            self.plan_in(ms, ClusterEvent::Left(before, life, at, epoch - 1));
        }
        self.send_to_gateway(at, GatewayInput::Came(id, conn(epoch), unsettled));
    }

    /// Sends an update of random values from a learner.
    fn send_update(&mut self, at: usize, epoch: u32, round: Round) {
        let learner = &self.learners[at];
        if learner.epoch != epoch || learner.unsettled.is_some() {
            return;
        }
        let len = self.run.fragments.len(P);
        let values: Vec<f32> = (0..len).map(|_| 1e-3 * self.rng.normal()).collect();
        let body = self.run.codec.encode(&self.run.segments, &values);
        let learner = &mut self.learners[at];
        let (id, serial) = (learner.id, learner.send(round, body.clone()));
        let (run, base, seen, checksum) = (RunId(1), Version(0), Vec::new(), checksum(&body));
        let update = Update { run, fragment: P, serial, base, steps: 10, tokens: 80, body, checksum, seen };
        let update = self.run.verifier.verify(update);
        self.send_to_gateway(at, GatewayInput::Update(id, conn(epoch), round, update, STANDING));
    }

    fn new_leader(&mut self) -> FragmentLeader {
        self.processes += 1;
        FragmentLeader::new(LeaderTerms {
            process: ProcessId(self.processes),
            ..self.run.leader_terms.clone()
        })
    }

    fn new_gateway(&self, at: usize) -> Gateway {
        let (gateway, segments) = (GatewayId(at as u32), Arc::clone(&self.run.segments));
        Gateway::new(GatewayTerms { gateway, segments, codec: self.run.codec })
    }

    fn plan_in(&mut self, ms: u64, what: ClusterEvent) {
        self.queue.plan(Millis(self.now.0 + ms), what);
    }
}

/// Returns `value` after encoding and decoding it.
fn round_trip<T: AsBytes>(value: &T) -> T {
    T::of_bytes(&value.to_bytes()).expect("what a machine says can be read")
}

/// Returns the connection id for the connection number of a learner.
fn conn(epoch: u32) -> ConnId {
    ConnId(epoch.into())
}

fn process<T, I>(machine: T) -> Process<T, I> {
    Process { machine, life: 0, paused: Millis(0), apart: Millis(0), late_ms: 0, backlog: VecDeque::new() }
}

impl<T, I> Process<T, I> {
    /// Queues `input` if it is for the current incarnation `life`. Returns the inputs to process now. A paused process
    /// gets its inputs in order after the pause.
    fn take(&mut self, now: Millis, life: u32, input: I, is_tick: bool) -> VecDeque<I> {
        let is_paused = self.paused > now;
        // A paused process has no ticks.
        if self.life == life && !(is_paused && is_tick) {
            self.backlog.push_back(input);
        }
        if is_paused { VecDeque::new() } else { std::mem::take(&mut self.backlog) }
    }

    /// Replaces the state machine by a new one without state, and discards queued inputs.
    fn restart(&mut self, machine: T) {
        (self.machine, self.life) = (machine, self.life + 1);
        self.backlog.clear();
    }
}

/// Channel that keeps the order of messages.
#[derive(Clone, Copy, Debug, Default)]
struct OrderedChannel(Millis);

impl OrderedChannel {
    /// Returns the arrival time of a message that would arrive at `at` on its own: not before the messages ahead of it.
    fn after(&mut self, at: Millis) -> Millis {
        self.0 = self.0.max(at);
        self.0
    }
}

/// Simulated learner.
#[derive(Debug)]
struct ClusterLearner {
    id: LearnerId,
    /// Index of the gateway to which the learner is connected.
    gateway: Option<usize>,
    /// Number of the current connection.
    epoch: u32,
    /// Channels from the learner and to the learner.
    uplink: OrderedChannel,
    downlink: OrderedChannel,
    /// Update whose fate the learner does not know.
    unsettled: Option<UnresolvedUpdate>,
    serial: u64,
    /// Round and body of each sent update.
    sent: BTreeMap<Serial, (Round, Vec<u8>)>,
    /// Receipt for each update: the version into which it was merged, or `None` if it was not merged.
    receipts: BTreeMap<Serial, Option<Version>>,
    /// Whether the learner got two different receipts for one update, or a receipt for an update that it did not send.
    has_contradiction: bool,
}

impl ClusterLearner {
    fn new(id: LearnerId) -> Self {
        Self {
            id,
            gateway: None,
            epoch: 0,
            uplink: OrderedChannel::default(),
            downlink: OrderedChannel::default(),
            unsettled: None,
            serial: 0,
            sent: BTreeMap::new(),
            receipts: BTreeMap::new(),
            has_contradiction: false,
        }
    }

    /// Sends an update for `round`.
    fn send(&mut self, round: Round, body: Vec<u8>) -> Serial {
        self.serial += 1;
        let serial = Serial(self.serial);
        self.unsettled = Some(UnresolvedUpdate { round, serial });
        self.sent.insert(serial, (round, body));
        serial
    }

    /// Processes a receipt.
    fn record_receipt(&mut self, serial: Serial, merged: Option<Version>) {
        let before = self.receipts.insert(serial, merged);
        self.has_contradiction |=
            before.is_some_and(|before| before != merged) || !self.sent.contains_key(&serial);
        self.unsettled.take_if(|unsettled| unsettled.serial == serial);
    }
}

/// The cluster's only fragment.
const P: FragmentId = FragmentId(0);

/// Sender facts of every learner: trusted and without limits.
const STANDING: SenderInfo = SenderInfo {
    step_ms_least: 1.0,
    steps_max: None,
    step_tokens: 8,
    stranger_ms: None,
    unmerged_tokens: 1_000_000,
    trust: SenderTrust { level: TrustLevel::Trusted, is_proven: None },
    is_in_norm_stats: true,
    clock_tokens: 0,
};

/// Constants of a run.
#[derive(Debug)]
struct RunConstants {
    fragments: Arc<Fragments>,
    codec: Codec,
    verifier: Verifier,
    leader_terms: LeaderTerms,
    /// Initial state of the fragment.
    initial: FragmentState,
    segments: Arc<Vec<Segment>>,
}

/// Creates the constants of a run with one fragment. In one tensor, directions cancel out if learners disagree.
fn run(seed: u64) -> RunConstants {
    let tensor = |name: &str, rows, cols, merge| Tensor { name: name.to_owned(), rows, cols, merge };
    let tensors = vec![
        tensor("matrix", 4, 40, MergeClass::Radial),
        tensor("embedding", 1, 30, MergeClass::Mean),
        tensor("scalar", 1, 1, MergeClass::Radial),
    ];
    let layout = Layout::new(tensors).expect("a layout");
    let apply = ApplyPolicy::Keep { residue: true };
    let exchange = ExchangeSpec { fragments: 1, sync_every: 10, block: 16, code: Code::Int4, apply };
    let fragments = Arc::new(Fragments::plan(&layout, 1.try_into().expect("one fragment")));
    let codec = Codec::new(&exchange).expect("a code");
    let segments = fragments.segments(P).expect("the first fragment").to_vec();
    let mut rng = Rng::stream(seed, 0xc2);
    let theta = (0..fragments.len(P)).map(|_| rng.normal()).collect();
    let rounds = RoundTerms {
        fragment: P,
        segments: segments.clone(),
        experts: Vec::new(),
        mixture: None,
        codec,
        inner: Preset::Tiny.inner(),
        sync_every: exchange.sync_every,
        is_additive: true,
        lease_ms: 60_000,
        quorum: QuorumPolicy { updates_min: 2.try_into().expect("above 0"), ..QuorumPolicy::default() },
        merge: MergeRule::Radial,
        influence: WeightBounds::default(),
        norm_ratio_max: 1.5,
    };
    let leader_terms = LeaderTerms {
        process: ProcessId(0),
        rounds,
        outer: OuterSpec::default(),
        momentum_warmup_tokens: 0.0,
        fragments: 1,
        timing: Timing { step_ms: 10.0, launch_ms: 300.0, ..Timing::default() },
        rest_ms: 100,
        idle_ms: 0,
        again_ms: 300,
        sums_ms: 2_000,
        learners_start: 1,
        cohort_max: 256,
        states_kept: 2,
    };
    let verifier = Verifier::new(Arc::clone(&fragments), codec);
    let initial = FragmentState::new(theta);
    RunConstants { fragments, codec, verifier, leader_terms, initial, segments: Arc::new(segments) }
}

/// Fault of a cluster. Durations are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// Restarts a leader process without its state.
    KillFragmentLeader(usize),
    /// Pauses a leader process for a time; it then continues without noticing.
    PauseFragmentLeader(usize, u64),
    /// Disconnects a leader process for a time.
    CutFragmentLeader(usize, u64),
    /// Makes a leader process overestimate its lease by a time.
    LateFragmentLeader(usize, u64),
    /// Restarts a gateway without its state and disconnects its learners.
    KillGateway(usize),
    /// Pauses a gateway for a time.
    PauseGateway(usize, u64),
    /// Disconnects a gateway for a time.
    CutGateway(usize, u64),
    /// Stops the leader replica of the tape for a time; records that only it has are lost.
    KillTapeLeader(u64),
    /// Disconnects a learner, which then connects to a random gateway.
    Move(usize),
}

impl Cluster {
    /// Injects `fault` now.
    pub fn inject(&mut self, fault: ClusterFault) {
        self.apply_fault(fault);
    }

    /// Injects `count` random faults at random times within the next `ms` milliseconds.
    pub fn inject_random_faults(&mut self, count: u64, ms: u64) {
        for _ in 0..count {
            let (at, fault) = (self.rng.below(ms), self.random_fault());
            self.plan_in(at, ClusterEvent::Fault(fault));
        }
    }

    /// Ends all pauses and disconnections, and all loss and duplication of messages, from now on.
    pub fn end_faults(&mut self) {
        (self.faults.loss, self.faults.twice) = (0.0, 0.0);
        let now = self.now;
        for process in &mut self.leaders {
            (process.paused, process.apart, process.late_ms) = (process.paused.min(now), now, 0);
        }
        for process in &mut self.gateways {
            (process.paused, process.apart) = (process.paused.min(now), now);
        }
    }

    fn random_fault(&mut self) -> ClusterFault {
        let leader = self.rng.below(self.leaders.len() as u64) as usize;
        let gateway = self.rng.below(self.gateways.len() as u64) as usize;
        let ms = self.rng.between(50, 6_000);
        match self.rng.below(12) {
            0 => ClusterFault::KillFragmentLeader(leader),
            1 | 2 => ClusterFault::PauseFragmentLeader(leader, ms),
            3 => ClusterFault::CutFragmentLeader(leader, ms),
            4 => ClusterFault::LateFragmentLeader(leader, 2 * ms),
            5 => ClusterFault::KillGateway(gateway),
            6 => ClusterFault::PauseGateway(gateway, ms),
            7 => ClusterFault::CutGateway(gateway, ms),
            8 | 9 => ClusterFault::KillTapeLeader(ms),
            _ => ClusterFault::Move(self.rng.below(self.learners.len() as u64) as usize),
        }
    }

    fn apply_fault(&mut self, fault: ClusterFault) {
        let after = |ms| Millis(self.now.0 + ms);
        match fault {
            ClusterFault::KillFragmentLeader(at) => {
                let machine = self.new_leader();
                self.leaders[at].restart(machine);
            }
            ClusterFault::PauseFragmentLeader(at, ms) => self.leaders[at].paused = after(ms),
            ClusterFault::CutFragmentLeader(at, ms) => self.leaders[at].apart = after(ms),
            ClusterFault::LateFragmentLeader(at, ms) => self.leaders[at].late_ms = ms,
            ClusterFault::KillGateway(at) => {
                let machine = self.new_gateway(at);
                self.gateways[at].restart(machine);
                for learner in 0..self.learners.len() {
                    if self.learners[learner].gateway == Some(at) {
                        self.drop_learner(learner);
                    }
                }
            }
            ClusterFault::PauseGateway(at, ms) => self.gateways[at].paused = after(ms),
            ClusterFault::CutGateway(at, ms) => self.gateways[at].apart = after(ms),
            ClusterFault::KillTapeLeader(ms) => {
                let other = self.rng.below(3) as usize;
                self.tape.crash(other);
                let elect = self.rng.between(300, 3_000);
                self.plan_in(elect, ClusterEvent::Elect);
                self.plan_in(ms, ClusterEvent::Restart);
            }
            ClusterFault::Move(at) => self.drop_learner(at),
        }
    }

    fn drop_learner(&mut self, at: usize) {
        let ms = self.rng.between(10, 1_000);
        self.plan_in(ms, ClusterEvent::Connect(at));
    }
}
