//! The connection to the syncer: when to make it, when to give it up, and when to try again.

use super::absence::Absence;
use super::backoff::Backoff;
use super::silence::{Patience, Silence};
use super::{MemberConfig, Offline};
use crate::rng;
use crate::wire::CloseCode;

/// Time for a connection to open, in microseconds.
const OPEN_US_MAX: u64 = 10_000_000;
/// A syncer that took this learner in for at least half a second is thought to be back soon for so long after it was
/// heard last, in microseconds.
const FRESH_US: u64 = 10_000_000;
const FRESH_MIN_MS: u64 = 500;
/// Longest wait before the next attempt meanwhile, in milliseconds: long enough that 1,000 learners together try no
/// more than 1,400 times in a second, short enough that a restart costs none of them more than a second.
const FRESH_WAIT_MS_MAX: u64 = 1_000;

/// How a connection ended.
#[derive(Debug, Default)]
pub(super) struct Ending<'a> {
    /// In words.
    pub(super) reason: &'a str,
    /// As a number, if the syncer gave one.
    pub(super) code: Option<CloseCode>,
    /// Time that the syncer asks to be left alone for, in milliseconds; 0 if it does not.
    pub(super) wait_ms: u32,
}

/// One connection after another to the same syncer.
#[derive(Debug)]
pub(super) struct Contact {
    line: Line,
    backoff: Backoff,
    patience: Patience,
    /// No attempt is made before, in microseconds.
    not_before_us: u64,
    /// The syncer is thought to be back soon until then, in microseconds.
    fresh_until_us: u64,
    absence: Absence,
}

#[derive(Debug)]
enum Line {
    /// There is none; the next is tried then.
    Down { retry_us: u64 },
    /// It is being made.
    Opening { silence: Silence },
    /// It stands; `answered` once a message came in, `welcomed_us` once the syncer took this learner in.
    Open { welcomed_us: Option<u64>, answered: bool, silence: Silence },
}

impl Contact {
    /// One that may connect at once.
    pub(super) fn new(config: &MemberConfig, seed: u64) -> Self {
        Self {
            line: Line::Down { retry_us: 0 },
            backoff: Backoff::new(config.waits.backoff, rng::key(&[seed, 0])),
            patience: Patience::new(config.waits.patience),
            not_before_us: 0,
            fresh_until_us: 0,
            absence: Absence::new(config),
        }
    }

    /// Begins to connect if it is time; says whether it does.
    pub(super) fn connect(&mut self, now_us: u64) -> bool {
        let due = matches!(self.line, Line::Down { retry_us } if retry_us <= now_us);
        if due {
            self.line = Line::Opening { silence: Silence::new(now_us) };
        }
        due
    }

    /// The connection that was being made stands.
    pub(super) fn opened(&mut self, now_us: u64) {
        self.absence.excuse("", None);
        self.patience.watch();
        self.line = Line::Open { welcomed_us: None, answered: false, silence: Silence::new(now_us) };
    }

    /// Something came.
    pub(super) fn heard(&mut self, now_us: u64) {
        if let Line::Opening { silence } | Line::Open { silence, .. } = &mut self.line {
            self.patience.relieve(silence.look(now_us));
            silence.end(now_us);
        }
    }

    /// A message came.
    pub(super) fn answered(&mut self, now_us: u64) {
        self.heard(now_us);
        if let Line::Open { answered, .. } = &mut self.line {
            *answered = true;
        }
    }

    /// The syncer took this learner in.
    pub(super) fn welcomed(&mut self, now_us: u64) {
        self.absence.end();
        if let Line::Open { welcomed_us, .. } = &mut self.line {
            welcomed_us.get_or_insert(now_us);
        }
    }

    /// Why the connection is of no more use, if it has not opened or nothing has come for too long; to be called often,
    /// after what came was taken in. An answer to the greeting is always awaited; after it, silence counts only if
    /// `awaited` says so.
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

    /// Whether nothing has come for so long that an owner in a [hurry](Self::hurry) had better begin anew.
    pub(super) fn is_doubtful(&self, now_us: u64) -> bool {
        let Line::Open { silence, .. } = &self.line else { return false };
        silence.lasts_us(now_us) > self.patience.hurry_us()
    }

    /// The connection is over, if there was one: plans the next, and says in how many milliseconds. What the syncer
    /// asks for comes before our own plans, but an owner in a [hurry](Self::hurry) may ask it again. Otherwise the wait
    /// is that of [`Backoff::next_ms_within`], of at most [`FRESH_WAIT_MS_MAX`] while the syncer is thought to be back
    /// soon: a refused connection then says only that it is not yet.
    pub(super) fn end(&mut self, now_us: u64, ending: &Ending<'_>) -> Option<u64> {
        let healthy_ms = match self.line {
            Line::Down { .. } => return None,
            Line::Opening { .. } => 0,
            Line::Open { welcomed_us: None, .. } => 0,
            // Silence at its end proves nothing.
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

    /// The next attempt is not before `at_us`, for reasons that are none of the connection's.
    pub(super) fn postpone(&mut self, at_us: u64) {
        self.not_before_us = at_us;
        if let Line::Down { retry_us } = &mut self.line {
            *retry_us = at_us.max(*retry_us);
        }
    }

    /// The next attempt is as soon as nothing else forbids it.
    pub(super) fn hurry(&mut self, now_us: u64) {
        if let Line::Down { retry_us } = &mut self.line {
            *retry_us = now_us.max(self.not_before_us).min(*retry_us);
        }
    }

    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.line, Line::Open { .. })
    }

    /// Whether there is no connection, and none is being made.
    pub(super) fn is_down(&self) -> bool {
        matches!(self.line, Line::Down { .. })
    }

    /// How long it was without contact, in milliseconds, and why, if that is too long.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        self.absence.too_long(now_us)
    }

    /// Why there is no contact, and when the next attempt is, if it was lost.
    pub(super) fn offline(&self, now_us: u64) -> Option<Offline<'_>> {
        let retry_us = match self.line {
            Line::Down { retry_us } => retry_us,
            Line::Opening { .. } | Line::Open { .. } => 0,
        };
        self.absence.offline(retry_us.saturating_sub(now_us).div_ceil(1_000))
    }

    /// When [`Self::connect`], [`Self::given_up`] and [`Self::too_long`] have to be asked again, in microseconds.
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
