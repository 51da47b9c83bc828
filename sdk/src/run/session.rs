//! Shell around a [`LearnerDriver`]: it passes inputs to the driver, carries out the driver's outputs, and trains in
//! between.

use std::num::NonZeroU32;
use std::pin::pin;

use archipelago_core::diloco::learner::LearnerConfig;
use archipelago_core::driver::{
    Batch, DriverConfig, End, Input, LearnerDriver, NO_ANSWER, Output, Phase, Step, Waits,
};
use archipelago_core::wire::{
    Challenge, Fate, FragmentId, Hello, LearnerState, Message, NAME_BYTES_MAX, RunId, RunSpec, Version,
    Welcome, clip,
};
use archipelago_runtime::engine::{Encoded, Engine, EngineError, OptimiserState};
use archipelago_runtime::platform::{Clock, random_bytes, silence, sleep, yield_now};
use futures::future::{Either, select};

use super::batch::STEP_US_MAX;
use super::downloads::{Downloads, TransferResult};
use super::event::{Doing, Event, Offline, ReceiptCounts, Report};
use super::frozen::{FrozenDownload, Weights};
use super::link::SyncerLink;
use super::meter::{Meter, TimeUse};
use super::{Control, EngineInputs, Remedy, RunConfig, RunError};

/// Maximum sleep in microseconds. The owner's settings are checked at least this often.
const WAIT_US_MAX: u64 = 100_000;
/// Time between two reports, in microseconds.
const REPORT_US: u64 = 500_000;

/// Driver of a learner, and the resources of this machine.
pub(super) struct LearnerSession<'a, E, B, O> {
    pub(super) config: RunConfig,
    pub(super) control: &'a Control,
    pub(super) build: B,
    pub(super) observe: O,
    pub(super) clock: Clock,
    pub(super) member: LearnerDriver,
    pub(super) part: Option<ActiveRun<E>>,
    pub(super) link: SyncerLink,
    pub(super) downloads: Downloads,
    pub(super) saved_state: Option<SavedState>,
    /// Frozen weights of the run, complete or during their download.
    pub(super) weights: Option<Weights>,
    pub(super) frozen_download: Option<FrozenDownload>,
    /// Batch chosen for this device, with the run that it was chosen for.
    pub(super) fitted: Option<(RunId, NonZeroU32)>,
    /// Maximum step time of an automatically chosen batch, in microseconds.
    pub(super) step_us_max: u64,
    /// Error of the last lost device.
    pub(super) lost: Option<EngineError>,
    pub(super) meter: Meter,
    pub(super) receipts: ReceiptCounts,
    /// Settings of the owner that were last passed to the driver.
    applied: ControlState,
    pub(super) end: Option<End>,
    /// Downloaded bytes that were reported to the driver.
    fed_bytes: u64,
    report_us: u64,
}

/// Settings that the learner's owner can change while it runs.
#[derive(Clone, Copy, PartialEq)]
struct ControlState {
    paused: bool,
    hidden: bool,
    duty_permille: u16,
}

/// Engine of the current run.
pub(super) struct ActiveRun<E> {
    pub(super) run: RunId,
    /// Description of the run.
    pub(super) spec: RunSpec,
    /// Windows of one step.
    pub(super) batch: NonZeroU32,
    pub(super) engine: E,
}

