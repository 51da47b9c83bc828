//! Clock of a driver: milliseconds since its start. It is never compared with other processes' clocks.

use std::time::Duration;

use archipelago_core::wire::Millis;
use tokio::time::Instant;

/// Monotonic clock with its own origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// Starts a clock.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    pub(crate) fn now(self) -> Millis {
        Millis(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Converts milliseconds to a [`Duration`].
pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
