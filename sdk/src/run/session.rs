//! One learner's dealings with its syncer: does what the protocol core says.

use std::pin::pin;

use futures::future::{Either, select};

use crate::data::Feed;
use crate::diloco::learner::{Input, Learner, LearnerConfig, Step};
use crate::engine::{Engine, EngineError, HostEngine, Trainer};
use crate::model::learning_rate;
use crate::platform::{Clock, SocketEvent, random_bytes, sleep};
use crate::wire::{CloseCode, FragmentId, LearnerState, Millis, NAME_BYTES_MAX, RunId, RunSpec, clip};

use super::downloads::{Downloads, Ended};
use super::event::{Doing, Event, Offline, Report};
use super::link::Link;
use super::meter::{Meter, Spent};
use super::{BuildError, Control, RunConfig, RunError};

/// Longest sleep, in microseconds: the owner's wishes are looked at this often.
const WAIT_US_MAX: u64 = 100_000;
/// Time between two reports, in microseconds.
const REPORT_US: u64 = 500_000;
/// Rest beyond what was owed that counts for later, in microseconds: a sleep ends late, never early.
const REST_CREDIT_US_MAX: i64 = 250_000;
/// Longest wait for what is queued when leaving, and then for the syncer's farewell, in microseconds.
const LEAVE_US_MAX: u64 = 2_000_000;

/// Everything that one learner holds.
pub(super) struct Session<'a, T, B, O> {
    pub(super) config: RunConfig,
    pub(super) control: &'a Control,
    pub(super) build: B,
    pub(super) observe: O,
    pub(super) clock: Clock,
    pub(super) learner: Learner,
    pub(super) part: Option<Part<T>>,
    pub(super) link: Link,
    pub(super) downloads: Downloads,
    pub(super) meter: Meter,
    pub(super) tally: Tally,
    pub(super) deadline: Option<Millis>,
    pub(super) paused: bool,
    pub(super) starved: bool,
    /// The syncer took this learner in before.
    pub(super) welcomed: bool,
    /// Since when it is not taken in, in microseconds.
    pub(super) offline_us: Option<u64>,
    /// The run is complete, or this learner is to leave.
    pub(super) ending: bool,
    /// Rest that the duty cycle still asks for; below 0 if it rested too long.
    pub(super) rest_us: i64,
    /// Up to when time is booked.
    pub(super) booked_us: u64,
    pub(super) report_us: u64,
}

/// What it holds of its run.
pub(super) struct Part<T> {
    pub(super) run: RunId,
    pub(super) spec: RunSpec,
    pub(super) engine: HostEngine<T>,
    pub(super) feed: Feed,
}

/// What receipts said, and the rate of the last step.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) updates_merged: u64,
    pub(super) updates_late: u64,
    pub(super) updates_refused: u64,
    /// Merged tokens of each update times its fragment's share of the parameters.
    pub(super) tokens_merged: f64,
    pub(super) learning_rate: f32,
}

