//! The shell around a [`LearnerDriver`]: it carries out the member's actions, passes inputs to it, and trains in
//! between.

use std::num::NonZeroU32;
use std::pin::pin;

use futures::future::{Either, select};

use archipelago_core::diloco::learner::LearnerConfig;
use archipelago_core::driver::{Batch, DriverConfig, End, Input, LearnerDriver, Phase, Step, Waits};
use archipelago_core::wire::{FragmentId, NAME_BYTES_MAX, RunId, RunSpec, clip};
use archipelago_runtime::engine::{Engine, EngineError};
use archipelago_runtime::platform::{Clock, random_bytes, sleep, yield_now};

use super::batch::STEP_US_MAX;
use super::downloads::{Came, Downloads};
use super::event::{Doing, Event, Report};
use super::frozen::{Gathering, Weights};
use super::link::Link;
use super::meter::{Meter, Spent};
use super::optimizer_backup::Salvaged;
use super::tally::Tally;
use super::{Basis, Control, RunConfig, RunError};

/// Maximum sleep in microseconds; the owner's settings are checked this often.
const WAIT_US_MAX: u64 = 100_000;
/// Time between two reports, in microseconds.
const REPORT_US: u64 = 500_000;

/// A member and the resources of this machine.
pub(super) struct Session<'a, E, B, O> {
    pub(super) config: RunConfig,
    pub(super) control: &'a Control,
    pub(super) build: B,
    pub(super) observe: O,
    pub(super) clock: Clock,
    pub(super) member: LearnerDriver,
    pub(super) part: Option<Part<E>>,
    pub(super) link: Link,
    pub(super) downloads: Downloads,
    pub(super) salvaged: Option<Salvaged>,
    /// Frozen weights of the run, complete or during their download.
    pub(super) weights: Option<Weights>,
    pub(super) gathering: Option<Gathering>,
    /// Batch chosen for this device, and its run.
    pub(super) fitted: Option<(RunId, NonZeroU32)>,
    /// Maximum step time of a chosen batch, in microseconds.
    pub(super) step_us_max: u64,
    /// Error of the last lost device.
    pub(super) lost: Option<EngineError>,
    pub(super) meter: Meter,
    pub(super) tally: Tally,
    /// Owner's settings last passed to the member.
    told: ControlState,
    pub(super) end: Option<End>,
    /// Downloaded bytes already reported to the member.
    fed_bytes: u64,
    report_us: u64,
}

/// Settings that the owner can change during the run.
#[derive(Clone, Copy, PartialEq)]
struct ControlState {
    paused: bool,
    hidden: bool,
    duty_permille: u16,
}

/// State of the current run.
pub(super) struct Part<E> {
    pub(super) run: RunId,
    /// Description of the run.
    pub(super) spec: RunSpec,
    /// Windows of one step.
    pub(super) batch: NonZeroU32,
    pub(super) engine: E,
}

