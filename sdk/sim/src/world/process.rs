//! Process of a learner: the real learner driver, the trainer's state, and the code that executes the driver's effects.

use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::sync::Arc;

use archipelago_core::diloco::{Codec, Fragments, Replica, Segment};
use archipelago_core::driver::{Batch, DriverConfig, End, Input, LearnerDriver, Output, Step};
use archipelago_core::wire::{Bye, CloseCode, ConnId, FragmentId, Message, Millis, RunSpec, Version};
use archipelago_runtime::engine::{EngineError, Trainer};

use super::attacks::Forger;
use super::clock::DriftingClock;
use super::event::WorldEvent;
use super::host::REQUEST_BYTES;
use super::link::LinkDirection;
use super::net::Payload;
use super::step_lineage::StepLineage;
use super::{Poison, Trace, World};

/// Request of a process to the world.
#[derive(Debug)]
pub(super) enum Effect {
    /// Connect to the syncer, as attempt number `.0`.
    Connect(u32),
    Send(Box<Message>),
    /// Fetch a fragment. The syncer answers with its only version.
    Fetch(FragmentId),
    FetchShard(u32),
    /// A merged fragment was applied, which only traces use.
    Applied(FragmentId),
    /// Close the learner's end of the connection, if there is one.
    Close,
}

/// Trainer and replica of a process that has joined a run.
struct TrainerState {
    trainer: Box<dyn Trainer>,
    fragments: Arc<Fragments>,
    replica: Replica,
}

pub(super) struct Process {
    driver: LearnerDriver,
    /// Number of windows in the learner's own batch; `None` for the run's batch size.
    own_batch: Option<NonZeroU32>,
    trainer_state: Option<TrainerState>,
    /// Batch of the current step.
    batch: Option<Batch>,
    /// Inputs that arrived during the current step; they are processed at its end.
    inbox: VecDeque<Input>,
    clock: DriftingClock,
    /// Start of the current idle time, on the world's clock; valid between steps.
    idle_since: Millis,
    pub(super) conn: Option<ConnId>,
    /// Number of connection attempts so far.
    pub(super) attempts: u32,
    /// Number of times that all downloads of fragments were abandoned. Late responses to such downloads are ignored.
    pub(super) downloads: u32,
    /// Whether the learner was asked to leave. It exits after its last messages are sent.
    pub(super) leaving: bool,
    /// Number of the current connection attempt. Responses to other attempts are ignored.
    pub(super) dialling: Option<u32>,
    /// Scheduled wake-up of the driver, on the world's clock.
    pub(super) wake: Option<Millis>,
    /// Reason why the learner stopped for good.
    pub(super) stopped: Option<Bye>,
    /// Reason why the learner last discarded its state and joined again.
    pub(super) afresh: Option<String>,
    pub(super) poison: Option<Poison>,
    /// Steps of its training progress and where they are, after joining a run.
    pub(super) lineage: Option<StepLineage>,
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) loss: f32,
}

/// Function that creates the trainer of a machine, given its index. The trainer's layout must be the run's.
pub type MakeTrainer = dyn FnMut(u32) -> Box<dyn Trainer>;

impl Process {
    pub(super) fn new(
        clock: DriftingClock,
        born: Millis,
        config: DriverConfig,
        batch: Option<NonZeroU32>,
        poison: Option<Poison>,
    ) -> Self {
        Self {
            driver: LearnerDriver::new(config),
            own_batch: batch,
            trainer_state: None,
            batch: None,
            inbox: VecDeque::new(),
            clock,
            idle_since: born,
            conn: None,
            attempts: 0,
            downloads: 0,
            leaving: false,
            dialling: None,
            wake: None,
            stopped: None,
            afresh: None,
            poison,
            lineage: None,
            steps: 0,
            tokens: 0,
            loss: f32::NAN,
        }
    }

    /// Processes `input` now or, during a step, at the end of the step.
    pub(super) fn take(&mut self, now: Millis, input: Input) {
        if self.batch.is_some() {
            self.inbox.push_back(input);
        } else {
            self.take_now(now, input);
        }
    }

