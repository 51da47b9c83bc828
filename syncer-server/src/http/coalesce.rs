//! Request coalescing: simultaneous requests share one computation, and requests shortly afterwards share its result.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::time::{Instant, sleep};

/// A result that is computed once for many requests.
///
/// All waiting requests share the computation. When the last of them hangs up, the computation is dropped and thereby
/// cancelled.
#[derive(Debug)]
pub struct Coalesced<T, E> {
    state: Arc<Mutex<State<T, E>>>,
    fresh_for: Duration,
}

type Computation<T, E> = Shared<BoxFuture<'static, Result<T, E>>>;

#[derive(Debug)]
struct State<T, E> {
    /// The last result, and the time at which it was ready.
    result: Option<(Instant, T)>,
    under_way: Option<WeakShared<BoxFuture<'static, Result<T, E>>>>,
}

impl<T, E> Coalesced<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    /// Returns an instance without a result. Each result is shared for `fresh_for` and dropped afterwards.
    #[must_use]
    pub fn new(fresh_for: Duration) -> Self {
        Self { state: Arc::new(Mutex::new(State { result: None, under_way: None })), fresh_for }
    }

    /// Returns the last result if it is fresh and `fits` returns true for it. Otherwise it joins the running
    /// computation, or starts `compute` if none runs.
    ///
    /// # Errors
    /// Those of `compute`. Errors are not kept: the next request computes again.
    pub async fn get<F>(&self, fits: impl FnOnce(&T) -> bool, compute: impl FnOnce() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.join(fits, compute).await
    }

    fn join<F>(&self, fits: impl FnOnce(&T) -> bool, compute: impl FnOnce() -> F) -> Computation<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let mut state = lock(&self.state);
        let fresh =
            state.result.as_ref().filter(|(at, result)| at.elapsed() < self.fresh_for && fits(result));
        if let Some((_, result)) = fresh {
            return std::future::ready(Ok(result.clone())).boxed().shared();
        }
        if let Some(under_way) = state.under_way.as_ref().and_then(WeakShared::upgrade) {
            return under_way;
        }
        let (computing, keeper, fresh_for) = (compute(), Arc::clone(&self.state), self.fresh_for);
        let begun = async move {
            let result = computing.await?;
            keep(&keeper, &result, fresh_for);
            Ok(result)
        };
        let begun = begun.boxed().shared();
        state.under_way = begun.downgrade();
        begun
    }
}

/// Stores `result` and drops it after `fresh_for`, even without another request, to free resources such as a file on
/// disk.
fn keep<T, E>(state: &Arc<Mutex<State<T, E>>>, result: &T, fresh_for: Duration)
where
    T: Clone + Send + 'static,
    E: Send + Sync + 'static,
    State<T, E>: Send,
{
    let at = Instant::now();
    {
        let mut state = lock(state);
        state.result = Some((at, result.clone()));
        state.under_way = None;
    }
    let state = Arc::downgrade(state);
    tokio::spawn(async move {
        sleep(fresh_for).await;
        let Some(state) = state.upgrade() else { return };
        let mut state = lock(&state);
        if state.result.as_ref().is_some_and(|(kept_at, _)| *kept_at == at) {
            state.result = None;
        }
    });
}

/// Locks `state`. A panic cannot leave it half changed, so a poisoned lock is still valid.
fn lock<T, E>(state: &Mutex<State<T, E>>) -> MutexGuard<'_, State<T, E>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn requests_share_one_computation_and_its_result() {
        let coalesced = Coalesced::<u32, ()>::new(LONG);
        let begun = AtomicU32::new(0);
        let (answer, answered) = oneshot::channel();
        let mut answered = Some(answered);
        let mut compute = || {
            begun.fetch_add(1, Relaxed);
            let answered = answered.take().expect("it is computed once");
            async move { answered.await.map_err(drop) }
        };
        let (first, second) =
            (coalesced.join(|_| true, &mut compute), coalesced.join(|_| true, &mut compute));
        answer.send(7).unwrap();
        assert_eq!((first.await, second.await), (Ok(7), Ok(7)));
        assert_eq!(coalesced.get(|_| true, &mut compute).await, Ok(7));
        assert_eq!(begun.load(Relaxed), 1);
        assert_eq!(coalesced.get(|kept| *kept > 7, || async { Ok(8) }).await, Ok(8), "the last does not fit");
    }

    #[tokio::test]
    async fn a_computation_without_waiting_requests_is_dropped() {
        let coalesced = Coalesced::<(), ()>::new(LONG);
        let (held, holds) = oneshot::channel::<()>();
        let compute = || async move {
            let _held = held;
            std::future::pending().await
        };
        let mut first = coalesced.join(|_| true, compute);
        let second = first.clone();
        assert!((&mut first).now_or_never().is_none());
        drop(first);
        let mut holds = holds;
        assert!((&mut holds).now_or_never().is_none(), "the second still waits");
        drop(second);
        assert!(holds.await.is_err(), "the computation is gone");
        assert_eq!(coalesced.get(|()| true, || async { Ok(()) }).await, Ok(()), "another one begins");
    }

    #[tokio::test]
    async fn a_result_is_dropped_in_time_and_an_error_at_once() {
        let coalesced = Coalesced::<Arc<u32>, u32>::new(Duration::from_millis(1));
        assert_eq!(coalesced.get(|_| true, || async { Err(3) }).await, Err(3));
        let result = coalesced.get(|_| true, || async { Ok(Arc::new(1)) }).await.unwrap();
        for _ in 0..10_000 {
            if Arc::strong_count(&result) == 1 {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(Arc::strong_count(&result), 1, "nobody need ask for it to be dropped");
        assert_eq!(coalesced.get(|_| true, || async { Ok(Arc::new(2)) }).await, Ok(Arc::new(2)));
    }
}
