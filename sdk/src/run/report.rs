//! Report of a session's state.

use super::event::{Doing, Offline, Report};
use super::session::Session;
use archipelago_core::driver::Phase;
use archipelago_core::wire::{FragmentId, LearnerState};
use archipelago_runtime::engine::Engine;

impl<E: Engine, B, O> Session<'_, E, B, O> {
    /// Returns a report; `doing` replaces the activity known to the core.
    pub(super) fn report(&mut self, doing: Option<Doing>) -> Report {
        let now_us = self.clock.now_us();
        let bytes = self.link.bytes();
        let doing = doing.unwrap_or_else(|| match self.member.state() {
            _ if self.member.phase() == Phase::Greeting => Doing::Connecting,
            LearnerState::Joining => Doing::Joining,
            LearnerState::Starved => Doing::Starved,
            LearnerState::Held => Doing::Held,
            LearnerState::Paused => Doing::Paused,
            LearnerState::Training | LearnerState::Hidden => Doing::Training,
        });
        let offline = self.member.offline(now_us).map(|offline| Offline {
            reason: offline.reason.to_owned(),
            code: offline.code.map(u16::from),
            retry_ms: offline.retry_ms,
        });
        let (frozen_bytes, frozen_bytes_total) = match (&self.gathering, &self.weights) {
            (Some(gathering), _) => gathering.progress(),
            (None, Some(weights)) => (weights.bytes(), weights.bytes()),
            (None, None) => (0, 0),
        };
        let unsettled = self.part.as_ref().map_or(0.0, |part| {
            let tokens = (0..).map(FragmentId).zip(self.member.tokens_unsettled());
            tokens.map(|(fragment, tokens)| tokens as f64 * part.share(fragment)).sum()
        });
        Report {
            elapsed_ms: now_us / 1_000,
            doing,
            offline,
            share: self.member.share().ratio(),
            steps: self.meter.steps,
            tokens_trained: self.meter.tokens,
            tokens_merged: self.tally.tokens_merged.round() as u64,
            tokens_unsettled: unsettled.round() as u64,
            updates_merged: self.tally.updates_merged,
            updates_late: self.tally.updates_late,
            updates_refused: self.tally.updates_refused,
            clock_tokens: self.member.clock_tokens(),
            loss: self.meter.take_loss(),
            learning_rate: self.tally.learning_rate,
            tokens_per_s: self.meter.tokens_per_s(now_us),
            step_ms: self.meter.step_us as f32 / 1e3,
            sync_ratio: self.meter.sync_ratio(),
            train_ms: self.meter.train_us / 1_000,
            exchange_ms: self.meter.exchange_us / 1_000,
            starved_ms: self.meter.starved_us / 1_000,
            sent_bytes: bytes.sent,
            received_bytes: bytes.received,
            fetched_bytes: self.downloads.bytes(),
            frozen_bytes,
            frozen_bytes_total,
        }
    }
}
