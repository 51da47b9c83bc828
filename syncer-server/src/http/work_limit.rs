//! Limits on blocking work for requests. Work is cancelled once no request waits for it.
//!
//! A permit belongs to the work, not to the request. If a peer hangs up, its work is cancelled, but the permit is
//! released only when the work has stopped.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::progress::Cancellation;

/// Retry delay for a peer that is refused because too many requests wait, in seconds.
const RETRY_S: &str = "2";

/// Limit on the work of one kind that runs at once, and on the requests that wait for it.
#[derive(Clone, Debug)]
pub struct WorkLimit {
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// Permission to run one piece of work.
#[derive(Debug)]
pub struct WorkPermit {
    _running: OwnedSemaphorePermit,
}

/// Reason why a request gets no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// Too many requests wait for such work already.
    #[error("too many others ask for the same: try again later")]
    Busy,
    /// The work panicked or was cancelled, or the program stops.
    #[error("the work failed: the server's log says why")]
    Failed,
}

impl WorkLimit {
    /// Allows `running_max` pieces of work at once and `waiting_max` waiting requests.
    #[must_use]
    pub fn new(running_max: usize, waiting_max: usize) -> Self {
        let [running, waiting] = [running_max, waiting_max].map(|most| Arc::new(Semaphore::new(most)));
        Self { running, waiting }
    }

    /// Waits for permission to run.
    ///
    /// # Errors
    /// `Busy`: too many requests wait already.
    pub async fn permit(&self) -> Result<WorkPermit, WorkError> {
        let _waiting = self.waiting.try_acquire().map_err(|_| WorkError::Busy)?;
        let running = Arc::clone(&self.running).acquire_owned().await;
        running.map(|_running| WorkPermit { _running }).map_err(|_| WorkError::Failed)
    }

    /// Runs an order on a blocking thread. Once started, it is completed even if the peer hangs up.
    ///
    /// # Errors
    /// - `Busy`: too many requests wait already; nothing was started.
    /// - `Failed`: the order panicked.
    pub async fn carry_out<T: Send + 'static>(
        &self,
        order: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let carried_out = tokio::spawn(self.permit().await?.run(|_| order()));
        carried_out.await.unwrap_or(Err(WorkError::Failed))
    }
}

impl WorkPermit {
    /// Runs `work` on a blocking thread. Dropping the future cancels the work.
    ///
    /// # Errors
    /// `Failed`: the work panicked.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&Cancellation) -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let cancellation = Cancellation::default();
        let request = CancelOnDrop(cancellation.clone());
        let done = tokio::task::spawn_blocking(move || {
            let done = (!cancellation.is_cancelled()).then(|| work(&cancellation));
            drop(self);
            done
        });
        let done = done.await;
        drop(request);
        done.ok().flatten().ok_or(WorkError::Failed)
    }
}

/// Guard that cancels the work once its request is dropped.
struct CancelOnDrop(Cancellation);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl IntoResponse for WorkError {
    fn into_response(self) -> Response {
        let why = format!("{self}\n");
        match self {
            Self::Busy => {
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, RETRY_S)], why).into_response()
            }
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt;

    use super::*;

    /// Goal: if a request hangs up, its work is cancelled and holds the permit until it has stopped.
    #[tokio::test]
    async fn a_permit_is_held_by_the_work_and_not_by_the_request() {
        let limit = WorkLimit::new(1, 8);
        let (began, begins) = mpsc::channel();
        let (resume, goes_on) = mpsc::channel::<()>();
        let (told, tells) = mpsc::channel();
        let mut work = Box::pin(limit.permit().await.unwrap().run(move |cancellation| {
            began.send(()).unwrap();
            goes_on.recv().unwrap();
            told.send(cancellation.is_cancelled()).unwrap();
        }));
        assert!((&mut work).now_or_never().is_none());
        tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
        drop(work);
        assert!(limit.permit().now_or_never().is_none(), "the work still runs");
        resume.send(()).unwrap();
        drop(limit.permit().await.unwrap());
        assert!(tells.recv().unwrap(), "nobody waits for it any more");
    }

    #[tokio::test]
    async fn few_wait_and_a_panic_frees_the_permit() {
        let limit = WorkLimit::new(1, 1);
        let permit = limit.permit().await.unwrap();
        let mut waits = Box::pin(limit.permit());
        assert!((&mut waits).now_or_never().is_none());
        assert_eq!(limit.permit().await.err(), Some(WorkError::Busy));
        drop(waits);
        let failed = permit.run(|_| panic!("as a test asks for")).await;
        assert_eq!(failed, Err::<(), _>(WorkError::Failed));
        assert_eq!(limit.permit().await.unwrap().run(|_| 7).await, Ok(7));
    }

    /// Goal: an order of the owner is carried out completely, even if the owner does not wait for the response.
    #[tokio::test]
    async fn an_order_that_began_is_carried_out() {
        let limit = WorkLimit::new(1, 8);
        let (done, is_done) = mpsc::channel();
        let mut order = Box::pin(limit.carry_out(move || done.send(()).unwrap()));
        assert!((&mut order).now_or_never().is_none());
        drop(order);
        drop(limit.permit().await.unwrap());
        is_done.try_recv().unwrap();
    }
}
