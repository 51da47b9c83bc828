//! Progress and cancellation of long work on a blocking thread.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::unix_ms;
use crate::errors::ServerError;

/// Shortest time between two log lines about the same work, in milliseconds.
const LOG_EVERY_MS: u64 = 2_000;

/// Cancellation of long work. Clones cancel the same work.
#[derive(Clone, Debug, Default)]
pub struct Cancellation {
    is_cancelled: Arc<AtomicBool>,
    is_writing: Arc<AtomicBool>,
}

impl Cancellation {
    /// Makes the work stop at its next check.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
    }

    /// Fails if the work is no longer wanted.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check(&self) -> Result<(), ServerError> {
        if self.is_cancelled() { Err(ServerError::Cancelled) } else { Ok(()) }
    }

    /// Returns true if the work is no longer wanted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    /// Runs `work`, which writes files. The canceller waits until the work has removed them.
    ///
    /// # Errors
    /// `Cancelled`, and those of `work`.
    pub fn writing<T>(&self, work: impl FnOnce() -> Result<T, ServerError>) -> Result<T, ServerError> {
        self.is_writing.store(true, Ordering::SeqCst);
        let done = self.check().and_then(|()| work());
        self.is_writing.store(false, Ordering::SeqCst);
        done
    }

    /// Returns true while files are being written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::SeqCst)
    }
}

/// Unit of an amount of work.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// Parameters of a model.
    Parameters,
    /// Bytes of a file.
    Bytes,
}

impl Unit {
    /// Returns the smallest amount of work that is logged from its beginning.
    fn large(self) -> u64 {
        match self {
            Self::Parameters => 10_000_000,
            Self::Bytes => 100_000_000,
        }
    }

    /// Returns `done` of `total` as text, such as "1.2 of 4.3 GB".
    fn words(self, done: u64, total: u64) -> String {
        let (size, name) = match self {
            Self::Parameters => (1e6, "M"),
            Self::Bytes if total < 1_000_000_000 => (1e6, "MB"),
            Self::Bytes => (1e9, "GB"),
        };
        format!("{:.1} of {:.1} {name}", done as f64 / size, total as f64 / size)
    }
}

/// Progress of one piece of work, reported in the log.
pub struct Progress {
    cancellation: Cancellation,
    /// Name of the activity, and the unit of its amounts; `None` logs nothing.
    activity: Option<(&'static str, Unit)>,
    total: u64,
    done: Cell<u64>,
    logged_ms: Cell<u64>,
}

impl Progress {
    /// Creates the progress of the activity `what`, such as "writing the first snapshot", with `total` units of work.
    /// Large work is logged from its beginning, other work only if it takes long.
    #[must_use]
    pub fn of(cancellation: &Cancellation, what: &'static str, total: u64, unit: Unit) -> Self {
        let logged_ms = if total >= unit.large() { 0 } else { unix_ms() };
        let (cancellation, logged_ms) = (cancellation.clone(), Cell::new(logged_ms));
        Self { cancellation, activity: Some((what, unit)), total, done: Cell::new(0), logged_ms }
    }

    /// Returns a progress that logs nothing.
    #[must_use]
    pub fn silent(cancellation: &Cancellation) -> Self {
        let cancellation = cancellation.clone();
        Self { cancellation, activity: None, total: 0, done: Cell::new(0), logged_ms: Cell::new(0) }
    }

    /// Adds `amount` to the work that is done.
    ///
    /// # Errors
    /// `Cancelled`: the rest is no longer wanted.
    pub fn add(&self, amount: u64) -> Result<(), ServerError> {
        self.done.set(self.done.get() + amount);
        if let Some((what, unit)) = self.activity
            && unix_ms().abs_diff(self.logged_ms.get()) >= LOG_EVERY_MS
        {
            self.logged_ms.set(unix_ms());
            tracing::info!("{what}: {}", unit.words(self.done.get(), self.total));
        }
        self.check()
    }

    /// Fails if the work is no longer wanted.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check(&self) -> Result<(), ServerError> {
        self.cancellation.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_cancelled_stops_at_its_next_check() {
        let cancellation = Cancellation::default();
        let progress = Progress::of(&cancellation, "counting", 10, Unit::Bytes);
        progress.add(3).unwrap();
        let begun = cancellation.writing(|| {
            assert!(cancellation.is_writing());
            cancellation.cancel();
            progress.add(3)
        });
        assert!(matches!(begun, Err(ServerError::Cancelled)) && !cancellation.is_writing());
        assert!(cancellation.writing(|| -> Result<(), _> { panic!("it begins") }).is_err());
    }

    #[test]
    fn amounts_are_for_people() {
        assert_eq!(Unit::Parameters.words(4_194_304, 361_821_120), "4.2 of 361.8 M");
        assert_eq!(Unit::Bytes.words(1_200_000_000, 4_341_853_440), "1.2 of 4.3 GB");
        assert_eq!(Unit::Bytes.words(0, 129_000_000), "0.0 of 129.0 MB");
    }
}
