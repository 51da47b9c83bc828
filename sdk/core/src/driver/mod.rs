//! State machine of one member of a run: the learner's protocol and everything that native, browser and simulated
//! learners have in common.
//!
//! A [`LearnerDriver`] consists of the protocol core ([`Learner`]), the supply of leases and shards, the duty cycle,
//! the connection to the syncer (backoff, limits of silence and absence) and the count of device losses. The native
//! learner and the page drive it with sockets and a real clock, the simulator in virtual time. The simulated code is
//! therefore the shipped code.
//!
//! It has the contract of the other state machines: [`LearnerDriver::handle`] takes an event, [`LearnerDriver::poll`]
//! returns an action, and [`LearnerDriver::deadline`] returns the time of the next wake-up. Actions are values and
//! not methods of a trait, because some actions of a real shell are asynchronous (engine builds, waits for a device)
//! and those of the simulator are events in a queue. A trait would need both forms. With values, each shell carries
//! actions out in its own way, in one `match`.
//!
//! The program around the driver is its *shell*. It drains `poll` after every `handle`, then asks
//! [`LearnerDriver::next_batch`] and trains on the batch, connected or not. Without a batch it waits, and reports the
//! wait with [`Input::Waited`]. Time is in microseconds since the driver was created and never decreases. All
//! randomness comes from [`DriverConfig::seed`].

mod backoff;
mod duty_cycle;
mod handlers;
mod reconnect;
mod supply;

pub use backoff::Doubling;
pub use reconnect::Offline;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::diloco::learner::{Learner, LearnerConfig};
use crate::diloco::{Fragments, learning_rate};
use crate::rng;
use crate::wire::{
    Bye, Challenge, CloseCode, DecodeError, FragmentId, Hello, LearnerId, LearnerState, Message, Millis,
    RunId, Serial, Share, Version, Welcome,
};
use backoff::{Losses, Stall};
use duty_cycle::DutyCycle;
use handlers::Measure;
use reconnect::Reconnect;
use supply::Supply;

/// Time limits of the three stages of leaving, in microseconds. First the member delivers its last updates, which
/// takes time on a slow link, then it waits for their fates, then for the connection to close.
const DELIVERY_US_MAX: u64 = 10_000_000;
const RECEIPTS_US_MAX: u64 = 3_000_000;
const CLOSE_US_MAX: u64 = 2_000_000;

/// Settings of a member, and its time limits.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Identity and settings of the learner.
    pub learner: LearnerConfig,
    /// Time limit for the first admission, and for failing downloads before the first training step, in milliseconds.
    /// `None` sets no limit.
    pub contact_ms_max: Option<u64>,
    /// The same limit for readmission, and for failing downloads after the first training step. `None` sets no limit.
    pub reconnect_ms_max: Option<u64>,
    /// Growing waits and time limits.
    pub waits: Waits,
    /// Seed of the random part of the waits, so that members do not reconnect together. The same seed gives the same
    /// waits.
    pub seed: u64,
}

/// Growing waits and time limits of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Wait before the next attempt to connect or to fetch a shard, shortened at random by up to half.
    pub backoff: Doubling,
    /// Time limit for a silent syncer; it doubles with each connection that is given up.
    pub patience: Doubling,
    /// Wait after the loss of a device, shortened at random by up to half.
    pub losses: Doubling,
}

/// Shipped defaults.
impl Default for Waits {
    fn default() -> Self {
        Self {
            backoff: Doubling { first_ms: 250, longest_ms: 15_000 },
            patience: Doubling { first_ms: 60_000, longest_ms: 960_000 },
            losses: Doubling { first_ms: 1_000, longest_ms: 60_000 },
        }
    }
}

/// Phase of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No syncer has admitted the member yet.
    Greeting,
    /// The member was admitted: it fetches parameters, trains or waits, connected or not.
    Training,
    /// The member leaves and delivers its last updates, until `until_us` at the latest.
    Flushing {
        /// Deadline in microseconds.
        until_us: u64,
    },
    /// The member has sent its goodbye and waits for the connection to close, until `until_us` at the latest.
    Parting {
        /// Deadline in microseconds.
        until_us: u64,
    },
    /// The membership is over.
    Over,
}

/// Input of the next training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Windows of tokens, `[batch, context + 1]`.
    pub tokens: Vec<u32>,
    /// Learning rate for the run's count of merged tokens.
    pub learning_rate: f32,
}

