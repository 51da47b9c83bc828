//! Cluster for tests with two sites of one run: leaders as tasks, gateways with a syncer each, and scripted learners.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_cluster::{BridgeHandle, InitialStates, LeaderSettings, Services, front, own};
use archipelago_core::cluster::{AdminCommands, GatewayId, GatewayTerms, LeaderTerms, ProcessId};
use archipelago_core::diloco::syncer::{Event, Host, Input, LeaderRequest, Syncer, SyncerConfig};
use archipelago_core::diloco::{Codec, FragmentState, Fragments, Layout, MergeJob, Tensor, checksum};
use archipelago_core::wire::{
    ApplyPolicy, Architecture, Bye, Code, ConnId, DataSpec, ExchangeSpec, FragmentId, Hello, Identity,
    InnerSpec, LearnerId, LearnerState, MergeClass, Message, Millis, Model, Optimiser, Progress, RunId,
    RunSpec, Serial, ShardSpec, Signature, Update, Version, Welcome,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, interval};

/// P, the number of fragments.
pub const FRAGMENTS: u16 = 2;
const RUN: RunId = RunId(7);
/// Tokens in one step: 2 windows of 4.
const STEP_TOKENS: u64 = 8;
const STEPS: u32 = 6;

fn layout() -> Layout {
    let tensor = |name: &str, merge| Tensor { name: name.into(), rows: 6, cols: 8, merge };
    Layout::new(vec![tensor("a", MergeClass::Mean), tensor("b", MergeClass::Radial)]).unwrap()
}

fn spec() -> RunSpec {
    let tensors = layout().tensors().to_vec();
    let model =
        Model { context: 4, vocab: 256, tensors, architecture: Architecture::default(), experts: None };
    let inner = InnerSpec {
        batch: 2,
        lr_max: 1.0,
        lr_min_ratio: 1.0,
        warmup_tokens: 0,
        total_tokens: 1,
        beta1: 0.9,
        beta2: 0.9,
        eps: 1e-8,
        weight_decay: 0.0,
        clip_norm: 0.0,
        optimiser: Optimiser::AdamW,
    };
    let apply = ApplyPolicy::Keep { residue: true };
    let exchange = ExchangeSpec { fragments: FRAGMENTS, sync_every: 6, block: 8, code: Code::Int4, apply };
    let shards = vec![ShardSpec { tokens: 100_000, sha256: [0; 32] }];
    let data = DataSpec { token_bytes: 2, masks: false, shards };
    RunSpec { model, inner, exchange, data, seed: 1, frozen: None }
}

fn syncer(process: u64) -> Syncer {
    let layout = layout();
    let syncer = Syncer::new(RUN, spec(), SyncerConfig::default(), &layout, &vec![0.0; layout.len()]);
    syncer.unwrap().into_gateway(process)
}

/// Event that a test sends to a gateway's syncer.
enum GatewayEvent {
    Open(ConnId, mpsc::UnboundedSender<ConnectionEvent>),
    Said(ConnId, Message),
    Back(ConnId, u64),
    Gone(ConnId),
    Tokens(oneshot::Sender<u64>),
    Hat(FragmentId, oneshot::Sender<(Version, Arc<Vec<f32>>)>),
}

/// Event that a syncer sends to a learner's connection.
enum ConnectionEvent {
    Message(Message),
    /// Number that the learner returns when it reads it.
    Probe(u64),
}

/// Leaders and gateways of a run.
pub struct TestCluster {
    gateways: Vec<mpsc::UnboundedSender<GatewayEvent>>,
    conns: AtomicU64,
    fragments: Arc<Fragments>,
    /// Sender for commands of the owner of the run.
    pub ordering: watch::Sender<AdminCommands>,
}

impl TestCluster {
    /// Starts `gateways` gateways and `owners` leading processes with these services.
    pub fn open(services: &Services, gateways: u32, owners: u64) -> Self {
        let fragments = Arc::new(Fragments::plan(&layout(), NonZeroU16::new(FRAGMENTS).unwrap()));
        let terms = |process| {
            LeaderTerms::of(&spec(), &SyncerConfig::default(), &fragments, process).expect("a code")
        };
        let rounds = &terms(ProcessId(0))[0].rounds;
        let lens = Arc::clone(&fragments);
        let initial_states =
            InitialStates::new(move |fragment| Ok(FragmentState::new(vec![0.0; lens.len(fragment)])));
        let (ordering, orders) = watch::channel(AdminCommands::none(rounds, 64));
        for process in 1..=owners {
            let process = ProcessId(process);
            let (fragments, initial_states, orders) =
                (terms(process), initial_states.clone(), orders.clone());
            let settings = LeaderSettings {
                process,
                fragments,
                initial_states,
                lead_max: usize::MAX,
                lease_ms: 2_000,
                tick_ms: 5,
                orders,
            };
            tokio::spawn(own(services.clone(), settings, std::future::pending()));
        }
        let gateways = (0..gateways).map(|at| gateway(services, at)).collect();
        Self { gateways, conns: AtomicU64::new(1), fragments, ordering }
    }

