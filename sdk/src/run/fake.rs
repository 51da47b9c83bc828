//! Syncer for tests: the real core behind real sockets, on threads of this process. Also a run with a few parameters,
//! and a device that delivers update bodies late and is lost on cue.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{mem, thread};

use archipelago_core::data::{encode_shard, shard_spec};
use archipelago_core::diloco::syncer::{Event, Host, Input, Syncer, SyncerConfig};
use archipelago_core::diloco::{Layout, MergeClass, MergeJob, Tensor, Version};
use archipelago_core::model::{LoraSpec, LoraTargets, ModelSpec, Preset};
use archipelago_core::wire::{
    ApplyPolicy, Architecture, Assembler, BODY_BYTES_MAX, Bye, Challenge, Code, ConnId, DataSpec,
    ExchangeSpec, FragmentId, Frozen, FrozenForm, Hello, InnerSpec, Message, Model, Optimiser, RunId,
    RunSpec, SUBPROTOCOL, Serial, encode, frames,
};
use archipelago_runtime::engine::{
    Encoded, Engine, EngineError, Exchange, HostEngine, OptimiserState, StepStats, Trainer,
};
use archipelago_runtime::platform::{Clock, yield_now};
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode as SocketCode;
use tokio_tungstenite::tungstenite::{self, Message as Frame, WebSocket};

use super::{Address, Control};

/// Injected faults of a fake syncer, and its record of received messages and requests.
#[derive(Default)]
pub(super) struct FaultScript {
    /// Goodbyes in answer to the next `Hello`s, before one is admitted.
    pub(super) goodbyes: Vec<Bye>,
    /// Number of responses with a shard that are interrupted half way.
    pub(super) broken_shards: u32,
    /// Number of responses with a fragment that are interrupted half way.
    pub(super) broken_fragments: u32,
    /// Number of requests for a fragment that are answered with "retry after one second".
    pub(super) busy: u32,
    /// Number of receipts after which each connection is cut.
    pub(super) cut_after_receipts: Option<u32>,
    /// Number of receipts after which the next connection falls silent without closing.
    pub(super) mute_after_receipts: Option<u32>,
    /// Bytes sent instead of the answer to the next `Hello`.
    pub(super) garbage: Option<Vec<u8>>,
    pub(super) hellos: Vec<Hello>,
    pub(super) byes: Vec<Bye>,
    /// Batches of the learners' `Ready` messages.
    pub(super) batches: Vec<u32>,
    /// Number of received updates.
    pub(super) updates: u32,
    /// Frozen weights of the run. If present, the run trains the adapters of [`adapters`].
    pub(super) frozen: Option<Vec<u8>>,
    /// Number of responses with a part of the frozen weights that are interrupted half way.
    pub(super) broken_parts: u32,
    /// Number of responses with a part of the frozen weights that have a wrong byte.
    pub(super) wrong_parts: u32,
    /// Heads of the HTTP requests.
    pub(super) requests: Vec<String>,
}

pub(super) struct FakeSyncer {
    pub(super) address: Address,
    state: Arc<Mutex<FakeSyncerState>>,
}

struct FakeSyncerState {
    clock: Clock,
    syncer: Syncer,
    shard: Vec<u8>,
    outputs: PendingOutputs,
    next_conn: u64,
    script: FaultScript,
}

/// Messages to be sent on each connection, and merges to be run.
#[derive(Default)]
struct PendingOutputs {
    conns: BTreeMap<ConnId, Vec<Message>>,
    jobs: Vec<MergeJob>,
}

impl Host for PendingOutputs {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        for conn in conns {
            if let Some(messages) = self.conns.get_mut(conn) {
                messages.push(message.clone());
            }
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.send(&[conn], Message::Bye(bye));
    }

    fn merge(&mut self, job: MergeJob) {
        self.jobs.push(job);
    }

    fn note(&mut self, _syncer: &Syncer, _event: Event) {}

    fn finished(&mut self) {}
}