    /// Processes `input` now, even during a step.
    pub(super) fn take_now(&mut self, now: Millis, input: Input) {
        let clock_us = self.clock_us(now);
        if self.batch.is_none() {
            let us = self.clock.span_us(now.since(self.idle_since));
            self.idle_since = now;
            self.driver.handle(clock_us, Input::Waited { us });
        }
        self.driver.handle(clock_us, input);
    }

    /// Returns the next request to the world. Effects inside the process are executed on the way.
    pub(super) fn poll(&mut self, now: Millis, make: &mut dyn FnMut() -> Box<dyn Trainer>) -> Option<Effect> {
        while let Some(output) = self.driver.poll() {
            match output {
                Output::Connect => {
                    self.attempts += 1;
                    self.dialling = Some(self.attempts);
                    return Some(Effect::Connect(self.attempts));
                }
                // No simulated learner uses the key of another, so no signature is needed.
                Output::Greet { hello, .. } => return Some(Effect::Send(Box::new(Message::Hello(*hello)))),
                Output::Send(message) => return Some(Effect::Send(Box::new(message))),
                Output::Fetch { fragment, .. } => return Some(Effect::Fetch(fragment)),
                Output::FetchShard { shard, .. } => return Some(Effect::FetchShard(shard)),
                Output::Close(_) => return Some(Effect::Close),
                Output::Disconnect { .. } => {
                    self.dialling = None;
                    self.downloads += 1;
                    self.inbox.retain(|input| !of_connection(input));
                    return Some(Effect::Close);
                }
                Output::Build { welcome, rebuild } => self.build(now, &welcome.spec, rebuild, make),
                Output::Afresh { reason } => {
                    self.trainer_state = None;
                    self.lineage.iter_mut().for_each(StepLineage::discard_progress);
                    self.afresh = Some(reason);
                }
                Output::Apply { fragment, .. } => {
                    self.work(now, output);
                    return Some(Effect::Applied(fragment));
                }
                Output::Encode { .. } | Output::Include { .. } | Output::Load { .. } => {
                    self.work(now, output)
                }
                // The syncer here never asks a learner to measure the held-out loss.
                Output::FetchHeldOut { .. } | Output::Measure { .. } | Output::Trouble { .. } => {}
                Output::End(end) => {
                    self.stopped.get_or_insert_with(|| goodbye(end));
                    return Some(Effect::Close);
                }
            }
        }
        None
    }

    /// Begins a step and returns true, if there is a batch and no step is in progress.
    pub(super) fn begin_step(&mut self, now: Millis) -> bool {
        if self.batch.is_none() {
            self.batch = self.driver.next_batch(self.clock_us(now));
            return self.batch.is_some();
        }
        false
    }

    /// Ends the current step, which took `step_ms` milliseconds. The caller then drains [`Self::poll`] and processes
    /// the inputs that arrived during the step with [`Self::next_input`].
    pub(super) fn end_step(&mut self, now: Millis, step_ms: u64) {
        let Some(batch) = self.batch.take() else { return };
        self.idle_since = now;
        let Some(trainer_state) = &mut self.trainer_state else { return };
        let stats = match trainer_state.trainer.step(&batch.tokens, batch.learning_rate) {
            Ok(stats) => stats,
            Err(error) => return self.fail(now, &error),
        };
        let seen = trainer_state.trainer.take_expert_counts();
        self.steps += 1;
        self.tokens += stats.tokens;
        self.lineage.iter_mut().for_each(|lineage| lineage.step(stats.tokens));
        self.loss = stats.loss;
        let step = Step {
            tokens: stats.tokens,
            loss: stats.loss,
            busy_us: self.clock.span_us(step_ms),
            earlier_us: 0,
        };
        if !seen.is_empty() {
            self.take_now(now, Input::ExpertLoad { seen });
        }
        self.take_now(now, Input::Stepped(step));
    }

    /// Processes the next input that arrived during a step. Returns false if no input waits.
    pub(super) fn next_input(&mut self, now: Millis) -> bool {
        let Some(input) = self.inbox.pop_front().filter(|_| self.batch.is_none()) else { return false };
        self.take_now(now, input);
        true
    }

