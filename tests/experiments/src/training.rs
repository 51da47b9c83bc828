//! Settings of the trained model, and experiments of several seeds in parallel.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::thread;

use crate::lab::{Budget, Corpus, JoinerStart, LabError, Recipe, TrainingResult, reference_model};
use archipelago_cli::{ExchangeArgs, ExpertArgs, OuterArgs, RoundArgs, as_written, one_of, range, within};
use archipelago_core::data::{BYTE_VOCAB, grammar, pictures};
use archipelago_core::diloco::QuorumPolicy;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::{InnerSpec, Optimiser, Preset};
use archipelago_sim::world::{LinkSpec, MachineSpec};
use clap::ValueEnum;
use serde::Serialize;

use super::pool;
use super::statistics::{deviation, mean, percent_above};
use crate::SimulateError;

/// Size of a built-in text in bytes; its seed is always 1.
const BUILT_IN_BYTES: usize = 1_000_000;
/// Largest number of learners in a run; each has its own model.
pub const LEARNERS_MAX: f64 = 256.0;
/// Largest number of steps of a learner.
pub const STEPS_MAX: f64 = 1e6;
/// Largest number of windows in a step of data-parallel training. It has the batches of all learners at once, which
/// takes gigabytes.
const WINDOWS_MAX: u32 = 4_096;
/// Longest step, latency or jitter, in milliseconds. A run may stall for far longer before it is abandoned.
const MS_MAX: f64 = 60_000.0;
/// Largest number of parallel runs.
const JOBS_MAX: f64 = 256.0;

/// Settings of the trained model and of its training.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrainingArgs {
    /// Text to train on, each byte a token, in place of --text
    #[arg(long, value_name = "FILE", help_heading = "Training")]
    pub data: Option<PathBuf>,
    /// Built-in text to train on
    #[arg(long, value_name = "NAME", value_enum, default_value_t = BuiltIn::Grammar, help_heading = "Training")]
    pub text: BuiltIn,
    /// Shape of the model: reference (2 layers of width 64, context 64), tiny, small, or medium and more with a GPU
    #[arg(long, value_name = "NAME", default_value = "reference", help_heading = "Training")]
    pub preset: String,
    /// Tokens in a window (a multiple of 8), in place of those of --preset
    #[arg(long, value_name = "COUNT", help_heading = "Training")]
    pub context: Option<u32>,
    /// Windows in a step of one learner
    #[arg(long, value_name = "COUNT", default_value_t = 8, help_heading = "Training")]
    pub batch: u32,
    /// Optimiser of a trainer's steps: adamw, or muon for matrices with adamw for the rest
    #[arg(
        long,
        value_name = "NAME",
        default_value = Optimiser::AdamW.name(),
        value_parser = one_of(&Optimiser::ALL, Optimiser::name),
        help_heading = "Training"
    )]
    pub inner: Optimiser,
    /// Highest inner learning rate, of learners and of data-parallel training
    #[arg(long, value_name = "RATE", default_value_t = 4e-3, help_heading = "Training")]
    #[serde(serialize_with = "as_written")]
    pub lr: f32,
    /// Lowest inner learning rate relative to the highest, reached at the end (0 to 1)
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = Preset::Small.inner().lr_min_ratio,
        help_heading = "Training"
    )]
    #[serde(serialize_with = "as_written")]
    pub lr_min_ratio: f32,
    /// Share of the run's tokens over which the inner learning rate rises, of learners and of data-parallel training
    /// (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, help_heading = "Training")]
    pub warmup: f64,
    /// Decay of AdamW's second moment (0 to below 1)
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = Preset::Small.inner().beta2,
        help_heading = "Training"
    )]
    #[serde(serialize_with = "as_written")]
    pub beta2: f32,
    /// AdamW's weight decay
    #[arg(
        long,
        value_name = "RATE",
        default_value_t = Preset::Small.inner().weight_decay,
        help_heading = "Training"
    )]
    #[serde(serialize_with = "as_written")]
    pub weight_decay: f32,
    #[command(flatten)]
    #[serde(flatten)]
    pub experts: ExpertArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub exchange: ExchangeArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub rounds: RoundArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub outer: OuterArgs,
    /// Time of an inner step (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 100, help_heading = "Training")]
    pub step_ms: u64,
    /// One-way latency between a learner and the syncer (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 20, help_heading = "Training")]
    pub latency_ms: u64,
    /// Largest random addition to --latency-ms, drawn for each message (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 5, help_heading = "Training")]
    pub latency_jitter_ms: u64,
    /// Runs of each case, with seeds from --seed on
    #[arg(long, value_name = "COUNT", default_value_t = 3, help_heading = "Training")]
    pub seeds: u32,
    /// Parallel runs, one thread each; by default the number of processors of this machine
    #[arg(long, value_name = "COUNT", help_heading = "Training")]
    #[serde(skip)]
    pub jobs: Option<NonZeroUsize>,
}