/// State machine of one member.
pub struct LearnerDriver {
    learner: Learner,
    supply: Supply,
    duty_cycle: DutyCycle,
    contact: Reconnect,
    stall: Stall,
    losses: Losses,
    measure: Measure,
    phase: Phase,
    /// Challenge of the syncer on this connection.
    challenge: Option<Challenge>,
    /// Time of the last start from scratch after [`CloseCode::Untrusted`](crate::wire::CloseCode), in microseconds.
    restarted_us: Option<u64>,
    /// Time of the last handled event, in microseconds.
    now_us: u64,
    out: VecDeque<Output>,
}

impl LearnerDriver {
    /// Returns a member that has not joined a run.
    #[must_use]
    pub fn new(config: DriverConfig) -> Self {
        let (waits, seed) = (config.waits, config.seed);
        Self {
            supply: Supply::new(waits.backoff, rng::key(&[seed, 1])),
            duty_cycle: DutyCycle::new(),
            contact: Reconnect::new(&config, seed),
            stall: Stall::new(&config),
            losses: Losses::new(waits.losses, rng::key(&[seed, 2])),
            measure: Measure::default(),
            phase: Phase::Greeting,
            challenge: None,
            restarted_us: None,
            now_us: 0,
            out: VecDeque::new(),
            learner: Learner::new(config.learner),
        }
    }

    /// Handles an event at `now_us`, which never decreases. Events of a connection that was given up are ignored.
    pub fn handle(&mut self, now_us: u64, input: Input) {
        self.now_us = now_us;
        let is_of_connection = matches!(
            input,
            Input::Opened | Input::Heard | Input::Message(_) | Input::Garbled(_) | Input::Closed { .. }
        );
        if self.phase == Phase::Over || is_of_connection && self.contact.is_down() {
            return;
        }
        self.react(input);
        self.duty_cycle.set_share(self.learner.share());
    }

    /// Returns the next action. The shell calls it after every [`Self::handle`] and [`Self::next_batch`], until it
    /// returns `None`.
    pub fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.out.pop_front() {
                return Some(output);
            }
            if self.phase == Phase::Over {
                return None;
            }
            match self.learner.poll() {
                Some(output) => self.carry_out(output),
                None => {
                    if let Some(output) = self.next_measurement() {
                        return Some(output);
                    }
                    let (shard, body_bytes) = self.supply.next_fetch(self.now_us)?;
                    return Some(Output::FetchShard { shard, body_bytes });
                }
            }
        }
    }

    /// Returns the time at which to handle [`Input::Timeout`] if no other event comes before, in microseconds. The
    /// time may be in the past.
    #[must_use]
    pub fn deadline(&self, now_us: u64) -> Option<u64> {
        let phase_us = match self.phase {
            Phase::Greeting | Phase::Training => None,
            // A leaving member does not reconnect, and sends only queued messages.
            Phase::Flushing { until_us } | Phase::Parting { until_us } => return Some(until_us),
            Phase::Over => return None,
        };
        let learner_us = self.learner.deadline(millis(now_us)).map(|at| at.0.saturating_mul(1_000));
        let rest_us = self.duty_cycle.owed_us().map(|owed_us| now_us.saturating_add(owed_us));
        let contact_us = self.contact.deadline(self.awaits());
        let waits =
            [phase_us, learner_us, rest_us, contact_us, self.stall.deadline(), self.supply.deadline()];
        waits.into_iter().flatten().min()
    }

    /// Returns the next batch, if there is one and the member may train. The windows of the batch are reported as
    /// trained.
    pub fn next_batch(&mut self, now_us: u64) -> Option<Batch> {
        self.now_us = now_us;
        let here = matches!(self.phase, Phase::Greeting | Phase::Training);
        if !here || !self.learner.can_train() || self.duty_cycle.owed_us().is_some() {
            return None;
        }
        let tokens = self.supply.next_batch();
        self.learner.set_starved(millis(now_us), tokens.is_none());
        let learning_rate = learning_rate(&self.supply.spec()?.inner, self.learner.clock_tokens());
        let tokens = tokens?;
        Some(Batch { tokens, learning_rate })
    }

    /// Returns the phase of the membership.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the state of the learner.
    #[must_use]
    pub fn state(&self) -> LearnerState {
        self.learner.state()
    }

    /// Returns true if the member may train and owes no rest, but has no windows to train on.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.learner.state() == LearnerState::Starved && self.duty_cycle.owed_us().is_none()
    }

    /// Returns the share of its training time that the run's owner allows.
    #[must_use]
    pub fn share(&self) -> Share {
        self.learner.share()
    }

    /// Returns the number of merged tokens that sets the learning rate: see [`Learner::clock_tokens`].
    #[must_use]
    pub fn clock_tokens(&self) -> u64 {
        self.learner.clock_tokens()
    }

    /// Returns the tokens of updates whose fate is unknown, for each fragment, `[P]`: see
    /// [`Learner::tokens_unsettled`].
    pub fn tokens_unsettled(&self) -> impl Iterator<Item = u64> {
        self.learner.tokens_unsettled()
    }

    /// Returns the run and the learner's id in it, after the first admission.
    #[must_use]
    pub fn run(&self) -> Option<(RunId, LearnerId)> {
        self.learner.run()
    }

    /// Returns the version of each fragment held, `[P]`; empty before the first admission.
    pub fn versions(&self) -> impl Iterator<Item = Option<Version>> {
        self.learner.versions()
    }

    /// Returns the reason why the member cannot train: no connection, or failing downloads.
    #[must_use]
    pub fn blocked_reason(&self, now_us: u64) -> Option<&str> {
        let offline = self.offline(now_us).map(|offline| offline.reason);
        offline.or_else(|| self.stall.reason())
    }

    /// Returns the reason in the syncer's last answer to this member, if it ended the last connection with one. It
    /// stays known after the end of the membership.
    #[must_use]
    pub fn refusal(&self) -> Option<CloseCode> {
        self.contact.refusal()
    }

    /// Returns the reason for the missing connection, unless the member is admitted or leaving.
    #[must_use]
    pub fn offline(&self, now_us: u64) -> Option<Offline<'_>> {
        let here = matches!(self.phase, Phase::Greeting | Phase::Training);
        self.contact.offline(now_us).filter(|_| here)
    }
}

