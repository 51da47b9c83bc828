//! Backoff for a service that does not answer.

use std::sync::Mutex;
use std::sync::PoisonError;

use archipelago_core::wire::Millis;

use crate::error::ServiceError;

/// First pause after a failed request, in milliseconds. Each later pause is twice as long.
const FIRST_MS: u64 = 50;
/// Longest pause, in milliseconds.
const LONGEST_MS: u64 = 2_000;

/// Backoff state of one driver for one service, with the last logged error.
#[derive(Debug, Default)]
pub(crate) struct Retry(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Time before which no request is sent.
    not_before: Millis,
    /// Last pause; 0 while the service answers.
    pause_ms: u64,
    /// Last error. The same error is not logged twice in a row.
    said: Option<ServiceError>,
}

impl Retry {
    /// Returns true if a request may be sent now. The state machines repeat their requests by themselves.
    pub(crate) fn may_ask(&self, now: Millis) -> bool {
        self.state(|state| now >= state.not_before)
    }

    /// Records the result of a request. Returns the answer, if there is one.
    pub(crate) fn note<T>(&self, now: Millis, result: Result<T, ServiceError>) -> Option<T> {
        match result {
            Ok(value) => {
                self.state(|state| {
                    if state.said.take().is_some() {
                        tracing::info!("answers again");
                    }
                    *state = State::default();
                });
                Some(value)
            }
            Err(error) => {
                self.state(|state| {
                    state.pause_ms = (2 * state.pause_ms).clamp(FIRST_MS, LONGEST_MS);
                    state.not_before = Millis(now.0.saturating_add(state.pause_ms));
                    let is_new = state
                        .said
                        .as_ref()
                        .is_none_or(|said| std::mem::discriminant(said) != std::mem::discriminant(&error));
                    if is_new {
                        tracing::warn!("{error}");
                    }
                    state.said = Some(error);
                });
                None
            }
        }
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end_with_an_answer() {
        let patience = Retry::default();
        let silent = || ServiceError::Silent { place: "x".into(), detail: "y".into() };
        assert!(patience.may_ask(Millis(0)));
        patience.note::<()>(Millis(0), Err(silent()));
        assert!(!patience.may_ask(Millis(49)) && patience.may_ask(Millis(50)));
        patience.note::<()>(Millis(50), Err(silent()));
        assert!(!patience.may_ask(Millis(149)) && patience.may_ask(Millis(150)));
        for _ in 0..20 {
            patience.note::<()>(Millis(1_000), Err(silent()));
        }
        assert!(!patience.may_ask(Millis(2_999)) && patience.may_ask(Millis(3_000)));
        assert_eq!(patience.note(Millis(3_000), Ok(7)), Some(7));
        assert!(patience.may_ask(Millis(3_000)));
        patience.note::<()>(Millis(3_000), Err(silent()));
        assert!(patience.may_ask(Millis(3_050)), "after an answer pauses begin anew");
    }
}
