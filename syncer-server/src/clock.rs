//! The server's only clocks.

use std::time::{Duration, Instant, SystemTime};

use archipelago_core::diloco::Millis;

/// Monotonic time since the server started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts a clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a shell reads the clock and hands time to the core")]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Returns the milliseconds since the start.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Converts `at` to an instant for a timer.
    #[must_use]
    pub fn instant(&self, at: Millis) -> tokio::time::Instant {
        // Later than any timer, but without overflow.
        let ms = at.0.min(1 << 40);
        tokio::time::Instant::from_std(self.origin + Duration::from_millis(ms))
    }
}

/// Returns the milliseconds since 1970 by this machine's clock; 0 if it is set to an earlier time.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "people read in the tape when something was decided")]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns today's date in UTC, in the form 2026-11-29.
#[must_use]
pub fn date() -> String {
    let today = chrono::DateTime::from_timestamp(unix_s().into(), 0).unwrap_or_default();
    today.format("%Y-%m-%d").to_string()
}

/// Returns the seconds since 1970 by this machine's clock; 0 if it is set to an earlier time, and the maximum from 2106
/// on.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "a run's incarnations outlive the process, and so the monotonic clock"
)]
pub fn unix_s() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}
