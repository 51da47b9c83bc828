//! An experiment in a world: many learners under one syncer.

use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::model::{check_inner, layout, learning_rate};
use archipelago_core::wire::{InnerSpec, RunId};
use archipelago_sim::world::{Fault, MachineStatus, ShellSpec, World, WorldSpec};

use super::attack_stats::Watcher;
use super::cosines::Collector;
use super::joining::TrainerFactory;
use super::loss_checks::LossChecker;
use super::measurement::{Average, HeldOutMeter, Sampler};
use super::{
    Budget, BudgetResult, Corpus, FinalLosses, LabError, Recipe, Sample, TrainingResult, WindowReader,
};

/// Virtual time without a step after which a run counts as stalled, in milliseconds; our own constant.
const STILL_MS_MAX: u64 = 600_000;
/// Virtual time for the last collection, in milliseconds; our own constant.
const FINISH_MS_MAX: u64 = 600_000;

impl Recipe {
    /// Creates the world of this recipe, in which all machines really train.
    ///
    /// # Errors
    /// [`LabError::Nothing`], [`LabError::Model`], [`LabError::Engine`] and [`LabError::Syncer`] for a
    /// recipe that cannot be run.
    pub fn world(&self, corpus: &Corpus) -> Result<World, LabError> {
        self.check()?;
        check_inner(&self.inner)?;
        let model = self.model;
        // Checked here, because trainers are made only as machines start.
        let trainers = TrainerFactory::new(self)?;
        trainers.check()?;
        let spec = WorldSpec {
            run: RunId(self.seed),
            run_spec: self.run_spec(corpus),
            syncer: self.syncer,
            theta: self.theta()?,
            shards: corpus.shards.clone(),
            machines: self.machines.clone(),
            shell: ShellSpec { shards_at_hand: self.text_at_hand, ..ShellSpec::default() },
        };
        Ok(World::new(self.seed, spec, layout(&model)?, Box::new(move |machine| trainers.trainer(machine)))?)
    }

    /// Trains until the budget is spent, collects the learners' last progress, and measures Θ. If hostile learners
    /// prevent that, the outcome reports it.
    ///
    /// # Errors
    /// Each variant of [`LabError`] except `Split` and `Lease`.
    pub fn train(&self, corpus: &Corpus) -> Result<TrainingResult, LabError> {
        let mut course = RecipeRun::new(self, corpus)?;
        match course.train() {
            Err(
                error
                @ (LabError::Stopped { .. } | LabError::NotFinite { .. } | LabError::StandsStill { .. }),
            ) if self.is_attacked() => course.broken(&error),
            Err(error) => Err(error),
            Ok(()) => course.end(),
        }
    }

    fn spent_at_last(
        &self,
        meter: &mut HeldOutMeter,
        world: &World,
        corpus: &Corpus,
    ) -> Result<BudgetResult, LabError> {
        let syncer = world.syncer().expect("no fault of a recipe ends the syncer");
        let fragments = syncer.fragments();
        let mut hat = vec![0.0; layout(&self.model)?.len()];
        for p in fragments.ids() {
            let (_, values) = syncer.hat(p).expect("nothing is being merged");
            fragments.scatter(p, &values, &mut hat);
        }
        let loss = meter.measure(corpus, &hat)?;
        let tokens = self.tokens(&world.machines());
        Ok(BudgetResult { loss, tokens, tokens_merged: syncer.status().tokens_merged })
    }

    fn honest<'a>(&self, machines: &'a [MachineStatus]) -> impl Iterator<Item = (usize, &'a MachineStatus)> {
        (0..).zip(machines).filter(|(machine, _)| !self.is_hostile(*machine as u32))
    }

    /// Returns the tokens trained by honest machines.
    fn tokens(&self, machines: &[MachineStatus]) -> u64 {
        self.honest(machines).map(|(_, machine)| machine.tokens).sum()
    }

    /// Returns the first honest machine whose learner stopped for good or started from scratch, with its reason. No
    /// honest learner should be sent away before the end, and a start from scratch makes the loss meaningless.
    fn stopped(&self, machines: &[MachineStatus]) -> Option<(usize, String)> {
        let reason = |machine: &MachineStatus| machine.stopped.clone().or(machine.afresh.clone());
        self.honest(machines).find_map(|(i, machine)| Some((i, reason(machine)?)))
    }
}

/// Recipe in progress.
struct RecipeRun<'a> {
    recipe: &'a Recipe,
    corpus: &'a Corpus,
    world: World,
    sampler: Sampler,
    average: Option<Average>,
    meter: HeldOutMeter,
    watcher: Watcher,
    cosines: Option<Collector>,
    loss_checker: Option<LossChecker>,
}

