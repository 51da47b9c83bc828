//! How long a learner has been without its syncer, and for how long that is borne.

use super::MemberConfig;
use crate::wire::CloseCode;

/// Why there is no contact with the syncer, and when the next attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offline<'a> {
    /// Why, in words.
    pub reason: &'a str,
    /// Why, as a number, if the syncer gave one.
    pub code: Option<CloseCode>,
    /// Time until the next attempt, in milliseconds; 0 while one is under way.
    pub retry_ms: u64,
}

/// The time since a learner was last taken in, or since it began.
#[derive(Debug)]
pub(super) struct Absence {
    /// In microseconds; later than now while the syncer has it stay away, `None` while it is taken in.
    since_us: Option<u64>,
    /// The longest that is borne now, in milliseconds; `None` if any is.
    ms_max: Option<u64>,
    /// The longest that is borne once it was taken in.
    again_ms_max: Option<u64>,
    reason: String,
    code: Option<CloseCode>,
}

impl Absence {
    /// From the beginning of time on.
    pub(super) fn new(config: &MemberConfig) -> Self {
        let MemberConfig { contact_ms_max, reconnect_ms_max, .. } = *config;
        let (since_us, reason) = (Some(0), String::new());
        Self { since_us, ms_max: contact_ms_max, again_ms_max: reconnect_ms_max, reason, code: None }
    }

    /// It is taken in.
    pub(super) fn end(&mut self) {
        self.since_us = None;
        self.ms_max = self.again_ms_max;
    }

    /// It is without contact from now on, if it is not so already. A syncer that asks to be left alone for `wait_ms` is
    /// there: only after that is it missed.
    pub(super) fn begin(&mut self, now_us: u64, wait_ms: u32) {
        match wait_ms {
            0 => _ = self.since_us.get_or_insert(now_us),
            _ => self.since_us = Some(now_us.saturating_add(u64::from(wait_ms) * 1_000)),
        }
    }

    /// What the last connection ended with; nothing while one stands.
    pub(super) fn excuse(&mut self, reason: &str, code: Option<CloseCode>) {
        reason.clone_into(&mut self.reason);
        self.code = code;
    }

    /// How long it lasts, in milliseconds, and why, if that is too long.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        let waited_ms = now_us.saturating_sub(self.since_us?) / 1_000;
        let reason = if self.reason.is_empty() { "no answer" } else { &self.reason };
        (waited_ms >= self.ms_max?).then(|| (waited_ms, reason.to_owned()))
    }

    /// What is known of it, if a connection was lost and the learner is not taken in again.
    pub(super) fn offline(&self, retry_ms: u64) -> Option<Offline<'_>> {
        self.since_us.filter(|_| !self.reason.is_empty())?;
        Some(Offline { reason: &self.reason, code: self.code, retry_ms })
    }

    /// When it is too long, in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.since_us?.saturating_add(self.ms_max?.saturating_mul(1_000)))
    }
}
