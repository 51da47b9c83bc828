//! The experiments, and the lines of the table that compare them.

use archipelago_cli::within;
use archipelago_core::diloco::MergeRule;
use archipelago_core::wire::Code;
use archipelago_sim::lab::{Budget, Recipe};
use clap::ValueEnum;

use super::course::{Course, Equal, STEPS, TOKENS};
use super::{LearnersArgs, Part};
use crate::experiments::SimulateError;
use crate::experiments::lines::Line;
use crate::experiments::training::Experiment;

/// Codes compared with 32 bits, and the paper's increase of the loss in percent, if it has one.
const CODES: [(Code, Option<f64>); 4] =
    [(Code::Int4, Some(0.09)), (Code::E3m0, None), (Code::Int2, Some(32.0)), (Code::Int1, Some(83.0))];
/// M in the comparison of codes.
const CODES_LEARNERS: u32 = 4;
/// M in the comparison on thin links.
const LINK_LEARNERS: u32 = 4;
/// Largest number of tokens of all learners together.
const TOKENS_MAX: f64 = 1e12;

/// Experiments and their lines, collected part by part.
pub(super) struct Plan<'a> {
    args: &'a LearnersArgs,
    step_tokens: u64,
    pub(super) experiments: Vec<Experiment>,
    pub(super) lines: Vec<Line>,
    pub(super) courses: Vec<Course>,
}

impl<'a> Plan<'a> {
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn new(args: &'a LearnersArgs) -> Result<Self, SimulateError> {
        let step_tokens = args.training.step_tokens()?;
        // At least one step of each learner, on thin links too.
        within("tokens", args.tokens as f64, (step_tokens * u64::from(LINK_LEARNERS)) as f64..=TOKENS_MAX)?;
        let mut plan = Self { args, step_tokens, experiments: vec![], lines: vec![], courses: vec![] };
        for part in Part::value_variants() {
            if !args.parts.is_empty() && !args.parts.contains(part) {
                continue;
            }
            match part {
                Part::Steps => plan.steps()?,
                Part::Tokens => plan.tokens()?,
                Part::Merge => plan.merge()?,
                Part::Codes => plan.codes()?,
                Part::Grace => plan.grace()?,
                Part::Fragments => plan.fragments()?,
            }
        }
        Ok(plan)
    }

    /// Adds training together, changed by `change`. Returns its name.
    fn add(
        &mut self,
        learners: u32,
        tokens: u64,
        what: &str,
        change: impl FnOnce(&mut Recipe),
    ) -> Result<String, SimulateError> {
        let mut recipe = self.args.training.recipe(learners, tokens)?;
        for machine in &mut recipe.machines {
            machine.jitter = self.args.step_jitter;
        }
        change(&mut recipe);
        let name = format!("M = {learners}, {tokens} tokens{what}");
        self.experiments.push(Experiment { name: name.clone(), recipe, alone_tokens: None });
        Ok(name)
    }

    fn line(&mut self, case: String, ours: &str, base: &str, paper: Option<f64>) {
        self.lines.push(Line { case, ours: ours.to_owned(), base: base.to_owned(), paper });
    }

    fn steps(&mut self) -> Result<(), SimulateError> {
        let tokens = self.args.steps * self.step_tokens;
        self.numbers(|learners| tokens * u64::from(learners), &STEPS)
    }

    fn tokens(&mut self) -> Result<(), SimulateError> {
        let tokens = self.args.tokens;
        self.numbers(|_| tokens, &TOKENS)
    }

    fn numbers(&mut self, tokens: impl Fn(u32) -> u64, equal: &'static Equal) -> Result<(), SimulateError> {
        for &learners in &self.args.learners {
            let tokens = tokens(learners);
            // At most one sample per step.
            let steps = tokens / (self.step_tokens * u64::from(learners));
            let samples = self.args.samples.min(u32::try_from(steps).unwrap_or(u32::MAX));
            let ours = self.add(learners, tokens, "", |recipe| recipe.samples = samples)?;
            let base = format!("data-parallel of {learners}, {tokens} tokens");
            let recipe = Recipe { samples, ..self.args.training.recipe(learners, tokens)? };
            self.experiments.push(Experiment { name: base.clone(), recipe, alone_tokens: Some(tokens) });
            self.line(format!("M = {learners} above data-parallel, {}", equal.what), &ours, &base, None);
            let step_tokens = self.step_tokens * u64::from(learners);
            self.courses.push(Course { equal, learners, step_tokens, ours, base });
        }
        Ok(())
    }

