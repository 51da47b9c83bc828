//! Target for a learner with a hostile syncer.

use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use archipelago_core::diloco::learner::LearnerConfig;
use archipelago_core::diloco::syncer::{self, Event, Host, Syncer, SyncerConfig};
use archipelago_core::diloco::{Codec, Fragments, MergeJob, Replica};
use archipelago_core::driver::{DriverConfig, Input, LearnerDriver, Output, Step, Waits};
use archipelago_core::wire::{
    BATCH_MAX, Bye, Challenge, ConnId, Identity, Message, Millis, RunId, RunSpec, decode, encode,
};
use archipelago_sim::world::Toy;

use crate::script::Script;

const RUN: RunId = RunId(9);
const CHALLENGE: Challenge = Challenge { run: RUN, nonce: [9; 32] };
const STEPS_MAX: usize = 300;
/// Largest number of outputs of the driver for one input.
const OUTPUTS_MAX: usize = 4_096;
/// Largest number of undelivered messages of the syncer.
const MESSAGES_MAX: usize = 256;

/// Learner with the state of its shell, and the honest syncer whose messages are altered.
struct LearnerHarness {
    driver: LearnerDriver,
    now_us: u64,
    syncer: Syncer,
    conn: Option<ConnId>,
    conns: u64,
    outputs: PendingOutputs,
    shards: Vec<Arc<[u8]>>,
    replica: Option<Replica>,
    theta: Vec<f32>,
    /// Inputs from the shell that the driver has not processed.
    inputs: VecDeque<Input>,
    is_over: bool,
}

/// Pending outputs of the syncer.
#[derive(Default)]
struct PendingOutputs {
    messages: VecDeque<Message>,
    jobs: Vec<MergeJob>,
}

impl Host for PendingOutputs {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        let room = MESSAGES_MAX.saturating_sub(self.messages.len());
        self.messages.extend(conns.iter().take(room).map(|_| message.clone()));
    }

    fn close(&mut self, _conn: ConnId, bye: Bye) {
        self.messages.push_back(Message::Bye(bye));
    }

    fn merge(&mut self, job: MergeJob) {
        self.jobs.push(job);
    }

    fn note(&mut self, _syncer: &Syncer, _event: Event) {}

    fn finished(&mut self) {}
}

/// Runs a script against a learner: messages of an honest syncer, shards and fragments are dropped, duplicated,
/// reordered and altered. In every case the learner goes on or ends, with a bounded number of outputs.
pub fn run(data: &[u8]) {
    let mut script = Script(data);
    let mut stage = LearnerHarness::new();
    stage.handle(Input::Timeout);
    for _ in 0..STEPS_MAX {
        if script.is_over() || stage.is_over {
            break;
        }
        stage.act(&mut script);
    }
}

impl LearnerHarness {
    fn new() -> Self {
        let (spec, shards) = Toy::run(1, 4, 200);
        let layout = Toy::layout();
        let theta = vec![0.0; layout.len()];
        let syncer = Syncer::new(RUN, spec, SyncerConfig::default(), &layout, &theta).unwrap();
        let identity = Identity([1; 32]);
        let learner = LearnerConfig {
            identity,
            name: "one".to_owned(),
            device: String::new(),
            invite: None,
            serial_first: 1,
        };
        let waits = Waits::default();
        let config = DriverConfig { learner, contact_ms_max: None, reconnect_ms_max: None, waits, seed: 5 };
        Self {
            driver: LearnerDriver::new(config),
            now_us: 0,
            syncer,
            conn: None,
            conns: 0,
            outputs: PendingOutputs::default(),
            shards,
            replica: None,
            theta,
            inputs: VecDeque::new(),
            is_over: false,
        }
    }

    /// Performs the next event of the script.
    fn act(&mut self, script: &mut Script<'_>) {
        let kind = script.below(16);
        match kind {
            0..=5 => {
                let Some(message) = self.outputs.messages.pop_front() else { return self.advance(50_000) };
                self.handle(Input::Message(message));
            }
            6 => {
                let Some(message) = self.outputs.messages.pop_front() else { return };
                let altered = altered(script, &message);
                self.handle(altered.map_or_else(Input::Garbled, Input::Message));
            }
            7 => {
                let at = script.below(self.outputs.messages.len().clamp(1, 256));
                let Some(message) = self.outputs.messages.get(at).cloned() else { return };
                self.handle(Input::Message(message));
            }
            8 => drop(self.outputs.messages.pop_front()),
            9 => match decode(&script.bytes(255)) {
                Ok(message) => self.handle(Input::Message(message)),
                Err(error) => self.handle(Input::Garbled(error)),
            },
            10 => {
                self.hang_up();
                self.handle(Input::Closed { code: Some(script.short()), reason: "it broke".to_owned() });
            }
            11 => self.advance(u64::from(script.short()) * 1_000),
            12 => self.handle(Input::Failed { device_lost: script.byte() % 2 == 1, reason: String::new() }),
            13 => self.handle(
                [Input::Paused(script.byte() % 2 == 1), Input::Heard, Input::DrainNow]
                    .into_iter()
                    .nth(script.below(3))
                    .expect("one of three"),
            ),
            _ => self.train(),
        }
        self.now_us += 1_000;
    }

    /// Trains if there is a batch, or waits.
    fn train(&mut self) {
        let batch = self.driver.next_batch(self.now_us);
        self.drain();
        match batch {
            Some(batch) => {
                self.now_us += 20_000;
                let step =
                    Step { tokens: batch.tokens.len() as u64, loss: 1.0, busy_us: 20_000, earlier_us: 0 };
                self.handle(Input::Stepped(step));
            }
            None => self.advance(20_000),
        }
    }