impl<'a> RecipeRun<'a> {
    fn new(recipe: &'a Recipe, corpus: &'a Corpus) -> Result<Self, LabError> {
        let mut world = recipe.world(corpus)?;
        if let Some(spec) = recipe.undo {
            let (mut meter, corpus) = (recipe.meter()?, corpus.clone());
            let loss = move |theta: &[f32]| meter.held_out(&corpus, theta).map_or(f64::NAN, f64::from);
            world.watch_loss(spec, Box::new(loss));
        }
        let mut cosines = None;
        if recipe.cosines {
            world.watch_merges();
            cosines = Some(Collector::new(layout(&recipe.model)?));
        }
        let is_hostile = (0..recipe.learners()).map(|machine| recipe.is_hostile(machine)).collect();
        let (sampler, watcher) = (Sampler::new(recipe), Watcher::new(is_hostile));
        let loss_checker =
            recipe.loss_checks.then(|| LossChecker::new(recipe, corpus, &mut world)).transpose()?;
        let average = recipe.averaging(recipe.theta()?);
        let meter = recipe.meter()?;
        Ok(Self { recipe, corpus, world, sampler, average, meter, watcher, cosines, loss_checker })
    }

    /// Trains until the budget is spent.
    fn train(&mut self) -> Result<(), LabError> {
        let (recipe, seed) = (self.recipe, self.recipe.seed);
        let step_ms = recipe.machines.iter().map(|machine| machine.step_ms).min().unwrap_or(1);
        let (mut last, mut moved_ms) = (0, 0);
        let mut faults = recipe.faults.iter().peekable();
        loop {
            self.process_events()?;
            let machines = self.world.machines();
            let (tokens, now_ms) = (recipe.tokens(&machines), self.world.now().0);
            if let Some((machine, reason)) = recipe.stopped(&machines) {
                return Err(LabError::Stopped { seed, machine, tokens, reason });
            }
            let spent = recipe.spent(tokens, now_ms);
            if spent >= 1.0 {
                // The last parameters are measured even if a merge is in progress.
                self.wait_for_merges();
            }
            if self.sampler.is_due(spent)
                && let Some(theta) = self.world.syncer().and_then(|syncer| syncer.theta())
            {
                let loss = self.meter.measure(self.corpus, &theta)?;
                self.sampler.take(Sample { at_ms: now_ms, tokens, loss });
            }
            if let Some(average) = self.average.as_mut().filter(|average| average.is_due(spent.min(1.0)))
                && let Some(theta) = self.world.syncer().and_then(Syncer::theta)
            {
                average.take(spent.min(1.0), &theta);
            }
            if spent >= 1.0 {
                return Ok(());
            }
            if tokens > last {
                (last, moved_ms) = (tokens, now_ms);
            } else if now_ms - moved_ms > STILL_MS_MAX {
                return Err(LabError::StandsStill { seed, tokens });
            }
            while let Some((_, fault)) = faults.next_if(|(at_ms, _)| *at_ms <= now_ms) {
                self.world.inject(*fault);
            }
            let left_ms = match recipe.budget {
                Budget::Tokens(_) => step_ms,
                Budget::Ms(all) => step_ms.min(all - now_ms),
            };
            self.world.run_for(left_ms.max(1));
        }
    }

    /// Processes events and merges.
    fn process_events(&mut self) -> Result<(), LabError> {
        self.watcher.follow(&mut self.world);
        let jobs = match &mut self.loss_checker {
            Some(loss_checker) => loss_checker.check(&mut self.world)?,
            None => self.world.take_merges(),
        };
        if let Some(cosines) = &mut self.cosines {
            for job in jobs {
                cosines.take(&job, |learner| self.watcher.is_honest(learner));
            }
        }
        Ok(())
    }

    fn end(mut self) -> Result<TrainingResult, LabError> {
        let (recipe, seed) = (self.recipe, self.recipe.seed);
        let still = |world: &World| LabError::StandsStill { seed, tokens: recipe.tokens(&world.machines()) };
        if !self.wait_for_merges() {
            return Err(still(&self.world));
        }
        let virtual_ms = self.world.now().0;
        let grace_ms = self.world.status().map_or(0, |status| status.grace_ms);
        let spent = recipe.spent_at_last(&mut self.meter, &self.world, self.corpus)?;
        self.world.inject(Fault::Finish);
        if !self.world.run_until(FINISH_MS_MAX, 100, World::is_finished) {
            return Err(still(&self.world));
        }
        self.world.check().map_err(|violation| LabError::Violation { seed, violation })?;
        let theta = self.world.syncer().and_then(Syncer::theta).expect("nothing is merged any more");
        let loss = self.meter.measure(self.corpus, &theta)?;
        let ends = recipe.ends(&mut self.meter, self.corpus, &theta, self.average.as_ref())?;
        Ok(TrainingResult { ends, grace_ms, spent, virtual_ms, ..self.outcome(loss) })
    }

    /// Ends the experiment because honest learners cannot continue. Returns its result at this moment, with `error` as
    /// the reason.
    fn broken(mut self, error: &LabError) -> Result<TrainingResult, LabError> {
        self.wait_for_merges();
        let theta = self.world.syncer().and_then(Syncer::theta);
        let loss = theta.and_then(|theta| self.meter.measure(self.corpus, &theta).ok());
        Ok(TrainingResult { broken: Some(error.to_string()), ..self.outcome(loss.unwrap_or(f32::INFINITY)) })
    }

