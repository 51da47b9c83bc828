//! Owners, gateways and learners of one fragment in virtual time, with an unreliable tape, blob store, roster and bus.
//!
//! The machines are those of [`archipelago_core::cluster`]; this module contains only the services between them, and
//! their faults. [`Cluster::check`] compares all receipts and notices with the tape, and each merge with that of a
//! syncer in one process.

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
    Codec, FragmentState, Fragments, Influence, Layout, MergeRule, OuterSpec, QuorumPolicy, RoundTerms,
    Segment, SenderInfo, SenderTrust, Tensor, Timing, TrustLevel, Verifier, checksum,
};
use archipelago_core::model::Preset;
use archipelago_core::wire::{
    ApplyPolicy, Code, ConnId, ExchangeSpec, FragmentId, LearnerId, MergeClass, Millis, Round, RunId, Serial,
    Update, Version,
};

use crate::world::{Queue, Rng};
use service::{PendingAppend, ReplicatedTape, Service};

pub use check::InvariantViolation;

/// Time between two ticks of the machines, in milliseconds.
const TICK_MS: u64 = 100;
/// Duration of a lease, in milliseconds.
const LEASE_MS: u64 = 3_000;

/// Faults of the transport.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransportFaults {
    /// Share of lost messages, on the bus and to or from a service.
    pub loss: f64,
    /// Share of messages on the bus that arrive twice.
    pub twice: f64,
    /// Longest delay, in milliseconds; messages may overtake each other.
    pub delay_ms: u64,
    /// Longest write time of a tape replica, in milliseconds.
    pub disk_ms: u64,
}

/// A process and its current faults.
#[derive(Debug)]
struct Process<T, I> {
    machine: T,
    /// Number of restarts; messages for an earlier life are lost.
    life: u32,
    /// End of a pause.
    paused: Millis,
    /// End of a partition.
    apart: Millis,
    /// Excess of the believed lease time over the real one, in milliseconds.
    late_ms: u64,
    /// Inputs that arrived during a pause.
    backlog: VecDeque<I>,
}

#[derive(Debug)]
enum ClusterEvent {
    Tick,
    FragmentLeader(usize, u32, LeaderInput),
    Gateway(usize, u32, GatewayInput),
    /// An owner's order reaches the service that executes it.
    LeaderOutput(usize, u32, LeaderOutput),
    /// A gateway reads the tape.
    Read(usize, u32, u64),
    /// A replica has copied the leader's log.
    Copied(usize),
    /// An appended record is checked for its commit.
    Await(usize, u32, PendingAppend),
    Elect,
    Restart,
    /// A learner gets a request from its gateway, on this connection.
    Asked(usize, u32, Round),
    /// It has made progress.
    Trained(usize, u32, Round),
    Receipt(usize, u32, Serial, Option<Version>),
    Connect(usize),
    /// A gateway notices that a learner's connection is gone.
    Left(usize, u32, usize, u32),
    Fault(ClusterFault),
}

/// A run on several machines, in virtual time. One seed and one sequence of calls lead to one history.
#[derive(Debug)]
pub struct Cluster {
    now: Millis,
    rng: Rng,
    weather: TransportFaults,
    queue: Queue<ClusterEvent>,
    run: RunConstants,
    owners: Vec<Process<FragmentLeader, LeaderInput>>,
    gateways: Vec<Process<Gateway, GatewayInput>>,
    learners: Vec<ClusterLearner>,
    tape: ReplicatedTape,
    /// Blobs that can be loaded.
    blobs: BTreeMap<u64, Arc<Vec<u8>>>,
    /// All blobs ever stored, so that deleted ones can still be checked.
    archive: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Commands of the run's owner, which all processes read.
    orders: AdminCommands,
    /// The process that owns the fragment, and the end of its lease.
    lease: Option<(usize, u32, Millis)>,
    /// Records acknowledged to an owner.
    acknowledged: BTreeMap<u64, Record>,
    told_early: Option<Round>,
    processes: u64,
}