/// A generated text.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuiltIn {
    /// Sentences of a grammar
    Grammar,
    /// Captions and small pictures
    Pictures,
}

impl BuiltIn {
    /// Returns the name in flags and files.
    pub fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }

    /// Generates the text.
    pub fn generate(self) -> String {
        match self {
            Self::Grammar => grammar::generate(1, BUILT_IN_BYTES),
            Self::Pictures => pictures::generate(1, BUILT_IN_BYTES),
        }
    }
}

/// One case to train with several seeds.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name. If several experiments have the same name, only the first one is run.
    pub name: String,
    /// Recipe, whose seed is replaced.
    pub recipe: Recipe,
    /// Number of tokens in total for data-parallel training, which replaces decoupled training.
    pub alone_tokens: Option<u64>,
}

/// The outcome of an experiment for each of its seeds, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings(pub Vec<TrainingResult>);

impl Findings {
    /// Returns the mean loss, in nats per token.
    #[must_use]
    pub fn loss(&self) -> f64 {
        mean(self.losses())
    }

    /// Returns the standard deviation of the losses over seeds; 0 for one seed.
    #[must_use]
    pub fn spread(&self) -> f64 {
        deviation(&self.losses().collect::<Vec<_>>())
    }

    /// Returns the excess of the loss over that of `base`, in percent: mean and standard deviation over seeds.
    #[must_use]
    pub fn above(&self, base: &Self) -> (f64, f64) {
        let each = self.losses().zip(base.losses());
        let each: Vec<f64> = each.map(|(ours, base)| percent_above(ours, base)).collect();
        (mean(each.iter().copied()), deviation(&each))
    }

    /// Returns a summary such as "1.7360 ± 0.0040 after 1465 steps"; for decoupled training also the merged share and
    /// the learners per round.
    #[must_use]
    pub fn words(&self) -> String {
        let over = |of: fn(&TrainingResult) -> f64| mean(self.0.iter().map(of));
        let steps = over(|outcome| outcome.steps_per_learner);
        let words = format!("{:.4} ± {:.4} after {steps:.0} steps", self.loss(), self.spread());
        if self.0.iter().all(|outcome| outcome.rounds == 0) {
            return words;
        }
        let before = over(|outcome| outcome.spent.loss.into());
        let part = over(|outcome| outcome.spent.tokens_merged as f64 / outcome.spent.tokens.max(1) as f64);
        let learners = over(|outcome| outcome.updates_merged as f64 / outcome.rounds.max(1) as f64);
        format!(
            "{words} (before the last rounds {before:.4}, with {:.1} % of tokens merged; {learners:.1} learners a \
             round)",
            100.0 * part
        )
    }

    fn losses(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|outcome| f64::from(outcome.loss))
    }
}

/// Findings of each experiment, by its name.
pub type Found = BTreeMap<String, Findings>;

impl TrainingArgs {
    /// Reads and splits the text.
    ///
    /// # Errors
    /// - `Disk`: the text cannot be read.
    /// - `Refused`: the text is too short.
    pub fn corpus(&self) -> Result<Corpus, SimulateError> {
        let text = match &self.data {
            None => self.text.generate().into_bytes(),
            Some(path) => std::fs::read(path).map_err(|source| SimulateError::Disk {
                what: "read",
                path: path.clone(),
                source,
            })?,
        };
        Corpus::new(&text).map_err(|error| failed(&error))
    }

    /// Returns the tokens in a step of one learner.
    ///
    /// # Errors
    /// Those of [`Self::recipe`].
    pub fn step_tokens(&self) -> Result<u64, SimulateError> {
        let recipe = self.recipe(1, 1)?;
        Ok(u64::from(recipe.inner.batch) * u64::from(recipe.model.context))
    }

