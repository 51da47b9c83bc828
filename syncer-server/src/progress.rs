//! Long work on a blocking thread: how far it is, and whether it is still wanted.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::unix_ms;
use crate::errors::ServerError;

/// Time between two lines about the same work, in milliseconds.
const TOLD_EVERY_MS: u64 = 2_000;

/// Cancellation of long work. Clones are about the same work.
#[derive(Clone, Debug, Default)]
pub struct Cancellation {
    is_cancelled: Arc<AtomicBool>,
    is_writing: Arc<AtomicBool>,
}

impl Cancellation {
    /// Has the work stop at its next check.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
    }

    /// Fails if the work is not wanted any more.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check(&self) -> Result<(), ServerError> {
        if self.is_cancelled.load(Ordering::SeqCst) { Err(ServerError::Cancelled) } else { Ok(()) }
    }

    /// Does `work`, which writes files: whoever cancels it waits until it has cleared them away.
    ///
    /// # Errors
    /// `Cancelled`, and those of `work`.
    pub fn writing<T>(&self, work: impl FnOnce() -> Result<T, ServerError>) -> Result<T, ServerError> {
        self.is_writing.store(true, Ordering::SeqCst);
        let done = self.check().and_then(|()| work());
        self.is_writing.store(false, Ordering::SeqCst);
        done
    }

    /// Whether files are being written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::SeqCst)
    }
}

/// Text of an amount of work, in its unit.
type Amount = fn(u64) -> String;

/// Progress of one piece of work, as lines in the log.
pub struct Progress {
    cancellation: Cancellation,
    /// What is done, and how its amounts are written; `None` tells nothing.
    told: Option<(&'static str, Amount)>,
    total: u64,
    done: Cell<u64>,
    told_ms: Cell<u64>,
}

impl Progress {
    /// Progress of `what`, an activity such as "writing the first snapshot", through `total` of what `amount` writes.
    /// The first line follows after a moment, so that quick work tells nothing.
    #[must_use]
    pub fn of(
        cancellation: &Cancellation,
        what: &'static str,
        total: u64,
        amount: fn(u64) -> String,
    ) -> Self {
        let (cancellation, told_ms) = (cancellation.clone(), Cell::new(unix_ms()));
        Self { cancellation, told: Some((what, amount)), total, done: Cell::new(0), told_ms }
    }

    /// Progress that nobody is told of.
    #[must_use]
    pub fn silent(cancellation: &Cancellation) -> Self {
        let cancellation = cancellation.clone();
        Self { cancellation, told: None, total: 0, done: Cell::new(0), told_ms: Cell::new(0) }
    }

    /// Takes in that `amount` more is done.
    ///
    /// # Errors
    /// `Cancelled`: the rest is not wanted.
    pub fn add(&self, amount: u64) -> Result<(), ServerError> {
        self.done.set(self.done.get() + amount);
        if let Some((what, words)) = self.told
            && unix_ms().abs_diff(self.told_ms.get()) >= TOLD_EVERY_MS
        {
            self.told_ms.set(unix_ms());
            tracing::info!("{what}: {} of {}", words(self.done.get()), words(self.total));
        }
        self.check()
    }

    /// Fails if the work is not wanted any more.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn check(&self) -> Result<(), ServerError> {
        self.cancellation.check()
    }
}

/// An amount of parameters, for people: "361.8 M parameters".
pub fn parameters(count: u64) -> String {
    format!("{:.1} M parameters", count as f64 / 1e6)
}

/// An amount of bytes, for people: "4.3 GB".
pub fn bytes(count: u64) -> String {
    match count {
        ..1_000_000_000 => format!("{:.0} MB", count as f64 / 1e6),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_cancelled_stops_at_its_next_check() {
        let cancellation = Cancellation::default();
        let progress = Progress::of(&cancellation, "counting", 10, |count| count.to_string());
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
        assert_eq!(parameters(361_821_120), "361.8 M parameters");
        assert_eq!([bytes(4_341_853_440), bytes(129_000_000)], ["4.3 GB", "129 MB"]);
    }
}