    pub(super) fn is_stepping(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns the time of the driver's next [`Input::Timeout`], on the world's clock.
    pub(super) fn deadline(&self, now: Millis) -> Option<Millis> {
        Some(self.clock.when_us(self.driver.deadline(self.clock_us(now))?))
    }

    /// Returns Θ̂ of each fragment whose version the learner knows.
    pub(super) fn hats(&self) -> Vec<(FragmentId, Version, Vec<f32>)> {
        let Some(trainer_state) = &self.trainer_state else { return Vec::new() };
        let held = trainer_state.fragments.ids().zip(self.driver.versions());
        let known = held.filter_map(|(p, version)| {
            version
                .map(|version| (p, version, trainer_state.fragments.gather(p, trainer_state.replica.hat())))
        });
        known.collect()
    }

    /// Returns the fragments of the run, if the learner has joined one.
    pub(super) fn fragments(&self) -> Option<&Fragments> {
        self.trainer_state.as_ref().map(|trainer_state| &*trainer_state.fragments)
    }

    /// Returns θ, `[layout.len()]`, if the learner has joined a run.
    pub(super) fn params(&self) -> Option<&[f32]> {
        self.trainer_state.as_ref().map(|trainer_state| trainer_state.trainer.params())
    }

    /// Handles an engine failure. The driver joins again with new state or, if that cannot help, leaves.
    fn fail(&mut self, now: Millis, error: &EngineError) {
        let device_lost = matches!(error, EngineError::Lost { .. });
        if device_lost || matches!(error, EngineError::NotFinite { .. } | EngineError::Exchange(_)) {
            return self.take_now(now, Input::Failed { device_lost, reason: error.to_string() });
        }
        self.take_now(now, Input::Leave);
        self.stopped = Some(Bye::new(CloseCode::Done, error.to_string()));
    }

    fn clock_us(&self, now: Millis) -> u64 {
        self.clock.read_us(now)
    }

    fn build(
        &mut self,
        now: Millis,
        spec: &RunSpec,
        rebuild: bool,
        make: &mut dyn FnMut() -> Box<dyn Trainer>,
    ) {
        if rebuild {
            let trainer = make();
            let count = NonZeroU16::new(spec.exchange.fragments).expect("the syncer refuses 0 fragments");
            let fragments = Arc::new(Fragments::plan(trainer.layout(), count));
            let codec = Codec::new(&spec.exchange).expect("the syncer uses the same codec");
            let replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
            self.lineage
                .get_or_insert_with(|| StepLineage::new(spec.exchange.fragments, spec.exchange.apply));
            self.trainer_state = Some(TrainerState { trainer, fragments, replica });
        }
        let Some(trainer_state) = &self.trainer_state else { return };
        let fragments = Arc::clone(&trainer_state.fragments);
        let of_run = NonZeroU32::new(spec.inner.batch).expect("a run trains on something");
        let batch = self.own_batch.unwrap_or(of_run);
        self.take_now(now, Input::Built { fragments, batch });
    }

    /// Executes an effect on the parameters.
    fn work(&mut self, now: Millis, output: Output) {
        let Some(TrainerState { trainer, fragments, replica }) = &mut self.trainer_state else { return };
        let ranges = |fragment| -> Vec<Range<usize>> {
            fragments.segments(fragment).unwrap_or_default().iter().map(Segment::range).collect()
        };
        match output {
            Output::Encode { serial, fragment } => {
                match replica.encode(fragment, trainer.params_at(&ranges(fragment))) {
                    Ok(body) => {
                        let digest = replica.digest(fragment);
                        self.lineage.iter_mut().for_each(|lineage| lineage.encode(fragment, serial));
                        self.take_now(now, Input::Encoded { serial, fragment, body, digest });
                    }
                    // Encoding fails if a step has made parameters overflow.
                    Err(error) => self.fail(now, &error.into()),
                }
            }
            Output::Include { fragment } => {
                replica
                    .include(fragment, trainer.params_mut_at(&ranges(fragment)))
                    .expect("the core coded it before");
                self.lineage.iter_mut().for_each(|lineage| lineage.include(fragment));
            }
            Output::Apply { fragment, body } => {
                replica
                    .apply(fragment, &body, trainer.params_mut_at(&ranges(fragment)))
                    .expect("the core checked base and checksum");
                self.lineage.iter_mut().for_each(|lineage| lineage.apply(fragment, true));
            }
            Output::Load { fragment, values, keep } => {
                replica
                    .load(fragment, &values, keep, trainer.params_mut_at(&ranges(fragment)))
                    .expect("the world serves whole fragments");
                self.lineage.iter_mut().for_each(|lineage| lineage.apply(fragment, keep));
            }
            _ => {}
        }
    }
}

/// Returns true if `input` came over the connection.
fn of_connection(input: &Input) -> bool {
    matches!(
        input,
        Input::Opened | Input::Heard | Input::Message(_) | Input::Garbled(_) | Input::Closed { .. }
    )
}

fn goodbye(end: End) -> Bye {
    match end {
        End::Complete(bye) | End::Refused(bye) => bye,
        End::Left => Bye::new(CloseCode::Done, "stopped by its owner"),
        End::Unreachable { reason, .. } => Bye::new(CloseCode::Done, reason),
        End::DeviceLost => Bye::new(CloseCode::Done, "its device was lost again and again"),
    }
}

impl World {
    /// Executes all pending effects of a learner's driver, then continues its training.
    pub(super) fn drive_learner(&mut self, machine: u32) {
        self.drain_learner(machine);
        self.begin_step(machine);
        self.drain_learner(machine);
        self.plan_wake(machine);
        let process = self.machines[machine as usize].process.as_ref();
        if process.is_some_and(|process| process.leaving && process.stopped.is_some()) {
            self.kill_process(machine, true);
        }
    }

