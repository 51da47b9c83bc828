//! A learner's process: the real member and its shell's state.

use std::collections::VecDeque;
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Range;
use std::sync::Arc;

use super::Poison;
use super::clock::Clock;
use super::ghosts::Ghosts;
use archipelago_core::diloco::{Codec, Fragments, Replica, Segment};
use archipelago_core::driver::{Batch, DriverConfig, End, Input, LearnerDriver, Output, Step};
use archipelago_core::wire::{Bye, CloseCode, ConnId, FragmentId, Message, Millis, RunSpec, Version};
use archipelago_runtime::engine::{EngineError, Trainer};

/// A process's request to the world.
#[derive(Debug)]
pub(super) enum Effect {
    /// Connect; the number is that of the attempt.
    Connect(u32),
    Send(Box<Message>),
    /// Fetch a fragment. A syncer has one version of each, and answers with that.
    Fetch(FragmentId),
    FetchShard(u32),
    /// Report that a merged fragment was applied; no action is needed.
    Applied(FragmentId),
    /// Close this end of the connection, if there is one.
    Close,
}

/// The engine's side of a process, present after joining a run.
struct Workshop {
    trainer: Box<dyn Trainer>,
    fragments: Arc<Fragments>,
    replica: Replica,
}

pub(super) struct Process {
    member: LearnerDriver,
    /// Windows in each of its steps; `None` follows the run.
    own_batch: Option<NonZeroU32>,
    workshop: Option<Workshop>,
    /// The batch of the current step.
    batch: Option<Batch>,
    /// Inputs that arrived during the step; processed at its end.
    inbox: VecDeque<Input>,
    clock: Clock,
    /// Beginning of the idle time on the world's clock; valid between steps.
    idle_since: Millis,
    pub(super) conn: Option<ConnId>,
    /// Attempts to connect so far.
    pub(super) attempts: u32,
    /// Number of times that all fragment downloads were abandoned; late answers to them are ignored.
    pub(super) downloads: u32,
    /// Whether it was asked to leave politely. It exits once its queue is empty and it has said goodbye.
    pub(super) leaving: bool,
    /// The attempt under way, so that an answer to an abandoned one is ignored.
    pub(super) dialling: Option<u32>,
    /// The wake-up planned for its member, on the world's clock.
    pub(super) wake: Option<Millis>,
    /// Reason of its permanent stop.
    pub(super) stopped: Option<Bye>,
    /// Reason of its last fresh start, if any.
    pub(super) afresh: Option<String>,
    pub(super) poison: Option<Poison>,
    /// Location of its training progress, after joining a run.
    pub(super) ghosts: Option<Ghosts>,
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) loss: f32,
}

/// Function that makes the trainer of a machine, given its index; the layout must be the run's.
pub type MakeTrainer = dyn FnMut(u32) -> Box<dyn Trainer>;

impl Process {
    pub(super) fn new(
        clock: Clock,
        born: Millis,
        config: DriverConfig,
        batch: Option<NonZeroU32>,
        poison: Option<Poison>,
    ) -> Self {
        Self {
            member: LearnerDriver::new(config),
            own_batch: batch,
            workshop: None,
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
            ghosts: None,
            steps: 0,
            tokens: 0,
            loss: f32::NAN,
        }
    }

    /// Processes `input` at once or, during a step, at its end.
    pub(super) fn take(&mut self, now: Millis, input: Input) {
        if self.batch.is_some() {
            self.inbox.push_back(input);
        } else {
            self.take_now(now, input);
        }
    }

    /// Processes `input` even during a step.
    pub(super) fn take_now(&mut self, now: Millis, input: Input) {
        let clock_us = self.clock_us(now);
        if self.batch.is_none() {
            let us = self.clock.span_us(now.since(self.idle_since));
            self.idle_since = now;
            self.member.handle(clock_us, Input::Waited { us });
        }
        self.member.handle(clock_us, input);
    }

    /// Returns the next effect for the world; effects inside the process are executed on the way.
    pub(super) fn poll(&mut self, now: Millis, make: &mut dyn FnMut() -> Box<dyn Trainer>) -> Option<Effect> {
        while let Some(output) = self.member.poll() {
            match output {
                Output::Connect => {
                    self.attempts += 1;
                    self.dialling = Some(self.attempts);
                    return Some(Effect::Connect(self.attempts));
                }
                // There are no impostors here, so no signature is needed.
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
                Output::Build { welcome, anew } => self.build(now, &welcome.spec, anew, make),
                Output::Afresh { reason } => {
                    self.workshop = None;
                    self.ghosts.iter_mut().for_each(Ghosts::begin_anew);
                    self.afresh = Some(reason);
                }
                Output::Apply { fragment, .. } => {
                    self.work(now, output);
                    return Some(Effect::Applied(fragment));
                }
                Output::Encode { .. } | Output::Include { .. } | Output::Load { .. } => {
                    self.work(now, output)
                }
                // The syncer here assigns no learner to measure the held-out loss.
                Output::FetchHeldOut { .. } | Output::Measure { .. } | Output::Trouble { .. } => {}
                Output::End(end) => {
                    self.stopped.get_or_insert_with(|| goodbye(end));
                    return Some(Effect::Close);
                }
            }
        }
        None
    }