    /// Waits for merges in progress, which take some milliseconds. Returns false if they did not end.
    fn wait_for_merges(&mut self) -> bool {
        let is_there = |world: &World| world.syncer().is_some_and(|syncer| syncer.thetas().is_some());
        self.world.run_until(FINISH_MS_MAX, 1, is_there)
    }

    fn outcome(self, loss: f32) -> TrainingResult {
        let (recipe, mut world) = (self.recipe, self.world);
        let harms = world.take_harms();
        let status = world.status().expect("no fault of a recipe ends the syncer");
        let machines = world.machines();
        let (tokens, tokens_merged) = (recipe.tokens(&machines), status.tokens_merged);
        let steps: u64 = recipe.honest(&machines).map(|(_, machine)| machine.steps).sum();
        TrainingResult {
            loss,
            ends: FinalLosses::default(),
            broken: None,
            tokens,
            tokens_merged,
            merged_by: (0..recipe.learners()).map(|machine| world.tokens_merged(machine)).collect(),
            grace_ms: status.grace_ms,
            spent: BudgetResult { loss, tokens, tokens_merged },
            steps_per_learner: steps as f64 / recipe.honest(&machines).count() as f64,
            rounds: status.rounds,
            updates_merged: status.fates.merged,
            refused: status.fates.refused.values().sum(),
            virtual_ms: world.now().0,
            samples: self.sampler.end(),
            harms,
            attack_stats: self.watcher.stats,
            cosines: self.cosines.map(Collector::end).unwrap_or_default(),
            loss_checks: self.loss_checker.map(|checker| checker.checks).unwrap_or_default(),
        }
    }
}

impl Recipe {
    /// Trains one learner alone on `tokens` tokens. Its batch is as large as those of all M learners together. This is
    /// synchronous data-parallel training from the same parameters, over the same text in the same order of windows, by
    /// the same schedule.
    ///
    /// Two more differences from [`Self::train`] remain. In this baseline the inner learning rate follows the trained
    /// tokens; in `train` it follows the merged tokens, which lag by about half of H steps. In `train` a learner leases
    /// up to an eighth of the text at a time. With more than eight learners, some therefore begin on the second pass
    /// over a short text.
    ///
    /// # Errors
    /// Each variant of [`LabError`] except `Split`, `Stopped`, `StandsStill` and `Violation`.
    pub fn train_baseline(&self, corpus: &Corpus, tokens: u64) -> Result<TrainingResult, LabError> {
        self.check()?;
        let inner = InnerSpec { batch: self.inner.batch.saturating_mul(self.learners()), ..self.inner };
        let mut trainer = self.base(&inner)?.boxed();
        let mut meter = self.meter()?;
        trainer.params_mut().copy_from_slice(&self.theta()?);
        let mut reader = WindowReader::new(&self.run_spec(corpus))?;
        let mut sampler = Sampler::new(self);
        let mut average = self.averaging(trainer.params().to_vec());
        let mut slow = self.lookahead.map(|lookahead| (lookahead, trainer.params().to_vec()));
        let (mut trained, mut steps) = (0, 0_u32);
        while trained < tokens {
            let batch = reader.next_batch(corpus, inner.batch);
            let lr = learning_rate(&inner, trained);
            trained += trainer.step(&batch, lr)?.tokens;
            steps += 1;
            if let Some((lookahead, slow)) = slow.as_mut().filter(|(how, _)| steps.is_multiple_of(how.steps))
            {
                go_back(slow, trainer.params_mut(), lookahead.share);
            }
            let spent = trained as f64 / tokens as f64;
            if let Some(average) = average.as_mut().filter(|average| average.is_due(spent)) {
                average.take(spent, trainer.params());
            }
            if sampler.is_due(spent) {
                let loss = meter.measure(corpus, trainer.params())?;
                sampler.take(Sample { at_ms: 0, tokens: trained, loss });
            }
        }
        let loss = meter.measure(corpus, trainer.params())?;
        let ends = self.ends(&mut meter, corpus, trainer.params(), average.as_ref())?;
        Ok(TrainingResult::of_steps(loss, ends, (trained, steps), sampler.end()))
    }
}

/// Moves `slow` by `share` of the way to `fast`, and sets `fast` to the result; both `[len]`.
fn go_back(slow: &mut [f32], fast: &mut [f32], share: f32) {
    for (slow, fast) in slow.iter_mut().zip(fast) {
        *slow += share * (*fast - *slow);
        *fast = *slow;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookahead_interpolates_both_parameters() {
        let (mut slow, mut fast) = ([1.0, -1.0], [2.0, -1.0]);
        go_back(&mut slow, &mut fast, 0.25);
        assert_eq!((slow, fast), ([1.25, -1.0], [1.25, -1.0]));
    }
}