impl<'a, E, B, O> LearnerSession<'a, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, EngineInputs) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    pub(super) fn new(
        config: RunConfig,
        control: &'a Control,
        build: B,
        observe: O,
    ) -> Result<Self, RunError> {
        Self::with(config, Waits::default(), control, build, observe)
    }

    /// Returns a session with `waits` instead of the default waits.
    pub(super) fn with(
        config: RunConfig,
        waits: Waits,
        control: &'a Control,
        build: B,
        observe: O,
    ) -> Result<Self, RunError> {
        let learner = LearnerConfig {
            identity: config.signer.identity(),
            name: clip(&config.name, NAME_BYTES_MAX).to_owned(),
            device: clip(&config.device, NAME_BYTES_MAX).to_owned(),
            invite: config.address.invite().cloned(),
            serial_first: u64::from_le_bytes(random_bytes::<8>()?),
        };
        let member = LearnerDriver::new(DriverConfig {
            learner,
            contact_ms_max: Some(config.contact_ms_max),
            reconnect_ms_max: config.reconnect_ms_max,
            waits,
            seed: u64::from_le_bytes(random_bytes::<8>()?),
        });
        Ok(Self {
            control,
            build,
            observe,
            clock: Clock::start(),
            member,
            part: None,
            link: SyncerLink::new(config.address.clone()),
            downloads: Downloads::new(config.address.clone()),
            saved_state: None,
            weights: None,
            frozen_download: None,
            fitted: None,
            step_us_max: STEP_US_MAX,
            lost: None,
            meter: Meter::default(),
            receipts: ReceiptCounts::default(),
            applied: ControlState { paused: false, hidden: false, duty_permille: 1_000 },
            end: None,
            fed_bytes: 0,
            report_us: 0,
            config,
        })
    }

    /// Trains, and handles input between two steps, until the learner ends.
    pub(super) async fn run(mut self) -> Result<Report, RunError> {
        loop {
            self.handle_pending().await?;
            if let Some(end) = self.end.take() {
                return self.into_result(end);
            }
            if let Some(reason) = self.link.take_absent().filter(|_| self.member.phase() == Phase::Greeting) {
                return Err(RunError::NoRun { address: self.config.address, reason });
            }
            let fetched = self.fetch_frozen().await?;
            match self.next_batch().await? {
                Some(batch) => {
                    self.step(&batch).await?;
                    yield_now().await;
                }
                None if fetched => {
                    self.drain().await?;
                    yield_now().await;
                }
                None => self.wait().await?,
            }
        }
    }

    /// Handles all pending input and the owner's settings, without waiting.
    async fn handle_pending(&mut self) -> Result<(), RunError> {
        self.apply_settings().await?;
        while let Some(input) = self.link.try_next() {
            self.handle(input).await?;
        }
        let fed_bytes = self.downloads.bytes();
        if std::mem::replace(&mut self.fed_bytes, fed_bytes) < fed_bytes {
            self.handle(Input::Fed).await?;
        }
        while let Some(result) = self.downloads.try_next() {
            self.take(result).await?;
        }
        if self.control.take_reconnect() {
            self.handle(Input::DrainNow).await?;
        }
        let busy = self.part.as_ref().is_some_and(|part| part.engine.is_busy());
        if !busy && self.link.queued_bytes() == 0 && matches!(self.member.phase(), Phase::Flushing { .. }) {
            self.handle(Input::Flushed).await?;
        }
        // All input is handled before, so that measured silence is real.
        self.handle(Input::Timeout).await?;
        let now_us = self.clock.now_us();
        if now_us >= self.report_us && self.is_here() {
            self.report_us = now_us + REPORT_US;
            let report = self.report(None);
            (self.observe)(&Event::Progress(Box::new(report)));
        }
        Ok(())
    }

    /// Fails if the syncer is unreachable. The caller has found that the time is up and nothing was trained.
    fn check_hindrance(&self, now_us: u64) -> Result<(), RunError> {
        let reason = match self.member.blocked_reason(now_us) {
            Some(reason) => reason.to_owned(),
            None if self.member.phase() == Phase::Greeting => NO_ANSWER.to_owned(),
            None => return Ok(()),
        };
        let retry_ms = self.member.offline(now_us).map_or(0, |offline| offline.retry_ms);
        Err(self.unreachable(now_us / 1_000, retry_ms, reason))
    }

    /// Returns the error after `waited_ms` without admission. The next attempt would be in `retry_ms`.
    fn unreachable(&self, waited_ms: u64, retry_ms: u64, reason: String) -> RunError {
        let address = self.config.address.clone();
        let reason = if reason == NO_ANSWER { silence(&address.socket_url(), &reason) } else { reason };
        let remedy = match self.member.refusal() {
            Some(_) => Remedy::TryLater { after_ms: retry_ms },
            None => Remedy::CheckAddress,
        };
        RunError::Unreachable { address, waited_s: waited_ms / 1_000, reason, remedy }
    }

    async fn apply_settings(&mut self) -> Result<(), RunError> {
        let now_us = self.clock.now_us();
        let over = self.config.run_ms_max.is_some_and(|run_ms| now_us >= run_ms.saturating_mul(1_000));
        if over && !self.control.is_stopped() && self.meter.steps == 0 && self.is_here() {
            self.check_hindrance(now_us)?;
        }
        if (over || self.control.is_stopped()) && self.is_here() {
            self.handle(Input::Leave).await?;
        }
        let settings = ControlState {
            paused: self.control.is_paused(),
            hidden: self.control.is_hidden(),
            duty_permille: self.control.duty_permille(),
        };
        let applied = std::mem::replace(&mut self.applied, settings);
        if settings.paused != applied.paused {
            self.handle(Input::Paused(settings.paused)).await?;
        }
        if settings.hidden != applied.hidden {
            self.handle(Input::Hidden(settings.hidden)).await?;
        }
        if settings.duty_permille != applied.duty_permille {
            self.handle(Input::Duty { permille: settings.duty_permille }).await?;
        }
        Ok(())
    }

    /// Returns true if the owner stopped the learner, or its time is up.
    pub(super) fn is_ending(&self) -> bool {
        let run_us = self.config.run_ms_max.map(|run_ms| run_ms.saturating_mul(1_000));
        self.control.is_stopped() || run_us.is_some_and(|run_us| self.clock.now_us() >= run_us)
    }

    /// Returns true if the learner has not begun to leave.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.member.phase(), Phase::Greeting | Phase::Training)
    }

    /// Returns the next batch, if the learner has one and may train.
    async fn next_batch(&mut self) -> Result<Option<Batch>, RunError> {
        let batch = self.member.next_batch(self.clock.now_us());
        self.drain().await?;
        Ok(batch)
    }

    /// Runs one inner step.
    async fn step(&mut self, batch: &Batch) -> Result<(), RunError> {
        self.account(TimeUse::Exchange);
        let Some(part) = &mut self.part else { return Ok(()) };
        let stepped = part.engine.step(&batch.tokens, batch.learning_rate).await;
        let now_us = self.clock.now_us();
        let (busy_us, earlier_us) = self.meter.returned(now_us);
        let stats = match stepped {
            Ok(stats) => stats,
            Err(error) => {
                self.handle(Input::Worked { us: busy_us }).await?;
                self.fail(error)?;
                return self.drain().await;
            }
        };
        self.receipts.learning_rate = batch.learning_rate;
        self.meter.step(now_us, busy_us + earlier_us, stats.tokens, stats.loss);
        if self.meter.steps == 1 {
            (self.observe)(&Event::FirstStep { elapsed_ms: now_us / 1_000 });
        }
        let seen = self.part.as_mut().map(|part| part.engine.take_expert_counts()).unwrap_or_default();
        if !seen.is_empty() {
            self.handle(Input::ExpertLoad { seen }).await?;
        }
        let (tokens, loss) = (stats.tokens, stats.loss);
        self.handle(Input::Stepped(Step { tokens, loss, busy_us, earlier_us })).await
    }

    /// Waits for the device, then for input for at most [`WAIT_US_MAX`], and handles the input.
    async fn wait(&mut self) -> Result<(), RunError> {
        self.wait_for_device().await?;
        self.account(TimeUse::Exchange);
        let spent = if self.member.is_starved() { TimeUse::Starved } else { TimeUse::Other };
        let from_us = self.meter.accounted_us();
        let wait_us = self.member.deadline(from_us).map_or(WAIT_US_MAX, |at| at.saturating_sub(from_us));
        let wait_ms = wait_us.min(WAIT_US_MAX).div_ceil(1_000).max(1);
        let result = next_result(&mut self.link, &mut self.downloads, wait_ms).await;
        let us = self.account(spent);
        self.handle(Input::Waited { us }).await?;
        match result {
            Some(result) => self.take(result).await,
            None => Ok(()),
        }
    }

    /// Handles the result of a transfer, or an input from the connection.
    async fn take(&mut self, result: TransferResult) -> Result<(), RunError> {
        match result {
            TransferResult::Input(input) => self.handle(input).await,
            TransferResult::Frozen(part) => {
                self.on_frozen_part(part).await;
                Ok(())
            }
        }
    }

    /// Waits until the device has finished its work. Without a further step, only this wait delivers the update
    /// bodies that the device encodes.
    async fn wait_for_device(&mut self) -> Result<(), RunError> {
        self.account(TimeUse::Exchange);
        let Some(part) = self.part.as_mut().filter(|part| part.engine.is_busy()) else { return Ok(()) };
        let result = part.engine.synchronise().await;
        let us = self.meter.finish_pending_steps(self.clock.now_us());
        self.member.handle(self.clock.now_us(), Input::Worked { us });
        result.or_else(|error| self.fail(error))?;
        self.drain().await
    }

    /// Accounts the time since the last call to `spent`, and returns it in microseconds.
    pub(super) fn account(&mut self, spent: TimeUse) -> u64 {
        self.meter.account(self.clock.now_us(), spent)
    }

    /// Returns the last report, or the error that `end` stands for.
    fn into_result(mut self, end: End) -> Result<Report, RunError> {
        match end {
            End::Left | End::Complete(_) => {
                let report = self.report(Some(Doing::Leaving));
                (self.observe)(&Event::Progress(Box::new(report.clone())));
                Ok(report)
            }
            End::Refused(bye) => Err(RunError::Refused { code: bye.code, reason: bye.reason }),
            End::Unreachable { waited_ms, reason } => Err(self.unreachable(waited_ms, 0, reason)),
            End::DeviceLost => {
                let lost = self.lost.unwrap_or(EngineError::Lost { reason: String::new() });
                Err(RunError::Engine(lost))
            }
        }
    }
}