/// Converts microseconds to the milliseconds of the learner's core.
fn millis(now_us: u64) -> Millis {
    Millis(now_us / 1_000)
}

/// Reason of [`End::Unreachable`] if no connection attempt has ended.
pub const NO_ANSWER: &str = "no answer";

/// Event that the shell reports to the driver.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// The connection of [`Output::Connect`] is open.
    Opened,
    /// A part of a message, a ping or other data arrived over the connection, which shows that the syncer is alive.
    Heard,
    /// A message arrived.
    Message(Message),
    /// Invalid bytes arrived.
    Garbled(DecodeError),
    /// The connection ended, or could not be opened.
    Closed { code: Option<u16>, reason: String },
    /// The engine of [`Output::Build`] is ready. It has these fragments, and a step takes `batch` windows, at most
    /// [`crate::wire::BATCH_MAX`].
    Built { fragments: Arc<Fragments>, batch: NonZeroU32 },
    /// The engine failed. If `device_lost`, a later build may use another device, or the same one once it is back.
    Failed { device_lost: bool, reason: String },
    /// Θ̂ of one fragment arrived, `[fragment_len]`, at the version that the syncer's answer named.
    Fetched { fragment: FragmentId, version: Version, values: Vec<f32> },
    /// The download of a fragment failed.
    FetchFailed { fragment: FragmentId, reason: String },
    /// A download made progress: some or all of its bytes arrived.
    Fed,
    /// A download failed before any of its bytes arrived. Downloads of fragments report this by
    /// [`Input::FetchFailed`] instead.
    Unfed { reason: String },
    /// The bytes of a shard arrived, not yet verified, or the download failed.
    Shard { shard: u32, bytes: Result<Vec<u8>, String> },
    /// The bytes of the held-out windows arrived, not yet verified, or the download failed.
    HeldOut { bytes: Result<Vec<u8>, String> },
    /// The held-out loss for [`Output::Measure`], in nats per token; `None` if the engine cannot measure it.
    Measured { number: u32, loss: Option<f32> },
    /// The body for [`Output::Encode`], and the digest of the Θ̂ that it is relative to.
    Encoded { serial: Serial, fragment: FragmentId, body: Vec<u8>, digest: u64 },
    /// One inner step finished.
    Stepped(Step),
    /// Tokens routed to each expert of the layout, in the order of the layout, since the last such report. It must
    /// precede the [`Input::Stepped`] of the step that routed them. Engines without expert counts never send it.
    ExpertLoad { seen: Vec<u64> },
    /// Time in microseconds for which the device worked after calls of steps had returned. The duty cycle adds rest
    /// for it.
    Worked { us: u64 },
    /// Time that the shell waited idly, in microseconds. It reduces the owed rest.
    Waited { us: u64 },
    /// The owner paused or resumed training.
    Paused(bool),
    /// The page became hidden or visible.
    Hidden(bool),
    /// The owner set the duty cycle, in thousandths, 1 to 1000.
    Duty { permille: u16 },
    /// The learner's owner expects that the syncer can be reached again.
    DrainNow,
    /// The learner's owner ends the membership gracefully; [`Output::End`] follows.
    Leave,
    /// All output is sent, and the engine has nothing left to deliver. The shell repeats it after each input while
    /// the member leaves.
    Flushed,
    /// [`LearnerDriver::deadline`] may have passed. The shell also sends it after each step.
    Timeout,
}

