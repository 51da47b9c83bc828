//! Execution of runs within a time budget. Each run is cached as it ends, and none is repeated.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use archipelago_runtime::engine::EngineError;

use super::attacks::Attack;
use super::grid;
use super::record::{RunKey, RunRecord};
use super::run_cache::RunCache;
use super::settings::RunSettings;
use crate::engine::EngineChoice;
use crate::lab::{Corpus, LabError, Recipe, Trainers, TrainingResult};
use crate::training::failed;
use crate::{SimulateError, pool};

/// Cache file of the runs, and time limit for further runs.
#[derive(clap::Args, Clone, Debug)]
pub struct TimeBudgetArgs {
    /// Cache file of completed runs, one JSON line each; cached runs are not repeated
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub keep: Option<PathBuf>,
    /// Begin no run after this number of minutes, and report the finished ones
    #[arg(long, value_name = "MINUTES", help_heading = "Output")]
    pub minutes: Option<u32>,
}

/// One run of a table.
pub struct TableRun {
    pub key: RunKey,
    label: String,
    settings: RunSettings,
    recipe: Recipe,
    tokens: u64,
    is_fresh: bool,
}

impl TableRun {
    /// Creates the run with `key` and `settings`; its table describes it by `words`.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub fn new(
        key: RunKey,
        words: &[(String, String)],
        settings: &RunSettings,
    ) -> Result<Self, SimulateError> {
        let recipe = Recipe { seed: key.seed, ..settings.recipe()? };
        let (label, tokens) = (grid::words(words), settings.tokens()?);
        Ok(Self { key, label, settings: settings.clone(), recipe, tokens, is_fresh: false })
    }

    /// Returns the run with the given source of trainers, with or without a test loss, and with a seed that may be
    /// fresh.
    pub fn measured(self, trainers: Option<Arc<dyn Trainers>>, measures_test: bool, is_fresh: bool) -> Self {
        Self { recipe: Recipe { trainers, measures_test, ..self.recipe }, is_fresh, ..self }
    }

    fn train(&self, corpus: &Corpus) -> Result<TrainingResult, LabError> {
        self.settings.train(&self.recipe, corpus, self.tokens)
    }

    fn record(&self, outcome: Result<&TrainingResult, String>) -> RunRecord {
        let (key, label) = (self.key.clone(), self.label.clone());
        let last_kill_ms = self.settings.kills().last().map(|(at_ms, _)| *at_ms);
        let record = match outcome {
            Err(why) => RunRecord::failed(key, label, Some(why)),
            Ok(outcome) if last_kill_ms.is_some_and(|at_ms| outcome.virtual_ms > at_ms) => {
                RunRecord::failed(key, label, Some("it took longer than learners were killed".into()))
            }
            Ok(outcome) => RunRecord::of(key, label, outcome, self.settings.attacks.attack != Attack::None),
        };
        RunRecord { is_fresh: self.is_fresh, ..record }
    }
}

/// Executor of runs until its time is over.
pub struct Runner<'a> {
    jobs: NonZeroUsize,
    until: Option<Instant>,
    progress: &'a mut dyn FnMut(&str),
}

impl<'a> Runner<'a> {
    /// Creates a runner with the time that `args` allow, which reports each completed run to `progress`.
    ///
    /// # Errors
    /// `Setting`: too many parallel runs.
    pub fn new(
        settings: &RunSettings,
        args: &TimeBudgetArgs,
        progress: &'a mut dyn FnMut(&str),
    ) -> Result<Self, SimulateError> {
        let until = args.minutes.map(|minutes| now() + Duration::from_secs(60 * u64::from(minutes)));
        // One run, with several learners, is enough to occupy a GPU.
        let jobs = match (settings.engine.engine, settings.training.jobs) {
            (EngineChoice::Gpu, None) => NonZeroUsize::MIN,
            _ => settings.training.jobs()?,
        };
        Ok(Self { jobs, until, progress })
    }

    /// Executes each of `runs` that is not cached, once, and caches it. Returns the number of runs that did not fit in
    /// the time budget.
    ///
    /// # Errors
    /// - `Refused`: a run is impossible.
    /// - `Disk`: a run cannot be cached.
    pub fn execute(
        &mut self,
        corpus: &Corpus,
        mut runs: Vec<TableRun>,
        cache: &mut RunCache,
    ) -> Result<usize, SimulateError> {
        let mut keys = BTreeSet::new();
        runs.retain(|run| cache.get(&run.key).is_none() && keys.insert(run.key.clone()));
        let (until, mut wrong, is_wrong) = (self.until, None, AtomicBool::new(false));
        let is_over = || is_wrong.load(Ordering::Relaxed) || until.is_some_and(|until| now() >= until);
        let work = |run: &TableRun| (!is_over()).then(|| run.train(corpus));
        let (mut done, count) = (0, runs.len());
        pool::each(self.jobs, &runs, work, |index, result| {
            let run = &runs[index];
            done += 1;
            let (words, record) = match result {
                Ok(outcome) => (format!("{:.4}", outcome.loss), run.record(Ok(&outcome))),
                // A run that diverges or stalls cannot be chosen, but does not stop the others.
                Err(
                    error @ (LabError::Engine(EngineError::NotFinite { .. })
                    | LabError::NotFinite { .. }
                    | LabError::StandsStill { .. }
                    | LabError::Stopped { .. }),
                ) => (error.to_string(), run.record(Err(error.to_string()))),
                // Runs in progress are still cached.
                Err(error) => {
                    is_wrong.store(true, Ordering::Relaxed);
                    wrong.get_or_insert(failed(&error));
                    return Ok::<(), SimulateError>(());
                }
            };
            cache.add(record)?;
            (self.progress)(&format!("{done} of {count}: {}, seed {}: {words}", run.label, run.key.seed));
            Ok(())
        })?;
        wrong.map_or(Ok(count - done), Err)
    }
}

#[expect(clippy::disallowed_methods, reason = "the time budget is no part of what is simulated")]
fn now() -> Instant {
    Instant::now()
}
