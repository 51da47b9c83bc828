//! What a learner knows of one fragment.

use std::collections::VecDeque;

use crate::wire::{ApplyPolicy, Fate, Merged, Millis, Round, Version};

/// Merged changes kept while Θ̂ is being fetched; after more of them it is fetched again.
const QUEUE_MAX: usize = 8;

/// One fragment, from the learner's side.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Of the Θ̂ held; `None` until one is.
    pub(super) version: Option<Version>,
    /// Steps and tokens since the position that was last merged: what the next update reports.
    steps: u32,
    tokens: u64,
    /// The update that was coded last, until its fate is sealed by a new version.
    sent: Option<Sent>,
    /// A `Collect` that came ahead of the version it asks about.
    pub(super) deferred: Option<(Round, Version)>,
    pub(super) fetch: Fetch,
    queue: VecDeque<Merged>,
}

/// Whether a fetch of Θ̂ is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fetch {
    #[default]
    Idle,
    /// Asked for this version.
    Running(Version),
    /// Failed; ask again then.
    RetryAt(Version, Millis),
}

#[derive(Debug)]
struct Sent {
    round: Round,
    steps: u32,
    tokens: u64,
    /// The version that it became part of, once a receipt or a `Welcome` says so.
    merged: Option<Version>,
}

impl Track {
    /// A fragment to be fetched at once.
    pub(super) fn wanting(version: Version, now: Millis) -> Self {
        Self { fetch: Fetch::RetryAt(version, now), ..Self::default() }
    }

    pub(super) fn step(&mut self, tokens: u64) {
        self.steps = self.steps.saturating_add(1);
        self.tokens = self.tokens.saturating_add(tokens);
    }

    pub(super) fn has_progress(&self) -> bool {
        self.steps > 0 && self.tokens > 0
    }

    /// The progress so far is being coded for `round`.
    pub(super) fn send(&mut self, round: Round) {
        self.sent = Some(Sent { round, steps: self.steps, tokens: self.tokens, merged: None });
    }

    /// Steps and tokens of the update for `round`.
    pub(super) fn sent(&self, round: Round) -> Option<(u32, u64)> {
        self.sent.as_ref().filter(|sent| sent.round == round).map(|sent| (sent.steps, sent.tokens))
    }

    pub(super) fn receipt(&mut self, round: Round, fate: &Fate) {
        if let (Some(sent), Fate::Merged { version, .. }) = (&mut self.sent, fate)
            && sent.round == round
        {
            sent.merged = Some(*version);
        }
    }

    /// What a `Welcome` says of the time without a connection: the syncer's version now, and the last
    /// round in which this learner was merged. True if Θ̂ must be fetched.
    pub(super) fn welcome(&mut self, version: Version, merged_round: Option<Round>) -> bool {
        self.deferred = None;
        self.queue.clear();
        self.fetch = Fetch::Idle;
        let current = self.version == Some(version);
        match &mut self.sent {
            Some(sent) if Some(sent.round) == merged_round => sent.merged = Some(version),
            // Its round may still be collecting or merging: a receipt or the next version tells. A receipt of before is
            // of a version that the syncer no longer knows of: it was lost with it.
            Some(sent) if current => sent.merged = None,
            sent => *sent = None,
        }
        !current
    }

    /// Whether the update coded last is part of `version`; from here on its fate is sealed.
    ///
    /// What it reported is then no longer to be reported. A policy that drops local progress drops
    /// its tokens too: they are trained, never merged.
    pub(super) fn advance(&mut self, version: Version, policy: ApplyPolicy) -> bool {
        self.version = Some(version);
        let merged = self.sent.as_ref().and_then(|sent| sent.merged).is_some_and(|merged| merged <= version);
        let sealed = self.sent.take_if(|sent| sent.merged.is_none_or(|merged| merged <= version));
        if let Some(sent) = sealed.filter(|_| merged) {
            self.steps -= sent.steps.min(self.steps);
            self.tokens -= sent.tokens.min(self.tokens);
        }
        match policy {
            ApplyPolicy::Keep { .. } => {}
            ApplyPolicy::Overwrite => (self.steps, self.tokens) = (0, 0),
            ApplyPolicy::Blend { alpha } => {
                self.steps = (f64::from(self.steps) * f64::from(alpha)).ceil() as u32;
                self.tokens = (self.tokens as f64 * f64::from(alpha)).ceil() as u64;
            }
        }
        merged
    }

    /// Keeps `merged` until Θ̂ is there.
    pub(super) fn queue(&mut self, merged: Merged) {
        if self.queue.len() == QUEUE_MAX {
            self.queue.clear();
        }
        self.queue.push_back(merged);
    }

    /// The queued change that follows the version held, if there is one.
    pub(super) fn next_queued(&mut self) -> Option<Merged> {
        let version = self.version?;
        while let Some(merged) = self.queue.pop_front() {
            if merged.base == version {
                return Some(merged);
            }
            if merged.version > version {
                self.queue.push_front(merged);
                return None;
            }
        }
        None
    }

    /// A version that the queue says exists but that cannot be reached through it.
    pub(super) fn gap(&self) -> Option<Version> {
        self.queue.back().map(|merged| merged.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: ApplyPolicy = ApplyPolicy::Keep { residue: true };

    /// One at version 1 that has sent three steps for round 2 and heard that they are merged.
    fn merged_in_round_2() -> Track {
        let mut track = Track { version: Some(Version(1)), ..Track::default() };
        (0..3).for_each(|_| track.step(10));
        track.send(Round(2));
        track.receipt(Round(2), &Fate::Merged { version: Version(2), weight: 1.0, tokens: 30 });
        track
    }

    #[test]
    fn what_is_merged_is_not_reported_again() {
        let mut track = merged_in_round_2();
        assert!(track.advance(Version(2), KEEP));
        assert!(!track.has_progress());
    }

    /// Goal: a syncer that crashed after the receipt, and knows only what was before, costs no progress.
    #[test]
    fn what_was_merged_by_a_syncer_that_forgot_it_is_reported_again() {
        let mut track = merged_in_round_2();
        assert!(!track.welcome(Version(1), None), "it holds what the syncer has");
        assert!(!track.advance(Version(1 << 32), KEEP), "a version of others");
        assert!(track.has_progress());
    }
}