    /// Returns a recipe for `learners` equal machines that train on `tokens` tokens together.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub fn recipe(&self, learners: u32, tokens: u64) -> Result<Recipe, SimulateError> {
        let mut model = match self.preset.as_str() {
            "reference" => reference_model(),
            name => {
                let preset: Result<Preset, _> = name.parse();
                preset.map_err(|error| SimulateError::Preset { why: error.to_string() })?.model(BYTE_VOCAB)
            }
        };
        if let Some(context) = self.context {
            size("context", context)?;
            model.context = context;
        }
        model.experts = self.experts.spec()?;
        within("learners", learners.into(), 1.0..=LEARNERS_MAX)?;
        within("batch", self.batch.into(), 1.0..=f64::from(WINDOWS_MAX / learners))?;
        within("lr", self.lr.into(), 1e-9..=1e3)?;
        within("weight-decay", self.weight_decay.into(), 0.0..=1e3)?;
        range("beta2", self.beta2.into(), (0.0..1.0).contains(&self.beta2), "a number from 0 to below 1")?;
        let lr_min_ratio = self.lr_min_ratio;
        for (flag, share) in [("lr-min-ratio", lr_min_ratio.into()), ("warmup", self.warmup)] {
            within(flag, share, 0.0..=1.0)?;
        }
        within("seeds", self.seeds.into(), 1.0..=1e3)?;
        for (flag, ms, ms_min) in [
            ("step-ms", self.step_ms, 1.0),
            ("latency-ms", self.latency_ms, 0.0),
            ("latency-jitter-ms", self.latency_jitter_ms, 0.0),
        ] {
            within(flag, ms as f64, ms_min..=MS_MAX)?;
        }
        let method = self.rounds.syncer(&self.outer)?;
        let (latency_ms, jitter_ms) = (self.latency_ms, self.latency_jitter_ms);
        let link = LinkSpec { latency_ms, jitter_ms, bytes_per_s: None, loss: 0.0 };
        let machine = MachineSpec { step_ms: self.step_ms, jitter: 0.0, link, ..MachineSpec::default() };
        Ok(Recipe {
            model,
            inner: InnerSpec {
                batch: self.batch,
                optimiser: self.inner,
                lr_max: self.lr,
                lr_min_ratio,
                beta2: self.beta2,
                weight_decay: self.weight_decay,
                warmup_tokens: (tokens as f64 * self.warmup) as u64,
                total_tokens: tokens,
                ..Preset::Small.inner()
            },
            exchange: self.exchange.spec()?,
            syncer: SyncerConfig {
                quorum: QuorumPolicy { updates_min: NonZeroU32::MIN, ..method.quorum },
                learners_start: learners,
                ..method
            },
            machines: vec![machine; learners as usize],
            text_at_hand: false,
            faults: Vec::new(),
            joining: JoinerStart::Zero,
            budget: Budget::Tokens(tokens),
            seed: 0,
            start: None,
            samples: 0,
            undo: None,
            cosines: false,
            average: 0.0,
            measures_test: false,
            lookahead: None,
            loss_checks: false,
            trainers: None,
        })
    }

    /// Returns the number of parallel runs.
    ///
    /// # Errors
    /// `Setting`: the number is too large.
    pub fn jobs(&self) -> Result<NonZeroUsize, SimulateError> {
        if let Some(jobs) = self.jobs {
            within("jobs", jobs.get() as f64, 1.0..=JOBS_MAX)?;
        }
        Ok(self.jobs.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN))
    }

    /// Runs each of `experiments` with each seed, several in parallel. The results do not depend on the number of
    /// parallel runs. `progress` gets a line for each run.
    ///
    /// # Errors
    /// `Refused`: a run is impossible, or its training failed.
    pub fn run(
        &self,
        first_seed: u64,
        experiments: Vec<Experiment>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Found, SimulateError> {
        let corpus = self.corpus()?;
        let mut named: BTreeMap<String, Experiment> = BTreeMap::new();
        for experiment in experiments {
            named.entry(experiment.name.clone()).or_insert(experiment);
        }
        let seeds = seeds_from(first_seed, self.seeds);
        let runs = seeds.flat_map(|seed| named.values().map(move |experiment| (experiment, seed)));
        let runs: Vec<(&Experiment, u64)> = runs.collect();
        let mut found: Vec<Option<TrainingResult>> = vec![None; runs.len()];
        let mut done = 0;
        let work = |(experiment, seed): &(&Experiment, u64)| Some(train(experiment, *seed, &corpus));
        pool::each(self.jobs()?, &runs, work, |index, result| {
            let (experiment, seed) = runs[index];
            let outcome = result.map_err(|error| failed(&error))?;
            let (name, loss, steps) = (&experiment.name, outcome.loss, outcome.steps_per_learner);
            done += 1;
            let count = runs.len();
            progress(&format!("{done} of {count}: {name}, seed {seed}: {loss:.4} after {steps:.0} steps"));
            found[index] = Some(outcome);
            Ok::<(), SimulateError>(())
        })?;
        let mut findings = Found::new();
        for ((experiment, _), outcome) in runs.iter().zip(found) {
            let outcome = outcome.expect("each run led to an outcome or to an error");
            findings.entry(experiment.name.clone()).or_insert_with(|| Findings(Vec::new())).0.push(outcome);
        }
        Ok(findings)
    }
}

