//! Loss checks of single updates, merge by merge, as on a server.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{Corpus, LabError, Recipe};
use archipelago_core::data::Window;
use archipelago_core::diloco::syncer::{LossCheck as MergeCheck, Trained, WINDOWS_MAX};
use archipelago_core::diloco::trust::{ContributionTest, ContributionVerdict, UpdateScore};
use archipelago_core::diloco::{Entry, MergeJob};
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::{Round, RunSpec};
use archipelago_runtime::engine::cpu::CpuModel;
use archipelago_sim::world::World;

/// The result of the check of one machine's update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossCheck {
    /// The machine.
    pub machine: u32,
    /// The round.
    pub round: u64,
    /// See [`archipelago_core::diloco::trust::UpdateScore::own`].
    pub own: f64,
    /// See [`archipelago_core::diloco::trust::UpdateScore::others`].
    pub others: f64,
    /// The syncer's new verdict on the learner, if this check changed it.
    #[serde(skip)]
    pub regard: Option<ContributionVerdict>,
}

/// Checker of merged updates.
pub(super) struct LossChecker {
    run: RunSpec,
    shards: Vec<Arc<[u8]>>,
    engine: CpuModel,
    trained: Trained,
    proofs: ContributionTest,
    jobs: BTreeMap<Round, MergeJob>,
    pub(super) checks: Vec<LossCheck>,
}

impl LossChecker {
    pub(super) fn new(recipe: &Recipe, corpus: &Corpus, world: &mut World) -> Result<Self, LabError> {
        world.watch_merges();
        world.watch_entries();
        let run = recipe.run_spec(corpus);
        let shards = corpus.shards.clone();
        let (engine, trained) = (
            CpuModel::fixed(&ModelSpec::of(&run.model)?)?,
            Trained::new(run.model.context, run.exchange.fragments),
        );
        let (proofs, jobs) = (ContributionTest::new(recipe.seed), BTreeMap::new());
        Ok(Self { run, shards, engine, trained, proofs, jobs, checks: Vec::new() })
    }

    /// Checks the updates merged since the last call, and passes new verdicts to the syncer. This takes no virtual
    /// time.
    pub(super) fn check(&mut self, world: &mut World) -> Result<Vec<MergeJob>, LabError> {
        let jobs = world.take_merges();
        self.jobs.extend(jobs.iter().map(|job| (job.round, job.clone())));
        for entry in world.take_entries() {
            let Some(fruit) = self.trained.follow(&entry, WINDOWS_MAX) else { continue };
            let Entry::Merged(merge) = entry else { continue };
            let Some(job) = self.jobs.remove(&merge.round) else { continue };
            if !self.proofs.sampling().wants(&job) {
                continue;
            }
            let Some(syncer) = world.syncer() else { continue };
            let fragments = Arc::clone(syncer.fragments());
            let hats = fragments.ids().map(|p| syncer.hat(p).map(|(_, hat)| hat)).collect();
            let Some(hats) = hats else { continue };
            let exam = MergeCheck { hats, job, fruit };
            let (run, shards, engine) = (&self.run, &self.shards, &mut self.engine);
            let shown = exam.measure(&fragments, merge.round.0, |theta, windows| {
                let of =
                    |window: &Window| window.tokens(run, &shards[window.shard as usize]).unwrap_or_default();
                let tokens: Vec<u32> = windows.iter().flat_map(of).collect();
                engine.loss(theta, &tokens).map(f64::from)
            })?;
            let news = self.proofs.take(merge.fragment, &shown);
            let machines: Vec<u32> =
                shown.iter().map(|shown| world.machine_of(shown.learner).unwrap_or(u32::MAX)).collect();
            self.checks.extend(shown.iter().zip(machines).map(
                |(&UpdateScore { learner, own, others }, machine)| {
                    let news = news.iter().find(|(about, _)| *about == learner);
                    let regard = news.map(|(_, regard)| *regard);
                    LossCheck { machine, round: merge.round.0, own, others, regard }
                },
            ));
            for (learner, regard) in news {
                world.judge(learner, regard);
            }
        }
        Ok(jobs)
    }
}
