//! Requests for the held-out loss to the learner that the owner trusts, whose answers are accepted within bounds; and
//! capture of merges for loss checks.

use std::sync::Arc;
use std::time::Duration;

use archipelago_core::diloco::syncer::{LossCheck, Syncer, Trained, TrainedWindows, WINDOWS_MAX};
use archipelago_core::diloco::trust::Sampling;
use archipelago_core::diloco::{ConnId, Entry, LearnerId, MergeJob, Millis, Version};
use archipelago_core::wire::{Fingerprint, Message};
use tokio::sync::oneshot;

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
    /// Trusts the learner `who`, a name or a fingerprint, and asks it at most once in each period of `every`. `last`
    /// is the learner that measured last, before a restart. If it has this name, the name is bound to its key.
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

    /// Returns the trusted learner, if it takes part now. If no key is known yet, the name is bound to the first
    /// learner that has it.
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
    /// Connection whose learner reported that it cannot measure.
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
    pub(super) fn next_request(
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

/// Captures one merge for loss checks.
///
/// The windows that learners trained are tracked from the start, because they cannot be reconstructed later.
#[derive(Debug)]
pub(super) struct LossCheckCapture {
    trained: Option<Trained>,
    wanted: Option<(Sampling, oneshot::Sender<LossCheck>)>,
    kept: Option<MergeJob>,
    ready: Option<(MergeJob, Vec<TrainedWindows>)>,
}

impl LossCheckCapture {
    /// Creates an empty capture. It stays empty unless loss checks are on (`is_tried`).
    pub(super) fn new(syncer: &Syncer, is_tried: bool) -> Self {
        let trained = || Trained::new(syncer.spec().model.context, syncer.fragments().count());
        Self { trained: is_tried.then(trained), wanted: None, kept: None, ready: None }
    }

    /// Requests the next merge that matches `sampling`.
    pub(super) fn want(&mut self, sampling: Sampling, reply: oneshot::Sender<LossCheck>) {
        self.wanted = Some((sampling, reply));
        (self.kept, self.ready) = (None, None);
    }

    /// Records a decision. If it is the merge of the kept job, the job is ready to be sent.
    pub(super) fn note(&mut self, entry: &Entry) {
        let Some(windows) = self.trained.as_mut().and_then(|trained| trained.follow(entry, WINDOWS_MAX))
        else {
            return;
        };
        let Entry::Merged(merge) = entry else { return };
        if let Some(job) = self.kept.take_if(|job| job.round == merge.round) {
            self.ready = Some((job, windows));
        }
    }

    /// Keeps a merge job if it is requested.
    pub(super) fn keep(&mut self, job: &MergeJob) {
        let Some((sampling, _)) = self.wanted.as_ref().filter(|_| self.ready.is_none()) else { return };
        if sampling.wants(job) {
            self.kept = Some(job.clone());
        }
    }

    /// Sends the requested merge once it is recorded and no fragment is being merged.
    pub(super) fn answer(&mut self, syncer: &Syncer) {
        if self.ready.is_none() {
            return;
        }
        let hats = syncer.rests().map(|state| Some(Arc::clone(&state?.hat))).collect();
        let Some(hats) = hats else { return };
        if let (Some((job, windows)), Some((_, reply))) = (self.ready.take(), self.wanted.take()) {
            // Fails only if the requester has hung up.
            let _ = reply.send(LossCheck { hats, job, fruit: windows });
        }
    }
}