    fn drain_learner(&mut self, machine: u32) {
        let now = self.now;
        loop {
            let make = &mut self.make;
            let Some(process) = &mut self.machines[machine as usize].process else { return };
            let Some(effect) = process.poll(now, &mut || make(machine)) else { return };
            match effect {
                Effect::Connect(attempt) => self.dial(machine, attempt),
                Effect::Send(message) => self.send_up(machine, *message),
                Effect::Fetch(fragment) => self.fetch(machine, fragment),
                Effect::FetchShard(shard) => self.fetch_shard(machine, shard),
                Effect::Applied(fragment) => {
                    self.note_trace(|| Some(Trace::Applied { machine, fragment, at: now }));
                }
                Effect::Close => self.close_from_learner(machine),
            }
        }
    }

    fn send_up(&mut self, machine: u32, message: Message) {
        let is_overheard = self.machines.iter().any(|machine| machine.forged);
        let there = &mut self.machines[machine as usize];
        let (life, forger_state) = (there.life, &mut there.forger_state);
        let Some(process) = &mut there.process else { return };
        let Some(id) = process.conn else { return };
        let messages = match process.poison {
            Some(poison) => {
                let (run, overheard) = (&self.spec.run_spec, &self.overheard);
                poison.forge(
                    message,
                    Forger { run, fragments: process.fragments(), overheard, state: forger_state },
                )
            }
            None => {
                if let (Message::Update(update), Some(lineage)) = (&message, &process.lineage) {
                    self.audit.on_update_sent(machine, life, update, lineage);
                    if is_overheard {
                        self.overheard.insert(update.fragment, update.body.clone());
                    }
                }
                vec![message]
            }
        };
        for message in messages {
            let payload = Payload::new(message.clone(), self.spec.shell.encode);
            self.ship_message(machine, LinkDirection::Up, id, &message, payload);
        }
        let waiting_bytes = self.machines[machine as usize].link.lane(LinkDirection::Up).waiting_bytes();
        if waiting_bytes > self.spec.shell.queue_bytes_max {
            self.close_from_learner(machine);
            let reason = "the network is too slow for what is sent".to_owned();
            self.learner_input(machine, Input::Closed { code: None, reason });
        }
    }

