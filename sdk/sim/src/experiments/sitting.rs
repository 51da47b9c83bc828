//! Sittings: a table's runs may be spread over several program starts. Each run is cached as it ends, and none is
//! repeated.

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

/// Cache of runs, and length of a sitting.
#[derive(clap::Args, Clone, Debug)]
pub struct SittingArgs {
    /// File that caches each run as it ends, as one line of JSON; cached runs are not repeated
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub keep: Option<PathBuf>,
    /// Start no run after this many minutes, and report the results so far
    #[arg(long, value_name = "MINUTES", requires = "keep", help_heading = "Output")]
    pub minutes: Option<u32>,
}

/// A run of a table.
pub trait Run: Sync {
    /// Its cached result.
    type Made: Keyed;

    /// Returns its key.
    fn key(&self) -> &<Self::Made as Keyed>::Key;

    /// Returns a short description.
    fn words(&self) -> String;

    /// Executes the run.
    ///
    /// # Errors
    /// Those of training together or alone.
    fn make(&self, corpus: &Corpus) -> Result<Outcome, LabError>;

    /// Returns the result to cache: the outcome, or the reason of the failure.
    fn made(&self, outcome: Result<&Outcome, String>) -> Self::Made;
}

/// One sitting.
pub struct Sitting<'a> {
    jobs: NonZeroUsize,
    until: Option<Instant>,
    progress: &'a mut dyn FnMut(&str),
}

impl<'a> Sitting<'a> {
    /// Creates a sitting that lasts as long as `args` say, and reports each completed run to `progress`.
    ///
    /// # Errors
    /// `Setting`: too many parallel runs.
    pub fn new(
        training: &TrainingArgs,
        engine: &EngineArgs,
        args: &SittingArgs,
        progress: &'a mut dyn FnMut(&str),
    ) -> Result<Self, SimulateError> {
        let until = args.minutes.map(|minutes| now() + Duration::from_secs(60 * u64::from(minutes)));
        // One run, with several learners, is enough to occupy a GPU.
        let jobs = match (engine.engine, training.jobs) {
            (Engine::Gpu, None) => NonZeroUsize::MIN,
            _ => training.jobs()?,
        };
        Ok(Self { jobs, until, progress })
    }

    /// Executes each of `runs` that is not cached, once, and caches it. Returns the number of runs left when the time
    /// was over.
    ///
    /// # Errors
    /// - `Refused`: a run is impossible.
    /// - `Disk`: a run cannot be cached.
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
                // A run that diverges or stalls cannot be chosen, but does not stop the others.
                Err(
                    error @ (LabError::Engine(EngineError::NotFinite { .. })
                    | LabError::NotFinite { .. }
                    | LabError::StandsStill { .. }
                    | LabError::Stopped { .. }),
                ) => (error.to_string(), run.made(Err(error.to_string()))),
                // Runs in progress are still cached.
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

/// Returns a note about the runs left, or `None` if there are no more.
pub fn left_words(left: usize) -> Option<String> {
    (left > 0).then(|| format!("Runs that are to be made yet: {left}. Call it again with the same --keep."))
}

#[expect(clippy::disallowed_methods, reason = "how long a sitting lasts is no part of what is simulated")]
fn now() -> Instant {
    Instant::now()
}
