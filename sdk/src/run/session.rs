//! One learner's dealings with its syncer: does what the protocol core says.

use std::mem;
use std::pin::pin;

use futures::future::{Either, select};

use crate::data::Feed;
use crate::diloco::learner::{Input, Learner, LearnerConfig, Step};
use crate::engine::{Engine, EngineError, Moments};
use crate::model::learning_rate;
use crate::platform::{Clock, SocketEvent, random_bytes, sleep, yield_now};
use crate::wire::{CloseCode, FragmentId, Millis, NAME_BYTES_MAX, RunId, RunSpec, clip};

use super::downloads::{Downloads, Ended};
use super::event::{Doing, Event, Report};
use super::link::Link;
use super::losses::{Losses, Salvaged};
use super::meter::{Meter, Spent};
use super::report::Tally;
use super::{Control, RunConfig, RunError};

/// Longest sleep, in microseconds: the owner's wishes are looked at this often.
const WAIT_US_MAX: u64 = 100_000;
/// Time between two reports, in microseconds.
const REPORT_US: u64 = 500_000;
/// Rest beyond what was owed that counts for later, in microseconds: a sleep ends late, never early.
const REST_CREDIT_US_MAX: i64 = 250_000;
/// Longest wait for what is queued when leaving, and then for the syncer's farewell, in microseconds.
const LEAVE_US_MAX: u64 = 2_000_000;

/// Everything that one learner holds.
pub(super) struct Session<'a, E, B, O> {
    pub(super) config: RunConfig,
    pub(super) control: &'a Control,
    pub(super) build: B,
    pub(super) observe: O,
    pub(super) clock: Clock,
    pub(super) learner: Learner,
    pub(super) part: Option<Part<E>>,
    pub(super) link: Link,
    pub(super) downloads: Downloads,
    pub(super) losses: Losses,
    pub(super) meter: Meter,
    pub(super) tally: Tally,
    pub(super) deadline: Option<Millis>,
    pub(super) paused: bool,
    pub(super) hidden: bool,
    pub(super) starved: bool,
    /// The syncer took this learner in before.
    pub(super) welcomed: bool,
    /// Since when it is not taken in, in microseconds; later than now while the syncer has it stay away.
    pub(super) offline_us: Option<u64>,
    /// The run is complete, or this learner is to leave.
    pub(super) ending: bool,
    /// The engine took a step since it was last waited for.
    pub(super) unsettled: bool,
    /// Time that steps took beyond their calls, up to now not counted to any step.
    settled_us: u64,
    /// Rest that the duty cycle still asks for; below 0 if it rested too long.
    pub(super) rest_us: i64,
    /// The part of the time that it computes, as it was when last looked at, in millionths.
    pace_ppm: u64,
    /// Up to when time is booked.
    pub(super) booked_us: u64,
    pub(super) report_us: u64,
}

/// What it holds of its run.
pub(super) struct Part<E> {
    pub(super) run: RunId,
    pub(super) spec: RunSpec,
    pub(super) engine: E,
    pub(super) feed: Feed,
}