impl FakeSyncer {
    /// Listens on a free port of this machine.
    pub(super) fn start(script: FaultScript) -> Self {
        let tokens: Vec<u32> = (0..4_000).map(|i| i % 251).collect();
        let shard = encode_shard(&tokens, 2).unwrap();
        let run_spec = match &script.frozen {
            Some(bytes) => of_adapters(spec(&shard), bytes),
            None => spec(&shard),
        };
        let layout = Layout::of(&run_spec.model).unwrap();
        let theta = vec![0.0; layout.len()];
        let syncer = Syncer::new(RunId(7), run_spec, SyncerConfig::default(), &layout, &theta).unwrap();
        let state = FakeSyncerState {
            clock: Clock::start(),
            syncer,
            shard,
            outputs: PendingOutputs::default(),
            next_conn: 1,
            script,
        };
        let state = Arc::new(Mutex::new(state));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &state));
            }
        });
        Self { address, state }
    }

    /// Passes `input` to the core, as a command of the run's owner.
    pub(super) fn command(&self, input: Input) {
        lock(&self.state).handle(input);
    }

    pub(super) fn script<R>(&self, edit: impl FnOnce(&mut FaultScript) -> R) -> R {
        edit(&mut lock(&self.state).script)
    }
}

fn lock(state: &Mutex<FakeSyncerState>) -> MutexGuard<'_, FakeSyncerState> {
    state.lock().expect("a test thread panicked")
}

fn serve(mut stream: TcpStream, state: &Mutex<FakeSyncerState>) {
    let mut head = [0; 2_048];
    let Ok(count) = stream.peek(&mut head) else { return };
    let text = String::from_utf8_lossy(&head[..count]).into_owned();
    if text.starts_with("GET /v1/ws ") {
        #[expect(clippy::result_large_err, reason = "the library wants it so")]
        let agree = |_: &Request, mut response: Response| {
            response.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(SUBPROTOCOL));
            Ok(response)
        };
        stream.set_read_timeout(Some(Duration::from_millis(1_000))).unwrap();
        let socket = tungstenite::accept_hdr(stream, agree).unwrap();
        socket.get_ref().set_read_timeout(Some(Duration::from_millis(3))).unwrap();
        FakeSyncerState::talk(state, socket);
    } else {
        stream.read_exact(&mut head[..count]).unwrap();
        let answer = lock(state).answer(&text);
        // The client may have closed the connection.
        let _sent = stream.write_all(&answer);
    }
}

impl FakeSyncerState {
    fn talk(state: &Mutex<Self>, mut socket: WebSocket<TcpStream>) {
        let conn = {
            let mut state = lock(state);
            state.next_conn += 1;
            let conn = ConnId(state.next_conn);
            let challenge = Challenge { run: RunId(7), nonce: [3; 32] };
            state.outputs.conns.insert(conn, vec![Message::Challenge(challenge)]);
            conn
        };
        let mut assembler = Assembler::new(BODY_BYTES_MAX);
        let (mut receipts, mut mute) = (0, false);
        loop {
            match socket.read() {
                Ok(Frame::Binary(frame)) => {
                    if let Some(message) = assembler.push(&frame).unwrap() {
                        lock(state).take(conn, message);
                    }
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error))
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
            let (messages, cut, garbage) = {
                let mut state = lock(state);
                let now = state.clock.now();
                if state.syncer.deadline(now).is_some() {
                    state.handle(Input::Timeout);
                }
                let garbage = if state.script.hellos.is_empty() { None } else { state.script.garbage.take() };
                let mut messages = state.outputs.conns.get_mut(&conn).map(mem::take).unwrap_or_default();
                mute |= state.script.mute_after_receipts.take_if(|after| receipts >= *after).is_some();
                if mute {
                    messages.clear();
                }
                (messages, state.script.cut_after_receipts, garbage)
            };
            if let Some(garbage) = garbage {
                socket.send(Frame::Binary(garbage.into())).unwrap();
                continue;
            }
            for message in messages {
                receipts += u32::from(matches!(message, Message::Receipt { .. }));
                let bye = if let Message::Bye(bye) = &message { Some(bye.clone()) } else { None };
                for frame in frames(encode(&message), receipts) {
                    // A closed connection is noticed at the next read.
                    let _sent = socket.send(Frame::Binary(frame.into()));
                }
                if let Some(Bye { code, reason, .. }) = bye {
                    let code = SocketCode::from(u16::from(code));
                    let _sent = socket.close(Some(CloseFrame { code, reason: reason.into() }));
                }
            }
            if cut.is_some_and(|cut| receipts >= cut) {
                break;
            }
        }
        let mut state = lock(state);
        state.outputs.conns.remove(&conn);
        state.handle(Input::Disconnected(conn));
    }

