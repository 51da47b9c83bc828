//! Loss checks: single updates are measured on the text that was assigned to their learners.

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
    /// Fraction of the time that loss checks may take, above 0 and at most 1.
    share: f64,
}

impl Prover {
    /// Creates a prover for the run of `syncer`, on the text of `corpus`. `frozen` are the frozen weights of the model
    /// `decoder`, if the run trains adapters. It computes on one thread for the fraction `share` of the time, above 0
    /// and at most 1. Suspicions from before a restart are kept.
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

    fn check(&mut self, check: &LossCheck) -> Result<Vec<UpdateScore>, ServerError> {
        let Self { run, corpus, model, .. } = self;
        check.measure(&self.fragments, run.seed ^ check.job.round.0, |theta, windows| {
            let of = |window: &Window| window.tokens(run, corpus.shards.get(window.shard as usize)?);
            let tokens: Vec<u32> = windows.iter().filter_map(of).flatten().collect();
            model.loss(theta, &tokens).map(f64::from).map_err(engine)
        })
    }
}

/// Checks merges for at most the prover's share of the time, and reports the evidence on learners. Ends with the
/// actor.
pub async fn prove(mut prover: Prover, actor: ActorHandle, clock: Clock) {
    loop {
        let Some(check) = actor.next_loss_check(prover.proofs.sampling()).await else { return };
        let began = clock.now();
        let checking = tokio::task::spawn_blocking(move || {
            let result = prover.check(&check);
            (prover, check.job.fragment, result)
        });
        let Ok((back, fragment, result)) = checking.await else {
            tracing::error!("a loss check panicked; loss checks are off");
            return;
        };
        prover = back;
        match result {
            Ok(scores) => {
                let took_ms = clock.now().since(began);
                tracing::debug!(updates = scores.len(), took_ms, "loss checks done");
                for (learner, verdict) in prover.proofs.take(fragment, &scores) {
                    actor.report_verdict(learner, verdict).await;
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
