//! Stalls: downloads that fail although the WebSocket is connected. A proxy that blocks only downloads causes one.

use super::DriverConfig;

/// Consecutive failed downloads while the member lacks data for training.
#[derive(Debug)]
pub(super) struct Stall {
    /// Start of the stall, in microseconds. `None` while no download fails.
    since_us: Option<u64>,
    /// Reason of the last failure.
    reason: String,
    /// Time limit for a stall, in milliseconds. `None` sets no limit.
    ms_max: Option<u64>,
    /// Time limit for a stall once the member has trained.
    again_ms_max: Option<u64>,
}

impl Stall {
    pub(super) fn new(config: &DriverConfig) -> Self {
        let DriverConfig { contact_ms_max, reconnect_ms_max, .. } = *config;
        Self { since_us: None, reason: String::new(), ms_max: contact_ms_max, again_ms_max: reconnect_ms_max }
    }

    /// Begins or continues a stall: a download failed, and none of its bytes arrived.
    pub(super) fn begin(&mut self, now_us: u64, reason: &str) {
        self.since_us.get_or_insert(now_us);
        reason.clone_into(&mut self.reason);
    }

    /// Ends a stall, because bytes of a download arrived. A lost connection does not end it, since downloads may fail
    /// after the next one too.
    pub(super) fn end(&mut self) {
        self.since_us = None;
    }

    /// Ends a stall, because the member has all data for training.
    pub(super) fn complete(&mut self) {
        self.end();
        self.ms_max = self.again_ms_max;
    }

    /// Returns the reason for failing downloads, if any fail.
    pub(super) fn reason(&self) -> Option<&str> {
        self.since_us.map(|_| &*self.reason)
    }

    /// Returns the length of a stall in milliseconds and its reason, if it exceeds the limit.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        let waited_ms = now_us.saturating_sub(self.since_us?) / 1_000;
        (waited_ms >= self.ms_max?).then(|| (waited_ms, self.reason.clone()))
    }

    /// Returns the time at which a stall exceeds the limit, in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.since_us?.saturating_add(self.ms_max?.saturating_mul(1_000)))
    }
}
