//! Runs that are made in several sittings: each is kept as it ends, and none is made twice.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use archipelago_runtime::engine::EngineError;
use archipelago_sim::lab::{Corpus, LabError, Outcome};

use super::engine::{Engine, EngineArgs};
use super::kept::{Kept, Keyed};
use super::training::{TrainingArgs, failed};
use super::{SimulateError, pool};

/// What becomes of runs, and how long a sitting lasts.
#[derive(clap::Args, Clone, Debug)]
pub struct SittingArgs {
    /// File to keep each run in as it ends, a line of JSON each; runs that it has are not made again
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub keep: Option<PathBuf>,
    /// Begin no run after so many minutes, and tell of what there is
    #[arg(long, value_name = "MINUTES", requires = "keep", help_heading = "Output")]
    pub minutes: Option<u32>,
}

/// A run that may be made.
pub trait Run: Sync {
    /// What is kept of it.
    type Made: Keyed;

    /// What tells it from others.
    fn key(&self) -> &<Self::Made as Keyed>::Key;

    /// What it is, in a few words.
    fn words(&self) -> String;

    /// Makes it.
    ///
    /// # Errors
    /// Those of training together or alone.
    fn make(&self, corpus: &Corpus) -> Result<Outcome, LabError>;

    /// What is kept of it: what it led to, or why it led to nothing.
    fn made(&self, outcome: Result<&Outcome, String>) -> Self::Made;
}

/// One sitting.
pub struct Sitting<'a> {
    jobs: NonZeroUsize,
    until: Option<Instant>,
    progress: &'a mut dyn FnMut(&str),
}

impl<'a> Sitting<'a> {
    /// One that lasts as long as `args` say, and tells `progress` of each run that ended.
    ///
    /// # Errors
    /// `Setting`: there are too many runs at a time.
    pub fn new(
        training: &TrainingArgs,
        engine: &EngineArgs,
        args: &SittingArgs,
        progress: &'a mut dyn FnMut(&str),
    ) -> Result<Self, SimulateError> {
        let until = args.minutes.map(|minutes| now() + Duration::from_secs(60 * u64::from(minutes)));
        // A GPU is busy with one run, which keeps several learners on it.
        let jobs = match (engine.engine, training.jobs) {
            (Engine::Gpu, None) => NonZeroUsize::MIN,
            _ => training.jobs()?,
        };
        Ok(Self { jobs, until, progress })
    }

    /// Makes those of `runs` that are not kept, each once, and keeps them; how many are left because the time was over.
    ///
    /// # Errors
    /// - `Refused`: a run is impossible.
    /// - `Disk`: one cannot be kept.
    pub fn make<R: Run>(
        &mut self,
        corpus: &Corpus,
        mut runs: Vec<R>,
        kept: &mut Kept<R::Made>,
    ) -> Result<usize, SimulateError> {
        let mut keys = BTreeSet::new();
        runs.retain(|run| kept.get(run.key()).is_none() && keys.insert(run.key().clone()));
        let (until, mut wrong, is_wrong) = (self.until, None, AtomicBool::new(false));
        let is_over = || is_wrong.load(Ordering::Relaxed) || until.is_some_and(|until| now() >= until);
        let work = |run: &R| (!is_over()).then(|| run.make(corpus));
        let (mut done, count) = (0, runs.len());
        pool::each(self.jobs, &runs, work, |index, result| {
            let run = &runs[index];
            done += 1;
            let (words, made) = match result {
                Ok(outcome) => (format!("{:.4}", outcome.loss), run.made(Ok(&outcome))),
                // What blows up or comes to nothing is no choice, and no reason to stop.
                Err(
                    error @ (LabError::Engine(EngineError::NotFinite { .. })
                    | LabError::NotFinite { .. }
                    | LabError::StandsStill { .. }
                    | LabError::Stopped { .. }),
                ) => (error.to_string(), run.made(Err(error.to_string()))),
                // Those that are being made besides are kept all the same.
                Err(error) => {
                    is_wrong.store(true, Ordering::Relaxed);
                    wrong.get_or_insert(failed(&error));
                    return Ok::<(), SimulateError>(());
                }
            };
            kept.add(made)?;
            (self.progress)(&format!("{done} of {count}: {}: {words}", run.words()));
            Ok(())
        })?;
        wrong.map_or(Ok(count - done), Err)
    }
}

/// What is said where `left` runs are to be made yet; nothing where none are.
pub fn left_words(left: usize) -> Option<String> {
    (left > 0).then(|| format!("Runs that are to be made yet: {left}. Call it again with the same --keep."))
}

#[expect(clippy::disallowed_methods, reason = "how long a sitting lasts is no part of what is simulated")]
fn now() -> Instant {
    Instant::now()
}