impl<'a, E, B, O> Session<'a, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Basis) -> Result<E, EngineError>,
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

    /// Returns a session with other waits.
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
            link: Link::new(config.address.clone()),
            downloads: Downloads::new(config.address.clone()),
            salvaged: None,
            weights: None,
            gathering: None,
            fitted: None,
            step_us_max: STEP_US_MAX,
            lost: None,
            meter: Meter::default(),
            tally: Tally::default(),
            told: ControlState { paused: false, hidden: false, duty_permille: 1_000 },
            end: None,
            fed_bytes: 0,
            report_us: 0,
            config,
        })
    }

    /// Trains, and handles input between two steps, until the end.
    pub(super) async fn run(mut self) -> Result<Report, RunError> {
        loop {
            self.turn().await?;
            if let Some(end) = self.end.take() {
                return self.part_from(end);
            }
            if let Some(reason) = self.link.take_absent().filter(|_| self.member.phase() == Phase::Greeting) {
                return Err(RunError::NoRun { address: self.config.address, reason });
            }
            let gathered = self.gather().await?;
            match self.next_batch().await? {
                Some(batch) => {
                    self.step(&batch).await?;
                    yield_now().await;
                }
                None if gathered => {
                    self.drain().await?;
                    yield_now().await;
                }
                None => self.wait().await?,
            }
        }
    }

    /// Handles all pending input and the owner's settings, without waiting.
    async fn turn(&mut self) -> Result<(), RunError> {
        self.tell_wishes().await?;
        while let Some(input) = self.link.try_next() {
            self.handle(input).await?;
        }
        let fed_bytes = self.downloads.bytes();
        if std::mem::replace(&mut self.fed_bytes, fed_bytes) < fed_bytes {
            self.handle(Input::Fed).await?;
        }
        while let Some(came) = self.downloads.try_next() {
            self.take(came).await?;
        }
        if self.control.take_reconnect() {
            self.handle(Input::DrainNow).await?;
        }
        let busy = self.part.as_ref().is_some_and(|part| part.engine.is_busy());
        if !busy && self.link.queued_bytes() == 0 && matches!(self.member.phase(), Phase::Flushing { .. }) {
            self.handle(Input::Flushed).await?;
        }
        // All input is handled by now, so that the remaining silence is real.
        self.handle(Input::Timeout).await?;
        let now_us = self.clock.now_us();
        if now_us >= self.report_us && self.is_here() {
            self.report_us = now_us + REPORT_US;
            let report = self.report(None);
            (self.observe)(&Event::Progress(Box::new(report)));
        }
        Ok(())
    }

    /// Fails if the time is up and nothing was trained because the syncer was unreachable.
    fn check_hindrance(&self, now_us: u64) -> Result<(), RunError> {
        let reason = match self.member.hindrance(now_us) {
            Some(reason) => reason.to_owned(),
            None if self.member.phase() == Phase::Greeting => "no answer".to_owned(),
            None => return Ok(()),
        };
        let (address, waited_s) = (self.config.address.clone(), now_us / 1_000_000);
        Err(RunError::Unreachable { address, waited_s, reason })
    }

    async fn tell_wishes(&mut self) -> Result<(), RunError> {
        let now_us = self.clock.now_us();
        let over = self.config.run_ms_max.is_some_and(|run_ms| now_us >= run_ms.saturating_mul(1_000));
        if over && !self.control.is_stopped() && self.meter.steps == 0 && self.is_here() {
            self.check_hindrance(now_us)?;
        }
        if (over || self.control.is_stopped()) && self.is_here() {
            self.handle(Input::Leave).await?;
        }
        let wishes = ControlState {
            paused: self.control.is_paused(),
            hidden: self.control.is_hidden(),
            duty_permille: self.control.duty_permille(),
        };
        let told = std::mem::replace(&mut self.told, wishes);
        if wishes.paused != told.paused {
            self.handle(Input::Paused(wishes.paused)).await?;
        }
        if wishes.hidden != told.hidden {
            self.handle(Input::Hidden(wishes.hidden)).await?;
        }
        if wishes.duty_permille != told.duty_permille {
            self.handle(Input::Duty { permille: wishes.duty_permille }).await?;
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
        self.book(Spent::Exchange);
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
        self.tally.learning_rate = batch.learning_rate;
        self.meter.step(now_us, busy_us + earlier_us, stats.tokens, stats.loss);
        if self.meter.steps == 1 {
            (self.observe)(&Event::FirstStep { elapsed_ms: now_us / 1_000 });
        }
        let seen = self.part.as_mut().map(|part| part.engine.take_seen()).unwrap_or_default();
        if !seen.is_empty() {
            self.handle(Input::ExpertLoad { seen }).await?;
        }
        let (tokens, loss) = (stats.tokens, stats.loss);
        self.handle(Input::Stepped(Step { tokens, loss, busy_us, earlier_us })).await
    }

    /// Waits for the device, then briefly for input, and handles it.
    async fn wait(&mut self) -> Result<(), RunError> {
        self.settle().await?;
        self.book(Spent::Exchange);
        let spent = if self.member.is_starved() { Spent::Starved } else { Spent::Other };
        let from_us = self.meter.booked_us();
        let wait_us = self.member.deadline(from_us).map_or(WAIT_US_MAX, |at| at.saturating_sub(from_us));
        let wait_ms = wait_us.min(WAIT_US_MAX).div_ceil(1_000).max(1);
        let came = comes(&mut self.link, &mut self.downloads, wait_ms).await;
        let us = self.book(spent);
        self.handle(Input::Waited { us }).await?;
        match came {
            Some(came) => self.take(came).await,
            None => Ok(()),
        }
    }

    /// Handles input from a transfer or the connection.
    async fn take(&mut self, came: Came) -> Result<(), RunError> {
        match came {
            Came::Input(input) => self.handle(input).await,
            Came::Frozen(part) => {
                self.came_frozen(part).await;
                Ok(())
            }
        }
    }

    /// Waits until the device has finished its work. Without a further step, nothing else delivers the bodies that it
    /// codes.
    async fn settle(&mut self) -> Result<(), RunError> {
        self.book(Spent::Exchange);
        let Some(part) = self.part.as_mut().filter(|part| part.engine.is_busy()) else { return Ok(()) };
        let settled = part.engine.settle().await;
        let us = self.meter.settled(self.clock.now_us());
        self.member.handle(self.clock.now_us(), Input::Worked { us });
        settled.or_else(|error| self.fail(error))?;
        self.drain().await
    }

    /// Books the time since the last booking and returns it in microseconds.
    pub(super) fn book(&mut self, spent: Spent) -> u64 {
        self.meter.book(self.clock.now_us(), spent)
    }

    /// Returns the last report, unless the end is an error.
    fn part_from(mut self, end: End) -> Result<Report, RunError> {
        match end {
            End::Left | End::Complete(_) => {
                let report = self.report(Some(Doing::Leaving));
                (self.observe)(&Event::Progress(Box::new(report.clone())));
                Ok(report)
            }
            End::Refused(bye) => Err(RunError::Refused { code: bye.code, reason: bye.reason }),
            End::Unreachable { waited_ms, reason } => {
                let (address, waited_s) = (self.config.address, waited_ms / 1_000);
                Err(RunError::Unreachable { address, waited_s, reason })
            }
            End::DeviceLost => {
                let lost = self.lost.unwrap_or(EngineError::Lost { reason: String::new() });
                Err(RunError::Engine(lost))
            }
        }
    }
}

impl<E: Engine> Part<E> {
    /// Returns the share of the parameters in `fragment`, 0 to 1.
    pub(super) fn share(&self, fragment: FragmentId) -> f64 {
        self.engine.fragments().len(fragment) as f64 / self.engine.layout().len() as f64
    }

    /// Returns the state of a lost device; consumes the engine.
    pub(super) fn salvage(mut self) -> Option<Salvaged> {
        let moments = self.engine.salvage()?;
        Some(Salvaged { run: self.run, spec: self.spec, moments })
    }
}

/// Returns the next input from the network, if one comes within `wait_ms`.
async fn comes(link: &mut Link, downloads: &mut Downloads, wait_ms: u64) -> Option<Came> {
    let network = async {
        match select(pin!(link.next()), pin!(downloads.next())).await {
            Either::Left((input, _)) => Came::Input(input),
            Either::Right((came, _)) => came,
        }
    };
    match select(pin!(network), pin!(sleep(wait_ms))).await {
        Either::Left((came, _)) => Some(came),
        Either::Right(_) => None,
    }
}
