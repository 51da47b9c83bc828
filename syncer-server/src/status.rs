//! What the server shows of a run: the core's status and what only the shell knows.

use std::collections::VecDeque;

use archipelago::diloco::syncer::{Event, Status};
use archipelago::diloco::{Decision, FragmentId, Millis, Round, Version};
use serde::{Deserialize, Serialize};

use crate::evaluate::History;
use crate::meters::Traffic;

/// What the server adds up over all its starts; kept in snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carried {
    /// What crossed the sockets.
    pub traffic: Traffic,
    /// Measurements of the held-out loss.
    pub history: History,
}

/// What never changes while the server runs.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// The preset's name.
    pub preset: String,
    /// Where the text is from.
    pub corpus: String,
    /// Tokens to train on.
    pub corpus_tokens: u64,
    /// Bytes of text behind one token, on average.
    pub bytes_per_token: f64,
    /// Loss in nats per token that no model can beat, where the text's source is known.
    pub entropy_floor: Option<f64>,
    /// Tokens at which the learning rate has come down.
    pub total_tokens: u64,
}

/// A run at one moment, as `/v1/status` and the last line of `--json` give it.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// What the core says.
    #[serde(flatten)]
    pub core: Status,
    /// What never changes.
    #[serde(flatten)]
    pub facts: Facts,
    /// What crossed the sockets.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Bits on the socket per parameter that went up.
    pub bits_per_param_up: Option<f64>,
    /// Bits on the socket per parameter that went down.
    pub bits_per_param_down: Option<f64>,
    /// Tokens that all learners trained on in a second, over the last [`RATE_WINDOW_MS`].
    pub tokens_per_s: f64,
    /// Held-out loss before training, in nats per token.
    pub val_loss_first: Option<f32>,
    /// Newest held-out loss, in nats per token.
    pub val_loss_last: Option<f32>,
    /// Measurements of the held-out loss.
    #[serde(flatten)]
    pub history: History,
    /// The last rounds, oldest first.
    pub rounds_recent: Vec<RoundReport>,
    /// Open sockets, with a learner behind them or not.
    pub sockets: u32,
    /// Time since the server started, in seconds.
    pub uptime_s: f64,
}

/// The time that a rate is measured over, in milliseconds.
pub const RATE_WINDOW_MS: u64 = 10_000;

/// Tokens per second over a sliding window.
#[derive(Debug, Default)]
pub struct Rate {
    samples: VecDeque<(Millis, u64)>,
}

impl Rate {
    /// Takes in the count at `now`.
    pub fn sample(&mut self, now: Millis, count: u64) {
        self.samples.push_back((now, count));
        // One sample at or before the window's start stays, to measure from.
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= RATE_WINDOW_MS) {
            self.samples.pop_front();
        }
    }

    /// Growth per second; 0 before two samples.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((from, before)), Some((to, after))) if to > from => {
                after.saturating_sub(*before) as f64 * 1e3 / to.since(*from) as f64
            }
            _ => 0.0,
        }
    }
}

/// One round as the events told it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundReport {
    /// The round.
    pub round: Round,
    /// Its fragment.
    pub fragment: FragmentId,
    /// Learners invited.
    pub invited: u32,
    /// The last decision about it.
    pub decision: Option<Decision>,
    /// What it led to.
    pub merged: Option<MergedReport>,
}

/// What a round led to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MergedReport {
    /// The version that resulted.
    pub version: Version,
    /// Updates in it.
    pub updates: u32,
    /// Tokens in it.
    pub tokens: u64,
    /// L2 norm of the merged delta.
    pub norm: f64,
    /// From launch to the end of collecting, in milliseconds.
    pub collect_ms: u64,
    /// From there to sending, in milliseconds.
    pub sync_ms: u64,
}

/// Rounds remembered.
const ROUNDS_KEPT: usize = 32;

/// The last rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    reports: VecDeque<RoundReport>,
}

impl Rounds {
    /// Takes in an event.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Launched { round, fragment, invited, .. } => {
                if self.reports.len() == ROUNDS_KEPT {
                    self.reports.pop_front();
                }
                let (round, fragment, invited) = (*round, *fragment, *invited);
                self.reports.push_back(RoundReport {
                    round,
                    fragment,
                    invited,
                    decision: None,
                    merged: None,
                });
            }
            Event::Decided { round, decision, .. } => {
                if let Some(report) = self.find(*round) {
                    report.decision = Some(*decision);
                }
            }
            Event::Merged { round, version, updates, tokens, norm, collect_ms, sync_ms, .. } => {
                let merged = MergedReport {
                    version: *version,
                    updates: *updates,
                    tokens: *tokens,
                    norm: *norm,
                    collect_ms: *collect_ms,
                    sync_ms: *sync_ms,
                };
                if let Some(report) = self.find(*round) {
                    report.merged = Some(merged);
                }
            }
            _ => {}
        }
    }

    /// The reports, oldest first.
    #[must_use]
    pub fn reports(&self) -> Vec<RoundReport> {
        self.reports.iter().cloned().collect()
    }

    fn find(&mut self, round: Round) -> Option<&mut RoundReport> {
        self.reports.iter_mut().rev().find(|report| report.round == round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_slides() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_s(), 0.0);
        for second in 0..=20 {
            // 100 a second, then 300 a second from second 10 on.
            let count = if second <= 10 { second * 100 } else { 1_000 + (second - 10) * 300 };
            rate.sample(Millis(second * 1_000), count);
        }
        assert_eq!(rate.per_s(), 300.0);
        assert!(rate.samples.len() <= 12);
    }
}
