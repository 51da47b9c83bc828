//! Rate limit on wrong secrets (tokens and invites) per origin: an address, this machine, or a proxy.
//!
//! A right secret always passes, even after wrong ones from the same origin, because several people may share it. Each
//! origin has a budget of checks, and a right secret gives its check back. Once the budget is spent, each check needs
//! one of a few turns. A wrong secret holds its turn for a fixed time, even if the peer hangs up. This bounds the
//! guesses per origin.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connection_limits::Origin;

/// Number of wrong secrets that one origin may send in a burst.
const WRONG_MAX: f64 = 10.0;
/// Time after which an origin with a spent budget may send one more wrong secret.
const WRONG_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of simultaneous checks of an origin whose budget is spent.
const TURNS_MAX: usize = 32;
/// Time for which a wrong secret holds its turn.
const TURN_WAIT: Duration = Duration::from_millis(500);
/// Maximum wait for a turn.
const QUEUE_WAIT: Duration = Duration::from_secs(10);
/// Delay of the response to a wrong secret from this machine or from a proxy that names no client.
const LOCAL_WAIT: Duration = Duration::from_millis(250);
/// Maximum number of remembered origins.
const PLACES_MAX: usize = 4_096;
/// Minimum time between two lines about wrong secrets in the log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The budgets of all origins.
#[derive(Debug, Default)]
pub(super) struct AuthThrottle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    budgets: BTreeMap<Origin, Budget>,
    logged_at: Option<Instant>,
    unlogged: u64,
}

/// The checks that one origin has left.
#[derive(Debug)]
struct Budget {
    /// Remaining checks at the time `at`, 0 to [`WRONG_MAX`].
    left: f64,
    at: Instant,
    turns: Arc<Semaphore>,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { left: WRONG_MAX, at: now, turns: Arc::new(Semaphore::new(TURNS_MAX)) }
    }

    /// Adds `change` to the number of remaining checks.
    fn change(&mut self, now: Instant, change: f64) {
        self.left = (self.refilled(now) + change).clamp(0.0, WRONG_MAX);
        self.at = now;
    }

    fn refilled(&self, now: Instant) -> f64 {
        let more = now.duration_since(self.at).as_secs_f64() / WRONG_EVERY.as_secs_f64();
        (self.left + more).min(WRONG_MAX)
    }
}

/// Refusal of an origin that sent too many wrong secrets. The value is the time until it may send another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany(pub Duration);

impl AuthThrottle {
    /// Waits until a secret from `who` may be checked.
    ///
    /// # Errors
    /// [`TooMany`]: no turn became free in time.
    pub(super) async fn check(self: &Arc<Self>, who: Origin) -> Result<Check, TooMany> {
        let turns = {
            let now = Instant::now();
            let mut state = self.state();
            let budget = state.budget(who, now);
            if budget.refilled(now) >= 1.0 {
                budget.change(now, -1.0);
                return Ok(Check { guesses: Arc::clone(self), who, turn: None });
            }
            Arc::clone(&budget.turns)
        };
        match timeout(QUEUE_WAIT, turns.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Check { guesses: Arc::clone(self), who, turn: Some(Turn::take(permit)) }),
            _ => Err(TooMany(self.wait(who))),
        }
    }

    /// Returns the time until the budget of `who` has another check.
    fn wait(&self, who: Origin) -> Duration {
        let now = Instant::now();
        let left = self.state().budgets.get(&who).map_or(WRONG_MAX, |budget| budget.refilled(now));
        WRONG_EVERY.mul_f64((1.0 - left).max(0.0))
    }

    /// Logs a wrong secret. There is at most one line per [`LOG_EVERY`], with the number of wrong secrets since the
    /// last.
    fn log(&self, who: Origin) {
        let now = Instant::now();
        let mut state = self.state();
        state.unlogged += 1;
        if state.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_EVERY) {
            let times = std::mem::take(&mut state.unlogged);
            state.logged_at = Some(now);
            let from = who.address().map_or_else(|| "this machine".to_owned(), |address| address.to_string());
            tracing::warn!(times, %from, "invalid token or invite presented; possible guessing");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each statement leaves the value consistent, so a poisoned lock is still valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the budget of `who`. If too many origins are remembered, the origin with the fewest guesses is removed.
    fn budget(&mut self, who: Origin, now: Instant) -> &mut Budget {
        if self.budgets.len() >= PLACES_MAX && !self.budgets.contains_key(&who) {
            self.budgets.retain(|_, budget| budget.refilled(now) < WRONG_MAX);
            if self.budgets.len() >= PLACES_MAX {
                let most = self.budgets.iter().max_by(|a, b| a.1.left.total_cmp(&b.1.left));
                if let Some((&most, _)) = most {
                    self.budgets.remove(&most);
                }
            }
        }
        self.budgets.entry(who).or_insert_with(|| Budget::new(now))
    }
}

