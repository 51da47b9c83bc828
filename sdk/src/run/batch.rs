//! Choice of the batch, the number of windows in a training step, for a device.
//!
//! The learner chooses its batch between `Build` and `Built`, before it fetches parameters and sends `Ready`. It
//! builds an engine for the run's batch and rehearses a step. If the step takes longer than [`STEP_US_MAX`], or
//! memory is too small, it builds an engine for half of the batch, and so on. Sizes that are certainly too slow are
//! skipped, so a slow phone rehearses only a few steps. If an engine cannot rehearse, such as one around a `Trainer`
//! of your own, the learner uses the run's batch.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use archipelago_core::wire::{BATCH_MAX, RunSpec, Welcome};
use archipelago_runtime::engine::{Engine, EngineError, OptimiserState, batch_like_any};

use super::EngineInputs;
use super::event::Event;
use super::session::{ActiveRun, LearnerSession, take_saved_state};

/// Maximum step time of an automatically chosen batch, in microseconds, unless a single window takes longer. The
/// learner answers `Collect` and obeys a pause or stop only after the current step, so either may be delayed by this
/// time.
pub(super) const STEP_US_MAX: u64 = 2_000_000;

/// Choice of the number of windows in one step of a learner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchChoice(Option<NonZeroU32>);

impl BatchChoice {
    /// Starts with the run's batch and halves it until it fits the device: the engine can be built, and a trial step
    /// takes at most 2 s.
    pub const AUTO: Self = Self(None);

    /// Chooses exactly `windows`, 1 to [`BATCH_MAX`], without a trial step.
    ///
    /// # Errors
    /// [`BatchError`]: `windows` is out of range.
    pub fn given(windows: u32) -> Result<Self, BatchError> {
        let batch = NonZeroU32::new(windows).filter(|batch| batch.get() <= BATCH_MAX);
        batch.map(|batch| Self(Some(batch))).ok_or_else(|| BatchError { found: windows.to_string() })
    }

    /// Returns the fixed number of windows, or `None` for [`Self::AUTO`].
    #[must_use]
    pub fn windows(self) -> Option<NonZeroU32> {
        self.0
    }
}

/// The display form is `auto` or a number.
impl fmt::Display for BatchChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.pad("auto"),
            Some(windows) => windows.fmt(f),
        }
    }
}

impl FromStr for BatchChoice {
    type Err = BatchError;

    fn from_str(text: &str) -> Result<Self, BatchError> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::AUTO),
            (_, Ok(windows)) => Self::given(windows),
            (_, Err(_)) => Err(BatchError { found: text.to_owned() }),
        }
    }
}

/// A text or number that is not a valid batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a batch of {found:?} is invalid: give auto, or 1 to {BATCH_MAX} windows")]
pub struct BatchError {
    /// The invalid text or number.
    pub found: String,
}

/// Search for a batch that fits. It begins with the largest one and halves it, down to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halving {
    batch: NonZeroU32,
    step_us_max: u64,
}

impl Halving {
    /// Begins with `most` windows, at most [`BATCH_MAX`]. A step may take at most `step_us_max` microseconds.
    pub(super) fn from(most: u32, step_us_max: u64) -> Self {
        let batch = NonZeroU32::new(most.min(BATCH_MAX)).unwrap_or(NonZeroU32::MIN);
        Self { batch, step_us_max }
    }

    /// Returns the number of windows to try now.
    pub(super) fn batch(self) -> NonZeroU32 {
        self.batch
    }

    /// Halves the batch because the engine needs too much memory. Returns false if the batch is already 1.
    pub(super) fn is_too_large(&mut self) -> bool {
        let half = NonZeroU32::new(self.batch.get() / 2);
        self.batch = half.unwrap_or(self.batch);
        half.is_some()
    }

