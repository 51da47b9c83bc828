//! The shell around a [`Member`]: carries out what it asks for, tells it what came, and trains in between.

use std::num::NonZeroU32;
use std::pin::pin;

use futures::future::{Either, select};

use archipelago_core::diloco::learner::LearnerConfig;
use archipelago_core::member::{Batch, End, Input, Member, MemberConfig, Phase, Step, Waits};
use archipelago_core::wire::{FragmentId, NAME_BYTES_MAX, RunId, RunSpec, clip};
use archipelago_runtime::engine::{Engine, EngineError};
use archipelago_runtime::platform::{Clock, random_bytes, sleep, yield_now};

use super::batch::STEP_US_MAX;
use super::downloads::{Came, Downloads};
use super::event::{Doing, Event, Report};
use super::frozen::{Gathering, Weights};
use super::link::Link;
use super::meter::{Meter, Spent};
use super::salvage::Salvaged;
use super::tally::Tally;
use super::{Basis, Control, RunConfig, RunError};

/// Longest sleep, in microseconds: the owner's wishes are looked at this often.
const WAIT_US_MAX: u64 = 100_000;
/// Time between two reports, in microseconds.
const REPORT_US: u64 = 500_000;

/// A member with what it needs of this machine.
pub(super) struct Session<'a, E, B, O> {
    pub(super) config: RunConfig,
    pub(super) control: &'a Control,
    pub(super) build: B,
    pub(super) observe: O,
    pub(super) clock: Clock,
    pub(super) member: Member,
    pub(super) part: Option<Part<E>>,
    pub(super) link: Link,
    pub(super) downloads: Downloads,
    pub(super) salvaged: Option<Salvaged>,
    /// What the run builds on and nobody trains, and the same while it is on its way.
    pub(super) weights: Option<Weights>,
    pub(super) gathering: Option<Gathering>,
    /// The batch that was chosen for this device, and the run for which it was.
    pub(super) fitted: Option<(RunId, NonZeroU32)>,
    /// Longest step of a batch that is chosen, in microseconds.
    pub(super) step_us_max: u64,
    /// Why the last device was lost.
    pub(super) lost: Option<EngineError>,
    pub(super) meter: Meter,
    pub(super) tally: Tally,
    /// What the member was last told of its owner's wishes.
    told: Wishes,
    pub(super) end: Option<End>,
    /// Bytes of downloads already reported to the member.
    fed_bytes: u64,
    report_us: u64,
}

/// What an owner can change while it runs.
#[derive(Clone, Copy, PartialEq)]
struct Wishes {
    paused: bool,
    hidden: bool,
    duty_permille: u16,
}

/// What it holds of its run.
pub(super) struct Part<E> {
    pub(super) run: RunId,
    /// What the syncer says of it.
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

    /// One with other waits.
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
        let member = Member::new(MemberConfig {
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
            told: Wishes { paused: false, hidden: false, duty_permille: 1_000 },
            end: None,
            fed_bytes: 0,
            report_us: 0,
            config,
        })
    }

    /// Trains, and takes in what comes between two steps, until it is over.
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

    /// Takes in everything that has come, and all that its owner wants, without waiting.
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
            self.handle(Input::Hurry).await?;
        }
        let busy = self.part.as_ref().is_some_and(|part| part.engine.is_busy());
        if !busy && self.link.queued_bytes() == 0 && matches!(self.member.phase(), Phase::Flushing { .. }) {
            self.handle(Input::Flushed).await?;
        }
        // What came is taken in by now, so that silence is what is left.
        self.handle(Input::Timeout).await?;
        let now_us = self.clock.now_us();
        if now_us >= self.report_us && self.is_here() {
            self.report_us = now_us + REPORT_US;
            let report = self.report(None);
            (self.observe)(&Event::Progress(Box::new(report)));
        }
        Ok(())
    }

    /// Fails if the time is up and nothing was trained because the syncer was out of reach.
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
        let wishes = Wishes {
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

    /// Whether it has not begun to leave.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.member.phase(), Phase::Greeting | Phase::Training)
    }

    /// The next windows, if it may train and has them.
    async fn next_batch(&mut self) -> Result<Option<Batch>, RunError> {
        let batch = self.member.next_batch(self.clock.now_us());
        self.drain().await?;
        Ok(batch)
    }

    /// One inner step.
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
            self.handle(Input::Saw { seen }).await?;
        }
        let (tokens, loss) = (stats.tokens, stats.loss);
        self.handle(Input::Stepped(Step { tokens, loss, busy_us, earlier_us })).await
    }

    /// Waits for the device, then for something to happen, for a short while, and takes it in.
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

    /// Takes in what a transfer, or the connection, brought.
    async fn take(&mut self, came: Came) -> Result<(), RunError> {
        match came {
            Came::Input(input) => self.handle(input).await,
            Came::Frozen(part) => {
                self.came_frozen(part).await;
                Ok(())
            }
        }
    }

    /// Waits until the device has done what was begun: without a step that follows, nothing else brings
    /// out what it coded.
    async fn settle(&mut self) -> Result<(), RunError> {
        self.book(Spent::Exchange);
        let Some(part) = self.part.as_mut().filter(|part| part.engine.is_busy()) else { return Ok(()) };
        let settled = part.engine.settle().await;
        let us = self.meter.settled(self.clock.now_us());
        self.member.handle(self.clock.now_us(), Input::Worked { us });
        settled.or_else(|error| self.fail(error))?;
        self.drain().await
    }

    /// Books the time since the last booking; how much it is, in microseconds.
    pub(super) fn book(&mut self, spent: Spent) -> u64 {
        self.meter.book(self.clock.now_us(), spent)
    }

    /// The last report, unless the end is an error.
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
    /// The share of the parameters that `fragment` has, 0 to 1.
    pub(super) fn share(&self, fragment: FragmentId) -> f64 {
        self.engine.fragments().len(fragment) as f64 / self.engine.layout().len() as f64
    }

    /// What a lost device leaves behind; the engine is gone then.
    pub(super) fn salvage(mut self) -> Option<Salvaged> {
        let moments = self.engine.salvage()?;
        Some(Salvaged { run: self.run, spec: self.spec, moments })
    }
}

/// The next thing that the network brings, if it does within `wait_ms`.
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
