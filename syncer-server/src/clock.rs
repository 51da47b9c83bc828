//! The server's only clock.

use std::time::{Duration, Instant};

use archipelago::diloco::Millis;

/// Monotonic time since the server started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a shell reads the clock and hands time to the core")]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The moment `at` for a timer.
    #[must_use]
    pub fn instant(&self, at: Millis) -> tokio::time::Instant {
        // Far enough for any timer, near enough not to overflow.
        let ms = at.0.min(1 << 40);
        tokio::time::Instant::from_std(self.origin + Duration::from_millis(ms))
    }
}
