//! Asking a service until it answers.

use std::time::Duration;

use tokio::time::sleep;

use crate::error::ServiceError;

/// The first pause before something is asked again; each later one is twice as long…
const AGAIN_FIRST: Duration = Duration::from_millis(100);
/// …up to this.
const AGAIN_LONGEST: Duration = Duration::from_secs(3);

/// Asks until there is an answer; to be aborted when nobody wants it any more.
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