    /// Begins a step if there is a batch. Returns true if it did.
    pub(super) fn begin_step(&mut self, now: Millis) -> bool {
        if self.batch.is_none() {
            self.batch = self.member.next_batch(self.clock_us(now));
            return self.batch.is_some();
        }
        false
    }

    /// Ends the current step, which took `step_ms`. The caller drains [`Self::poll`], then processes the inputs that
    /// arrived meanwhile one by one with [`Self::next_input`].
    pub(super) fn end_step(&mut self, now: Millis, step_ms: u64) {
        let Some(batch) = self.batch.take() else { return };
        self.idle_since = now;
        let Some(workshop) = &mut self.workshop else { return };
        let stats = match workshop.trainer.step(&batch.tokens, batch.learning_rate) {
            Ok(stats) => stats,
            Err(error) => return self.fail(now, &error),
        };
        let seen = workshop.trainer.take_seen();
        self.steps += 1;
        self.tokens += stats.tokens;
        self.ghosts.iter_mut().for_each(|ghosts| ghosts.step(stats.tokens));
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

    /// Processes the next input that arrived during a step. Returns false if there was no such input.
    pub(super) fn next_input(&mut self, now: Millis) -> bool {
        let Some(input) = self.inbox.pop_front().filter(|_| self.batch.is_none()) else { return false };
        self.take_now(now, input);
        true
    }

    pub(super) fn is_stepping(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns the time of the member's next [`Input::Timeout`], on the world's clock.
    pub(super) fn deadline(&self, now: Millis) -> Option<Millis> {
        Some(self.clock.when_us(self.member.deadline(self.clock_us(now))?))
    }

    /// Returns Θ̂ of each fragment with a known version.
    pub(super) fn hats(&self) -> Vec<(FragmentId, Version, Vec<f32>)> {
        let Some(workshop) = &self.workshop else { return Vec::new() };
        let held = workshop.fragments.ids().zip(self.member.versions());
        let known = held.filter_map(|(p, version)| {
            version.map(|version| (p, version, workshop.fragments.gather(p, workshop.replica.hat())))
        });
        known.collect()
    }

    /// Returns the fragments of its run, after joining.
    pub(super) fn fragments(&self) -> Option<&Fragments> {
        self.workshop.as_ref().map(|workshop| &*workshop.fragments)
    }

    /// Returns θ, `[layout.len()]`, once it exists.
    pub(super) fn params(&self) -> Option<&[f32]> {
        self.workshop.as_ref().map(|workshop| workshop.trainer.params())
    }

    /// Handles an engine failure: the member starts from scratch or, if that cannot help, the process stops training.
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

    fn build(&mut self, now: Millis, spec: &RunSpec, anew: bool, make: &mut dyn FnMut() -> Box<dyn Trainer>) {
        if anew {
            let trainer = make();
            let count = NonZeroU16::new(spec.exchange.fragments).expect("the syncer refuses 0 fragments");
            let fragments = Arc::new(Fragments::plan(trainer.layout(), count));
            let codec = Codec::new(&spec.exchange).expect("the syncer uses the same codec");
            let replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
            self.ghosts.get_or_insert_with(|| Ghosts::new(spec.exchange.fragments, spec.exchange.apply));
            self.workshop = Some(Workshop { trainer, fragments, replica });
        }
        let Some(workshop) = &self.workshop else { return };
        let fragments = Arc::clone(&workshop.fragments);
        let of_run = NonZeroU32::new(spec.inner.batch).expect("a run trains on something");
        let batch = self.own_batch.unwrap_or(of_run);
        self.take_now(now, Input::Built { fragments, batch });
    }

    /// Executes an effect that concerns only parameters.
    fn work(&mut self, now: Millis, output: Output) {
        let Some(Workshop { trainer, fragments, replica }) = &mut self.workshop else { return };
        let ranges = |fragment| -> Vec<Range<usize>> {
            fragments.segments(fragment).unwrap_or_default().iter().map(Segment::range).collect()
        };
        match output {
            Output::Encode { serial, fragment } => {
                match replica.encode(fragment, trainer.params_at(&ranges(fragment))) {
                    Ok(body) => {
                        let digest = replica.digest(fragment);
                        self.ghosts.iter_mut().for_each(|ghosts| ghosts.encode(fragment, serial));
                        self.take_now(now, Input::Encoded { serial, fragment, body, digest });
                    }
                    // A step may overflow the parameters.
                    Err(error) => self.fail(now, &error.into()),
                }
            }
            Output::Include { fragment } => {
                replica
                    .include(fragment, trainer.params_mut_at(&ranges(fragment)))
                    .expect("the core coded it before");
                self.ghosts.iter_mut().for_each(|ghosts| ghosts.include(fragment));
            }
            Output::Apply { fragment, body } => {
                replica
                    .apply(fragment, &body, trainer.params_mut_at(&ranges(fragment)))
                    .expect("the core checked base and checksum");
                self.ghosts.iter_mut().for_each(|ghosts| ghosts.apply(fragment, true));
            }
            Output::Load { fragment, values, keep } => {
                replica
                    .load(fragment, &values, keep, trainer.params_mut_at(&ranges(fragment)))
                    .expect("the world serves whole fragments");
                self.ghosts.iter_mut().for_each(|ghosts| ghosts.apply(fragment, keep));
            }
            _ => {}
        }
    }
}

/// Returns true if `input` arrived over the connection.
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
