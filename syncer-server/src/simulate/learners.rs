//! `simulate learners`: what the number of learners, and each part of the method, does to the loss.

use std::collections::BTreeMap;

use archipelago::diloco::MergeRule;
use archipelago::lab::Budget;
use archipelago::wire::Code;
use serde::Serialize;

use super::training::{Experiment, Findings, TrainingArgs};
use super::{Axis, Case, CommonArgs, Mark, Plot, Report, Scale, Series, at_least};
use crate::config::range;
use crate::errors::ServerError;

/// Codes beside 32 bits, with the paper's rise of the loss in percent, where it gives one.
const CODES: [(Code, &str, Option<f64>); 4] = [
    (Code::Int4, "int4", Some(0.09)),
    (Code::E3m0, "e3m0", None),
    (Code::Int2, "int2", Some(32.0)),
    (Code::Int1, "int1", Some(83.0)),
];
/// M of the codes' comparison.
const CODES_LEARNERS: u32 = 4;
/// M of the comparison on thin links.
const LINK_LEARNERS: u32 = 4;

/// One comparison.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Each number of learners with the same steps for each, beside data-parallel training.
    Steps,
    /// Each number of learners with the same tokens in all, beside data-parallel training.
    Tokens,
    /// Radial-directional averaging beside the plain mean, for M = 8 and 16.
    Merge,
    /// Codes of 4, 2 and 1 bits beside 32, for M = 4.
    Codes,
    /// Without grace beside with it, for M = 8 equal learners.
    Grace,
    /// Fragments beside the whole model at once, at equal time over thin links, for M = 4.
    Fragments,
}

/// Settings of `simulate learners`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LearnersArgs {
    /// M, the numbers of learners
    #[arg(
        long,
        env = "ARCHIPELAGO_LEARNERS",
        value_name = "COUNTS",
        value_delimiter = ',',
        default_values_t = [1, 2, 4, 8, 16]
    )]
    pub learners: Vec<u32>,
    /// Comparisons to make; by default all
    #[arg(long, env = "ARCHIPELAGO_PARTS", value_name = "PARTS", value_enum, value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Steps of each learner, where those are equal
    #[arg(long, env = "ARCHIPELAGO_STEPS", value_name = "COUNT", default_value_t = 732)]
    pub steps: u64,
    /// Tokens of all learners together, where those are equal
    #[arg(long, env = "ARCHIPELAGO_TOKENS", value_name = "COUNT", default_value_t = 3_000_000)]
    pub tokens: u64,
    /// Thin link of each learner, each way (kbit/s)
    #[arg(long, env = "ARCHIPELAGO_LINK_KBIT", value_name = "KBIT", default_value_t = 250)]
    pub link_kbit: u64,
    /// Each step takes up to this share more or less, by chance (0 to 1)
    #[arg(long, env = "ARCHIPELAGO_STEP_JITTER", value_name = "SHARE", default_value_t = 0.02)]
    pub step_jitter: f64,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// One line of the table: an experiment beside the one that it is measured by.
struct Line {
    case: String,
    ours: String,
    base: String,
    paper: Option<f64>,
}

/// Experiments and what is said of them, as parts are added.
struct Plan<'a> {
    args: &'a LearnersArgs,
    step_tokens: u64,
    experiments: Vec<Experiment>,
    lines: Vec<Line>,
}