    fn take(&mut self, conn: ConnId, message: Message) {
        match &message {
            Message::Hello(hello) => {
                self.script.hellos.push(hello.clone());
                if !self.script.goodbyes.is_empty() {
                    let bye = self.script.goodbyes.remove(0);
                    return self.outputs.conns.entry(conn).or_default().push(Message::Bye(bye));
                }
                if self.script.garbage.is_some() {
                    return;
                }
            }
            Message::Bye(bye) => self.script.byes.push(bye.clone()),
            Message::Ready { batch, .. } => self.script.batches.push(*batch),
            Message::Update(_) => self.script.updates += 1,
            _ => {}
        }
        self.handle(Input::Message(conn, message));
    }

    fn handle(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.syncer.drive(self.clock.now(), input, &mut self.outputs);
            inputs.extend(self.outputs.jobs.drain(..).map(|job| Input::Merged(Box::new(job.run()))));
        }
    }

    /// Returns the complete HTTP answer to a request.
    fn answer(&mut self, head: &str) -> Vec<u8> {
        self.script.requests.push(head.to_owned());
        let path: Vec<&str> = head.split(' ').nth(1).unwrap_or_default().split('/').collect();
        let lower = head.to_ascii_lowercase();
        let start = lower.split("range: bytes=").nth(1).and_then(|rest| rest.split('-').next());
        let start: usize = start.map_or(0, |start| start.parse().unwrap());
        let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
        let reply = |head: &str, announced: usize, body: &[u8]| {
            let head = format!("HTTP/1.1 {head}\r\ncontent-length: {announced}\r\nconnection: close\r\n\r\n");
            [head.as_bytes(), body].concat()
        };
        match path.as_slice() {
            ["", "v1", "runs", _, "fragments", fragment, _] => {
                let Ok(fragment) = fragment.parse().map(FragmentId) else {
                    return reply("404 Not Found", 0, &[]);
                };
                if self.script.busy > 0 {
                    self.script.busy -= 1;
                    return reply("503 Service Unavailable\r\nretry-after: 1", 0, &[]);
                }
                match self.syncer.hat(fragment) {
                    Some((Version(current), values)) => {
                        let body = archipelago_core::diloco::binary16::to_bytes(&values);
                        let head = format!("{status}\r\nx-archipelago-version: {current}");
                        let rest = &body[start..];
                        if self.script.broken_fragments > 0 {
                            self.script.broken_fragments -= 1;
                            return reply(&head, rest.len(), &rest[..rest.len() / 2]);
                        }
                        reply(&head, rest.len(), rest)
                    }
                    None => reply("503 Service Unavailable", 0, &[]),
                }
            }
            ["", "v1", "runs", _, "frozen", part] => {
                let frozen = self.syncer.spec().frozen.clone();
                let range = part.parse().ok().and_then(|part| frozen?.range(part));
                let (Some(bytes), Some((from, to))) = (&self.script.frozen, range) else {
                    return reply("404 Not Found", 0, &[]);
                };
                let mut rest = bytes[from as usize + start..to as usize].to_vec();
                if self.script.broken_parts > 0 {
                    self.script.broken_parts -= 1;
                    return reply(status, rest.len(), &rest[..rest.len() / 2]);
                }
                if self.script.wrong_parts > 0 {
                    self.script.wrong_parts -= 1;
                    rest[0] ^= 1;
                }
                reply(status, rest.len(), &rest)
            }
            ["", "v1", "runs", _, "shards", "0"] => {
                let rest = &self.shard[start..];
                if self.script.broken_shards > 0 {
                    self.script.broken_shards -= 1;
                    return reply(status, rest.len(), &rest[..rest.len() / 2]);
                }
                reply(status, rest.len(), rest)
            }
            _ => reply("404 Not Found", 0, &[]),
        }
    }
}

fn layout() -> Layout {
    let tensor = |name: &str, rows, merge| Tensor { name: name.into(), rows, cols: 8, merge };
    Layout::new(vec![tensor("embed", 4, MergeClass::Mean), tensor("a", 6, MergeClass::Radial)]).unwrap()
}

