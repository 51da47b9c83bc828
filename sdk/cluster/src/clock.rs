//! The clock of a driver: milliseconds since it began, which no other process compares with its own.

use std::time::Duration;

use archipelago_core::wire::Millis;
use tokio::time::Instant;

/// A monotonic clock with an origin of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// One that begins now.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since it began.
    pub(crate) fn now(self) -> Millis {
        Millis(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Milliseconds as the runtime counts them.
pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