impl Cluster {
    /// Creates a cluster of two owners, of which one leads, with `gateways` gateways and `learners` learners.
    ///
    /// # Panics
    /// Never, for any numbers.
    #[must_use]
    pub fn new(seed: u64, gateways: usize, learners: u32, weather: TransportFaults) -> Self {
        let run = run(seed);
        let orders = AdminCommands::none(&run.owner.rounds, run.owner.cohort_max);
        let mut cluster = Self {
            now: Millis(0),
            rng: Rng::stream(seed, 0xc1),
            weather,
            queue: Queue::new(),
            run,
            owners: Vec::new(),
            gateways: Vec::new(),
            learners: (1..=learners).map(|id| ClusterLearner::new(LearnerId(id))).collect(),
            tape: ReplicatedTape::default(),
            blobs: BTreeMap::new(),
            archive: BTreeMap::new(),
            orders,
            lease: None,
            acknowledged: BTreeMap::new(),
            told_early: None,
            processes: 0,
        };
        for _ in 0..2 {
            let machine = cluster.owner();
            cluster.owners.push(process(machine));
        }
        for at in 0..gateways {
            let machine = cluster.gateway(at);
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
            self.happen(what);
        }
        self.now = until;
    }

    /// Changes the orders of the run's owner; each process reads them at its next tick.
    pub fn order(&mut self, change: impl FnOnce(&mut AdminCommands)) {
        change(&mut self.orders);
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

    fn happen(&mut self, what: ClusterEvent) {
        match what {
            ClusterEvent::Tick => self.tick(),
            ClusterEvent::FragmentLeader(at, life, input) => self.owner_hears(at, life, input),
            ClusterEvent::Gateway(at, life, input) => self.gateway_hears(at, life, input),
            ClusterEvent::LeaderOutput(at, life, order) => self.serve(at, life, order),
            ClusterEvent::Read(at, life, after) => {
                if let Some(records) = self.tape.read(after) {
                    self.answer_gateway(at, life, GatewayInput::Records(after, records));
                }
            }
            ClusterEvent::Copied(replica) => self.tape.copy(replica),
            ClusterEvent::Await(at, life, awaited) => self.look_after(at, life, awaited),
            ClusterEvent::Elect => self.tape.elect(),
            ClusterEvent::Restart => self.tape.restart(),
            ClusterEvent::Asked(at, epoch, round) => {
                let learner = &self.learners[at];
                if learner.epoch == epoch && learner.unsettled.is_none() {
                    let ms = self.rng.between(5, 150);
                    self.plan_in(ms, ClusterEvent::Trained(at, epoch, round));
                }
            }
            ClusterEvent::Trained(at, epoch, round) => self.hand_in(at, epoch, round),
            ClusterEvent::Receipt(at, epoch, serial, merged) => {
                let learner = &mut self.learners[at];
                if learner.epoch == epoch {
                    learner.hear(serial, merged);
                }
            }
            ClusterEvent::Connect(at) => self.connect(at),
            ClusterEvent::Left(gateway, life, at, epoch) => {
                let input = GatewayInput::Left(self.learners[at].id, conn(epoch));
                self.gateway_hears(gateway, life, input);
            }
            ClusterEvent::Fault(fault) => self.strike(fault),
        }
    }

    fn tick(&mut self) {
        self.plan_in(TICK_MS, ClusterEvent::Tick);
        for at in 0..self.owners.len() {
            let life = self.owners[at].life;
            self.owner_hears(at, life, LeaderInput::Ordered(self.orders));
            self.owner_hears(at, life, LeaderInput::Tick);
            self.claim(at);
        }
        for at in 0..self.gateways.len() {
            let life = self.gateways[at].life;
            self.gateway_hears(at, life, GatewayInput::Tick);
        }
        // Logs that were not copied are copied again.
        self.copy_to_all();
    }

    fn owner_hears(&mut self, at: usize, life: u32, input: LeaderInput) {
        let (now, process) = (self.now, &mut self.owners[at]);
        let is_tick = matches!(input, LeaderInput::Tick);
        for input in process.take(now, life, input, is_tick) {
            process.machine.handle(now, input);
        }
        while let Some(order) = self.owners[at].machine.poll() {
            match order {
                LeaderOutput::Tell(notice) => self.broadcast(at, &notice),
                order => self.ship(Service::FragmentLeader(at), ClusterEvent::LeaderOutput(at, life, order)),
            }
        }
    }

    fn gateway_hears(&mut self, at: usize, life: u32, input: GatewayInput) {
        let (now, process) = (self.now, &mut self.gateways[at]);
        let is_tick = matches!(input, GatewayInput::Tick);
        for input in process.take(now, life, input, is_tick) {
            process.machine.handle(input);
        }
        while let Some(order) = self.gateways[at].machine.poll() {
            match order {
                GatewayOutput::Ask(learner, conn, round) => {
                    self.tell_learner(learner, conn, |at, epoch| ClusterEvent::Asked(at, epoch, round))
                }
                GatewayOutput::Receipt(learner, conn, serial, merged) => {
                    self.tell_learner(learner, conn, |at, epoch| {
                        ClusterEvent::Receipt(at, epoch, serial, merged)
                    })
                }
                GatewayOutput::Refused(learner, conn, serial, _) => {
                    self.tell_learner(learner, conn, |at, epoch| {
                        ClusterEvent::Receipt(at, epoch, serial, None)
                    })
                }
                GatewayOutput::Reply(reply) => {
                    for owner in 0..self.owners.len() {
                        let life = self.owners[owner].life;
                        let input = LeaderInput::Reply(carried(&reply));
                        self.ship_between(at, owner, ClusterEvent::FragmentLeader(owner, life, input));
                    }
                }
                GatewayOutput::Read(after) => {
                    self.ship(Service::Gateway(at), ClusterEvent::Read(at, life, after))
                }
                // Learners in this simulation use only receipts.
                GatewayOutput::Seen(..) => {}
            }
        }
    }

    fn broadcast(&mut self, owner: usize, notice: &Notice) {
        if let Notice::Ended(round) = notice
            && round.0 > self.tape.committed().len() as u64
        {
            self.told_early = Some(*round);
        }
        for at in 0..self.gateways.len() {
            let (life, input) = (self.gateways[at].life, GatewayInput::Notice(carried(notice)));
            self.ship_between(at, owner, ClusterEvent::Gateway(at, life, input));
        }
    }

    /// Sends a message to a learner over a connection. It has no effect if the connection is gone on arrival.
    fn tell_learner(
        &mut self,
        learner: LearnerId,
        conn: ConnId,
        what: impl FnOnce(usize, u32) -> ClusterEvent,
    ) {
        let (index, epoch) = (learner.0 as usize - 1, conn.0 as u32);
        let ms = self.rng.between(1, 40);
        let at = self.learners[index].hears.after(Millis(self.now.0 + ms));
        self.queue.plan(at, what(index, epoch));
    }

    /// Sends a message from a learner to its gateway, over its socket.
    fn learner_says(&mut self, at: usize, input: GatewayInput) {
        if let Some(gateway) = self.learners[at].gateway {
            let (life, ms) = (self.gateways[gateway].life, self.rng.between(1, 40));
            let at = self.learners[at].says.after(Millis(self.now.0 + ms));
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
        self.learner_says(at, GatewayInput::Came(id, conn(epoch), unsettled));
    }

    /// Sends an invented update of a learner: noise, as long as any other update.
    fn hand_in(&mut self, at: usize, epoch: u32, round: Round) {
        let learner = &self.learners[at];
        if learner.epoch != epoch || learner.unsettled.is_some() {
            return;
        }
        let len = self.run.fragments.len(P);
        let values: Vec<f32> = (0..len).map(|_| 1e-3 * self.rng.bell()).collect();
        let body = self.run.codec.encode(&self.run.segments, &values);
        let learner = &mut self.learners[at];
        let (id, serial) = (learner.id, learner.send(round, body.clone()));
        let (run, base, seen, checksum) = (RunId(1), Version(0), Vec::new(), checksum(&body));
        let update = Update { run, fragment: P, serial, base, steps: 10, tokens: 80, body, checksum, seen };
        let update = self.run.verifier.verify(update);
        self.learner_says(at, GatewayInput::Update(id, conn(epoch), round, update, STANDING));
    }

    fn owner(&mut self) -> FragmentLeader {
        self.processes += 1;
        FragmentLeader::new(LeaderTerms { process: ProcessId(self.processes), ..self.run.owner.clone() })
    }

    fn gateway(&self, at: usize) -> Gateway {
        let (gateway, segments) = (GatewayId(at as u32), Arc::clone(&self.run.segments));
        Gateway::new(GatewayTerms { gateway, segments, codec: self.run.codec })
    }

    fn plan_in(&mut self, ms: u64, what: ClusterEvent) {
        self.queue.plan(Millis(self.now.0 + ms), what);
    }
}

/// Returns `value` after a round trip through its byte form.
fn carried<T: AsBytes>(value: &T) -> T {
    T::of_bytes(&value.to_bytes()).expect("what a machine says can be read")
}

/// Returns the connection with a learner's connection number.
fn conn(epoch: u32) -> ConnId {
    ConnId(epoch.into())
}

fn process<T, I>(machine: T) -> Process<T, I> {
    Process { machine, life: 0, paused: Millis(0), apart: Millis(0), late_ms: 0, backlog: VecDeque::new() }
}

impl<T, I> Process<T, I> {
    /// Queues `input`, which is meant for `life`, and returns the inputs to process now. A paused process gets none;
    /// after the pause it gets all of them, in order.
    fn take(&mut self, now: Millis, life: u32, input: I, is_tick: bool) -> VecDeque<I> {
        let is_paused = self.paused > now;
        // Ticks during a pause are skipped.
        if self.life == life && !(is_paused && is_tick) {
            self.backlog.push_back(input);
        }
        if is_paused { VecDeque::new() } else { std::mem::take(&mut self.backlog) }
    }

    /// Replaces the process by `machine`, without any of its state.
    fn begin_anew(&mut self, machine: T) {
        (self.machine, self.life) = (machine, self.life + 1);
        self.backlog.clear();
    }
}

/// A channel that preserves order.
#[derive(Clone, Copy, Debug, Default)]
struct OrderedChannel(Millis);

impl OrderedChannel {
    /// Returns the arrival time of an item due at `at`, behind everything already on the channel.
    fn after(&mut self, at: Millis) -> Millis {
        self.0 = self.0.max(at);
        self.0
    }
}

/// A learner of a cluster.
#[derive(Debug)]
struct ClusterLearner {
    id: LearnerId,
    /// The gateway that it is connected to.
    gateway: Option<usize>,
    /// Number of its current connection.
    epoch: u32,
    /// Channel from the learner, and the channel to it. Both preserve order.
    says: OrderedChannel,
    hears: OrderedChannel,
    /// Its update without a known fate.
    unsettled: Option<UnresolvedUpdate>,
    serial: u64,
    /// Sent updates by serial, with their rounds.
    sent: BTreeMap<Serial, (Round, Vec<u8>)>,
    /// Receipts by serial: the version that the update was merged into, or `None`.
    told: BTreeMap<Serial, Option<Version>>,
    /// Whether it got two different receipts for one update, or one for an update that it never sent.
    is_confused: bool,
}

impl ClusterLearner {
    fn new(id: LearnerId) -> Self {
        Self {
            id,
            gateway: None,
            epoch: 0,
            says: OrderedChannel::default(),
            hears: OrderedChannel::default(),
            unsettled: None,
            serial: 0,
            sent: BTreeMap::new(),
            told: BTreeMap::new(),
            is_confused: false,
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
    fn hear(&mut self, serial: Serial, merged: Option<Version>) {
        let before = self.told.insert(serial, merged);
        self.is_confused |= before.is_some_and(|before| before != merged) || !self.sent.contains_key(&serial);
        self.unsettled.take_if(|unsettled| unsettled.serial == serial);
    }
}

/// The only fragment.
const P: FragmentId = FragmentId(0);

/// Facts about every learner, without any restriction.
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

/// The constants of a run.
#[derive(Debug)]
struct RunConstants {
    fragments: Arc<Fragments>,
    codec: Codec,
    verifier: Verifier,
    owner: LeaderTerms,
    /// The fragment's initial state.
    initial: FragmentState,
    segments: Arc<Vec<Segment>>,
}

/// Creates a run of one fragment, with a tensor whose directions cancel out when learners disagree.
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
    let theta = (0..fragments.len(P)).map(|_| rng.bell()).collect();
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
        influence: Influence::default(),
        norm_ratio_max: 1.5,
    };
    let owner = LeaderTerms {
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
    RunConstants { fragments, codec, verifier, owner, initial, segments: Arc::new(segments) }
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// Restarts an owner process without its state.
    KillOwner(usize),
    /// Pauses an owner for this many milliseconds; it resumes without noticing.
    PauseOwner(usize, u64),
    /// Cuts an owner off for this many milliseconds.
    CutOwner(usize, u64),
    /// Makes an owner believe that its leases last this many milliseconds longer than they do.
    LateOwner(usize, u64),
    /// Restarts a gateway process without its state.
    KillGateway(usize),
    /// Pauses a gateway for this many milliseconds.
    PauseGateway(usize, u64),
    /// Cuts a gateway off for this many milliseconds.
    CutGateway(usize, u64),
    /// Kills the tape's leader, with the records that only it has; it is back after this many milliseconds.
    KillLeader(u64),
    /// Disconnects a learner, which then reconnects to a random gateway.
    Move(usize),
}

impl Cluster {
    /// Injects `fault` now.
    pub fn inject(&mut self, fault: ClusterFault) {
        self.strike(fault);
    }

    /// Injects `count` random faults at random times within the next `ms` milliseconds.
    pub fn storm(&mut self, count: u64, ms: u64) {
        for _ in 0..count {
            let (at, fault) = (self.rng.below(ms), self.any_fault());
            self.plan_in(at, ClusterEvent::Fault(fault));
        }
    }

    /// Ends all pauses, partitions, message losses and duplicates from now on.
    pub fn calm(&mut self) {
        (self.weather.loss, self.weather.twice) = (0.0, 0.0);
        let now = self.now;
        for process in &mut self.owners {
            (process.paused, process.apart, process.late_ms) = (process.paused.min(now), now, 0);
        }
        for process in &mut self.gateways {
            (process.paused, process.apart) = (process.paused.min(now), now);
        }
    }

    fn any_fault(&mut self) -> ClusterFault {
        let owner = self.rng.below(self.owners.len() as u64) as usize;
        let gateway = self.rng.below(self.gateways.len() as u64) as usize;
        let ms = self.rng.between(50, 6_000);
        match self.rng.below(12) {
            0 => ClusterFault::KillOwner(owner),
            1 | 2 => ClusterFault::PauseOwner(owner, ms),
            3 => ClusterFault::CutOwner(owner, ms),
            4 => ClusterFault::LateOwner(owner, 2 * ms),
            5 => ClusterFault::KillGateway(gateway),
            6 => ClusterFault::PauseGateway(gateway, ms),
            7 => ClusterFault::CutGateway(gateway, ms),
            8 | 9 => ClusterFault::KillLeader(ms),
            _ => ClusterFault::Move(self.rng.below(self.learners.len() as u64) as usize),
        }
    }

    fn strike(&mut self, fault: ClusterFault) {
        let after = |ms| Millis(self.now.0 + ms);
        match fault {
            ClusterFault::KillOwner(at) => {
                let machine = self.owner();
                self.owners[at].begin_anew(machine);
            }
            ClusterFault::PauseOwner(at, ms) => self.owners[at].paused = after(ms),
            ClusterFault::CutOwner(at, ms) => self.owners[at].apart = after(ms),
            ClusterFault::LateOwner(at, ms) => self.owners[at].late_ms = ms,
            ClusterFault::KillGateway(at) => {
                let machine = self.gateway(at);
                self.gateways[at].begin_anew(machine);
                for learner in 0..self.learners.len() {
                    if self.learners[learner].gateway == Some(at) {
                        self.drop_learner(learner);
                    }
                }
            }
            ClusterFault::PauseGateway(at, ms) => self.gateways[at].paused = after(ms),
            ClusterFault::CutGateway(at, ms) => self.gateways[at].apart = after(ms),
            ClusterFault::KillLeader(ms) => {
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