    /// Halves the batch if `step_us` is too long, and returns whether it did. A step with half of the windows takes
    /// at least half of `step_us`. Halves that are too long by this estimate are skipped.
    pub(super) fn is_too_slow(&mut self, step_us: u64) -> bool {
        let tried = u64::from(self.batch.get());
        let least_us = |batch: NonZeroU32| step_us.saturating_mul(batch.get().into()) / tried;
        let mut halved = false;
        while least_us(self.batch) > self.step_us_max && self.is_too_large() {
            halved = true;
        }
        halved
    }
}

impl<E, B, O> LearnerSession<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, EngineInputs) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Builds the engine of the run in `welcome`. The caller has dropped the previous engine; only its optimiser
    /// state may remain.
    pub(super) async fn open(&mut self, welcome: &Welcome) -> Result<ActiveRun<E>, EngineError> {
        let (run, spec) = (welcome.run, welcome.spec.clone());
        let mut moments = take_saved_state(&mut self.saved_state, run, &spec);
        let frozen = self.frozen_weights(&spec);
        if let Some(batch) = self.config.batch.windows() {
            let engine = (self.build)(&with(&spec, batch), EngineInputs { moments, frozen }).await?;
            return Ok(ActiveRun { run, spec, batch, engine });
        }
        // A batch that did not fit one engine of a run would not fit the next.
        let before = self.fitted.filter(|(fitted, _)| *fitted == run).map(|(_, batch)| batch.get());
        let most = match before {
            Some(batch) => batch,
            None => self.most(&spec, &mut moments).await?,
        };
        let mut halving = Halving::from(most, self.step_us_max);
        loop {
            let batch = halving.batch();
            let own = with(&spec, batch);
            let inputs = EngineInputs { moments: moments.take(), frozen: frozen.clone() };
            let mut engine = match (self.build)(&own, inputs).await {
                Err(error) if error.is_of_memory() && halving.is_too_large() => continue,
                built => built?,
            };
            let step_us = match self.is_ending() {
                true => None,
                false => self.rehearse(&mut engine, &batch_like_any(&own)).await?,
            };
            if !step_us.is_some_and(|step_us| halving.is_too_slow(step_us)) {
                self.fitted = Some((run, batch));
                return Ok(ActiveRun { run, spec, batch, engine });
            }
            // Rehearsals leave the optimiser state unchanged.
            moments = engine.saved_moments();
        }
    }

    /// Returns the largest batch worth trying, in windows: at most the run's batch. For a very large batch, a step
    /// with fewer windows is timed first, because a full step could take minutes, in which the learner ignores its
    /// owner.
    async fn most(
        &mut self,
        spec: &RunSpec,
        moments: &mut Option<OptimiserState>,
    ) -> Result<u32, EngineError> {
        let most = spec.inner.batch;
        if most <= PROBED_MIN || self.is_ending() {
            return Ok(most);
        }
        let own = with(spec, PROBE);
        let inputs = EngineInputs { moments: moments.take(), frozen: self.frozen_weights(spec) };
        let mut engine = match (self.build)(&own, inputs).await {
            Err(error) if error.is_of_memory() => return Ok(PROBE.get()),
            built => built?,
        };
        let step_us = self.rehearse(&mut engine, &batch_like_any(&own)).await?;
        *moments = engine.saved_moments();
        // Estimates up to twice the limit are accepted, since larger steps are more efficient. The search then
        // decides.
        let is_long = |windows: u32| {
            let step_us = step_us.unwrap_or(0).saturating_mul(u64::from(windows / PROBE.get()));
            step_us > 2 * self.step_us_max
        };
        let halves = std::iter::successors(Some(most), |windows| Some(windows / 2));
        Ok(halves
            .take_while(|&windows| windows > PROBE.get())
            .find(|&windows| !is_long(windows))
            .unwrap_or(PROBE.get()))
    }

    /// Returns the step time of `engine` in microseconds, or `None` if it cannot rehearse. The first step takes
    /// longer than later ones, because kernels are compiled and helpers start. If it takes too long, the time of a
    /// second step is used.
    async fn rehearse(&self, engine: &mut E, tokens: &[u32]) -> Result<Option<u64>, EngineError> {
        let mut step_us = u64::MAX;
        for _ in 0..2 {
            let begun_us = self.clock.now_us();
            if !engine.rehearse(tokens).await? {
                return Ok(None);
            }
            step_us = step_us.min(self.clock.now_us() - begun_us);
            if step_us <= self.step_us_max {
                break;
            }
        }
        Ok(Some(step_us))
    }
}

