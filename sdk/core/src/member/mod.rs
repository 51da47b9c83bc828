//! A member of a run: the learner's core with all that its shells have in common, as one pure state machine.
//!
//! A [`Member`] is composed of the protocol core (`diloco::learner::Learner`), its supply of leases and shards, its
//! pace (duty cycle and the owner's share), its contact with the syncer (back-off, patience, how long it bears to be
//! alone) and the losses of its device. The native learner and the page drive it through sockets and a real clock, the
//! simulator in virtual time; so what is simulated is what ships.
//!
//! It has the contract of the other machines rather than a trait of effects: [`Member::handle`] takes in what happened,
//! [`Member::poll`] gives what to do, [`Member::deadline`] says when to wake it. Some effects of the real shell are
//! asynchronous (an engine is built, a device is waited for) and all of the simulator's are happenings in a queue; a
//! trait would have to be written for both, while values are carried out by each shell in its own way, in one `match`.
//!
//! The shell drains `poll` after every `handle`, then asks [`Member::next_batch`] and trains on it, connected or not.
//! Without a batch it waits, and says so with [`Input::Waited`]. Time is in microseconds since the member was made
//! and never goes back; chance comes from [`MemberConfig::seed`] alone.

mod absence;
mod backoff;
mod contact;
mod io;
mod losses;
mod measure;
mod pace;
mod react;
mod silence;
mod stall;
mod supply;

use std::collections::VecDeque;

pub use absence::Offline;
pub use backoff::Doubling;
pub use io::{End, Input, Output, Step};

use crate::diloco::learner::{Learner, LearnerConfig};
use crate::diloco::learning_rate;
use crate::rng;
use crate::wire::{Challenge, LearnerId, LearnerState, Millis, RunId, Share, Version};
use contact::Contact;
use losses::Losses;
use measure::Measure;
use pace::Pace;
use stall::Stall;
use supply::Supply;

/// Longest wait when leaving until the syncer has what is handed in, which takes a thin link its time; then for what
/// becomes of it; and then for the syncer's farewell, in microseconds.
const HAND_IN_US_MAX: u64 = 10_000_000;
const FATES_US_MAX: u64 = 3_000_000;
const FAREWELL_US_MAX: u64 = 2_000_000;

/// What a member is, and how long it bears what.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// Who it says it is.
    pub learner: LearnerConfig,
    /// Time limit for the first admission, and for failing downloads of parameters after it, in milliseconds. `None`
    /// sets no limit.
    pub contact_ms_max: Option<u64>,
    /// The same limit once the member has trained, in milliseconds. `None` sets no limit.
    pub reconnect_ms_max: Option<u64>,
    /// Its waits.
    pub waits: Waits,
    /// Spreads its attempts, so that members do not come together; the same seed gives the same ones.
    pub seed: u64,
}

/// The waits of a member that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Before the next attempt to connect, or to fetch a shard: each is shortened by chance by up to half.
    pub backoff: Doubling,
    /// Patience with a syncer that says nothing; it doubles with each connection given up.
    pub patience: Doubling,
    /// After the loss of a device; shortened like `backoff`.
    pub losses: Doubling,
}

/// What ships.
impl Default for Waits {
    fn default() -> Self {
        Self {
            backoff: Doubling { first_ms: 250, longest_ms: 15_000 },
            patience: Doubling { first_ms: 60_000, longest_ms: 960_000 },
            losses: Doubling { first_ms: 1_000, longest_ms: 60_000 },
        }
    }
}

/// How far a membership is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No syncer has taken it in yet.
    Greeting,
    /// It was taken in: it fetches parameters, trains or waits, connected or not.
    Training,
    /// It leaves, and hands in what it has, until then at the latest, in microseconds.
    Flushing {
        /// In microseconds.
        until_us: u64,
    },
    /// It has said farewell, and waits for the connection to close, until then at the latest.
    Parting {
        /// In microseconds.
        until_us: u64,
    },
    /// It is over.
    Over,
}

/// What to train on next.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Windows of tokens, `[batch, context + 1]`.
    pub tokens: Vec<u32>,
    /// By the run's clock.
    pub learning_rate: f32,
}

/// One member's state and the rules by which it changes.
pub struct Member {
    learner: Learner,
    supply: Supply,
    pace: Pace,
    contact: Contact,
    stall: Stall,
    losses: Losses,
    measure: Measure,
    phase: Phase,
    /// What the syncer asked on this connection.
    challenge: Option<Challenge>,
    /// When it last began afresh because too many of its updates were refused, in microseconds.
    healed_us: Option<u64>,
    /// When something was last handled.
    now_us: u64,
    out: VecDeque<Output>,
}