    pub fn fragments(&self) -> Arc<Fragments> {
        Arc::clone(&self.fragments)
    }

    pub fn codec(&self) -> Codec {
        Codec::new(&spec().exchange).unwrap()
    }

    pub fn apply(&self) -> ApplyPolicy {
        spec().exchange.apply
    }

    pub fn len(&self) -> usize {
        layout().len()
    }

    /// Returns the merged tokens credited to the schedule, according to gateway `at`.
    pub async fn clock_tokens(&self, at: usize) -> u64 {
        let (reply, answer) = oneshot::channel();
        assert!(self.gateways[at].send(GatewayEvent::Tokens(reply)).is_ok());
        answer.await.unwrap()
    }

    /// Connects the learner `peer` to a gateway. `run` is the run that the learner returns to, if any.
    pub fn visit(&self, peer: u8, at: usize, run: Option<RunId>) -> Visitor {
        let conn = ConnId(self.conns.fetch_add(1, Ordering::Relaxed));
        let (hears, from) = mpsc::unbounded_channel();
        let line = GatewaySender { conn, to: self.gateways[at].clone() };
        assert!(line.to.send(GatewayEvent::Open(conn, hears)).is_ok());
        let (identity, signature) = (Identity([peer; 32]), Signature::NONE);
        let (name, device) = (peer.to_string(), String::new());
        let hello = Hello { run, layout: None, identity, signature, name, device, invite: None };
        line.say(Message::Hello(hello));
        let (codec, fragments) = (self.codec(), self.fragments());
        Visitor { line, from, codec, fragments, welcome: None, serial: u64::from(peer) << 32, step_ms: 3.0 }
    }
}

/// Sending side of a connection to a gateway.
#[derive(Clone)]
pub struct GatewaySender {
    conn: ConnId,
    to: mpsc::UnboundedSender<GatewayEvent>,
}

impl GatewaySender {
    pub fn say(&self, message: Message) {
        assert!(self.to.send(GatewayEvent::Said(self.conn, message)).is_ok());
    }
}

/// Learner on a connection to a gateway.
pub struct Visitor {
    line: GatewaySender,
    from: mpsc::UnboundedReceiver<ConnectionEvent>,
    codec: Codec,
    fragments: Arc<Fragments>,
    welcome: Option<Welcome>,
    serial: u64,
    /// Step time that the learner reports, in milliseconds.
    pub step_ms: f32,
}

impl Visitor {
    /// Waits for the welcome, and reports readiness and the step time.
    pub async fn join(&mut self) -> Welcome {
        let welcome = loop {
            match self.heard().await {
                Message::Welcome(welcome) => break *welcome,
                Message::Bye(bye) => panic!("{bye:?}"),
                _ => {}
            }
        };
        self.welcome = Some(welcome.clone());
        self.say(Message::Ready { run: RUN, layout: self.fragments.hash(), batch: 2 });
        for (p, &version) in welcome.versions.iter().enumerate() {
            self.holds(FragmentId(p as u16), version);
        }
        let (state, step_ms) = (LearnerState::Training, self.step_ms);
        let progress =
            Progress { run: RUN, leases: Vec::new(), steps: 1, tokens: 8, step_ms, loss: 1.0, state };
        self.say(Message::Progress(progress));
        welcome
    }

    pub fn say(&self, message: Message) {
        self.line.say(message);
    }

    /// Returns the next message, also if it is a goodbye.
    pub async fn heard(&mut self) -> Message {
        loop {
            match self.from.recv().await.unwrap() {
                ConnectionEvent::Message(message) => return message,
                ConnectionEvent::Probe(number) => {
                    assert!(self.line.to.send(GatewayEvent::Back(self.line.conn, number)).is_ok());
                }
            }
        }
    }

    /// Returns the next message, and panics if it is a goodbye.
    pub async fn next(&mut self) -> Message {
        let message = self.heard().await;
        if let Message::Bye(bye) = &message {
            panic!("{bye:?}");
        }
        message
    }

    /// Returns the fragment and the base of the next `Collect`.
    pub async fn question(&mut self) -> (FragmentId, Version) {
        loop {
            if let Message::Collect { fragment, base, .. } = self.next().await {
                return (fragment, base);
            }
        }
    }

    /// Returns Θ̂ of a fragment with its version, as the gateway serves it.
    pub async fn fetch(&self, fragment: FragmentId) -> (Version, Arc<Vec<f32>>) {
        let (reply, answer) = oneshot::channel();
        assert!(self.line.to.send(GatewayEvent::Hat(fragment, reply)).is_ok());
        answer.await.unwrap()
    }

    pub fn holds(&self, fragment: FragmentId, version: Version) {
        self.say(Message::VersionAck { run: RUN, fragment, version });
    }

