//! Connection to the syncer: when to open it, when to give it up, and when to try again.

use super::backoff::Backoff;
use super::downtime::Downtime;
use super::keepalive::{Keepalive, Patience};
use super::{DriverConfig, Offline};
use crate::rng;
use crate::wire::CloseCode;

/// Time limit for opening a connection, in microseconds.
const OPEN_US_MAX: u64 = 10_000_000;
/// Period after the last sign of life in which the syncer is expected back soon, in microseconds. It applies only if
/// the learner was admitted for at least half a second.
const FRESH_US: u64 = 10_000_000;
const FRESH_MIN_MS: u64 = 500;
/// Maximum wait before the next attempt in that period, in milliseconds. It is long enough that 1,000 learners make at
/// most 1,400 attempts per second, and short enough that a restart costs each of them at most a second.
const FRESH_WAIT_MS_MAX: u64 = 1_000;

/// Cause of the end of a connection.
#[derive(Debug, Default)]
pub(super) struct Ending<'a> {
    /// Cause in words.
    pub(super) reason: &'a str,
    /// Cause as a number, if the syncer gave one.
    pub(super) code: Option<CloseCode>,
    /// Time in milliseconds for which the syncer told the learner to stay away; 0 if it did not.
    pub(super) wait_ms: u32,
}

/// Successive connections to one syncer.
#[derive(Debug)]
pub(super) struct Reconnect {
    line: Line,
    backoff: Backoff,
    patience: Patience,
    /// Earliest time of the next attempt, in microseconds.
    not_before_us: u64,
    /// End of the period in which the syncer is expected back soon, in microseconds.
    fresh_until_us: u64,
    absence: Downtime,
}

#[derive(Debug)]
enum Line {
    /// There is no connection; the next attempt is at `retry_us`.
    Down { retry_us: u64 },
    /// A connection is being opened.
    Opening { silence: Keepalive },
    /// The connection is open. `answered` is set by the first message, `welcomed_us` by the admission.
    Open { welcomed_us: Option<u64>, answered: bool, silence: Keepalive },
}

impl Reconnect {
    /// Returns a contact that may connect at once.
    pub(super) fn new(config: &DriverConfig, seed: u64) -> Self {
        Self {
            line: Line::Down { retry_us: 0 },
            backoff: Backoff::new(config.waits.backoff, rng::key(&[seed, 0])),
            patience: Patience::new(config.waits.patience),
            not_before_us: 0,
            fresh_until_us: 0,
            absence: Downtime::new(config),
        }
    }

    /// Begins to connect if an attempt is due, and returns whether it did.
    pub(super) fn connect(&mut self, now_us: u64) -> bool {
        let due = matches!(self.line, Line::Down { retry_us } if retry_us <= now_us);
        if due {
            self.line = Line::Opening { silence: Keepalive::new(now_us) };
        }
        due
    }

    /// Handles the opening of the connection.
    pub(super) fn opened(&mut self, now_us: u64) {
        self.absence.excuse("", None);
        self.patience.watch();
        self.line = Line::Open { welcomed_us: None, answered: false, silence: Keepalive::new(now_us) };
    }

    /// Handles a sign of life.
    pub(super) fn heard(&mut self, now_us: u64) {
        if let Line::Opening { silence } | Line::Open { silence, .. } = &mut self.line {
            self.patience.relieve(silence.look(now_us));
            silence.end(now_us);
        }
    }

    /// Handles an incoming message.
    pub(super) fn answered(&mut self, now_us: u64) {
        self.heard(now_us);
        if let Line::Open { answered, .. } = &mut self.line {
            *answered = true;
        }
    }

    /// Handles the admission of this learner.
    pub(super) fn welcomed(&mut self, now_us: u64) {
        self.absence.end();
        if let Line::Open { welcomed_us, .. } = &mut self.line {
            welcomed_us.get_or_insert(now_us);
        }
    }

    /// Returns the reason to give the connection up, if it did not open in time or was silent for too long. Call it
    /// often, after all input has been handled. The answer to the greeting always has a time limit; later silence
    /// counts only if `awaited` is true.
    pub(super) fn given_up(&mut self, now_us: u64, awaited: bool) -> Option<String> {
        match &mut self.line {
            Line::Down { .. } => None,
            Line::Opening { silence } => {
                let late = silence.look(now_us) >= OPEN_US_MAX;
                late.then(|| format!("no connection within {} s", OPEN_US_MAX / 1_000_000))
            }
            Line::Open { answered: true, silence, .. } if !awaited => {
                silence.forgive(now_us);
                None
            }
            Line::Open { silence, .. } => {
                let lost = silence.look(now_us) >= self.patience.us();
                lost.then(|| format!("nothing was heard for {} s", self.patience.lose()))
            }
        }
    }

