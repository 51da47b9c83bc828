//! Windows per training step, and their choice for a device.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use archipelago_core::wire::BATCH_MAX;

/// Maximum step time of a batch chosen for a device, in microseconds, unless a single window takes longer. A requested
/// fragment is coded only after the current step, so its answer may be this late. A pause or stop by the owner waits as
/// long.
pub(super) const STEP_US_MAX: u64 = 2_000_000;

/// Choice of the number of windows in one step of a learner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchChoice(Option<NonZeroU32>);

impl BatchChoice {
    /// Starts with the run's batch and halves it until a step fits the device: the engine can be built, and a trial
    /// step takes at most 2 s.
    pub const AUTO: Self = Self(None);

    /// Chooses exactly `windows`, 1 to [`BATCH_MAX`], without any trial on the device.
    ///
    /// # Errors
    /// [`BatchError`]: `windows` is out of range.
    pub fn given(windows: u32) -> Result<Self, BatchError> {
        let batch = NonZeroU32::new(windows).filter(|batch| batch.get() <= BATCH_MAX);
        batch.map(|batch| Self(Some(batch))).ok_or_else(|| BatchError { found: windows.to_string() })
    }

    /// Returns the number of windows, if one is given.
    #[must_use]
    pub fn windows(self) -> Option<NonZeroU32> {
        self.0
    }
}

/// Written as `auto` or a number.
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

/// An invalid batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a batch of {found:?} is invalid: give auto, or 1 to {BATCH_MAX} windows")]
pub struct BatchError {
    /// Requested batch.
    pub found: String,
}

/// Search for a batch that fits. It begins with the largest and halves it, down to 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halving {
    batch: NonZeroU32,
    step_us_max: u64,
}

impl Halving {
    /// Begins with `most` windows, within the limits of the wire. A step may take at most `step_us_max`.
    pub(super) fn from(most: u32, step_us_max: u64) -> Self {
        let batch = NonZeroU32::new(most.min(BATCH_MAX)).unwrap_or(NonZeroU32::MIN);
        Self { batch, step_us_max }
    }

    /// Returns the number of windows to try now.
    pub(super) fn batch(self) -> NonZeroU32 {
        self.batch
    }

    /// Halves the batch because the engine needs too much memory. Returns true if there are fewer windows to try.
    pub(super) fn is_too_large(&mut self) -> bool {
        let half = NonZeroU32::new(self.batch.get() / 2);
        self.batch = half.unwrap_or(self.batch);
        half.is_some()
    }

    /// Halves the batch if `step_us` is too long, and returns true if it did. The time of a step has a constant part
    /// and a part for each window. A half therefore takes at least its share of `step_us`, and is skipped if that is
    /// too long.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with fixed memory and speed.
    struct Fake {
        windows_max: u32,
        step_us: u64,
        window_us: u64,
    }

    /// Returns the batches tried on `fake` for a run of `most` windows; the last one is accepted.
    fn tried(most: u32, fake: &Fake) -> Vec<u32> {
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
            assert_eq!(tried(most, &Fake { windows_max, step_us, window_us }), expected);
        };
        check(8, 8, 0, 250_000, &[8]);
        check(8, 8, 0, 250_001, &[8, 4]);
        check(8, 3, 0, 1, &[8, 4, 2]);
        check(8, 4, 0, 1_000_000, &[8, 4, 2]);
        // 16 s and 8.5 s are known to be too long; 4.25 s and less are tried.
        check(64, 64, 0, 500_000, &[64, 4]);
        check(64, 64, 1_500_000, 200_000, &[64, 8, 4, 2]);
        check(12, 12, 0, 700_000, &[12, 1]);
        check(7, 7, 0, 900_000, &[7, 1]);
        // A single window is the minimum, regardless of time and memory.
        check(8, 8, 0, 1 << 40, &[8, 1]);
        check(8, 0, 0, 1, &[8, 4, 2, 1]);
        check(1, 1, u64::MAX / 2, 1, &[1]);
        // A run may name a batch that no learner may use.
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
