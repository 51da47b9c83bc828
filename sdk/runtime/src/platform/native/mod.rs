//! Operating-system platform: separate threads for the network, so that a long step never makes a peer wait.

mod display;
mod http;
mod process;
mod socket;
mod trust;
mod tunnel;

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

pub use display::silence_display;
pub use http::fetch;
pub use process::{interrupted, open_private};
pub use socket::Socket;
pub use trust::{TrustError, trust_only};

use archipelago_core::time::Millis;

use super::RandomError;

/// A monotonic clock that starts at [`Clock::start`].
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts a clock at 0.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(self.now_us() / 1_000)
    }

    /// Returns the time since the start in microseconds, for short intervals.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Waits `ms` milliseconds. Must be polled within a Tokio runtime with an enabled timer.
pub async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Lets other tasks on this thread run.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns `N` unpredictable bytes, for identities and for jitter.
///
/// # Errors
/// [`RandomError`]: the operating system provided no random bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| RandomError { reason: error.to_string() })?;
    Ok(bytes)
}
