//! Loss checks: single updates are tried on the text that their learners were given.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::data::Window;
use archipelago_core::diloco::Fragments;
use archipelago_core::diloco::syncer::{LossCheck, Syncer};
use archipelago_core::diloco::trust::{ContributionTest, UpdateScore};
use archipelago_core::model::{FrozenWeights, ModelSpec};
use archipelago_core::wire::RunSpec;
use archipelago_runtime::engine::cpu::CpuModel;

use super::{engine, idle_ms};
use crate::actor::ActorHandle;
use crate::clock::Clock;
use crate::corpus::Corpus;
use crate::errors::ServerError;

/// Performs loss checks of single updates.
pub struct Prover {
    run: RunSpec,
    fragments: Arc<Fragments>,
    corpus: Arc<Corpus>,
    model: CpuModel,
    proofs: ContributionTest,
    /// Share of the time, above 0 and at most 1.
    share: f64,
}

impl Prover {
    /// Creates a prover for the run of `syncer`, on the text of `corpus`. The model is this `decoder`, on the weights
    /// `frozen` if the run trains adapters. It computes on one thread for the `share` of the time, which is above 0
    /// and at most 1. Suspicions from earlier starts are kept.
    ///
    /// # Errors
    /// `Internal`: the engine cannot be built.
    pub fn new(
        syncer: &Syncer,
        decoder: &ModelSpec,
        frozen: Option<Arc<FrozenWeights>>,
        corpus: Arc<Corpus>,
        share: f64,
    ) -> Result<Self, ServerError> {
        let (run, fragments) = (syncer.spec().clone(), Arc::clone(syncer.fragments()));
        let model = CpuModel::on(frozen, decoder, NonZeroUsize::MIN).map_err(engine)?;
        let mut proofs = ContributionTest::new(run.seed);
        let doubts = syncer
            .ledger()
            .accounts()
            .filter_map(|(learner, account)| Some((learner, account.trust.suspicion()?)));
        doubts.for_each(|(learner, doubt)| proofs.suspect(learner, doubt));
        Ok(Self { run, fragments, corpus, model, proofs, share })
    }

    fn look(&mut self, exam: &LossCheck) -> Result<Vec<UpdateScore>, ServerError> {
        let Self { run, corpus, model, .. } = self;
        exam.look(&self.fragments, run.seed ^ exam.job.round.0, |theta, windows| {
            let of = |window: &Window| window.tokens(run, corpus.shards.get(window.shard as usize)?);
            let tokens: Vec<u32> = windows.iter().filter_map(of).flatten().collect();
            model.loss(theta, &tokens).map(f64::from).map_err(engine)
        })
    }
}

/// Checks merges within its share of the time, and reports the evidence on learners. Ends with the actor.
pub async fn prove(mut prover: Prover, actor: ActorHandle, clock: Clock) {
    loop {
        let Some(exam) = actor.exam(prover.proofs.sampling()).await else { return };
        let began = clock.now();
        let looking = tokio::task::spawn_blocking(move || {
            let result = prover.look(&exam);
            (prover, exam.job.fragment, result)
        });
        let Ok((back, fragment, result)) = looking.await else {
            tracing::error!("a loss check panicked; loss checks are off");
            return;
        };
        prover = back;
        match result {
            Ok(shown) => {
                let took_ms = clock.now().since(began);
                tracing::debug!(updates = shown.len(), took_ms, "loss checks done");
                for (learner, verdict) in prover.proofs.take(fragment, &shown) {
                    actor.judge(learner, verdict).await;
                }
            }
            Err(error) => tracing::warn!(%error, "loss checks failed"),
        }
        let idle = Duration::from_millis(idle_ms(prover.share, began, clock.now()));
        tokio::select! {
            () = tokio::time::sleep(idle) => {}
            () = actor.closed() => return,
        }
    }
}
