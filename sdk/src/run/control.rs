//! Control of a running learner by its owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};

/// Handle that pauses, slows down and ends a learner, from any thread and at any time. Clones control the same
/// learner.
#[derive(Clone, Debug)]
pub struct Control(Arc<ControlFlags>);

#[derive(Debug)]
struct ControlFlags {
    paused: AtomicBool,
    stopped: AtomicBool,
    hidden: AtomicBool,
    reconnect: AtomicBool,
    duty_permille: AtomicU16,
}

/// Invalid duty cycle.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a duty cycle of {0} is out of range: give the share of time to compute, above 0 and at most 1")]
pub struct DutyError(pub f64);

impl Control {
    /// Returns a control that neither pauses nor stops, with a duty cycle of 1.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(ControlFlags {
            paused: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            hidden: AtomicBool::new(false),
            reconnect: AtomicBool::new(false),
            duty_permille: AtomicU16::new(1_000),
        }))
    }

    /// Stops training after the current step; the connection stays open.
    pub fn pause(&self) {
        self.0.paused.store(true, Relaxed);
    }

    /// Resumes training.
    pub fn resume(&self) {
        self.0.paused.store(false, Relaxed);
    }

    /// Ends the learner gracefully after the current step.
    pub fn stop(&self) {
        self.0.stopped.store(true, Relaxed);
    }

    /// Sets whether the learner is hidden, as in a background tab. The syncer then accepts longer silences.
    pub fn set_hidden(&self, hidden: bool) {
        self.0.hidden.store(hidden, Relaxed);
    }

    /// Requests a connection attempt at once, if there is no connection, because the network is back.
    pub fn reconnect(&self) {
        self.0.reconnect.store(true, Relaxed);
    }

    /// Sets the duty cycle: the learner computes for `share` of the time and sleeps between steps. It is stored in
    /// thousandths.
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

    /// Returns true if the owner paused the learner.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.0.paused.load(Relaxed)
    }

    /// Returns true if the learner should end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Relaxed)
    }

    /// Returns true if the learner is hidden.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.0.hidden.load(Relaxed)
    }

    /// Returns true if [`Self::reconnect`] was called since the last call.
    #[must_use]
    pub(super) fn take_reconnect(&self) -> bool {
        self.0.reconnect.swap(false, Relaxed)
    }

    /// Returns the duty cycle in thousandths, 1 to 1000.
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