    fn advance(&mut self, us: u64) {
        self.now_us += us;
        self.handle(Input::Waited { us });
        self.handle(Input::Timeout);
        self.drive(syncer::Input::Timeout);
    }

    fn handle(&mut self, input: Input) {
        self.driver.handle(self.now_us, input);
        self.drain();
    }

    fn drain(&mut self) {
        for _ in 0..OUTPUTS_MAX {
            while let Some(input) = self.inputs.pop_front() {
                self.driver.handle(self.now_us, input);
            }
            let Some(output) = self.driver.poll() else {
                if self.inputs.is_empty() {
                    return;
                }
                continue;
            };
            self.execute(output);
        }
        panic!("the learner wants things done without end");
    }

    fn execute(&mut self, output: Output) {
        match output {
            Output::Connect => {
                self.conns += 1;
                self.conn = Some(ConnId(self.conns));
                self.inputs.push_back(Input::Opened);
                self.outputs.messages.push_back(Message::Challenge(CHALLENGE));
            }
            Output::Greet { hello, .. } => self.send(Message::Hello(*hello)),
            Output::Send(message) => self.send(message),
            Output::Close(_) | Output::Disconnect { .. } => self.hang_up(),
            Output::Build { welcome, .. } => {
                let built = self.build(&welcome.spec);
                self.inputs.push_back(built.unwrap_or_else(|| Input::Failed {
                    device_lost: false,
                    reason: "no such engine".to_owned(),
                }));
            }
            Output::Afresh { .. } => self.replica = None,
            Output::Fetch { fragment, .. } => self.inputs.push_back(match self.syncer.hat(fragment) {
                Some((version, hat)) => Input::Fetched { fragment, version, values: hat.to_vec() },
                None => Input::FetchFailed { fragment, reason: "it is merged".to_owned() },
            }),
            Output::FetchShard { shard, body_bytes } => {
                assert!(body_bytes < 1 << 33, "a shard of {body_bytes} bytes is asked for");
                let bytes = self.shards.get(shard as usize).map(|bytes| bytes.to_vec());
                let bytes = bytes.ok_or_else(|| "there is none".to_owned());
                self.inputs.push_back(Input::Shard { shard, bytes });
            }
            Output::Encode { serial, fragment } => {
                let Some(replica) = &mut self.replica else { return };
                let Ok(body) = replica.encode(fragment, &self.theta) else { return };
                let digest = replica.digest(fragment);
                self.inputs.push_back(Input::Encoded { serial, fragment, body, digest });
            }
            // As in the shell, which reports a faulty change and goes on.
            Output::Include { fragment } => {
                let replica = self.replica.as_mut();
                let _ = replica.map(|replica| replica.include(fragment, &mut self.theta));
            }
            Output::Apply { fragment, body } => {
                let replica = self.replica.as_mut();
                let _ = replica.map(|replica| replica.apply(fragment, &body, &mut self.theta));
            }
            Output::Load { fragment, values, keep } => {
                let replica = self.replica.as_mut();
                let _ = replica.map(|replica| replica.load(fragment, &values, keep, &mut self.theta));
            }
            Output::FetchHeldOut { .. } => {
                // Arbitrary bytes of a shard, in a valid form or not.
                let bytes = self.shards.first().map(|bytes| bytes.to_vec());
                let bytes = bytes.ok_or_else(|| "there is none".to_owned());
                self.inputs.push_back(Input::HeldOut { bytes });
            }
            Output::Measure { number, windows } => {
                let loss = (!windows.is_empty()).then_some(f32::NAN);
                self.inputs.push_back(Input::Measured { number, loss });
            }
            Output::Trouble { .. } => {}
            Output::End(_) => self.is_over = true,
        }
    }

    /// Builds an engine for the announced run, if possible.
    fn build(&mut self, spec: &RunSpec) -> Option<Input> {
        let fragments = NonZeroU16::new(spec.exchange.fragments)?;
        let batch = NonZeroU32::new(spec.inner.batch).filter(|batch| batch.get() <= BATCH_MAX)?;
        let fragments = Arc::new(Fragments::plan(&Toy::layout(), fragments));
        let codec = Codec::new(&spec.exchange).ok()?;
        self.replica = Some(Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply));
        Some(Input::Built { fragments, batch })
    }

    fn send(&mut self, message: Message) {
        if let Some(conn) = self.conn {
            self.drive(syncer::Input::Message(conn, message));
        }
    }

    fn hang_up(&mut self) {
        self.outputs.messages.clear();
        if let Some(conn) = self.conn.take() {
            self.drive(syncer::Input::Disconnected(conn));
        }
    }

    fn drive(&mut self, input: syncer::Input) {
        let now = Millis(self.now_us / 1_000 + 1);
        self.syncer.drive(now, input, &mut self.outputs);
        for _ in 0..OUTPUTS_MAX {
            let Some(job) = self.outputs.jobs.pop() else { return };
            self.syncer.drive(now, syncer::Input::Merged(Box::new(job.run())), &mut self.outputs);
        }
    }
}

/// Returns the message with some bytes changed, if it still decodes.
fn altered(
    script: &mut Script<'_>,
    message: &Message,
) -> Result<Message, archipelago_core::wire::DecodeError> {
    let mut bytes = encode(message);
    for _ in 0..=script.below(4) {
        let at = usize::from(script.short()) % bytes.len();
        bytes[at] = script.byte();
    }
    decode(&bytes)
}