impl Member {
    /// One that has not joined anything.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        let (waits, seed) = (config.waits, config.seed);
        Self {
            supply: Supply::new(waits.backoff, rng::key(&[seed, 1])),
            pace: Pace::new(),
            contact: Contact::new(&config, seed),
            stall: Stall::new(&config),
            losses: Losses::new(waits.losses, rng::key(&[seed, 2])),
            measure: Measure::default(),
            phase: Phase::Greeting,
            challenge: None,
            healed_us: None,
            now_us: 0,
            out: VecDeque::new(),
            learner: Learner::new(config.learner),
        }
    }

    /// Takes in what happened at `now_us`, which never goes back. What comes of a connection that was given up changes
    /// nothing.
    pub fn handle(&mut self, now_us: u64, input: Input) {
        self.now_us = now_us;
        let of_line = matches!(
            input,
            Input::Opened | Input::Heard | Input::Message(_) | Input::Garbled(_) | Input::Closed { .. }
        );
        if self.phase == Phase::Over || of_line && self.contact.is_down() {
            return;
        }
        self.react(input);
        self.pace.set_share(self.learner.share());
    }

    /// The next thing to do; call until `None` after every [`Self::handle`] and [`Self::next_batch`].
    pub fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.out.pop_front() {
                return Some(output);
            }
            if self.phase == Phase::Over {
                return None;
            }
            match self.learner.poll() {
                Some(output) => self.obey(output),
                None => {
                    if let Some(output) = self.measures() {
                        return Some(output);
                    }
                    let (shard, body_bytes) = self.supply.want(self.now_us)?;
                    return Some(Output::FetchShard { shard, body_bytes });
                }
            }
        }
    }

    /// When to handle [`Input::Timeout`], if nothing else happens before, in microseconds; it may have passed.
    #[must_use]
    pub fn deadline(&self, now_us: u64) -> Option<u64> {
        let phase_us = match self.phase {
            Phase::Greeting | Phase::Training => None,
            // It connects no more, and has nothing to say but what is queued.
            Phase::Flushing { until_us } | Phase::Parting { until_us } => return Some(until_us),
            Phase::Over => return None,
        };
        let learner_us = self.learner.deadline(millis(now_us)).map(|at| at.0.saturating_mul(1_000));
        let rest_us = self.pace.owed_us().map(|owed_us| now_us.saturating_add(owed_us));
        let contact_us = self.contact.deadline(self.awaits());
        let waits =
            [phase_us, learner_us, rest_us, contact_us, self.stall.deadline(), self.supply.deadline()];
        waits.into_iter().flatten().min()
    }

    /// What to train on now, if there is anything and it may; the windows count as done from here on.
    pub fn next_batch(&mut self, now_us: u64) -> Option<Batch> {
        self.now_us = now_us;
        let here = matches!(self.phase, Phase::Greeting | Phase::Training);
        if !here || !self.learner.can_train() || self.pace.owed_us().is_some() {
            return None;
        }
        let tokens = self.supply.next_batch();
        self.learner.set_starved(millis(now_us), tokens.is_none());
        let learning_rate = learning_rate(&self.supply.spec()?.inner, self.learner.clock_tokens());
        let tokens = tokens?;
        Some(Batch { tokens, learning_rate })
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> LearnerState {
        self.learner.state()
    }

    /// Whether it may train and rest is not owed, but there are no windows.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        self.learner.state() == LearnerState::Starved && self.pace.owed_us().is_none()
    }

    /// The part of the time it would train that the run's owner has it train.
    #[must_use]
    pub fn share(&self) -> Share {
        self.learner.share()
    }

    /// The inner schedule's clock, in tokens: see [`Learner::clock_tokens`].
    #[must_use]
    pub fn clock_tokens(&self) -> u64 {
        self.learner.clock_tokens()
    }

    /// Of each fragment the tokens that are handed in and not settled: see [`Learner::tokens_unsettled`].
    pub fn tokens_unsettled(&self) -> impl Iterator<Item = u64> {
        self.learner.tokens_unsettled()
    }

    /// The run and its id in it, once it was taken in.
    #[must_use]
    pub fn run(&self) -> Option<(RunId, LearnerId)> {
        self.learner.run()
    }

    /// The version of each fragment held, `[P]`; empty before it was taken in.
    pub fn versions(&self) -> impl Iterator<Item = Option<Version>> {
        self.learner.versions()
    }

    /// Returns the reason that keeps the member from training: a missing connection or failing downloads.
    #[must_use]
    pub fn hindrance(&self, now_us: u64) -> Option<&str> {
        let offline = self.offline(now_us).map(|offline| offline.reason);
        offline.or_else(|| self.stall.reason())
    }

    /// Why there is no contact, if it was lost and the member does not leave.
    #[must_use]
    pub fn offline(&self, now_us: u64) -> Option<Offline<'_>> {
        let here = matches!(self.phase, Phase::Greeting | Phase::Training);
        self.contact.offline(now_us).filter(|_| here)
    }
}

/// As the learner's core counts time.
fn millis(now_us: u64) -> Millis {
    Millis(now_us / 1_000)
}

#[cfg(test)]
mod tests;