    /// Returns true if the silence is long enough that an owner in a [hurry](Self::hurry) should reconnect.
    pub(super) fn is_doubtful(&self, now_us: u64) -> bool {
        let Line::Open { silence, .. } = &self.line else { return false };
        silence.lasts_us(now_us) > self.patience.hurry_us()
    }

    /// Ends the connection, if there is one, and returns the wait before the next attempt, in milliseconds. A wait that
    /// the syncer asked for comes first, but an owner in a [hurry](Self::hurry) may ask again. Otherwise the wait is
    /// that of [`Backoff::next_ms_within`]. While the syncer is expected back soon, it is at most
    /// [`FRESH_WAIT_MS_MAX`], because a refused connection then means only that the syncer is not back yet.
    pub(super) fn end(&mut self, now_us: u64, ending: &Ending<'_>) -> Option<u64> {
        let healthy_ms = match self.line {
            Line::Down { .. } => return None,
            Line::Opening { .. } => 0,
            Line::Open { welcomed_us: None, .. } => 0,
            // Silence at the end of a connection does not count as connection time.
            Line::Open { welcomed_us: Some(from_us), ref silence, .. } => {
                let held_ms = silence.heard_us().saturating_sub(from_us) / 1_000;
                if held_ms >= FRESH_MIN_MS {
                    self.fresh_until_us = silence.heard_us().saturating_add(FRESH_US);
                }
                held_ms
            }
        };
        let ms_max = if now_us < self.fresh_until_us { FRESH_WAIT_MS_MAX } else { u64::MAX };
        let retry_ms = match self.not_before_us.saturating_sub(now_us).div_ceil(1_000) {
            0 if ending.wait_ms > 0 => u64::from(ending.wait_ms),
            0 => self.backoff.next_ms_within(healthy_ms, ms_max),
            postponed_ms => postponed_ms.max(ending.wait_ms.into()),
        };
        self.line = Line::Down { retry_us: now_us.saturating_add(retry_ms * 1_000) };
        self.absence.excuse(ending.reason, ending.code);
        self.absence.begin(now_us, ending.wait_ms);
        Some(retry_ms)
    }

    /// Postpones the next attempt to `at_us` at the earliest, for a reason outside the connection.
    pub(super) fn postpone(&mut self, at_us: u64) {
        self.not_before_us = at_us;
        if let Line::Down { retry_us } = &mut self.line {
            *retry_us = at_us.max(*retry_us);
        }
    }

    /// Moves the next attempt to the earliest permitted time.
    pub(super) fn hurry(&mut self, now_us: u64) {
        if let Line::Down { retry_us } = &mut self.line {
            *retry_us = now_us.max(self.not_before_us).min(*retry_us);
        }
    }

    /// Returns true if messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.line, Line::Open { .. })
    }

    /// Returns true if no connection is open or being opened.
    pub(super) fn is_down(&self) -> bool {
        matches!(self.line, Line::Down { .. })
    }

    /// Returns the length of the absence in milliseconds and its reason, if it exceeds the limit.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        self.absence.too_long(now_us)
    }

    /// Returns the reason and the time of the next attempt, if contact was lost.
    pub(super) fn offline(&self, now_us: u64) -> Option<Offline<'_>> {
        let retry_us = match self.line {
            Line::Down { retry_us } => retry_us,
            Line::Opening { .. } | Line::Open { .. } => 0,
        };
        self.absence.offline(retry_us.saturating_sub(now_us).div_ceil(1_000))
    }

    /// Returns the time of the next call to [`Self::connect`], [`Self::given_up`] and [`Self::too_long`], in
    /// microseconds.
    pub(super) fn deadline(&self, awaited: bool) -> Option<u64> {
        let line_us = match &self.line {
            Line::Down { retry_us } => Some(*retry_us),
            Line::Opening { silence } => Some(silence.look_at_us(OPEN_US_MAX)),
            Line::Open { answered: true, .. } if !awaited => None,
            Line::Open { silence, .. } => Some(silence.look_at_us(self.patience.us())),
        };
        line_us.into_iter().chain(self.absence.deadline()).min()
    }
}

#[cfg(test)]
mod tests;