    fn merge(&mut self) -> Result<(), SimulateError> {
        for learners in [8, 16] {
            let base = self.merged(learners, MergeRule::Mean)?;
            let ours = self.merged(learners, MergeRule::Radial)?;
            self.line(format!("radial above plain mean, M = {learners}"), &ours, &base, None);
        }
        Ok(())
    }

    fn merged(&mut self, learners: u32, rule: MergeRule) -> Result<String, SimulateError> {
        let tokens = self.args.steps * self.step_tokens * u64::from(learners);
        let what = unless(rule == self.args.training.method.merge, rule.name());
        self.add(learners, tokens, &what, |recipe| recipe.syncer.merge = rule)
    }

    fn codes(&mut self) -> Result<(), SimulateError> {
        let base = self.coded(Code::F32)?;
        for (code, paper) in CODES {
            let ours = self.coded(code)?;
            self.line(format!("{} above f32, M = {CODES_LEARNERS}", code.name()), &ours, &base, paper);
        }
        Ok(())
    }

    fn coded(&mut self, code: Code) -> Result<String, SimulateError> {
        let what = unless(code == self.args.training.method.code, code.name());
        self.add(CODES_LEARNERS, self.args.tokens, &what, |recipe| recipe.exchange.code = code)
    }

    fn grace(&mut self) -> Result<(), SimulateError> {
        let tokens = self.args.steps * self.step_tokens * 8;
        let base = self.add(8, tokens, "", |_| {})?;
        let ours = self.add(8, tokens, ", no grace", |recipe| recipe.syncer.quorum.grace_ratio = 0.0)?;
        self.line("no grace above grace, M = 8".into(), &ours, &base, None);
        Ok(())
    }

    fn fragments(&mut self) -> Result<(), SimulateError> {
        let (bytes_per_s, count) = (self.args.link_kbit * 1_000 / 8, self.args.training.method.fragments);
        let (tokens, ms) = (self.args.tokens, self.args.tokens * self.args.training.step_ms);
        let ms = ms / (self.step_tokens * u64::from(LINK_LEARNERS));
        let mut on_thin_links = |fragments: u16| {
            self.add(LINK_LEARNERS, tokens, &format!(", P = {fragments}, thin links"), |recipe| {
                recipe.exchange.fragments = fragments;
                recipe.budget = Budget::Ms(ms);
                // The comparison is about the exchange of parameters.
                recipe.text_at_hand = true;
                for machine in &mut recipe.machines {
                    machine.link.bytes_per_s = Some(bytes_per_s);
                }
            })
        };
        let (whole, parts) = (on_thin_links(1)?, on_thin_links(count)?);
        let case = format!("P = {count} above P = 1 at {} kbit/s, M = {LINK_LEARNERS}", self.args.link_kbit);
        self.line(case, &parts, &whole, None);
        Ok(())
    }
}

/// Returns the part of an experiment's name for a setting; empty for the setting chosen for all.
fn unless(is_chosen: bool, name: &str) -> String {
    if is_chosen { String::new() } else { format!(", {name}") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    #[test]
    fn steps_vary_as_asked() {
        let jitter = |flags: &[&str]| {
            let args = args(flags);
            let plan = Plan::new(&args).unwrap();
            plan.experiments[0].recipe.machines[0].jitter
        };
        assert_eq!(jitter(&[]), 0.02);
        assert_eq!(jitter(&["--step-jitter", "0.5"]), 0.5);
    }

    #[test]
    fn a_run_is_looked_at_once_a_step_at_most() {
        let samples = |flags: &[&str]| Plan::new(&args(flags)).unwrap().experiments[0].recipe.samples;
        assert_eq!(samples(&[]), 12);
        assert_eq!(samples(&["--steps", "8"]), 8);
    }
}
