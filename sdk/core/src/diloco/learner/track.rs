//! What a learner knows of one fragment.

use std::collections::VecDeque;

use crate::wire::{ApplyPolicy, Fate, Merged, Millis, Serial, Version};

/// Changes kept while Θ̂ is being fetched; after more of them it is fetched again. A syncer stops sending long before,
/// since nothing of it is confirmed meanwhile.
const QUEUE_MAX: usize = 64;

/// One fragment, from the learner's side.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Of the Θ̂ held; `None` until one is.
    pub(super) version: Option<Version>,
    /// What its digest has to be, by the word of the syncer.
    digest: u64,
    /// The engine holds something else: it is fetched anew.
    pub(super) has_drifted: bool,
    /// Steps and tokens since the position that was last merged: what the next update reports.
    steps: u32,
    tokens: u64,
    /// Of these tokens, those that went through each expert of the fragment; empty where the engine tells nothing.
    seen: Vec<u64>,
    /// The update that has no fate yet, or whose version is still to come.
    pub(super) sent: Option<Sent>,
    pub(super) fetch: Fetch,
    /// Consecutive failed fetches.
    pub(super) failures: u32,
    queue: VecDeque<Merged>,
}

/// Whether a fetch of Θ̂ is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fetch {
    #[default]
    Idle,
    /// Asked for this version, at that moment.
    Running(Version, Millis),
    /// To be asked for, not before then.
    DueAt(Version, Millis),
}

/// An update from the moment in which it was coded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) serial: Serial,
    pub(super) base: Version,
    /// Of the Θ̂ that it is relative to.
    pub(super) digest: u64,
    pub(super) steps: u32,
    pub(super) tokens: u64,
    pub(super) seen: Vec<u64>,
    pub(super) stage: Stage,
}

/// How far an update is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The engine codes it.
    Coding,
    /// On its way since then.
    Out(Millis),
    /// The syncer has it.
    Arrived,
    /// It is part of this version.
    Merged(Version),
}

impl Track {
    /// A fragment to be fetched at once.
    pub(super) fn wanting(version: Version, now: Millis) -> Self {
        Self { fetch: Fetch::DueAt(version, now), ..Self::default() }
    }

    pub(super) fn step(&mut self, tokens: u64) {
        self.steps = self.steps.saturating_add(1);
        self.tokens = self.tokens.saturating_add(tokens);
    }

    /// Takes in how many tokens of the steps so far went through each expert of the fragment.
    pub(super) fn saw(&mut self, seen: impl ExactSizeIterator<Item = u64>) {
        self.seen.resize(seen.len(), 0);
        self.seen.iter_mut().zip(seen).for_each(|(sum, seen)| *sum = sum.saturating_add(seen));
    }

    pub(super) fn has_progress(&self) -> bool {
        self.steps > 0 && self.tokens > 0
    }

    /// The progress so far, which is since `base`, is being coded.
    pub(super) fn code(&mut self, serial: Serial, base: Version) {
        let (digest, steps, tokens) = (self.digest, self.steps, self.tokens);
        let seen = self.seen.clone();
        self.sent = Some(Sent { serial, base, digest, steps, tokens, seen, stage: Stage::Coding });
    }

    /// The update with this serial, if it is the one that has no fate yet.
    pub(super) fn sent(&mut self, serial: Serial) -> Option<&mut Sent> {
        self.sent.as_mut().filter(|sent| sent.serial == serial)
    }

    /// Whether it has an update between its engine and the syncer.
    pub(super) fn is_under_way(&self) -> bool {
        let stage = self.sent.as_ref().map(|sent| sent.stage);
        matches!(stage, Some(Stage::Coding | Stage::Out(_)))
    }