impl<E: Engine> ActiveRun<E> {
    /// Returns the fraction of the parameters that are in `fragment`, 0 to 1.
    pub(super) fn share(&self, fragment: FragmentId) -> f64 {
        self.engine.fragments().len(fragment) as f64 / self.engine.layout().len() as f64
    }

    /// Returns the optimiser state of an engine whose device was lost.
    pub(super) fn into_saved_state(mut self) -> Option<SavedState> {
        let moments = self.engine.saved_moments()?;
        Some(SavedState { run: self.run, spec: self.spec, moments })
    }
}

/// Returns the next input or transfer result, or `None` after `wait_ms` milliseconds without one.
async fn next_result(
    link: &mut SyncerLink,
    downloads: &mut Downloads,
    wait_ms: u64,
) -> Option<TransferResult> {
    let network = async {
        match select(pin!(link.next()), pin!(downloads.next())).await {
            Either::Left((input, _)) => TransferResult::Input(input),
            Either::Right((result, _)) => result,
        }
    };
    match select(pin!(network), pin!(sleep(wait_ms))).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}

impl<E, B, O> LearnerSession<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, EngineInputs) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Passes an input to the driver and carries out the driver's outputs.
    pub(super) async fn handle(&mut self, input: Input) -> Result<(), RunError> {
        if let Input::Message(message) = &input {
            self.report_message(message);
        }
        self.pass_to_driver(input);
        self.drain().await
    }

    fn pass_to_driver(&mut self, input: Input) {
        self.member.handle(self.clock.now_us(), input);
    }

    /// Carries out the driver's outputs in order, and passes finished update bodies to the driver.
    pub(super) async fn drain(&mut self) -> Result<(), RunError> {
        loop {
            if let Some(output) = self.member.poll() {
                self.carry_out(output).await?;
                continue;
            }
            let Some(part) = &mut self.part else { return Ok(()) };
            match part.engine.encoded() {
                Ok(Some(Encoded { serial, fragment, body, digest })) => {
                    self.pass_to_driver(Input::Encoded { serial, fragment, body, digest })
                }
                Ok(None) => return Ok(()),
                // The driver may react to the failure with outputs.
                Err(error) => self.fail(error)?,
            }
        }
    }

    async fn carry_out(&mut self, output: Output) -> Result<(), RunError> {
        match output {
            Output::Connect => {
                (self.observe)(&Event::Connecting { address: self.config.address.to_string() });
                self.link.connect();
            }
            Output::Greet { hello, challenge } => return self.send_hello(*hello, &challenge).await,
            Output::Send(message) => {
                self.send(&message);
            }
            Output::Close(bye) => self.link.close(bye.code, &bye.reason),
            Output::Disconnect { farewell, reason, retry_ms } => {
                if let Some(bye) = farewell {
                    self.link.close(bye.code, &bye.reason);
                }
                self.link.drop_connection();
                self.downloads.clear_fragments();
                (self.observe)(&Event::Disconnected { reason, retry_ms });
            }
            Output::Build { welcome, rebuild } => return self.build(&welcome, rebuild).await,
            Output::Afresh { reason } => {
                (self.observe)(&Event::Afresh { reason });
                self.part = None;
                self.meter.forget_steps();
                self.downloads.clear_shard();
            }
            Output::Fetch { fragment, version } => self.fetch(fragment, version),
            Output::FetchShard { shard, body_bytes } => {
                if let Some((run, _)) = self.member.run() {
                    self.downloads.shard(run, shard, body_bytes);
                }
            }
            Output::FetchHeldOut { body_bytes_max } => {
                if let Some((run, _)) = self.member.run() {
                    self.downloads.held_out(run, body_bytes_max);
                }
            }
            Output::Measure { number, windows } => return self.measure(number, &windows).await,
            Output::Trouble { reason } => (self.observe)(&Event::Trouble { reason }),
            Output::End(end) => self.end = Some(end),
            Output::Encode { .. } | Output::Include { .. } | Output::Apply { .. } | Output::Load { .. } => {
                return self.work(output);
            }
        }
        Ok(())
    }

    /// Sends the signed `Hello` in answer to the syncer's challenge.
    async fn send_hello(&mut self, hello: Hello, challenge: &Challenge) -> Result<(), RunError> {
        match self.config.signer.sign(&challenge.text()).await {
            Ok(signature) => {
                self.downloads.set_pass(&challenge.nonce);
                self.send(&Message::Hello(Hello { signature, ..hello }));
            }
            Err(error) => self.pass_to_driver(Input::Closed { code: None, reason: error.to_string() }),
        }
        Ok(())
    }

    fn send(&mut self, message: &Message) {
        if let Err(error) = self.link.send(message) {
            self.pass_to_driver(Input::Closed { code: None, reason: error.to_string() });
        }
    }

    /// Carries out an output that concerns the engine.
    fn work(&mut self, output: Output) -> Result<(), RunError> {
        let Some(ActiveRun { engine, .. }) = &mut self.part else { return Ok(()) };
        let worked = match output {
            Output::Encode { serial, fragment } => engine.encode(serial, fragment),
            Output::Include { fragment } => engine.include(fragment),
            Output::Apply { fragment, body } => engine.apply(fragment, &body),
            Output::Load { fragment, values, keep } => engine.load(fragment, &values, keep),
            _ => Ok(()),
        };
        worked.or_else(|error| self.fail(error))
    }

    /// Measures the held-out loss for the syncer, if the engine supports it.
    async fn measure(&mut self, number: u32, windows: &[u32]) -> Result<(), RunError> {
        self.account(TimeUse::Exchange);
        let Some(part) = &mut self.part else { return Ok(()) };
        let measured = part.engine.held_out_loss(windows).await;
        let us = self.account(TimeUse::Other);
        self.pass_to_driver(Input::Worked { us });
        let loss = match measured {
            Ok(loss) => loss,
            Err(error @ EngineError::Lost { .. }) => return self.fail(error),
            Err(error) => {
                let reason = format!("the held-out loss cannot be measured: {error}");
                (self.observe)(&Event::Trouble { reason });
                None
            }
        };
        self.pass_to_driver(Input::Measured { number, loss });
        Ok(())
    }

    fn fetch(&mut self, fragment: FragmentId, version: Version) {
        if let (Some(part), Some((run, _))) = (&self.part, self.member.run()) {
            let len = part.engine.fragments().len(fragment);
            self.downloads.fragment(run, fragment, version, len);
        }
    }

    /// Reports the previous engine as ready, or builds an engine once the frozen weights are complete.
    async fn build(&mut self, welcome: &Welcome, rebuild: bool) -> Result<(), RunError> {
        if rebuild {
            // The old engine is dropped first, because both together may not fit into memory.
            self.part = None;
            self.downloads.clear_shard();
            (self.observe)(&Event::Preparing { run: welcome.run.to_string() });
        }
        if self.part.is_some() {
            self.built(welcome);
        } else if self.has_frozen_weights(welcome)? {
            self.build_engine(welcome).await?;
        }
        Ok(())
    }

    /// Builds the engine of a run and reports it as ready.
    pub(super) async fn build_engine(&mut self, welcome: &Welcome) -> Result<(), RunError> {
        self.account(TimeUse::Exchange);
        let opened = self.open(welcome).await;
        self.account(TimeUse::Other);
        match opened {
            Ok(part) => self.part = Some(part),
            Err(error @ EngineError::Lost { .. }) => return self.fail(error),
            Err(error) => return Err(RunError::Build(error)),
        }
        self.built(welcome);
        Ok(())
    }

    /// Reports to the observer and the driver that the engine is ready.
    fn built(&mut self, welcome: &Welcome) {
        let Some(part) = &self.part else { return };
        (self.observe)(&Event::Welcomed {
            run: welcome.run.to_string(),
            learner: welcome.learner,
            params: part.engine.layout().len() as u64,
            device: part.engine.describe(),
            batch: part.batch,
            tokens_trained: welcome.tokens_trained.saturating_sub(self.meter.tokens),
            tokens_merged: welcome.tokens_merged.saturating_sub(self.receipts.tokens_merged.round() as u64),
        });
        let (fragments, batch) = (part.engine.fragments().clone(), part.batch);
        self.pass_to_driver(Input::Built { fragments, batch });
    }

    /// Reports a received message to the observer, and counts receipts.
    fn report_message(&mut self, message: &Message) {
        match message {
            Message::Receipt { fragment, fate, .. } => {
                match fate {
                    Fate::Merged { tokens, .. } => {
                        self.receipts.updates_merged += 1;
                        let share = self.part.as_ref().map_or(0.0, |part| part.share(*fragment));
                        self.receipts.tokens_merged += *tokens as f64 * share;
                    }
                    Fate::Late(_) => self.receipts.updates_late += 1,
                    Fate::Refused(_) => self.receipts.updates_refused += 1,
                }
                (self.observe)(&Event::Receipt { fragment: *fragment, fate: *fate });
            }
            Message::Merged(merged) => {
                (self.observe)(&Event::Merged { fragment: merged.fragment, version: merged.version });
            }
            _ => {}
        }
    }

    /// Passes a recoverable error of the engine to the driver and returns other errors. The caller then calls
    /// [`Self::drain`].
    pub(super) fn fail(&mut self, error: EngineError) -> Result<(), RunError> {
        let device_lost = matches!(error, EngineError::Lost { .. });
        if !device_lost && !matches!(error, EngineError::NotFinite { .. } | EngineError::Exchange(_)) {
            return Err(error.into());
        }
        if device_lost {
            self.saved_state = self.part.take().and_then(ActiveRun::into_saved_state);
        }
        self.pass_to_driver(Input::Failed { device_lost, reason: error.to_string() });
        self.lost = Some(error).filter(|_| device_lost);
        Ok(())
    }
}

