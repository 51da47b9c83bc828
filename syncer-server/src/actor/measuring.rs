//! Requests to the learner that the owner trusts to measure the held-out loss. Its answers are accepted within bounds.

use std::time::Duration;

use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::diloco::{ConnId, LearnerId, Millis, Version};
use archipelago_core::wire::{Fingerprint, Message};

use crate::status::Evaluation;

/// Highest plausible loss, in nats per token. Guessing uniformly among all possible tokens gives less than 23.
const LOSS_MAX: f32 = 1_000.0;

/// The learner that the owner trusts to measure, and the shortest time between two requests to it.
#[derive(Clone, Debug)]
pub struct Trusted {
    /// The name of the learner, or the fingerprint of its key.
    pub who: String,
    /// Shortest time between two requests.
    pub every: Duration,
    /// The key that the name is bound to, once it is known. A name alone is no proof: any learner can take it.
    pub key: Option<Fingerprint>,
}

impl Trusted {
    /// Trusts the learner called `who`, and asks it at most once in each period of `every`. `last` is the learner that
    /// measured last, in an earlier start of the run. If it has this name, the name is bound to its key.
    #[must_use]
    pub fn new(who: String, every: Duration, last: Option<LearnerId>, syncer: &Syncer) -> Self {
        let given: Option<Fingerprint> = who.parse().ok();
        let last = last.and_then(|learner| syncer.ledger().account(learner));
        let bound = last.filter(|account| account.name == who).map(|account| account.fingerprint());
        if given.is_none() {
            tracing::warn!(
                evaluator = who,
                bound = bound.map(tracing::field::display),
                "--evaluator gives a name, which the first learner that uses it takes: give the fingerprint of its \
                 key, which `syncer-server learners` lists"
            );
        }
        Self { who, every, key: given.or(bound) }
    }

    /// Returns the learner, if it takes part now. If no key is known yet, the name is bound to the first learner that
    /// has it.
    fn find(&mut self, syncer: &Syncer) -> Option<(ConnId, LearnerId)> {
        let mut live = syncer.learners().filter(|learner| learner.live);
        let found = live.find(|learner| match self.key {
            Some(key) => learner.fingerprint == key,
            None => learner.name == self.who,
        })?;
        if self.key.is_none() {
            tracing::info!(evaluator = self.who, key = %found.fingerprint, "evaluator bound to this key");
            self.key = Some(found.fingerprint);
        }
        Some((syncer.connection(found.learner)?, found.learner))
    }
}

/// State of the requests to the trusted learner.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    trusted: Option<Trusted>,
    asked: Option<Asked>,
    /// The number of the last request.
    number: u32,
    /// Earliest time of the next request.
    next_at: Millis,
    /// The versions in the last request.
    versions: Vec<Version>,
    /// The connection of a learner that reported that it cannot measure.
    unable: Option<ConnId>,
}

/// A request without an answer.
#[derive(Debug)]
struct Asked {
    conn: ConnId,
    learner: LearnerId,
    number: u32,
    tokens_merged: u64,
    rounds: u64,
}

impl Measuring {
    pub(super) fn new(trusted: Option<Trusted>) -> Self {
        Self { trusted, ..Self::default() }
    }

    /// Returns the next request, if one is due and the trusted learner is connected.
    pub(super) fn question(
        &mut self,
        now: Millis,
        syncer: &Syncer,
        is_open: impl Fn(ConnId) -> bool,
    ) -> Option<(ConnId, Message)> {
        let trusted = self.trusted.as_mut()?;
        if self.asked.take_if(|asked| !is_open(asked.conn)).is_some() {
            // The next connection gets a request for the same versions.
            self.versions.clear();
        }
        if self.asked.is_some() || now < self.next_at || syncer.is_over() {
            return None;
        }
        let status = syncer.status();
        let versions: Vec<Version> = status.fragments.iter().map(|(_, version, _)| *version).collect();
        let (conn, learner) = trusted.find(syncer)?;
        if versions == self.versions || self.unable == Some(conn) {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        self.versions.clone_from(&versions);
        let number = self.number;
        let (tokens_merged, rounds) = (status.tokens_merged, status.rounds);
        self.asked = Some(Asked { conn, learner, number, tokens_merged, rounds });
        Some((conn, Message::Measure { run: syncer.run(), number, versions }))
    }

    /// Returns the measurement in the answer of `conn` to the request `number`. The outer `None` means that there was
    /// no such request; the inner one, that the answer is unusable.
    pub(super) fn answer(
        &mut self,
        now: Millis,
        conn: ConnId,
        number: u32,
        loss: Option<f32>,
    ) -> Option<Option<Evaluation>> {
        let asked = self.asked.take_if(|asked| (asked.conn, asked.number) == (conn, number))?;
        let Asked { learner, tokens_merged, rounds, .. } = asked;
        let every = self.trusted.as_ref().map_or(Duration::ZERO, |trusted| trusted.every);
        self.next_at = now.after(u64::try_from(every.as_millis()).unwrap_or(u64::MAX));
        let believed = |loss: &f32| loss.is_finite() && (0.0..=LOSS_MAX).contains(loss);
        match loss {
            Some(loss) if !believed(&loss) => {
                tracing::warn!(%learner, loss, "ignored an impossible held-out loss")
            }
            Some(_) => {}
            None => {
                tracing::warn!(%learner, "the evaluator cannot measure the held-out loss");
                self.unable = Some(conn);
            }
        }
        let evaluation =
            |loss| Evaluation { tokens_merged, rounds, loss, time_s: 0.0, measured_by: Some(learner) };
        Some(loss.filter(believed).map(evaluation))
    }
}