/// A turn of an origin whose budget is spent. It lasts a fixed time, even if the peer hangs up or its request takes
/// longer. [`Check::right`] ends it early.
#[derive(Debug)]
struct Turn {
    until: Instant,
    give_back: oneshot::Sender<()>,
}

impl Turn {
    fn take(permit: OwnedSemaphorePermit) -> Self {
        let until = Instant::now() + TURN_WAIT;
        let (give_back, given_back) = oneshot::channel();
        tokio::spawn(async move {
            tokio::select! {
                () = sleep_until(until) => {}
                Ok(()) = given_back => {}
            }
            drop(permit);
        });
        Self { until, give_back }
    }
}

/// The check of one secret. The secret counts as wrong unless the check ends with [`Self::right`].
#[must_use]
#[derive(Debug)]
pub struct Check {
    guesses: Arc<AuthThrottle>,
    who: Origin,
    turn: Option<Turn>,
}

impl Check {
    /// Ends the check of a right secret, or of a request that needed no secret.
    pub fn right(self) {
        match self.turn {
            // If this fails, the turn has already ended.
            Some(turn) => drop(turn.give_back.send(())),
            None => {
                let now = Instant::now();
                self.guesses.state().budget(self.who, now).change(now, 1.0);
            }
        }
    }

    /// Ends the check of a wrong secret. Waits until the peer may get its response.
    ///
    /// # Errors
    /// [`TooMany`]: the peer gets this refusal instead of the reason.
    pub async fn wrong(self) -> Result<(), TooMany> {
        self.guesses.log(self.who);
        let is_shared = self.who.address().is_none();
        let Some(turn) = self.turn else {
            if is_shared {
                sleep(LOCAL_WAIT).await;
            }
            return Ok(());
        };
        sleep_until(turn.until).await;
        // The owner may be at a shared origin, so peers there get the reason.
        if is_shared { Ok(()) } else { Err(TooMany(self.guesses.wait(self.who))) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures::FutureExt;

    use super::*;

    fn address(number: u32) -> Origin {
        Origin::Address(IpAddr::from(number.to_be_bytes()))
    }

    async fn guess(guesses: &Arc<AuthThrottle>, who: Origin) -> Result<(), TooMany> {
        guesses.check(who).await?.wrong().await
    }

    #[tokio::test]
    async fn a_right_secret_passes_after_wrong_ones_from_the_same_origin() {
        let guesses = Arc::new(AuthThrottle::default());
        for _ in 0..10 {
            assert_eq!(guess(&guesses, address(1)).now_or_never(), Some(Ok(())));
        }
        for _ in 0..100 {
            guesses.check(address(1)).await.unwrap().right();
        }
        assert!(guess(&guesses, address(1)).await.is_err());
        assert_eq!(guess(&guesses, address(2)).now_or_never(), Some(Ok(())));
    }

    #[test]
    fn a_spent_budget_refills_over_time() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        budget.change(start, -WRONG_MAX);
        assert!(budget.refilled(start) < 1.0 && budget.refilled(start + WRONG_EVERY) >= 1.0);
        assert!(budget.refilled(start + 1_000 * WRONG_EVERY) <= WRONG_MAX);
    }

    /// Goal: guesses are bounded even if the peer hangs up, and they never keep out a right secret.
    #[tokio::test]
    async fn guesses_of_one_origin_are_bounded_and_a_right_secret_gets_a_turn() {
        for who in [address(1), Origin::Here, Origin::Proxy] {
            let guesses = Arc::new(AuthThrottle::default());
            let mut checked = 0;
            for _ in 0..240 {
                // The peer hangs up as soon as it has to wait.
                if let Some(Ok(check)) = guesses.check(who).now_or_never() {
                    checked += 1;
                    let _ = check.wrong().now_or_never();
                }
            }
            assert_eq!(checked, WRONG_MAX as usize + TURNS_MAX, "{who:?}");
            guesses.check(who).await.unwrap().right();
        }
    }

    #[tokio::test]
    async fn simultaneous_right_secrets_need_no_wait() {
        let guesses = Arc::new(AuthThrottle::default());
        let mut checks = Vec::new();
        for _ in 0..WRONG_MAX as usize + TURNS_MAX {
            checks.push(guesses.check(address(1)).await.unwrap());
        }
        checks.into_iter().for_each(Check::right);
        for _ in 0..10 {
            assert_eq!(guess(&guesses, address(1)).now_or_never(), Some(Ok(())));
        }
    }

    #[tokio::test]
    async fn the_number_of_remembered_origins_is_bounded() {
        let guesses = Arc::new(AuthThrottle::default());
        let bad = address(1);
        for _ in 0..10 {
            guess(&guesses, bad).await.unwrap();
        }
        let places = PLACES_MAX as u32 + 100;
        for number in 2..places {
            guess(&guesses, address(number)).await.unwrap();
        }
        assert_eq!(guesses.state().budgets.len(), PLACES_MAX);
        assert!(guess(&guesses, bad).await.is_err(), "those that guess most are kept");
        assert!(guesses.state().unlogged >= u64::from(places), "one line is logged");
    }
}