/// State of a run's inner optimiser, from an engine whose device was lost.
pub(super) struct SavedState {
    pub(super) run: RunId,
    pub(super) spec: RunSpec,
    pub(super) moments: OptimiserState,
}

/// Returns the saved optimiser state if it belongs to this same run. Any other state is dropped.
pub(super) fn take_saved_state(
    held: &mut Option<SavedState>,
    run: RunId,
    spec: &RunSpec,
) -> Option<OptimiserState> {
    let saved_state = held.take()?;
    (saved_state.run == run && saved_state.spec == *spec).then_some(saved_state.moments)
}

impl<E: Engine, B, O> LearnerSession<'_, E, B, O> {
    /// Returns a report. `doing`, if present, replaces the activity from the driver.
    pub(super) fn report(&mut self, doing: Option<Doing>) -> Report {
        let now_us = self.clock.now_us();
        let bytes = self.link.bytes();
        let doing = doing.unwrap_or_else(|| match self.member.state() {
            _ if self.member.phase() == Phase::Greeting => Doing::Connecting,
            LearnerState::Joining => Doing::Joining,
            LearnerState::Starved => Doing::Starved,
            LearnerState::Held => Doing::Held,
            LearnerState::Paused => Doing::Paused,
            LearnerState::Training | LearnerState::Hidden => Doing::Training,
        });
        let offline = self.member.offline(now_us).map(|offline| Offline {
            reason: offline.reason.to_owned(),
            code: offline.code.map(u16::from),
            retry_ms: offline.retry_ms,
        });
        let (frozen_bytes, frozen_bytes_total) = match (&self.frozen_download, &self.weights) {
            (Some(download), _) => download.progress(),
            (None, Some(weights)) => (weights.bytes(), weights.bytes()),
            (None, None) => (0, 0),
        };
        let unsettled = self.part.as_ref().map_or(0.0, |part| {
            let tokens = (0..).map(FragmentId).zip(self.member.tokens_unsettled());
            tokens.map(|(fragment, tokens)| tokens as f64 * part.share(fragment)).sum()
        });
        Report {
            elapsed_ms: now_us / 1_000,
            doing,
            offline,
            share: self.member.share().ratio(),
            steps: self.meter.steps,
            tokens_trained: self.meter.tokens,
            tokens_merged: self.receipts.tokens_merged.round() as u64,
            tokens_unsettled: unsettled.round() as u64,
            updates_merged: self.receipts.updates_merged,
            updates_late: self.receipts.updates_late,
            updates_refused: self.receipts.updates_refused,
            clock_tokens: self.member.clock_tokens(),
            loss: self.meter.take_loss(),
            learning_rate: self.receipts.learning_rate,
            tokens_per_s: self.meter.tokens_per_s(now_us),
            step_ms: self.meter.step_us as f32 / 1e3,
            sync_ratio: self.meter.sync_ratio(),
            train_ms: self.meter.train_us / 1_000,
            exchange_ms: self.meter.exchange_us / 1_000,
            starved_ms: self.meter.starved_us / 1_000,
            sent_bytes: bytes.sent,
            received_bytes: bytes.received,
            fetched_bytes: self.downloads.bytes(),
            frozen_bytes,
            frozen_bytes_total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved_state(run: u64) -> Option<SavedState> {
        let shard = archipelago_core::data::encode_shard(&[0; 10], 2).unwrap();
        let moments = OptimiserState::of_adamw(9, vec![1.0], vec![2.0]);
        Some(SavedState { run: RunId(run), spec: super::super::fake::spec(&shard), moments })
    }

    #[test]
    fn moments_go_to_the_run_they_came_from() {
        let SavedState { run, spec, moments } = saved_state(7).unwrap();
        let other_spec = RunSpec { seed: spec.seed + 1, ..spec.clone() };
        let mut held = saved_state(7);
        assert_eq!(take_saved_state(&mut held, run, &spec), Some(moments));
        assert_eq!(take_saved_state(&mut held, run, &spec), None);
        for (run, spec) in [(run, &other_spec), (RunId(8), &spec)] {
            let mut held = saved_state(7);
            assert_eq!(take_saved_state(&mut held, run, spec), None);
            assert!(held.is_none());
        }
    }
}