    /// Returns an update whose values are all `value`.
    pub fn update(&mut self, fragment: FragmentId, base: Version, value: f32) -> Update {
        self.serial += 1;
        let values = vec![value; self.fragments.len(fragment)];
        let body = self.codec.encode(self.fragments.segments(fragment).unwrap(), &values);
        let (serial, checksum) = (Serial(self.serial), checksum(&body));
        let (steps, tokens) = (STEPS, u64::from(STEPS) * STEP_TOKENS);
        Update { run: RUN, fragment, serial, base, steps, tokens, body, checksum, seen: Vec::new() }
    }

    pub fn answer(&mut self, fragment: FragmentId, base: Version, value: f32) {
        let update = self.update(fragment, base, value);
        self.say(Message::Update(update));
    }

    pub fn learner(&self) -> LearnerId {
        self.welcome.as_ref().unwrap().learner
    }

    pub fn run(&self) -> RunId {
        self.welcome.as_ref().unwrap().run
    }

    /// Returns the sending side of the connection, which can be used after the learner has left.
    pub fn sender(&self) -> GatewaySender {
        self.line.clone()
    }

    pub fn next_serial(&self) -> u64 {
        self.serial
    }

    pub fn number_from(&mut self, serial: u64) {
        self.serial = serial;
    }

    /// Reports to the gateway that the connection is closed.
    pub fn leave(&self) {
        assert!(self.line.to.send(GatewayEvent::Gone(self.line.conn)).is_ok());
    }
}

/// Starts a syncer with its gateway, as tasks. Returns the sender for its events.
fn gateway(services: &Services, at: u32) -> mpsc::UnboundedSender<GatewayEvent> {
    let syncer = syncer(u64::from(at + 1) << 48 | u64::from(at + 1));
    let terms = GatewayTerms::of(&syncer, GatewayId(at)).unwrap();
    let (front, facing) = front(services.clone(), terms, syncer.states().cloned().collect(), 20);
    tokio::spawn(front.run(std::future::pending()));
    let (to, heard) = mpsc::unbounded_channel();
    tokio::spawn(face(syncer, facing, heard));
    to
}

/// Drives a syncer, as a minimal server.
async fn face(mut syncer: Syncer, facing: BridgeHandle, mut heard: mpsc::UnboundedReceiver<GatewayEvent>) {
    let BridgeHandle { said, mut inputs } = facing;
    let mut host = ConnectionHost { lines: BTreeMap::new(), said };
    let (start, mut tick) = (Instant::now(), interval(std::time::Duration::from_millis(10)));
    loop {
        let input = tokio::select! {
            input = inputs.recv() => match input {
                Some(Input::Introduced { conn, .. }) if !host.lines.contains_key(&conn) => continue,
                Some(input) => input,
                None => return,
            },
            heard = heard.recv() => match heard {
                Some(GatewayEvent::Open(conn, line)) => {
                    host.lines.insert(conn, line);
                    continue;
                }
                Some(GatewayEvent::Said(conn, message)) => Input::Message(conn, message),
                Some(GatewayEvent::Back(conn, number)) => Input::Probed(conn, number),
                Some(GatewayEvent::Gone(conn)) => {
                    host.lines.remove(&conn);
                    Input::Disconnected(conn)
                }
                Some(GatewayEvent::Hat(fragment, reply)) => {
                    assert!(reply.send(syncer.hat(fragment).unwrap()).is_ok());
                    continue;
                }
                Some(GatewayEvent::Tokens(reply)) => {
                    assert!(reply.send(syncer.ledger().clock_tokens()).is_ok());
                    continue;
                }
                None => return,
            },
            _ = tick.tick() => Input::Timeout,
        };
        let now = Millis(start.elapsed().as_millis() as u64);
        syncer.drive(now, input, &mut host);
    }
}

struct ConnectionHost {
    lines: BTreeMap<ConnId, mpsc::UnboundedSender<ConnectionEvent>>,
    said: mpsc::UnboundedSender<LeaderRequest>,
}

impl Host for ConnectionHost {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        for conn in conns {
            if let Some(line) = self.lines.get(conn) {
                let _ = line.send(ConnectionEvent::Message(message.clone()));
            }
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.send(&[conn], Message::Bye(bye));
        self.lines.remove(&conn);
    }

    fn merge(&mut self, job: MergeJob) {
        panic!("nothing is merged at a gateway: {job:?}");
    }

    fn leader_request(&mut self, request: LeaderRequest) {
        let _ = self.said.send(request);
    }

    fn probe(&mut self, conn: ConnId, number: u64) {
        if let Some(line) = self.lines.get(&conn) {
            let _ = line.send(ConnectionEvent::Probe(number));
        }
    }

    fn note(&mut self, _syncer: &Syncer, _event: Event) {}

    fn finished(&mut self) {}
}