pub(super) fn spec(shard: &[u8]) -> RunSpec {
    RunSpec {
        model: Model {
            context: 4,
            vocab: 256,
            tensors: layout().tensors().to_vec(),
            architecture: Architecture::default(),
            experts: None,
        },
        inner: InnerSpec {
            batch: 2,
            lr_max: 0.1,
            lr_min_ratio: 1.0,
            warmup_tokens: 0,
            total_tokens: 1,
            beta1: 0.9,
            beta2: 0.9,
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: 0.0,
            optimiser: Optimiser::AdamW,
        },
        exchange: ExchangeSpec {
            fragments: 2,
            sync_every: 4,
            block: 8,
            code: Code::Int4,
            apply: ApplyPolicy::Keep { residue: true },
        },
        data: DataSpec { token_bytes: 2, masks: false, shards: vec![shard_spec(shard, 2).unwrap()] },
        seed: 1,
        frozen: None,
    }
}

/// Returns the shape of a tiny model with adapters.
pub(super) fn adapters() -> ModelSpec {
    let lora = Some(LoraSpec { rank: 1, alpha: 1.0, targets: LoraTargets::ALL });
    ModelSpec {
        context: 4,
        d_model: 8,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        d_ff: 8,
        lora,
        ..Preset::Tiny.model(256)
    }
}

/// Returns `spec` with the model of [`adapters`], which builds on `bytes` in parts of 1000.
pub(super) fn of_adapters(spec: RunSpec, bytes: &[u8]) -> RunSpec {
    let (form, part_bytes) = (FrozenForm::F16, 1_000);
    let sha256 = bytes.chunks(part_bytes as usize).flat_map(|part| Frozen::of(form, part).sha256).collect();
    let frozen = Some(Frozen { form, bytes: bytes.len() as u64, part_bytes, sha256 });
    RunSpec { model: adapters().into(), frozen, ..spec }
}

/// Step time in milliseconds; at 0 the token rate would be meaningless.
pub(super) const STEP_MS: u64 = 2;

/// Trainer that pulls every parameter towards 1.
pub(super) struct QuadraticTrainer {
    layout: Layout,
    params: Vec<f32>,
}

impl QuadraticTrainer {
    pub(super) fn new() -> Self {
        Self::of(layout())
    }

    /// Returns a trainer with another layout.
    pub(super) fn of(layout: Layout) -> Self {
        let params = vec![0.0; layout.len()];
        Self { layout, params }
    }
}

impl Trainer for QuadraticTrainer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        thread::sleep(Duration::from_millis(STEP_MS));
        let loss = self.params.iter().map(|x| (1.0 - x) * (1.0 - x)).sum::<f32>() / self.params.len() as f32;
        for x in &mut self.params {
            *x += lr * (1.0 - *x);
        }
        let windows = tokens.len() as u64 / 5;
        Ok(StepStats { loss, grad_norm: loss, tokens: windows * 4 })
    }

    fn describe(&self) -> String {
        "toy".to_owned()
    }
}

/// Time for which the device continues to work after the call of a step, in milliseconds.
pub(super) const DEVICE_MS: u64 = 5;

/// Behaviour of one engine.
#[derive(Clone, Copy, Debug)]
pub(super) enum EngineBehaviour {
    /// The device is lost before the engine is ready.
    LostAtStart,
    /// There is not enough memory.
    Oversized,
    /// The engine delivers a body after `late_steps` further steps and is lost after `life_steps` steps in all.
    /// `None` means never.
    Alive { late_steps: Option<u64>, life_steps: Option<u64> },
}

/// State shared by all engines on one device.
#[derive(Default)]
pub(super) struct Device {
    /// Behaviours of the next engines; the last one applies to all further engines.
    pub(super) plans: VecDeque<EngineBehaviour>,
    /// Optimiser state passed to each engine.
    pub(super) given: Vec<Option<OptimiserState>>,
    /// Batch requested for each engine, including failed ones.
    pub(super) batches: Vec<u32>,
    /// Step time for each window, in milliseconds.
    pub(super) window_ms: u64,
    /// Number of rehearsed steps.
    pub(super) rehearsals: u32,
    /// Steps of each engine that became ready.
    pub(super) steps: Vec<u64>,
    /// Number of waits for steps.
    pub(super) steps_done: u64,
    /// Stops the learner once the encoding of a body has begun.
    pub(super) leave_at_body: Option<Control>,
    live_engines: u32,
}

impl Device {
    pub(super) fn new(plans: &[EngineBehaviour]) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { plans: plans.iter().copied().collect(), ..Self::default() }))
    }
}