impl<'a, E, B, O> Session<'a, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Option<Moments>) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    pub(super) fn new(
        mut config: RunConfig,
        control: &'a Control,
        build: B,
        observe: O,
    ) -> Result<Self, RunError> {
        let seeds = random_bytes::<24>()?;
        let seed = |i| u64::from_le_bytes(seeds.as_chunks::<8>().0[i]);
        config.name = clip(&config.name, NAME_BYTES_MAX).to_owned();
        config.device = clip(&config.device, NAME_BYTES_MAX).to_owned();
        Ok(Self {
            control,
            build,
            observe,
            clock: Clock::start(),
            learner: newcomer(&config),
            part: None,
            link: Link::new(config.address.clone(), seed(0)),
            downloads: Downloads::new(config.address.clone(), seed(1)),
            losses: Losses::new(seed(2)),
            meter: Meter::default(),
            tally: Tally::default(),
            deadline: None,
            paused: false,
            hidden: false,
            starved: false,
            welcomed: false,
            offline_us: Some(0),
            ending: false,
            unsettled: false,
            settled_us: 0,
            rest_us: 0,
            pace_ppm: 0,
            booked_us: 0,
            report_us: 0,
            config,
        })
    }

    /// Trains, and takes in what comes between two steps, until it is time to leave.
    pub(super) async fn run(mut self) -> Result<Report, RunError> {
        while self.turn().await? {
            match self.next_batch().await? {
                Some(tokens) => {
                    self.step(&tokens).await?;
                    yield_now().await;
                }
                None => self.wait().await?,
            }
        }
        self.leave().await
    }

    /// Takes in everything that has come, without waiting. False if it is time to leave.
    async fn turn(&mut self) -> Result<bool, RunError> {
        let now_us = self.clock.now_us();
        let over = self.config.run_ms_max.is_some_and(|run_ms| now_us >= run_ms.saturating_mul(1_000));
        if self.ending || over || self.control.is_stopped() {
            return Ok(false);
        }
        if self.paused != self.control.is_paused() {
            self.paused = !self.paused;
            self.handle(Input::Paused(self.paused)).await?;
        }
        if self.hidden != self.control.is_hidden() {
            self.hidden = !self.hidden;
            self.handle(Input::Hidden(self.hidden)).await?;
        }
        self.check_contact(now_us)?;
        if self.link.connect(now_us) {
            (self.observe)(&Event::Connecting { address: self.config.address.to_string() });
        }
        while let Some(event) = self.link.try_event(now_us) {
            self.on_link(event).await?;
        }
        self.watch_link(now_us).await?;
        while let Some(download) = self.downloads.try_next(now_us) {
            self.on_download(download).await?;
        }
        if self.deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
            self.handle(Input::Timeout).await?;
        }
        self.deadline = self.learner.deadline(self.clock.now());
        let pace_ppm = self.control.pace_ppm(self.learner.share());
        if mem::replace(&mut self.pace_ppm, pace_ppm) < pace_ppm {
            // What was owed at a lower pace is owed no more.
            self.rest_us = self.rest_us.min(0);
        }
        self.want_shard(now_us);
        if now_us >= self.report_us {
            self.report_us = now_us + REPORT_US;
            let report = self.report(None);
            (self.observe)(&Event::Progress(Box::new(report)));
        }
        Ok(!self.ending)
    }

    /// The next windows, if it may train and has them.
    async fn next_batch(&mut self) -> Result<Option<Vec<u32>>, RunError> {
        let may_train = self.learner.can_train() && self.rest_us <= 0;
        let Some(part) = self.part.as_mut().filter(|_| may_train) else { return Ok(None) };
        let batch = part.feed.next_batch(part.spec.inner.batch);
        self.starved = batch.is_none();
        self.learner.set_starved(self.clock.now(), self.starved);
        self.drain().await?;
        Ok(batch)
    }

    /// One inner step.
    async fn step(&mut self, tokens: &[u32]) -> Result<(), RunError> {
        self.book(Spent::Exchange);
        let Some(part) = &mut self.part else { return Ok(()) };
        let learning_rate = learning_rate(&part.spec.inner, self.learner.clock_tokens());
        let stepped = part.engine.step(tokens, learning_rate).await;
        let leases = part.feed.progress();
        let call_us = self.worked();
        let now_us = self.booked_us;
        let stats = match stepped {
            Ok(stats) => stats,
            Err(error) => return self.fail(error),
        };
        self.unsettled = true;
        let step_us = call_us + mem::take(&mut self.settled_us);
        self.tally.learning_rate = learning_rate;
        self.meter.step(now_us, step_us, stats.tokens, stats.loss);
        if self.meter.steps == 1 {
            (self.observe)(&Event::FirstStep { elapsed_ms: now_us / 1_000 });
        }
        // The rest is part of its pace: the syncer plans with it.
        let step_ms = (step_us + self.rest_of(step_us)) as f32 / 1e3;
        self.handle(Input::Stepped(Step { tokens: stats.tokens, loss: stats.loss, step_ms, leases })).await
    }

    /// Waits for the device, then for something to happen, for a short while, and takes it in.
    async fn wait(&mut self) -> Result<(), RunError> {
        self.settle().await?;
        self.book(Spent::Exchange);
        let starved = self.starved && self.learner.can_train() && self.rest_us <= 0;
        let from_us = self.booked_us;
        let wait_ms = self.wait_us(from_us).div_ceil(1_000).max(1);
        let happened = happens(&mut self.link, &mut self.downloads, wait_ms).await;
        self.book(if starved { Spent::Starved } else { Spent::Other });
        let now_us = self.booked_us;
        if !starved {
            self.rest_us = self.rest_us.saturating_sub_unsigned(now_us - from_us).max(-REST_CREDIT_US_MAX);
        }
        match happened {
            Happened::Socket(event) => {
                if let Some(event) = self.link.take(now_us, event) {
                    self.on_link(event).await?;
                }
            }
            Happened::Transfer(ended) => {
                if let Some(download) = self.downloads.take(now_us, ended) {
                    self.on_download(download).await?;
                }
            }
            Happened::Nothing => {}
        }
        Ok(())
    }

    /// Waits until the device has done what was begun: without a step that follows, nothing else brings
    /// out what it coded.
    async fn settle(&mut self) -> Result<(), RunError> {
        self.book(Spent::Exchange);
        let Some(part) = self.part.as_mut().filter(|part| part.engine.is_busy()) else { return Ok(()) };
        let settled = part.engine.settle().await;
        if mem::take(&mut self.unsettled) {
            // What is left of steps whose calls returned early: part of the time of the next one.
            self.settled_us += self.worked();
        } else {
            self.book(Spent::Other);
        }
        settled.or_else(|error| self.fail(error))?;
        self.drain().await
    }

    /// Lets go of the run politely: what is queued is sent, then the last report and the farewell.
    async fn leave(mut self) -> Result<Report, RunError> {
        self.ending = true;
        if self.link.is_open() {
            self.settle().await?;
        }
        let until_us = self.clock.now_us() + LEAVE_US_MAX;
        while self.link.is_open() && self.link.queued_bytes() > 0 && self.clock.now_us() < until_us {
            self.wait().await?;
        }
        if self.link.is_open() {
            self.learner.leave(self.clock.now());
            self.drain().await?;
            self.link.close(CloseCode::Done, "the learner leaves");
            let until_us = self.clock.now_us() + LEAVE_US_MAX;
            while self.link.is_open() && self.clock.now_us() < until_us {
                self.wait().await?;
            }
        }
        let report = self.report(Some(Doing::Leaving));
        (self.observe)(&Event::Progress(Box::new(report.clone())));
        Ok(report)
    }

    /// The time since the last booking, in which the device computed: rest is owed for it.
    fn worked(&mut self) -> u64 {
        let now_us = self.clock.now_us();
        let busy_us = now_us - mem::replace(&mut self.booked_us, now_us);
        self.rest_us = self.rest_us.saturating_add_unsigned(self.rest_of(busy_us));
        busy_us
    }

    /// Rest owed for `busy_us`: its own duty cycle, and of that the part that the run's owner has it train.
    fn rest_of(&self, busy_us: u64) -> u64 {
        self.control.rest_us(busy_us, self.learner.share())
    }

    /// Books the time since the last booking.
    pub(super) fn book(&mut self, spent: Spent) {
        let now_us = self.clock.now_us();
        self.meter.spend(spent, now_us - self.booked_us);
        self.booked_us = now_us;
    }

    /// How long it may wait from `now_us` on, in microseconds.
    fn wait_us(&self, now_us: u64) -> u64 {
        let rest_us = u64::try_from(self.rest_us).ok().filter(|&rest_us| rest_us > 0);
        let retry_us = self.link.retry_us().map(|retry_us| retry_us.saturating_sub(now_us));
        let deadline_us =
            self.deadline.map(|deadline| deadline.0.saturating_mul(1_000).saturating_sub(now_us));
        [rest_us, retry_us, deadline_us].into_iter().flatten().fold(WAIT_US_MAX, u64::min)
    }

    fn check_contact(&self, now_us: u64) -> Result<(), RunError> {
        let Some(offline_us) = self.offline_us else { return Ok(()) };
        let waited_ms = now_us.saturating_sub(offline_us) / 1_000;
        let ms_max =
            if self.welcomed { self.config.reconnect_ms_max } else { Some(self.config.contact_ms_max) };
        if ms_max.is_none_or(|ms_max| waited_ms < ms_max) {
            return Ok(());
        }
        let reason = match self.link.reason() {
            "" => "no answer".to_owned(),
            reason => reason.to_owned(),
        };
        Err(RunError::Unreachable {
            address: self.config.address.clone(),
            waited_s: waited_ms / 1_000,
            reason,
        })
    }

    /// Sees to it that the shard that leases wait for is on its way.
    fn want_shard(&mut self, now_us: u64) {
        let (Some(part), Some((run, _))) = (&self.part, self.learner.run()) else { return };
        if let Some(shard) = part.feed.needs() {
            self.downloads.shard(now_us, run, shard, part.shard_bytes(shard));
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

    pub(super) fn shard_bytes(&self, shard: u32) -> u64 {
        let data = &self.spec.data;
        let tokens = data.shards.get(shard as usize).map_or(0, |shard| shard.tokens);
        tokens.saturating_mul(u64::from(data.token_bytes))
    }
}

/// What ended a wait.
enum Happened {
    Socket(SocketEvent),
    Transfer(Ended),
    Nothing,
}

/// The next thing that the network brings, if it does within `wait_ms`.
async fn happens(link: &mut Link, downloads: &mut Downloads, wait_ms: u64) -> Happened {
    let network = async {
        match select(pin!(link.recv()), pin!(downloads.ended())).await {
            Either::Left((event, _)) => Happened::Socket(event),
            Either::Right((ended, _)) => Happened::Transfer(ended),
        }
    };
    match select(pin!(network), pin!(sleep(wait_ms))).await {
        Either::Left((happened, _)) => happened,
        Either::Right(_) => Happened::Nothing,
    }
}

/// A learner that has not joined anything.
pub(super) fn newcomer(config: &RunConfig) -> Learner {
    Learner::new(LearnerConfig {
        identity: config.identity,
        name: config.name.clone(),
        device: config.device.clone(),
        invite: config.address.invite().cloned(),
    })
}
