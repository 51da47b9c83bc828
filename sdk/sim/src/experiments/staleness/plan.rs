//! The experiments, and the lines of the table that compare them.

use std::num::NonZeroU32;

use archipelago_core::diloco::Influence;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_sim::lab::{Joining, Recipe};
use archipelago_sim::world::Fault;
use clap::ValueEnum;

use super::{Part, StalenessArgs};
use crate::experiments::SimulateError;
use crate::experiments::lines::Line;
use crate::experiments::training::{Experiment, set_width};

/// M.
pub(super) const LEARNERS: u32 = 8;
/// The machine whose learner is far or away.
pub(super) const ODD: usize = 7;
/// Learners that join halfway through the run.
const JOINERS: u32 = 4;
/// Learners in the comparison of sampled rounds.
pub(super) const CROWD: u32 = 32;

/// Experiments and their lines, collected part by part.
pub(super) struct Plan<'a> {
    args: &'a StalenessArgs,
    /// Tokens in a step of a learner with the run's batch.
    step_tokens: u64,
    /// γ · τ launches, in milliseconds.
    pub(super) grace_ms: u64,
    pub(super) experiments: Vec<Experiment>,
    pub(super) lines: Vec<Line>,
}

impl<'a> Plan<'a> {
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn new(args: &'a StalenessArgs) -> Result<Self, SimulateError> {
        let Recipe { syncer, exchange, .. } = args.training.recipe(LEARNERS, 1)?;
        let launch_steps = (f64::from(exchange.sync_every) / f64::from(exchange.fragments)).max(1.0);
        let launch_ms = launch_steps * args.training.step_ms as f64;
        let grace_ms = syncer.quorum.grace_ratio * f64::from(syncer.quorum.rounds_in_flight) * launch_ms;
        let step_tokens = args.training.step_tokens()?;
        let mut plan =
            Self { args, step_tokens, grace_ms: grace_ms as u64, experiments: vec![], lines: vec![] };
        for part in Part::value_variants() {
            if !args.parts.is_empty() && !args.parts.contains(part) {
                continue;
            }
            match part {
                Part::Far => plan.far()?,
                Part::Away => plan.away()?,
                Part::Joining => plan.joining()?,
                Part::Batches => plan.batches()?,
                Part::Sampled => plan.sampled()?,
            }
        }
        Ok(plan)
    }

    /// Adds training of eight learners on `tokens` tokens in total, changed by `change`. Returns its name.
    fn add(
        &mut self,
        name: String,
        tokens: u64,
        change: impl FnOnce(&mut Recipe),
    ) -> Result<String, SimulateError> {
        self.add_of(LEARNERS, name, tokens, change)
    }

    /// Adds the same for `learners` learners.
    fn add_of(
        &mut self,
        learners: u32,
        name: String,
        tokens: u64,
        change: impl FnOnce(&mut Recipe),
    ) -> Result<String, SimulateError> {
        let (args, mut recipe) = (self.args, self.args.training.recipe(learners, tokens)?);
        set_width(&mut recipe, args.width);
        // The comparison is about updates, not about the transfer of the text.
        recipe.text_at_hand = true;
        for machine in &mut recipe.machines {
            machine.jitter = args.step_jitter;
        }
        change(&mut recipe);
        self.experiments.push(Experiment { name: name.clone(), recipe, alone_tokens: None });
        Ok(name)
    }

    fn line(&mut self, case: String, ours: &str, base: &str) {
        self.lines.push(Line { case, ours: ours.to_owned(), base: base.to_owned(), paper: None });
    }