/// Engine in host memory with the timing of a device.
pub(super) struct DeviceEngine {
    host: HostEngine<QuadraticTrainer>,
    device: Rc<RefCell<Device>>,
    index: usize,
    /// Steps in the initial optimiser state.
    steps_before: u64,
    late_steps: Option<u64>,
    life_steps: Option<u64>,
    /// Bodies in progress, each with the step at which it is delivered.
    coding: VecDeque<(Option<u64>, Encoded)>,
    stepped: bool,
}

impl DeviceEngine {
    pub(super) async fn open(
        device: &Rc<RefCell<Device>>,
        spec: &RunSpec,
        moments: Option<OptimiserState>,
    ) -> Result<Self, EngineError> {
        yield_now().await;
        let mut state = device.borrow_mut();
        assert_eq!(state.live_engines, 0, "the engine before still stands");
        let plan = if state.plans.len() > 1 { state.plans.pop_front() } else { state.plans.front().copied() };
        let steps_before = moments.as_ref().map_or(0, |moments| moments.steps);
        state.given.push(moments);
        state.batches.push(spec.inner.batch);
        let (late_steps, life_steps) = match plan.unwrap() {
            EngineBehaviour::LostAtStart => return Err(lost()),
            EngineBehaviour::Oversized => {
                return Err(EngineError::HostMemory { needed_mib: 2, available_mib: 1 });
            }
            EngineBehaviour::Alive { late_steps, life_steps } => (late_steps, life_steps),
        };
        let host = HostEngine::new(spec, QuadraticTrainer::new())?;
        state.live_engines += 1;
        state.steps.push(0);
        let (index, device) = (state.steps.len() - 1, Rc::clone(device));
        let coding = VecDeque::new();
        Ok(Self { host, device, index, steps_before, late_steps, life_steps, coding, stepped: false })
    }

    fn steps(&self) -> u64 {
        self.device.borrow().steps[self.index]
    }

    /// Sleeps as long as a step on `tokens` takes.
    fn work(&self, tokens: &[u32]) {
        let state = self.device.borrow();
        let windows = tokens.len() as u64 / 5;
        assert_eq!(
            windows,
            state.batches[state.batches.len() - 1].into(),
            "another batch than it was built for"
        );
        thread::sleep(Duration::from_millis(state.window_ms * windows));
    }
}

impl Drop for DeviceEngine {
    fn drop(&mut self) {
        self.device.borrow_mut().live_engines -= 1;
    }
}

impl Engine for DeviceEngine {
    fn exchange(&self) -> &dyn Exchange {
        self.host.exchange()
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self.host.exchange_mut()
    }

    fn describe(&self) -> String {
        "device".to_owned()
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        yield_now().await;
        if self.life_steps == Some(self.steps()) {
            return Err(lost());
        }
        self.stepped = true;
        self.work(tokens);
        self.device.borrow_mut().steps[self.index] += 1;
        self.host.step(tokens, lr).await
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        yield_now().await;
        assert_eq!(self.steps(), 0, "it trains already");
        self.device.borrow_mut().rehearsals += 1;
        self.work(tokens);
        Ok(true)
    }

    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        if let Some(control) = &self.device.borrow().leave_at_body {
            control.stop();
        }
        self.exchange_mut().encode(serial, fragment)?;
        let at_step = self.late_steps.map(|late_steps| self.steps() + late_steps);
        let encoded = self.exchange_mut().encoded()?;
        self.coding.extend(encoded.map(|encoded| (at_step, encoded)));
        Ok(())
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        let steps = self.steps();
        let out = self.coding.front().is_some_and(|(at_step, _)| at_step.is_some_and(|at| at <= steps));
        Ok(self.coding.pop_front_if(|_| out).map(|(_, encoded)| encoded))
    }

    async fn synchronise(&mut self) -> Result<(), EngineError> {
        yield_now().await;
        thread::sleep(Duration::from_millis(DEVICE_MS));
        self.device.borrow_mut().steps_done += u64::from(mem::take(&mut self.stepped));
        for (at_step, _) in &mut self.coding {
            *at_step = Some(0);
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.stepped || !self.coding.is_empty()
    }

    fn saved_moments(&mut self) -> Option<OptimiserState> {
        let (steps, len) = (self.steps_before + self.steps(), self.layout().len());
        Some(OptimiserState::of_adamw(steps, vec![steps as f32; len], vec![0.0; len]))
    }
}

fn lost() -> EngineError {
    EngineError::Lost { reason: "the test says so".to_owned() }
}