/// Windows in the step that is timed first for a very large batch.
const PROBE: NonZeroU32 = NonZeroU32::new(64).expect("it is not 0");
/// Batches with more windows than this are very large: a step of [`PROBE`] windows is timed first.
const PROBED_MIN: u32 = 256;

/// Returns the run's description with the learner's own batch.
fn with(spec: &RunSpec, batch: NonZeroU32) -> RunSpec {
    let mut own = spec.clone();
    own.inner.batch = batch.get();
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device with fixed memory and speed.
    struct FakeDevice {
        windows_max: u32,
        step_us: u64,
        window_us: u64,
    }

    /// Returns the batches tried on `fake` for a run of `most` windows; the last one is accepted.
    fn tried(most: u32, fake: &FakeDevice) -> Vec<u32> {
        let mut halving = Halving::from(most, STEP_US_MAX);
        let mut tried = Vec::new();
        loop {
            let batch = halving.batch().get();
            tried.push(batch);
            let again = if batch > fake.windows_max {
                halving.is_too_large()
            } else {
                halving.is_too_slow(fake.step_us + fake.window_us * u64::from(batch))
            };
            if !again {
                return tried;
            }
        }
    }

    #[test]
    fn halves_until_memory_and_time_suffice() {
        let check = |most, windows_max, step_us, window_us, expected: &[u32]| {
            assert_eq!(tried(most, &FakeDevice { windows_max, step_us, window_us }), expected);
        };
        check(8, 8, 0, 250_000, &[8]);
        check(8, 8, 0, 250_001, &[8, 4]);
        check(8, 3, 0, 1, &[8, 4, 2]);
        check(8, 4, 0, 1_000_000, &[8, 4, 2]);
        // At 500 ms per window, 16 s and 8 s are certainly too long; 4 windows are tried.
        check(64, 64, 0, 500_000, &[64, 4]);
        check(64, 64, 1_500_000, 200_000, &[64, 8, 4, 2]);
        check(12, 12, 0, 700_000, &[12, 1]);
        check(7, 7, 0, 900_000, &[7, 1]);
        // A single window is the minimum, regardless of time and memory.
        check(8, 8, 0, 1 << 40, &[8, 1]);
        check(8, 0, 0, 1, &[8, 4, 2, 1]);
        check(1, 1, u64::MAX / 2, 1, &[1]);
        // The description of a run may have a batch above the limit of learners.
        check(u32::MAX, u32::MAX, 0, 0, &[BATCH_MAX]);
        check(0, 8, 0, 1, &[1]);
    }

    #[test]
    fn is_written_as_it_is_read() {
        for (text, windows) in [("auto", None), ("1", Some(1)), ("4096", Some(4_096))] {
            let choice: BatchChoice = text.parse().unwrap();
            assert_eq!((choice.to_string().as_str(), choice.windows().map(NonZeroU32::get)), (text, windows));
        }
        assert_eq!(BatchChoice::default(), BatchChoice::AUTO);
        for wrong in ["0", "4097", "-1", "2.5", "many", "Auto", ""] {
            let error = wrong.parse::<BatchChoice>().unwrap_err();
            assert_eq!(error, BatchError { found: wrong.to_owned() });
            assert!(error.to_string().ends_with("give auto, or 1 to 4096 windows"), "{error}");
        }
    }
}