    fn close_from_learner(&mut self, machine: u32) {
        let process = self.machines[machine as usize].process.as_mut();
        if let Some(id) = process.and_then(|process| process.conn.take()) {
            self.end_at_learner(id, false);
        }
    }

    fn fetch(&mut self, machine: u32, fragment: FragmentId) {
        let there = &self.machines[machine as usize];
        let life = there.life;
        let downloads = there.process.as_ref().map_or(0, |process| process.downloads);
        let ask = WorldEvent::AskFragment { machine, life, downloads, fragment };
        self.ship_http(machine, LinkDirection::Up, REQUEST_BYTES, ask, None);
    }

    pub(super) fn fragment_came(
        &mut self,
        machine: u32,
        life: u32,
        downloads: u32,
        fragment: FragmentId,
        answer: Option<(Version, Arc<Vec<f32>>)>,
    ) {
        let process = self.machines[machine as usize].alive(life);
        if process.is_none_or(|process| process.downloads != downloads) {
            return;
        }
        let input = match answer {
            Some((version, values)) => Input::Fetched { fragment, version, values: values.to_vec() },
            None => Input::FetchFailed { fragment, reason: "the syncer is down".to_owned() },
        };
        self.learner_input(machine, input);
    }

    fn fetch_shard(&mut self, machine: u32, shard: u32) {
        let (now, life) = (self.now, self.machines[machine as usize].life);
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        match self.spec.shards.get(shard as usize).filter(|_| self.spec.shell.shards_at_hand) {
            Some(bytes) => process.take_now(now, Input::Shard { shard, bytes: Ok(bytes.to_vec()) }),
            None => {
                let ask = WorldEvent::AskShard { machine, life, shard };
                self.ship_http(machine, LinkDirection::Up, REQUEST_BYTES, ask, None);
            }
        }
    }

    pub(super) fn shard_came(&mut self, machine: u32, life: u32, shard: u32, here: bool) {
        if self.machines[machine as usize].alive(life).is_none() {
            return;
        }
        let bytes = self.spec.shards.get(shard as usize).filter(|_| here);
        let bytes = bytes.map(|bytes| bytes.to_vec()).ok_or_else(|| "the syncer is down".to_owned());
        self.learner_input(machine, Input::Shard { shard, bytes });
    }

    fn begin_step(&mut self, index: u32) {
        let (now, machine) = (self.now, &mut self.machines[index as usize]);
        let Some(process) = machine.process.as_mut().filter(|process| !process.is_stepping()) else { return };
        if process.begin_step(now) {
            let (step_ms, life) = (machine.step_ms(), machine.life);
            let until = now.after(step_ms);
            self.queue.plan(until, WorldEvent::StepDone { machine: index, life, step_ms });
            self.note_trace(|| Some(Trace::Step { machine: index, from: now, until }));
        }
    }

    pub(super) fn step_done(&mut self, machine: u32, life: u32, step_ms: u64) {
        let now = self.now;
        let Some(process) = self.machines[machine as usize].alive(life) else { return };
        process.end_step(now, step_ms);
        loop {
            self.drain_learner(machine);
            let Some(process) = self.machines[machine as usize].alive(life) else { return };
            if !process.next_input(now) {
                break;
            }
        }
        self.learner_input(machine, Input::Timeout);
    }

    pub(super) fn wake_learner(&mut self, machine: u32, life: u32, at: Millis) {
        let Some(process) = self.machines[machine as usize].alive(life) else { return };
        if process.wake != Some(at) {
            return;
        }
        process.wake = None;
        // During a step, the deadline is checked at the end of the step.
        if !process.is_stepping() {
            self.learner_input(machine, Input::Timeout);
        }
    }

    fn plan_wake(&mut self, machine: u32) {
        let (now, life) = (self.now, self.machines[machine as usize].life);
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        let deadline = process.deadline(now).filter(|_| !process.is_stepping());
        let deadline = deadline.map(|at| at.max(now.after(1)));
        if process.wake != deadline {
            process.wake = deadline;
            if let Some(at) = deadline {
                self.queue.plan(at, WorldEvent::WakeLearner { machine, life, at });
            }
        }
    }
}
