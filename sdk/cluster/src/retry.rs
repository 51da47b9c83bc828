//! Backoff and retries for services that do not answer, and the clock of the drivers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::wire::Millis;
use tokio::time::{Instant, sleep};

use crate::service::ServiceError;

/// First pause after a failed request, in milliseconds. Each further pause is twice as long.
const FIRST_MS: u64 = 50;
/// Longest pause, in milliseconds.
const LONGEST_MS: u64 = 2_000;

/// Backoff of one driver for one service, with the last logged error.
#[derive(Debug, Default)]
pub(crate) struct Retry(Mutex<RetryState>);

#[derive(Debug, Default)]
struct RetryState {
    /// Time until which no request is sent.
    not_before: Millis,
    /// Last pause; 0 while the service answers.
    pause_ms: u64,
    /// Last error. An error of the same kind is not logged again.
    last_error: Option<ServiceError>,
}

impl Retry {
    /// Returns true if a request may be sent now. If not, the state machines repeat the request later.
    pub(crate) fn may_send(&self, now: Millis) -> bool {
        self.state(|state| now >= state.not_before)
    }

    /// Records the result of a request. Returns the value of a successful one.
    pub(crate) fn note<T>(&self, now: Millis, result: Result<T, ServiceError>) -> Option<T> {
        match result {
            Ok(value) => {
                self.state(|state| {
                    if state.last_error.take().is_some() {
                        tracing::info!("answers again");
                    }
                    *state = RetryState::default();
                });
                Some(value)
            }
            Err(error) => {
                self.state(|state| {
                    state.pause_ms = (2 * state.pause_ms).clamp(FIRST_MS, LONGEST_MS);
                    state.not_before = Millis(now.0.saturating_add(state.pause_ms));
                    let is_new = state.last_error.as_ref().is_none_or(|last_error| {
                        std::mem::discriminant(last_error) != std::mem::discriminant(&error)
                    });
                    if is_new {
                        tracing::warn!("{error}");
                    }
                    state.last_error = Some(error);
                });
                None
            }
        }
    }

    fn state<T>(&self, with: impl FnOnce(&mut RetryState) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Monotonic clock, which starts at 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonotonicClock(Instant);

impl MonotonicClock {
    /// Starts a clock.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the clock was started.
    pub(crate) fn now(self) -> Millis {
        Millis(u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// Converts milliseconds to a [`Duration`].
pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// First pause before a retry. Each further pause is twice as long, up to [`AGAIN_LONGEST`].
const AGAIN_FIRST: Duration = Duration::from_millis(100);
/// Longest pause before a retry.
const AGAIN_LONGEST: Duration = Duration::from_secs(3);

/// Calls `ask` until it succeeds. The caller drops the future if the answer is no longer needed.
pub(crate) async fn persist<T, F: Future<Output = Result<T, ServiceError>>>(ask: impl Fn() -> F) -> T {
    let mut pause = AGAIN_FIRST;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if pause == AGAIN_FIRST => tracing::warn!("{error}"),
            Err(error) => tracing::debug!("{error}"),
        }
        sleep(pause).await;
        pause = (2 * pause).min(AGAIN_LONGEST);
    }
}

/// Calls `ask` until it returns anything but [`ServiceError::Silent`], or until the time is `until`. Servers that
/// have just started must elect a leader first.
///
/// # Errors
/// The last error of `ask`.
pub(crate) async fn wait_for<T, F: Future<Output = Result<T, ServiceError>>>(
    until: Instant,
    ask: impl Fn() -> F,
) -> Result<T, ServiceError> {
    let mut pause = AGAIN_FIRST;
    loop {
        match ask().await {
            Err(error @ ServiceError::Silent { .. }) if Instant::now() + pause < until => {
                tracing::debug!("{error}");
            }
            done => return done,
        }
        sleep(pause).await;
        pause = (2 * pause).min(AGAIN_LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn pauses_grow_and_end_with_an_answer() {
        let patience = Retry::default();
        let silent = || ServiceError::Silent { place: "x".into(), detail: "y".into() };
        assert!(patience.may_send(Millis(0)));
        patience.note::<()>(Millis(0), Err(silent()));
        assert!(!patience.may_send(Millis(49)) && patience.may_send(Millis(50)));
        patience.note::<()>(Millis(50), Err(silent()));
        assert!(!patience.may_send(Millis(149)) && patience.may_send(Millis(150)));
        for _ in 0..20 {
            patience.note::<()>(Millis(1_000), Err(silent()));
        }
        assert!(!patience.may_send(Millis(2_999)) && patience.may_send(Millis(3_000)));
        assert_eq!(patience.note(Millis(3_000), Ok(7)), Some(7));
        assert!(patience.may_send(Millis(3_000)));
        patience.note::<()>(Millis(3_000), Err(silent()));
        assert!(patience.may_send(Millis(3_050)), "after an answer pauses begin again");
    }

    fn silent() -> ServiceError {
        ServiceError::Silent { place: "NATS".into(), detail: "no leader yet".into() }
    }

    fn denied() -> ServiceError {
        ServiceError::Denied { place: "NATS".into(), detail: "no rights".into() }
    }

    /// Goal: a process that starts together with its servers waits for them, but not forever, and not after a
    /// permanent error.
    #[tokio::test]
    async fn wait_retries_only_passing_errors() {
        let limit = Duration::from_secs(1);
        let asked = AtomicU32::new(0);
        let once = |error: fn() -> ServiceError, times: u32| {
            asked.store(0, Ordering::Relaxed);
            let asked = &asked;
            wait_for(Instant::now() + limit, move || async move {
                let count = asked.fetch_add(1, Ordering::Relaxed);
                if count < times { Err(error()) } else { Ok(count) }
            })
        };
        assert_eq!(once(silent, 1).await, Ok(1));
        assert_eq!(once(denied, 1).await, Err(denied()));
        assert_eq!(once(silent, u32::MAX).await, Err(silent()));
        assert!((2..=4).contains(&asked.load(Ordering::Relaxed)), "{asked:?}");
    }
}