impl<'a, T, B, O> Session<'a, T, B, O>
where
    T: Trainer,
    B: FnMut(&RunSpec) -> Result<T, BuildError>,
    O: FnMut(&Event),
{
    pub(super) fn new(
        mut config: RunConfig,
        control: &'a Control,
        build: B,
        observe: O,
    ) -> Result<Self, RunError> {
        let seeds = random_bytes::<16>()?;
        let (link_seed, downloads_seed) = seeds.split_at(8);
        let seed = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of 16 bytes"));
        config.name = clip(&config.name, NAME_BYTES_MAX).to_owned();
        config.device = clip(&config.device, NAME_BYTES_MAX).to_owned();
        Ok(Self {
            control,
            build,
            observe,
            clock: Clock::start(),
            learner: newcomer(&config),
            part: None,
            link: Link::new(config.address.clone(), seed(link_seed)),
            downloads: Downloads::new(config.address.clone(), seed(downloads_seed)),
            meter: Meter::default(),
            tally: Tally::default(),
            deadline: None,
            paused: false,
            starved: false,
            welcomed: false,
            offline_us: Some(0),
            ending: false,
            rest_us: 0,
            booked_us: 0,
            report_us: 0,
            config,
        })
    }

    /// Takes in everything that has come, without waiting. False if it is time to leave.
    pub(super) fn turn(&mut self) -> Result<bool, RunError> {
        let now_us = self.clock.now_us();
        let over = self.config.run_ms_max.is_some_and(|run_ms| now_us >= run_ms.saturating_mul(1_000));
        if self.ending || over || self.control.is_stopped() {
            return Ok(false);
        }
        if self.paused != self.control.is_paused() {
            self.paused = !self.paused;
            self.handle(Input::Paused(self.paused))?;
        }
        self.check_contact(now_us)?;
        if self.link.connect(now_us) {
            (self.observe)(&Event::Connecting { address: self.config.address.to_string() });
        }
        while let Some(event) = self.link.try_event(now_us) {
            self.on_link(event)?;
        }
        while let Some(download) = self.downloads.try_next(now_us) {
            self.on_download(download)?;
        }
        if self.deadline.is_some_and(|deadline| deadline <= self.clock.now()) {
            self.handle(Input::Timeout)?;
        }
        self.deadline = self.learner.deadline(self.clock.now());
        self.want_shard(now_us);
        if now_us >= self.report_us {
            self.report_us = now_us + REPORT_US;
            let report = self.report(None);
            (self.observe)(&Event::Progress(Box::new(report)));
        }
        Ok(!self.ending)
    }

    /// The next windows, if it may train and has them.
    pub(super) fn next_batch(&mut self) -> Result<Option<Vec<u32>>, RunError> {
        let may_train = self.learner.can_train() && self.rest_us <= 0;
        let Some(part) = self.part.as_mut().filter(|_| may_train) else { return Ok(None) };
        let batch = part.feed.next_batch(part.spec.inner.batch);
        self.starved = batch.is_none();
        self.learner.set_starved(self.clock.now(), self.starved);
        self.drain()?;
        Ok(batch)
    }

    /// One inner step.
    pub(super) async fn step(&mut self, tokens: &[u32]) -> Result<(), RunError> {
        self.book(Spent::Exchange);
        let Some(part) = &mut self.part else { return Ok(()) };
        let learning_rate = learning_rate(&part.spec.inner, self.learner.clock_tokens());
        let stepped = part.engine.step(tokens, learning_rate).await;
        let now_us = self.clock.now_us();
        let step_us = now_us - self.booked_us;
        self.booked_us = now_us;
        let stats = match stepped {
            Ok(stats) => stats,
            Err(error @ EngineError::NotFinite { .. }) => {
                self.afresh(&error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let leases = part.feed.progress();
        let rest_us = self.control.rest_us(step_us);
        self.rest_us = self.rest_us.saturating_add_unsigned(rest_us);
        self.tally.learning_rate = learning_rate;
        self.meter.step(now_us, step_us, stats.tokens, stats.loss);
        if self.meter.steps == 1 {
            (self.observe)(&Event::FirstStep { elapsed_ms: now_us / 1_000 });
        }
        // The rest is part of its pace: the syncer plans with it.
        let step_ms = (step_us + rest_us) as f32 / 1e3;
        self.handle(Input::Stepped(Step { tokens: stats.tokens, loss: stats.loss, step_ms, leases }))
    }

    /// Waits for something to happen, for a short while, and takes it in.
    pub(super) async fn wait(&mut self) -> Result<(), RunError> {
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
                self.link.take(now_us, event).map_or(Ok(()), |event| self.on_link(event))
            }
            Happened::Transfer(ended) => {
                self.downloads.take(now_us, ended).map_or(Ok(()), |download| self.on_download(download))
            }
            Happened::Nothing => Ok(()),
        }
    }

    /// Lets go of the run politely: what is queued is sent, then the last report and the farewell.
    pub(super) async fn leave(mut self) -> Result<Report, RunError> {
        self.ending = true;
        let until_us = self.clock.now_us() + LEAVE_US_MAX;
        while self.link.is_open() && self.link.queued_bytes() > 0 && self.clock.now_us() < until_us {
            self.wait().await?;
        }
        if self.link.is_open() {
            self.learner.leave(self.clock.now());
            self.drain()?;
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

    /// Books the time since the last booking.
    fn book(&mut self, spent: Spent) {
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
        let waited_ms = (now_us - offline_us) / 1_000;
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

    fn report(&mut self, doing: Option<Doing>) -> Report {
        let now_us = self.clock.now_us();
        let bytes = self.link.bytes();
        let doing = doing.unwrap_or_else(|| match self.learner.state() {
            _ if !self.welcomed => Doing::Connecting,
            LearnerState::Joining => Doing::Joining,
            LearnerState::Starved => Doing::Starved,
            LearnerState::Paused => Doing::Paused,
            LearnerState::Training | LearnerState::Hidden => Doing::Training,
        });
        let offline =
            self.offline_us.filter(|_| !self.ending && !self.link.reason().is_empty()).map(|_| Offline {
                reason: self.link.reason().to_owned(),
                retry_ms: self
                    .link
                    .retry_us()
                    .map_or(0, |at_us| at_us.saturating_sub(now_us).div_ceil(1_000)),
            });
        Report {
            elapsed_ms: now_us / 1_000,
            doing,
            offline,
            steps: self.meter.steps,
            tokens_trained: self.meter.tokens,
            tokens_merged: self.tally.tokens_merged.round() as u64,
            updates_merged: self.tally.updates_merged,
            updates_late: self.tally.updates_late,
            updates_refused: self.tally.updates_refused,
            clock_tokens: self.learner.clock_tokens(),
            loss: self.meter.take_loss(),
            learning_rate: self.tally.learning_rate,
            tokens_per_s: self.meter.tokens_per_s(now_us),
            step_ms: self.meter.step_us as f32 / 1e3,
            sync_ratio: self.meter.sync_ratio(),
            train_ms: self.meter.train_us / 1_000,
            exchange_ms: self.meter.exchange_us / 1_000,
            starved_ms: self.meter.starved_us / 1_000,
            sent_bytes: bytes.sent,
            received_bytes: bytes.received,
        }
    }
}

impl<T: Trainer> Part<T> {
    /// The share of the parameters that `fragment` has, 0 to 1.
    pub(super) fn share(&self, fragment: FragmentId) -> f64 {
        self.engine.fragments().len(fragment) as f64 / self.engine.layout().len() as f64
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
    })
}
