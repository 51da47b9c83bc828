//! Secrets that were wrong: how often one address may show one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Wrong secrets that an address may show at once…
const WRONG_MAX: f64 = 10.0;
/// …and the time after which it may show one more.
const WRONG_EVERY: Duration = Duration::from_secs(10);
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 4_096;
/// Time between two lines of the log.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Counts wrong secrets.
#[derive(Debug, Default)]
pub(super) struct Guesses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What each address has left, and when that was so.
    left: BTreeMap<IpAddr, (f64, Instant)>,
    told: Option<Instant>,
    untold: u64,
}

impl Guesses {
    /// How long `who` must wait before it may show a secret again.
    pub(super) fn wait(&self, who: IpAddr, now: Instant) -> Option<Duration> {
        let left = self.state().left.get(&who).map_or(WRONG_MAX, |&left| refilled(left, now));
        (left < 1.0).then(|| WRONG_EVERY.mul_f64(1.0 - left))
    }

    /// A secret that `who` showed was wrong; `None` is this machine.
    pub(super) fn note(&self, who: Option<IpAddr>, now: Instant) {
        let mut state = self.state();
        if let Some(who) = who {
            if state.left.len() >= ADDRESSES_MAX && !state.left.contains_key(&who) {
                state.left.retain(|_, &mut left| refilled(left, now) < WRONG_MAX);
                let most = state.left.iter().max_by(|a, b| a.1.0.total_cmp(&b.1.0)).map(|(&who, _)| who);
                if let Some(most) = most.filter(|_| state.left.len() >= ADDRESSES_MAX) {
                    state.left.remove(&most);
                }
            }
            let left = state.left.get(&who).map_or(WRONG_MAX, |&left| refilled(left, now));
            state.left.insert(who, ((left - 1.0).max(0.0), now));
        }
        state.untold += 1;
        if state.told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY) {
            let times = std::mem::take(&mut state.untold);
            state.told = Some(now);
            let from = who.map_or_else(|| "this machine".to_owned(), |who| who.to_string());
            tracing::warn!(times, %from, "a token or an invite was shown that is none: somebody may be guessing");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is behind it is whole after each statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refilled((left, at): (f64, Instant), now: Instant) -> f64 {
    let more = now.duration_since(at).as_secs_f64() / WRONG_EVERY.as_secs_f64();
    (left + more).min(WRONG_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_guesses_waits_and_nobody_else_does() {
        let guesses = Guesses::default();
        let (start, [anne, bert]) = (Instant::now(), [1, 2].map(|last| IpAddr::from([192, 0, 2, last])));
        for _ in 0..10 {
            assert_eq!(guesses.wait(anne, start), None);
            guesses.note(Some(anne), start);
        }
        assert_eq!(guesses.wait(anne, start), Some(WRONG_EVERY));
        assert_eq!(guesses.wait(bert, start), None);
        assert_eq!(guesses.wait(anne, start + WRONG_EVERY), None, "one more");
        guesses.note(Some(anne), start + WRONG_EVERY);
        assert!(guesses.wait(anne, start + WRONG_EVERY).is_some());
    }

    #[test]
    fn few_addresses_are_remembered() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let bad = IpAddr::from([192, 0, 2, 1]);
        (0..10).for_each(|_| guesses.note(Some(bad), now));
        (0..20_000_u32).for_each(|i| guesses.note(Some(IpAddr::from(i.to_be_bytes())), now));
        assert_eq!(guesses.state().left.len(), ADDRESSES_MAX);
        assert!(guesses.wait(bad, now).is_some(), "those who guess most are kept");
        assert!(guesses.state().untold > 20_000, "one line is told");
    }
}