/// Report of one inner step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Tokens trained on.
    pub tokens: u64,
    /// Mean loss, in nats per token.
    pub loss: f32,
    /// Duration of the step's call in microseconds. The duty cycle adds rest for it.
    pub busy_us: u64,
    /// Device time of earlier asynchronous steps after their calls returned, in microseconds. It is part of the step
    /// time sent to the syncer. It adds no rest here, because [`Input::Worked`] already did.
    pub earlier_us: u64,
}

/// Action for the shell. Actions are carried out in the order of [`LearnerDriver::poll`], before the next step.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Open a connection; answer with [`Input::Opened`] or [`Input::Closed`].
    Connect,
    /// Sign the challenge's text, put the signature into `hello` and send it on the connection of the challenge,
    /// unless that has been replaced meanwhile.
    Greet { hello: Box<Hello>, challenge: Challenge },
    /// Send a message.
    Send(Message),
    /// Send the goodbye and close the connection. The member waits for [`Input::Closed`] until the deadline.
    Close(Bye),
    /// Drop the connection, after sending `farewell` if present, and all downloads of fragments. They must cause no
    /// further input. The next connection attempt is in `retry_ms` milliseconds.
    Disconnect { farewell: Option<Bye>, reason: String, retry_ms: u64 },
    /// Build the engine of this run. The shell may keep the previous engine unless `rebuild` is true. Answer with
    /// [`Input::Built`] or [`Input::Failed`].
    Build { welcome: Box<Welcome>, rebuild: bool },
    /// Drop the engine and the download of a shard: the member joins the run from scratch.
    Afresh { reason: String },
    /// Fetch Θ̂ of a fragment, at `version` or a later one.
    Fetch { fragment: FragmentId, version: Version },
    /// Fetch a shard, and cancel the download of any other.
    FetchShard { shard: u32, body_bytes: u64 },
    /// Encode the current progress on a fragment. Answer with [`Input::Encoded`], which may come later.
    Encode { serial: Serial, fragment: FragmentId },
    /// The last encoded update is part of Θ̂ or of its next version: call `Replica::include`.
    Include { fragment: FragmentId },
    /// Apply a merged change: call `Replica::apply`.
    Apply { fragment: FragmentId, body: Vec<u8> },
    /// Load a whole Θ̂: call `Replica::load`.
    Load { fragment: FragmentId, values: Vec<f32>, keep: bool },
    /// Fetch the held-out windows, of at most `body_bytes_max` bytes. Answer with [`Input::HeldOut`].
    FetchHeldOut { body_bytes_max: u64 },
    /// Measure the loss of Θ̂ on these windows, `[n, context + 1]`. Answer with [`Input::Measured`].
    Measure { number: u32, windows: Arc<[u32]> },
    /// Display a fault. The member handles it by itself.
    Trouble { reason: String },
    /// The membership is over: no output follows.
    End(End),
}

/// End of a membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The learner's owner ended it.
    Left,
    /// The run is complete.
    Complete(Bye),
    /// The syncer permanently refuses this learner.
    Refused(Bye),
    /// The syncer did not admit the learner within the time limit.
    Unreachable {
        /// Waiting time in milliseconds.
        waited_ms: u64,
        /// Result of the last attempt.
        reason: String,
    },
    /// The device was lost too many times.
    DeviceLost,
}

#[cfg(test)]
mod tests;
