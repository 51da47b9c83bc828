//! Time without contact to the syncer, and its limit.

use super::DriverConfig;
use crate::wire::CloseCode;

/// Reason for the lack of contact, and the time of the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offline<'a> {
    /// Reason in words.
    pub reason: &'a str,
    /// Reason as a number, if the syncer gave one.
    pub code: Option<CloseCode>,
    /// Time until the next attempt, in milliseconds; 0 while one is under way.
    pub retry_ms: u64,
}

/// Time since the learner was last admitted, or since its start.
#[derive(Debug)]
pub(super) struct Downtime {
    /// Start in microseconds. It lies in the future if the syncer told the learner to stay away; `None` while it is
    /// admitted.
    since_us: Option<u64>,
    /// Current limit in milliseconds; `None` sets no limit.
    ms_max: Option<u64>,
    /// Limit after the first admission.
    again_ms_max: Option<u64>,
    reason: String,
    code: Option<CloseCode>,
}

impl Downtime {
    /// Returns an absence since time 0.
    pub(super) fn new(config: &DriverConfig) -> Self {
        let DriverConfig { contact_ms_max, reconnect_ms_max, .. } = *config;
        let (since_us, reason) = (Some(0), String::new());
        Self { since_us, ms_max: contact_ms_max, again_ms_max: reconnect_ms_max, reason, code: None }
    }

    /// Ends the absence: the learner is admitted.
    pub(super) fn end(&mut self) {
        self.since_us = None;
        self.ms_max = self.again_ms_max;
    }

    /// Begins an absence, unless one lasts already. If the syncer told the learner to wait for `wait_ms`, the absence
    /// begins only after that time.
    pub(super) fn begin(&mut self, now_us: u64, wait_ms: u32) {
        match wait_ms {
            0 => _ = self.since_us.get_or_insert(now_us),
            _ => self.since_us = Some(now_us.saturating_add(u64::from(wait_ms) * 1_000)),
        }
    }

    /// Records the reason for the end of the last connection; empty while a connection is open.
    pub(super) fn excuse(&mut self, reason: &str, code: Option<CloseCode>) {
        reason.clone_into(&mut self.reason);
        self.code = code;
    }

    /// Returns the length of the absence in milliseconds and its reason, if it exceeds the limit.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        let waited_ms = now_us.saturating_sub(self.since_us?) / 1_000;
        let reason = if self.reason.is_empty() { "no answer" } else { &self.reason };
        (waited_ms >= self.ms_max?).then(|| (waited_ms, reason.to_owned()))
    }

    /// Returns the reason, if a connection was lost and the learner has not been admitted since.
    pub(super) fn offline(&self, retry_ms: u64) -> Option<Offline<'_>> {
        self.since_us.filter(|_| !self.reason.is_empty())?;
        Some(Offline { reason: &self.reason, code: self.code, retry_ms })
    }

    /// Returns the time at which the absence exceeds the limit, in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.since_us?.saturating_add(self.ms_max?.saturating_mul(1_000)))
    }
}