    /// Whether the syncer has an update that has no fate yet.
    pub(super) fn has_arrived(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.stage == Stage::Arrived)
    }

    /// Tokens of the update that the syncer has and that has no fate yet; 0 without one.
    pub(super) fn tokens_unsettled(&self) -> u64 {
        self.sent.as_ref().filter(|sent| sent.stage == Stage::Arrived).map_or(0, |sent| sent.tokens)
    }

    /// Takes in what became of an update.
    pub(super) fn receipt(&mut self, serial: Serial, fate: &Fate) {
        let Some(sent) = self.sent(serial) else { return };
        match fate {
            Fate::Merged { version, .. } => sent.stage = Stage::Merged(*version),
            Fate::Late(_) | Fate::Refused(_) => self.sent = None,
        }
    }

    /// What a `Welcome` says of the time without a connection: which update was merged last, and which one the syncer
    /// has and has not settled. Any other that went out is lost, and so is what a syncer once merged that no longer
    /// knows of it.
    pub(super) fn welcome(&mut self, version: Version, merged: Option<Serial>, unsettled: Option<Serial>) {
        self.queue.clear();
        // A new connection does not reset the count of failures: one that keeps breaking must not defeat the backoff.
        self.fetch = Fetch::Idle;
        let Some(sent) = &mut self.sent else { return };
        if merged == Some(sent.serial) {
            sent.stage = Stage::Merged(version);
        } else if unsettled == Some(sent.serial) {
            sent.stage = Stage::Arrived;
        } else if sent.stage != Stage::Coding {
            self.sent = None;
        }
    }

    /// Whether the update that was sent last is part of the version held, or of `coming`: what it reported is then no
    /// longer to be reported.
    pub(super) fn include(&mut self, coming: Option<Version>) -> bool {
        let held = coming.or(self.version);
        let is_in = |sent: &Sent| matches!(sent.stage, Stage::Merged(version) if Some(version) <= held);
        let Some(sent) = self.sent.take_if(|sent| is_in(sent)) else { return false };
        self.steps -= sent.steps.min(self.steps);
        self.tokens -= sent.tokens.min(self.tokens);
        self.seen.iter_mut().zip(sent.seen).for_each(|(seen, sent)| *seen = seen.saturating_sub(sent));
        true
    }

    /// What the engine holds is not what `version` names: Θ̂ is to be fetched, and nothing goes out before.
    pub(super) fn drift(&mut self, now: Millis) {
        (self.sent, self.has_drifted) = (None, true);
        if let Some(version) = self.version.filter(|_| self.fetch == Fetch::Idle) {
            self.fetch = Fetch::DueAt(version, now);
        }
    }

    /// Takes in that `version` is held from now on, with this digest.
    ///
    /// A policy that drops local progress drops its tokens too: they are trained, never merged.
    pub(super) fn advance(&mut self, version: Version, digest: u64, policy: ApplyPolicy) {
        (self.version, self.digest) = (Some(version), digest);
        match policy {
            ApplyPolicy::Keep { .. } => {}
            ApplyPolicy::Overwrite => {
                (self.steps, self.tokens) = (0, 0);
                self.seen.fill(0);
            }
            ApplyPolicy::Blend { alpha } => {
                self.steps = (f64::from(self.steps) * f64::from(alpha)).ceil() as u32;
                let part = |tokens: u64| (tokens as f64 * f64::from(alpha)).ceil() as u64;
                self.tokens = part(self.tokens);
                self.seen.iter_mut().for_each(|seen| *seen = part(*seen));
            }
        }
    }

    /// Keeps `merged` until Θ̂ is there.
    pub(super) fn queue(&mut self, merged: Merged) {
        if self.queue.len() == QUEUE_MAX {
            self.queue.clear();
        }
        self.queue.push_back(merged);
    }

    /// The queued change that follows the version held, if there is one. What is as old as that is forgotten.
    pub(super) fn next_queued(&mut self) -> Option<Merged> {
        let version = self.version?;
        self.queue.retain(|merged| merged.version > version);
        let next = self.queue.iter().position(|merged| merged.base == version)?;
        self.queue.remove(next)
    }

    /// A version that the queue says exists but that cannot be reached through it.
    pub(super) fn gap(&self) -> Option<Version> {
        let newest = self.queue.iter().map(|merged| merged.version).max();
        newest.filter(|newest| self.version.is_none_or(|held| held < *newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FragmentId, RunId};

    const KEEP: ApplyPolicy = ApplyPolicy::Keep { residue: true };

    /// One at version 1 that has sent three steps and heard that they are part of version 2.
    fn merged_into_2() -> Track {
        let mut track = Track { version: Some(Version(1)), ..Track::default() };
        (0..3).for_each(|_| track.step(10));
        track.code(Serial(7), Version(1));
        track.receipt(Serial(7), &Fate::Merged { version: Version(2), weight: 1.0, tokens: 30 });
        track
    }

    #[test]
    fn what_is_merged_is_not_reported_again() {
        let mut track = merged_into_2();
        assert!(!track.include(None), "the version that holds it is not there yet");
        assert!(track.include(Some(Version(2))));
        track.advance(Version(2), 0, KEEP);
        assert!(!track.has_progress() && !track.include(None), "it counts once");
    }

    /// Goal: what went through an expert is told with the update that holds it, and once.
    #[test]
    fn what_experts_saw_is_reported_with_its_steps() {
        let mut track = Track { version: Some(Version(1)), ..Track::default() };
        track.step(10);
        track.saw([4, 0].into_iter());
        track.code(Serial(7), Version(1));
        track.step(10);
        track.saw([1, 5].into_iter());
        assert_eq!(track.sent(Serial(7)).unwrap().seen, [4, 0]);
        track.receipt(Serial(7), &Fate::Merged { version: Version(2), weight: 1.0, tokens: 10 });
        assert!(track.include(Some(Version(2))));
        assert_eq!(track.seen, [1, 5]);
        track.advance(Version(2), 0, ApplyPolicy::Overwrite);
        assert_eq!(track.seen, [0, 0]);
    }

    /// Goal: a version of others that comes in between neither counts nor forgets what is still on its way.
    #[test]
    fn what_is_under_way_outlives_the_versions_of_others() {
        let mut track = merged_into_2();
        track.sent = Some(Sent { stage: Stage::Arrived, ..track.sent.unwrap() });
        for version in [2, 3] {
            assert!(!track.include(Some(Version(version))));
            track.advance(Version(version), 0, KEEP);
        }
        track.receipt(Serial(7), &Fate::Merged { version: Version(3), weight: 1.0, tokens: 30 });
        assert!(track.include(None), "its receipt came after the version, as it does when that was fetched");
        assert!(!track.has_progress());
    }

    /// Goal: a syncer that crashed after the receipt, and knows only what was before, costs no progress.
    #[test]
    fn what_was_merged_by_a_syncer_that_forgot_it_is_reported_again() {
        let mut track = merged_into_2();
        track.welcome(Version(1), None, None);
        assert!(!track.include(Some(Version(1 << 32))), "a version of others");
        assert!(track.has_progress() && track.sent.is_none());
    }

    /// Goal: changes may come in any order, some of them for nothing; what is held is no gap.
    #[test]
    fn changes_are_taken_in_their_order_and_a_gap_is_ahead() {
        let change = |base: u64, version: u64| Merged {
            run: RunId(1),
            fragment: FragmentId(0),
            base: Version(base),
            version: Version(version),
            clock_tokens: 0,
            body: Vec::new(),
            checksum: 0,
            digest: 0,
        };
        let mut track = Track { version: Some(Version(5)), ..Track::default() };
        for (base, version) in [(9, 10), (2, 3), (6, 7), (5, 6)] {
            track.queue(change(base, version));
        }
        for version in [6, 7] {
            assert_eq!(track.next_queued().map(|merged| merged.version), Some(Version(version)));
            track.advance(Version(version), 0, KEEP);
        }
        assert_eq!((track.next_queued(), track.gap()), (None, Some(Version(10))));
        track.advance(Version(10), 0, KEEP);
        assert_eq!(track.gap(), None, "it is held");
    }

    #[test]
    fn a_welcome_settles_what_a_lost_connection_left_open() {
        let check = |merged, unsettled, expected: Option<Stage>| {
            let mut track = merged_into_2();
            track.sent = Some(Sent { stage: Stage::Out(Millis(1)), ..track.sent.unwrap() });
            track.welcome(Version(5), merged, unsettled);
            assert_eq!(track.sent.map(|sent| sent.stage), expected, "{merged:?} {unsettled:?}");
        };
        check(Some(Serial(7)), None, Some(Stage::Merged(Version(5))));
        check(Some(Serial(6)), Some(Serial(7)), Some(Stage::Arrived));
        check(Some(Serial(6)), None, None);
    }
}
