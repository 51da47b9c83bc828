//! Retries until a service answers.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::ServiceError;

/// First pause before a retry; each later pause is twice as long…
const AGAIN_FIRST: Duration = Duration::from_millis(100);
/// …up to this one.
const AGAIN_LONGEST: Duration = Duration::from_secs(3);

/// Retries until there is an answer. The caller aborts it when the answer is no longer needed.
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

/// Retries until `until` while the error can pass: fresh servers must elect a leader first.
///
/// # Errors
/// The last error.
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

    fn silent() -> ServiceError {
        ServiceError::Silent { place: "NATS".into(), detail: "no leader yet".into() }
    }

    fn denied() -> ServiceError {
        ServiceError::Denied { place: "NATS".into(), detail: "no rights".into() }
    }

    /// Goal: a process that starts together with its servers waits for them, but not forever, and not on a permanent
    /// error.
    #[tokio::test]
    async fn what_passes_is_waited_for() {
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
