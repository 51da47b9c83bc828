//! The owner's hand on a learner that runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};

/// Pauses, throttles and ends a run; from any thread, at any time. Copies steer the same run.
#[derive(Clone, Debug)]
pub struct Control(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    paused: AtomicBool,
    stopped: AtomicBool,
    hidden: AtomicBool,
    reconnect: AtomicBool,
    duty_permille: AtomicU16,
}

/// A share of time that is none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a duty cycle of {0} makes no sense: it is the share of time to compute, above 0 and at most 1")]
pub struct DutyError(pub f64);

impl Control {
    /// Not paused, not stopped, all of the time.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            paused: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            hidden: AtomicBool::new(false),
            reconnect: AtomicBool::new(false),
            duty_permille: AtomicU16::new(1_000),
        }))
    }

    /// Stops training after the step under way; the connection stays.
    pub fn pause(&self) {
        self.0.paused.store(true, Relaxed);
    }

    /// Trains again.
    pub fn resume(&self) {
        self.0.paused.store(false, Relaxed);
    }

    /// Ends the run politely after the step under way.
    pub fn stop(&self) {
        self.0.stopped.store(true, Relaxed);
    }

    /// Says whether nobody sees it, as in a tab behind others: the syncer then waits longer for signs of life.
    pub fn set_hidden(&self, hidden: bool) {
        self.0.hidden.store(hidden, Relaxed);
    }

    /// Tries to connect now rather than at the time planned, if there is no connection: the network is back.
    pub fn reconnect(&self) {
        self.0.reconnect.store(true, Relaxed);
    }

    /// Computes for `share` of the time, sleeping between steps; kept in thousandths.
    ///
    /// # Errors
    /// [`DutyError`]: `share` is not above 0 and at most 1.
    pub fn set_duty_cycle(&self, share: f64) -> Result<(), DutyError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(DutyError(share));
        }
        self.0.duty_permille.store(((share * 1_000.0).round() as u16).max(1), Relaxed);
        Ok(())
    }

    /// Whether the owner paused it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.0.paused.load(Relaxed)
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Relaxed)
    }

    /// Whether nobody sees it.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.0.hidden.load(Relaxed)
    }

    /// Whether [`Self::reconnect`] was called since this was last asked.
    #[must_use]
    pub(super) fn take_reconnect(&self) -> bool {
        self.0.reconnect.swap(false, Relaxed)
    }

    /// The part of the time that it computes, in thousandths, 1 to 1000.
    #[must_use]
    pub(super) fn duty_permille(&self) -> u16 {
        self.0.duty_permille.load(Relaxed)
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duty_cycle_is_above_0_and_at_most_1() {
        let control = Control::new();
        assert_eq!(control.duty_permille(), 1_000);
        control.set_duty_cycle(0.25).unwrap();
        for share in [0.0, -1.0, 1.1, f64::NAN] {
            assert!(control.set_duty_cycle(share).is_err(), "{share}");
        }
        assert_eq!(control.duty_permille(), 250, "a refused share changes nothing");
        control.set_duty_cycle(1e-9).unwrap();
        assert_eq!(control.duty_permille(), 1);
    }
}