/// Checks a width or a window length of the model.
///
/// # Errors
/// `Setting`: it is not a multiple of 8 from 8 to 1024.
pub fn size(flag: &'static str, count: u32) -> Result<(), SimulateError> {
    let holds = count.is_multiple_of(8) && (8..=1_024).contains(&count);
    Ok(range(flag, count.into(), holds, "a multiple of 8 from 8 to 1024")?)
}

fn train(experiment: &Experiment, seed: u64, corpus: &Corpus) -> Result<TrainingResult, LabError> {
    let recipe = Recipe { seed, ..experiment.recipe.clone() };
    match experiment.alone_tokens {
        Some(tokens) => recipe.train_baseline(corpus, tokens),
        None => recipe.train(corpus),
    }
}

/// Returns the error for failed training.
pub fn failed(error: &impl Display) -> SimulateError {
    SimulateError::refused(format!("the simulation failed: {error}"))
}

/// Returns `count` consecutive seeds from `first` on.
pub fn seeds_from(first: u64, count: u32) -> impl Iterator<Item = u64> {
    (0..count).map(move |i| first.wrapping_add(i.into()))
}

/// Changes the width of the model of `recipe`; the feed-forward width keeps the reference model's ratio.
pub fn set_width(recipe: &mut Recipe, width: u32) {
    (recipe.model.d_model, recipe.model.d_ff) = (width, width * 11 / 4);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;
    use archipelago_cli::defaults;

    fn recipe(flags: &[&str]) -> Result<Recipe, SimulateError> {
        defaults::<TrainingArgs>(flags).recipe(2, 1_000)
    }

    #[test]
    fn a_recipe_follows_its_flags() {
        let check = |flags: &[&str], expected: (u64, f32, f64, u64)| {
            let Recipe { inner, syncer, machines, .. } = recipe(flags).unwrap();
            let grace = syncer.quorum.grace_ratio;
            let found = (inner.warmup_tokens, inner.lr_min_ratio, grace, machines[0].link.jitter_ms);
            assert_eq!(found, expected, "{flags:?}");
        };
        check(&[], (50, 0.1, 0.8, 5));
        check(&["--warmup", "0.2", "--lr-min-ratio", "0"], (200, 0.0, 0.8, 5));
        check(&["--grace-ratio", "0.3", "--latency-jitter-ms", "7"], (50, 0.1, 0.3, 7));
        let optimiser = |flags: &[&str]| recipe(flags).unwrap().inner.optimiser;
        assert_eq!(optimiser(&[]), Optimiser::AdamW);
        assert_eq!(optimiser(&["--inner", "muon"]), Optimiser::Muon);
    }

    #[test]
    fn shares_beyond_1_are_refused() {
        for flag in ["--warmup", "--lr-min-ratio", "--grace-ratio"] {
            let error = recipe(&[flag, "1.5"]).unwrap_err();
            assert!(error.exit() == Exit::Settings && error.to_string().contains(flag), "{error}");
        }
    }
}
