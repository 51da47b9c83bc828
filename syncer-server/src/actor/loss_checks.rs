//! Merges that are kept for loss checks of their updates.

use std::sync::Arc;

use archipelago_core::diloco::syncer::{LossCheck, Syncer, Trained, TrainedWindows, WINDOWS_MAX};
use archipelago_core::diloco::trust::Sampling;
use archipelago_core::diloco::{Entry, MergeJob};
use tokio::sync::oneshot;

/// Merges for loss checks.
///
/// The learners' windows are tracked from the start, because they cannot be reconstructed later.
#[derive(Debug)]
pub(super) struct Exams {
    trained: Option<Trained>,
    wanted: Option<(Sampling, oneshot::Sender<LossCheck>)>,
    kept: Option<MergeJob>,
    ready: Option<(MergeJob, Vec<TrainedWindows>)>,
}

impl Exams {
    /// Creates an empty state; it stays empty unless loss checks are on (`is_tried`).
    pub(super) fn new(syncer: &Syncer, is_tried: bool) -> Self {
        let trained = || Trained::new(syncer.spec().model.context, syncer.fragments().count());
        Self { trained: is_tried.then(trained), wanted: None, kept: None, ready: None }
    }

    /// Requests the next merge that matches `sampling`.
    pub(super) fn want(&mut self, sampling: Sampling, reply: oneshot::Sender<LossCheck>) {
        self.wanted = Some((sampling, reply));
        (self.kept, self.ready) = (None, None);
    }

    /// Records a decision.
    pub(super) fn note(&mut self, entry: &Entry) {
        let Some(fruit) = self.trained.as_mut().and_then(|trained| trained.follow(entry, WINDOWS_MAX)) else {
            return;
        };
        let Entry::Merged(merge) = entry else { return };
        if let Some(job) = self.kept.take_if(|job| job.round == merge.round) {
            self.ready = Some((job, fruit));
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
        if let (Some((job, fruit)), Some((_, reply))) = (self.ready.take(), self.wanted.take()) {
            // Fails only if the requester has hung up.
            let _ = reply.send(LossCheck { hats, job, fruit });
        }
    }
}