    /// Returns the rules: none, one for long updates, and one for old updates.
    fn rules(&self) -> [(&'static str, Influence); 3] {
        // In runs this short, all learners are newcomers; that bound is not the subject here.
        let none = Influence {
            turns_max: 0.0,
            half_life_turns: 0.0,
            newcomers_share_max: 1.0,
            ..Influence::default()
        };
        let StalenessArgs { turns_max, half_life_turns, .. } = *self.args;
        [
            ("no rule", none),
            ("cap", Influence { turns_max, ..none }),
            ("decay", Influence { half_life_turns, ..none }),
        ]
    }

    fn far(&mut self) -> Result<(), SimulateError> {
        let tokens = self.args.steps * self.step_tokens * u64::from(LEARNERS);
        // The run does not wait for the far learner to join: the others would train separately until then.
        let start = |recipe: &mut Recipe| recipe.syncer.learners_start = LEARNERS - 1;
        let near = self.add("far, none of them".into(), tokens, start)?;
        for windows in &self.args.round_trips {
            let round_trip_ms = windows * self.grace_ms as f64;
            for (rule, influence) in self.rules() {
                let case = format!("far, {round_trip_ms:.0} ms, {rule}");
                let far = self.add(case.clone(), tokens, |recipe| {
                    start(recipe);
                    recipe.syncer.influence = influence;
                    recipe.machines[ODD].link.latency_ms = (round_trip_ms / 2.0) as u64;
                })?;
                self.line(case, &far, &near);
            }
        }
        Ok(())
    }

    fn away(&mut self) -> Result<(), SimulateError> {
        let StalenessArgs { steps, away_from, rest, .. } = *self.args;
        let step_ms = self.args.training.step_ms;
        let rules = self.rules();
        let free = Influence { share_ratio_max: 0.0, ..rules[0].1 };
        for &away in &self.args.away {
            let tokens = steps.max(away_from + away + rest) * self.step_tokens * u64::from(LEARNERS);
            // An absent learner trains on its leased windows. Leases determine the order of the text, so that they are
            // the same for all.
            let leases = |recipe: &mut Recipe| {
                let SyncerConfig { lease_ms, lease_idle_ms_max, .. } = &mut recipe.syncer;
                for ms in [lease_ms, lease_idle_ms_max] {
                    *ms = (*ms).max(2 * away * step_ms);
                }
            };
            let near = self.add(format!("away, {away} steps, nobody"), tokens, leases)?;
            for (rule, influence) in rules.into_iter().chain([("no bound", free)]) {
                let case = format!("away, {away} steps, {rule}");
                let ours = self.add(case.clone(), tokens, |recipe| {
                    leases(recipe);
                    recipe.syncer.influence = influence;
                    recipe.faults = vec![
                        (away_from * step_ms, Fault::Partition(ODD as u32)),
                        ((away_from + away) * step_ms, Fault::Heal(ODD as u32)),
                    ];
                })?;
                self.line(case, &ours, &near);
            }
        }
        Ok(())
    }

    fn joining(&mut self) -> Result<(), SimulateError> {
        let (steps, samples) = (self.args.steps, self.args.samples);
        let starts_ms = steps / 2 * self.args.training.step_ms;
        let learner_steps = steps * u64::from(LEARNERS - JOINERS) + (steps - steps / 2) * u64::from(JOINERS);
        let mut names = Vec::new();
        let ramp = Joining::Ramp { steps: self.args.ramp_steps };
        for (what, joining) in [("zero", Joining::Zero), ("ramp", ramp), ("donor", Joining::Donor)] {
            let name = format!("joining, {what}");
            names.push(self.add(name, learner_steps * self.step_tokens, |recipe| {
                (recipe.joining, recipe.samples) = (joining, samples);
                recipe.syncer.learners_start = LEARNERS - JOINERS;
                for machine in &mut recipe.machines[(LEARNERS - JOINERS) as usize..] {
                    machine.starts_ms = starts_ms.max(1);
                }
            })?);
        }
        for name in &names[1..] {
            self.line(name.clone(), name, &names[0]);
        }
        Ok(())
    }

    fn batches(&mut self) -> Result<(), SimulateError> {
        let batches = self.args.batches.clone();
        let Some(&middle) = batches.get(batches.len() / 2) else { return Ok(()) };
        let [(_, bounded), ..] = self.rules();
        let base = self.of_batches(format!("batches, all {middle}"), &[middle], bounded)?;
        for &batch in batches.iter().filter(|&&batch| batch != middle) {
            let case = format!("batches, all {batch}");
            let ours = self.of_batches(case.clone(), &[batch], bounded)?;
            self.line(case, &ours, &base);
        }
        let free = Influence { share_ratio_max: 0.0, ..bounded };
        for (rule, influence) in [("no rule", bounded), ("no bound", free)] {
            let case = format!("batches, mixed, {rule}");
            let ours = self.of_batches(case.clone(), &batches, influence)?;
            self.line(case, &ours, &base);
        }
        Ok(())
    }

    /// Adds sampled rounds, compared with rounds of the whole crowd.
    fn sampled(&mut self) -> Result<(), SimulateError> {
        let args = self.args;
        let tokens = args.steps * self.step_tokens * u64::from(CROWD);
        let mut of = |cohort_max| {
            let name = format!("sampled, {cohort_max} of {CROWD}");
            self.add_of(CROWD, name, tokens, |recipe| recipe.syncer.cohort_max = cohort_max)
        };
        let all = of(CROWD)?;
        let samples: Vec<_> =
            args.cohorts.iter().map(|&cohort_max| of(cohort_max)).collect::<Result<_, _>>()?;
        samples.iter().for_each(|sample| self.line(sample.clone(), sample, &all));
        Ok(())
    }

    /// Adds learners with `batches` in turn, on equal devices.
    fn of_batches(
        &mut self,
        name: String,
        batches: &[u32],
        influence: Influence,
    ) -> Result<String, SimulateError> {
        let tokens = self.args.steps * self.step_tokens * u64::from(LEARNERS);
        self.add(name, tokens, |recipe| {
            recipe.syncer.influence = influence;
            let run_batch = u64::from(recipe.inner.batch);
            for (machine, &batch) in recipe.machines.iter_mut().zip(batches.iter().cycle()) {
                machine.batch = NonZeroU32::new(batch);
                machine.step_ms = (machine.step_ms * u64::from(batch)).div_ceil(run_batch).max(1);
            }
        })
    }
}