/// Trains, and compares the losses.
///
/// # Errors
/// - `Config`, `Preset`: a setting is out of range, or training failed.
/// - `Disk`: the text cannot be read.
pub fn run(args: &LearnersArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, ServerError> {
    at_least("steps", args.steps as f64, 1.0, true)?;
    at_least("tokens", args.tokens as f64, 1.0, true)?;
    at_least("link-kbit", args.link_kbit as f64, 1.0, true)?;
    let jitter = args.step_jitter;
    range("step-jitter", jitter, (0.0..=1.0).contains(&jitter), "a number from 0 to 1")?;
    for &learners in &args.learners {
        at_least("learners", learners.into(), 1.0, true)?;
    }
    let step_tokens = args.training.step_tokens()?;
    let mut plan = Plan { args, step_tokens, experiments: Vec::new(), lines: Vec::new() };
    let wanted = |part| args.parts.is_empty() || args.parts.contains(&part);
    if wanted(Part::Steps) {
        plan.numbers(|learners| args.steps * step_tokens * u64::from(learners), "equal steps")?;
    }
    if wanted(Part::Tokens) {
        plan.numbers(|_| args.tokens, "equal tokens")?;
    }
    if wanted(Part::Merge) {
        plan.merge()?;
    }
    if wanted(Part::Codes) {
        plan.codes()?;
    }
    if wanted(Part::Grace) {
        plan.grace()?;
    }
    if wanted(Part::Fragments) {
        plan.fragments()?;
    }
    let Plan { experiments, lines, .. } = plan;
    let found = args.training.run(args.common.seed, experiments, progress)?;
    let cases = lines.iter().map(|line| {
        let (above, spread) = found[&line.ours].above(&found[&line.base]);
        let (ours, base) = (found[&line.ours].words(), found[&line.base].words());
        Case::new(&line.case, above, line.paper).noted(format!("± {spread:.2}; {ours}, beside {base}"))
    });
    Ok(Report {
        title: "Held-out loss above what stands beside it".into(),
        unit: "%",
        cases: cases.collect(),
        plots: plots(args, &found),
        notes: vec![
            format!("The loss is that of Θ, in nats per byte; the mean of {} seeds and their deviation.", args.training.seeds),
            "data-parallel: one trainer with the batches of all M, as many steps, the same windows and schedule.".into(),
            "The paper's figures for codes are rises of its validation loss; all else it gives as text scores.".into(),
        ],
    })
}

impl Plan<'_> {
    /// Adds training together, changed by `change`; gives its name.
    fn add(
        &mut self,
        learners: u32,
        tokens: u64,
        what: &str,
        change: impl FnOnce(&mut archipelago::lab::Recipe),
    ) -> Result<String, ServerError> {
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

    fn numbers(&mut self, tokens: impl Fn(u32) -> u64, what: &str) -> Result<(), ServerError> {
        for learners in self.args.learners.clone() {
            let tokens = tokens(learners);
            let ours = self.add(learners, tokens, "", |_| {})?;
            let base = alone(learners, tokens);
            let recipe = self.args.training.recipe(learners, tokens)?;
            self.experiments.push(Experiment { name: base.clone(), recipe, alone_tokens: Some(tokens) });
            self.line(format!("M = {learners} above data-parallel, {what}"), &ours, &base, None);
        }
        Ok(())
    }

    fn merge(&mut self) -> Result<(), ServerError> {
        for learners in [8, 16] {
            let base = self.merged(learners, MergeRule::Mean, "mean")?;
            let ours = self.merged(learners, MergeRule::Radial, "radial")?;
            self.line(format!("radial above plain mean, M = {learners}"), &ours, &base, None);
        }
        Ok(())
    }

    fn merged(&mut self, learners: u32, rule: MergeRule, name: &str) -> Result<String, ServerError> {
        let tokens = self.args.steps * self.step_tokens * u64::from(learners);
        let what = unless(&self.args.training.method.merge, name);
        self.add(learners, tokens, &what, |recipe| recipe.syncer.merge = rule)
    }

    fn codes(&mut self) -> Result<(), ServerError> {
        let base = self.coded(Code::F32, "f32")?;
        for (code, name, paper) in CODES {
            let ours = self.coded(code, name)?;
            self.line(format!("{name} above f32, M = {CODES_LEARNERS}"), &ours, &base, paper);
        }
        Ok(())
    }

    fn coded(&mut self, code: Code, name: &str) -> Result<String, ServerError> {
        let what = unless(&self.args.training.method.code, name);
        self.add(CODES_LEARNERS, self.args.tokens, &what, |recipe| recipe.exchange.code = code)
    }

    fn grace(&mut self) -> Result<(), ServerError> {
        let tokens = self.args.steps * self.step_tokens * 8;
        let base = self.add(8, tokens, "", |_| {})?;
        let ours = self.add(8, tokens, ", no grace", |recipe| recipe.syncer.quorum.grace_ratio = 0.0)?;
        self.line("no grace above grace, M = 8".into(), &ours, &base, None);
        Ok(())
    }

    fn fragments(&mut self) -> Result<(), ServerError> {
        let (bytes_per_s, count) = (self.args.link_kbit * 1_000 / 8, self.args.training.method.fragments);
        let (tokens, ms) = (self.args.tokens, self.args.tokens * self.args.training.step_ms);
        let ms = ms / (self.step_tokens * u64::from(LINK_LEARNERS));
        let mut on_thin_links = |fragments: u16| {
            self.add(LINK_LEARNERS, tokens, &format!(", P = {fragments}, thin links"), |recipe| {
                recipe.exchange.fragments = fragments;
                recipe.budget = Budget::Ms(ms);
                // What is compared is how parameters travel.
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

/// What the name of an experiment says of a setting: nothing if it is the one `chosen` for all.
fn unless(chosen: &str, name: &str) -> String {
    if chosen == name { String::new() } else { format!(", {name}") }
}

/// The name of data-parallel training.
fn alone(learners: u32, tokens: u64) -> String {
    format!("data-parallel of {learners}, {tokens} tokens")
}

fn plots(args: &LearnersArgs, found: &BTreeMap<String, Findings>) -> Vec<Plot> {
    let step_tokens = args.training.step_tokens().unwrap_or(1);
    let steps = |learners: u32| args.steps * step_tokens * u64::from(learners);
    let plot = |name: &str, title: &str, tokens: &dyn Fn(u32) -> u64| {
        let points = |name: &dyn Fn(u32) -> String| -> Vec<(f64, f64)> {
            let found = |&learners: &u32| Some((f64::from(learners), found.get(&name(learners))?.loss()));
            args.learners.iter().filter_map(found).collect()
        };
        let series =
            |name: &str, colour, points| Series { name: name.into(), colour, mark: Mark::Line, points };
        Plot {
            name: name.into(),
            title: title.into(),
            x: Axis { label: "M, learners".into(), scale: Scale::Log },
            y: Axis { label: "held-out loss, nats per byte".into(), scale: Scale::Linear },
            series: vec![
                series("decoupled", 0, points(&|m| format!("M = {m}, {} tokens", tokens(m)))),
                series("data-parallel", 1, points(&|m| alone(m, tokens(m)))),
            ],
        }
    };
    let all = [
        plot("learners-steps", "The same steps for each learner", &steps),
        plot("learners-tokens", "The same tokens in all", &|_| args.tokens),
    ];
    all.into_iter().filter(|plot| plot.series.iter().all(|series| !series.points.is_empty())).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: LearnersArgs,
    }

    fn args(flags: &[&str]) -> LearnersArgs {
        Alone::parse_from([&["simulate"], flags].concat()).args
    }

    #[test]
    fn steps_vary_as_asked() {
        let jitter = |flags: &[&str]| {
            let args = args(flags);
            let mut plan = Plan { args: &args, step_tokens: 64, experiments: vec![], lines: vec![] };
            plan.add(2, 1_000, "", |_| {}).unwrap();
            plan.experiments[0].recipe.machines[1].jitter
        };
        assert_eq!(jitter(&[]), 0.02);
        assert_eq!(jitter(&["--step-jitter", "0.5"]), 0.5);
        let error = run(&args(&["--step-jitter", "2"]), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("--step-jitter"), "{error}");
    }

    /// One learner is itself at full steps; every part finds its lines, and each run is made once.
    #[test]
    fn every_part_has_its_lines() {
        let flags = ["--learners", "1,2", "--steps", "8", "--tokens", "2048", "--batch", "1", "--seeds", "1"];
        let args = args(&flags);
        let mut lines = Vec::new();
        let report = run(&args, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(report.cases.len(), 2 + 2 + 2 + 4 + 1 + 1);
        assert_eq!(report.plots.len(), 2);
        assert!(report.cases.iter().all(|case| case.ours.is_finite() && case.note.is_some()), "{report:#?}");
        let mut names: Vec<&str> = lines.iter().filter_map(|line| line.split(": ").nth(1)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{lines:#?}");
    }
}
