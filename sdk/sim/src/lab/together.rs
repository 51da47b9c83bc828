//! An experiment in a world: many learners under one syncer.

use super::joining::Newcomers;
use super::recipe::Sampler;
use super::{Budget, Corpus, LabError, Outcome, Recipe, Sample, Spent};
use crate::world::{Fault, MachineStatus, ShellSpec, World, WorldSpec};
use archipelago::model::{check_inner, init, layout};
use archipelago::wire::RunId;

/// Virtual time without a step after which a run stands still, in milliseconds; constant of ours.
const STILL_MS_MAX: u64 = 600_000;
/// Virtual time in which the last progress is collected, in milliseconds; constant of ours.
const FINISH_MS_MAX: u64 = 600_000;

impl Recipe {
    /// The world of this recipe, all its machines training for real.
    ///
    /// # Errors
    /// [`LabError::Nothing`], [`LabError::Model`], [`LabError::Engine`] and [`LabError::Syncer`] for a
    /// recipe that cannot be run.
    pub fn world(&self, corpus: &Corpus) -> Result<World, LabError> {
        self.check()?;
        check_inner(&self.inner)?;
        let model = self.model;
        // Trainers are made as machines start; whether they can be is found out here.
        let newcomers = Newcomers::new(self);
        newcomers.check()?;
        let spec = WorldSpec {
            run: RunId(self.seed),
            run_spec: self.run_spec(corpus),
            syncer: self.syncer,
            theta: init(&model, self.seed)?,
            shards: corpus.shards.clone(),
            machines: self.machines.clone(),
            shell: ShellSpec { shards_at_hand: self.text_at_hand, ..ShellSpec::default() },
        };
        Ok(World::new(self.seed, spec, layout(&model)?, Box::new(move |machine| newcomers.trainer(machine)))?)
    }

    /// Trains until the budget is spent, collects the learners' last progress, and measures Θ.
    ///
    /// # Errors
    /// Each variant of [`LabError`] but `Split` and `Lease`.
    pub fn train(&self, corpus: &Corpus) -> Result<Outcome, LabError> {
        let mut world = self.world(corpus)?;
        let mut sampler = Sampler::new(self);
        let step_ms = self.machines.iter().map(|machine| machine.step_ms).min().unwrap_or(1);
        let (mut last, mut moved_ms) = (0, 0);
        let mut faults = self.faults.iter().peekable();
        loop {
            let machines = world.machines();
            let (tokens, now_ms) = (tokens(&machines), world.now().0);
            if let Some((machine, reason)) = stopped(machines) {
                return Err(LabError::Stopped { seed: self.seed, machine, tokens, reason });
            }
            let spent = self.spent(tokens, now_ms);
            if sampler.is_due(spent)
                && let Some(theta) = world.syncer().and_then(|syncer| syncer.theta())
            {
                let loss = self.measure(corpus, &theta)?;
                sampler.take(Sample { at_ms: now_ms, tokens, loss });
            }
            if spent >= 1.0 {
                break;
            }
            if tokens > last {
                (last, moved_ms) = (tokens, now_ms);
            } else if now_ms - moved_ms > STILL_MS_MAX {
                return Err(LabError::StandsStill { seed: self.seed, tokens });
            }
            while let Some((_, fault)) = faults.next_if(|(at_ms, _)| *at_ms <= now_ms) {
                world.inject(*fault);
            }
            let left_ms = match self.budget {
                Budget::Tokens(_) => step_ms,
                Budget::Ms(all) => step_ms.min(all - now_ms),
            };
            world.run_for(left_ms.max(1));
        }
        self.end(world, corpus, sampler)
    }

    fn end(&self, mut world: World, corpus: &Corpus, sampler: Sampler) -> Result<Outcome, LabError> {
        // A merge that is at work has what is measured here; it takes some milliseconds.
        let is_there = |world: &World| world.syncer().is_some_and(|syncer| syncer.thetas().is_some());
        if !world.run_until(FINISH_MS_MAX, 1, is_there) {
            return Err(LabError::StandsStill { seed: self.seed, tokens: tokens(&world.machines()) });
        }
        let virtual_ms = world.now().0;
        let grace_ms = world.status().map_or(0, |status| status.grace_ms);
        let spent = self.spent_at_last(&world, corpus)?;
        world.inject(Fault::Finish);
        if !world.run_until(FINISH_MS_MAX, 100, World::is_finished) {
            return Err(LabError::StandsStill { seed: self.seed, tokens: tokens(&world.machines()) });
        }
        world.check().map_err(|violation| LabError::Violation { seed: self.seed, violation })?;
        let status = world.status().expect("no fault of a recipe ends the syncer");
        let theta = world.syncer().and_then(|syncer| syncer.theta()).expect("nothing is merged any more");
        let machines = world.machines();
        let steps: u64 = machines.iter().map(|machine| machine.steps).sum();
        Ok(Outcome {
            loss: self.measure(corpus, &theta)?,
            tokens: tokens(&machines),
            tokens_merged: status.tokens_merged,
            merged_by: (0..self.learners()).map(|machine| world.tokens_merged(machine)).collect(),
            grace_ms,
            spent,
            steps_per_learner: steps as f64 / f64::from(self.learners()),
            rounds: status.rounds,
            updates_merged: status.fates.merged,
            refused: status.fates.refused.values().sum(),
            virtual_ms,
            samples: sampler.end(),
        })
    }

    fn spent_at_last(&self, world: &World, corpus: &Corpus) -> Result<Spent, LabError> {
        let syncer = world.syncer().expect("no fault of a recipe ends the syncer");
        let fragments = syncer.fragments();
        let mut hat = vec![0.0; layout(&self.model)?.len()];
        for p in fragments.ids() {
            let (_, values) = syncer.hat(p).expect("nothing is being merged");
            fragments.scatter(p, &values, &mut hat);
        }
        let loss = self.measure(corpus, &hat)?;
        Ok(Spent { loss, tokens: tokens(&world.machines()), tokens_merged: syncer.status().tokens_merged })
    }
}

fn tokens(machines: &[MachineStatus]) -> u64 {
    machines.iter().map(|machine| machine.tokens).sum()
}

/// The first machine whose learner stays away for good or had to begin anew, with its reason: before the end nobody is
/// sent away, and no loss of a run that had to begin anew means anything.
fn stopped(machines: Vec<MachineStatus>) -> Option<(usize, String)> {
    let mut reasons = machines.into_iter().enumerate();
    reasons.find_map(|(i, machine)| Some((i, machine.stopped.or(machine.afresh)?)))
}
