//! Merges that are kept for a moment, so that single updates in them can be looked at.

use std::sync::Arc;

use archipelago_core::diloco::syncer::{Exam, Fruit, Sampling, Syncer, Trained, WINDOWS_MAX};
use archipelago_core::diloco::{Entry, MergeJob};
use tokio::sync::oneshot;

/// Nothing is followed or kept before the first exam is asked for.
#[derive(Debug, Default)]
pub(super) struct Exams {
    trained: Option<Trained>,
    wanted: Option<(Sampling, oneshot::Sender<Exam>)>,
    kept: Option<MergeJob>,
    ready: Option<(MergeJob, Vec<Fruit>)>,
}

impl Exams {
    /// The next merge that `sampling` picks is wanted.
    pub(super) fn want(&mut self, syncer: &Syncer, sampling: Sampling, reply: oneshot::Sender<Exam>) {
        let context = syncer.spec().model.context;
        self.trained.get_or_insert_with(|| Trained::new(context, syncer.fragments().count()));
        self.wanted = Some((sampling, reply));
        (self.kept, self.ready) = (None, None);
    }

    /// Takes in a decision.
    pub(super) fn note(&mut self, entry: &Entry) {
        let Some(fruit) = self.trained.as_mut().and_then(|trained| trained.follow(entry, WINDOWS_MAX)) else {
            return;
        };
        let Entry::Merged(merge) = entry else { return };
        if let Some(job) = self.kept.take_if(|job| job.round == merge.round) {
            self.ready = Some((job, fruit));
        }
    }

    /// Keeps what is about to be merged, if it is wanted.
    pub(super) fn keep(&mut self, job: &MergeJob) {
        let Some((sampling, _)) = self.wanted.as_ref().filter(|_| self.ready.is_none()) else { return };
        if sampling.wants(job) {
            self.kept = Some(job.clone());
        }
    }

    /// Hands out what is wanted, once it is there and no fragment is being merged.
    pub(super) fn answer(&mut self, syncer: &Syncer) {
        if self.ready.is_none() {
            return;
        }
        let hats = syncer.rests().map(|state| Some(Arc::clone(&state?.hat))).collect();
        let Some(hats) = hats else { return };
        if let (Some((job, fruit)), Some((_, reply))) = (self.ready.take(), self.wanted.take()) {
            // Nobody waits any more if this fails.
            let _ = reply.send(Exam { hats, job, fruit });
        }
    }
}
