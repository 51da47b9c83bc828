//! Downloads that fail although the connection stands, as behind a proxy that lets only one of the two through.

use super::MemberConfig;

/// The time since downloads began to fail one after the other, while the member has not all that it trains with.
#[derive(Debug)]
pub(super) struct Stall {
    /// In microseconds; `None` while nothing fails.
    since_us: Option<u64>,
    /// Why the last one failed.
    reason: String,
    /// The longest stall that is borne now, in milliseconds; `None` if any is.
    ms_max: Option<u64>,
    /// The longest that is borne once the member has trained.
    again_ms_max: Option<u64>,
}

impl Stall {
    pub(super) fn new(config: &MemberConfig) -> Self {
        let MemberConfig { contact_ms_max, reconnect_ms_max, .. } = *config;
        Self { since_us: None, reason: String::new(), ms_max: contact_ms_max, again_ms_max: reconnect_ms_max }
    }

    /// A download failed, and nothing of it came.
    pub(super) fn begin(&mut self, now_us: u64, reason: &str) {
        self.since_us.get_or_insert(now_us);
        reason.clone_into(&mut self.reason);
    }

    /// Something came. A lost connection ends no stall: the next one may bring nothing either.
    pub(super) fn end(&mut self) {
        self.since_us = None;
    }

    /// The member has all that it trains with.
    pub(super) fn complete(&mut self) {
        self.end();
        self.ms_max = self.again_ms_max;
    }

    /// Why downloads fail, if they do.
    pub(super) fn reason(&self) -> Option<&str> {
        self.since_us.map(|_| &*self.reason)
    }

    /// How long it lasts, in milliseconds, and why, if that is too long.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        let waited_ms = now_us.saturating_sub(self.since_us?) / 1_000;
        (waited_ms >= self.ms_max?).then(|| (waited_ms, self.reason.clone()))
    }

    /// When it is too long, in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.since_us?.saturating_add(self.ms_max?.saturating_mul(1_000)))
    }
}
