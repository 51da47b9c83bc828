//! State of one fragment in a learner.

use std::collections::VecDeque;

use super::Step;
use crate::wire::{ApplyPolicy, Fate, LearnerState, Merged, Millis, Progress, RunId, Serial, Version};

/// Largest number of queued changes while Θ̂ is fetched; beyond it Θ̂ is fetched again. A syncer stops sending long
/// before, since none of them is confirmed meanwhile.
const QUEUE_MAX: usize = 64;

/// State of one fragment.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Version of the Θ̂ held; `None` until there is one.
    pub(super) version: Option<Version>,
    /// Expected digest of that Θ̂, according to the syncer.
    digest: u64,
    /// Whether the engine holds a different Θ̂, which must be fetched again.
    pub(super) has_drifted: bool,
    /// Steps and tokens since the last merged position; the next update reports them.
    steps: u32,
    tokens: u64,
    /// Part of these tokens that was routed to each expert of the fragment; empty if the engine does not report it.
    seen: Vec<u64>,
    /// Last update, until its fate is known and its version has arrived.
    pub(super) sent: Option<Sent>,
    pub(super) fetch: Fetch,
    /// Consecutive failed fetches.
    pub(super) failures: u32,
    queue: VecDeque<Merged>,
}

/// State of the fetch of Θ̂.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fetch {
    #[default]
    Idle,
    /// A fetch of this version began at that time.
    Running(Version, Millis),
    /// A fetch of this version may begin at that time.
    DueAt(Version, Millis),
}

/// An update, from the time of its coding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) serial: Serial,
    pub(super) base: Version,
    /// Digest of the Θ̂ that it is relative to.
    pub(super) digest: u64,
    pub(super) steps: u32,
    pub(super) tokens: u64,
    pub(super) seen: Vec<u64>,
    pub(super) stage: Stage,
}

/// Progress of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The engine codes it.
    Coding,
    /// It was sent at this time.
    Out(Millis),
    /// The syncer has received it.
    Arrived,
    /// It was merged into this version.
    Merged(Version),
}

impl Track {
    /// Creates a track whose fragment is fetched at once.
    pub(super) fn wanting(version: Version, now: Millis) -> Self {
        Self { fetch: Fetch::DueAt(version, now), ..Self::default() }
    }

    pub(super) fn step(&mut self, tokens: u64) {
        self.steps = self.steps.saturating_add(1);
        self.tokens = self.tokens.saturating_add(tokens);
    }

    /// Adds the tokens of the last steps that were routed to each expert of the fragment.
    pub(super) fn saw(&mut self, seen: impl ExactSizeIterator<Item = u64>) {
        self.seen.resize(seen.len(), 0);
        self.seen.iter_mut().zip(seen).for_each(|(sum, seen)| *sum = sum.saturating_add(seen));
    }

    pub(super) fn has_progress(&self) -> bool {
        self.steps > 0 && self.tokens > 0
    }

    /// Records that the progress since `base` is being coded.
    pub(super) fn code(&mut self, serial: Serial, base: Version) {
        let (digest, steps, tokens) = (self.digest, self.steps, self.tokens);
        let seen = self.seen.clone();
        self.sent = Some(Sent { serial, base, digest, steps, tokens, seen, stage: Stage::Coding });
    }

    /// Returns the pending update, if it has this serial number.
    pub(super) fn sent(&mut self, serial: Serial) -> Option<&mut Sent> {
        self.sent.as_mut().filter(|sent| sent.serial == serial)
    }

    /// Returns true if an update is between the engine and the syncer.
    pub(super) fn is_under_way(&self) -> bool {
        let stage = self.sent.as_ref().map(|sent| sent.stage);
        matches!(stage, Some(Stage::Coding | Stage::Out(_)))
    }

    /// Returns true if the syncer has received an update that has no fate yet.
    pub(super) fn has_arrived(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.stage == Stage::Arrived)
    }

    /// Returns the tokens of the update that the syncer has received and that has no fate yet; 0 without one.
    pub(super) fn tokens_unsettled(&self) -> u64 {
        self.sent.as_ref().filter(|sent| sent.stage == Stage::Arrived).map_or(0, |sent| sent.tokens)
    }

    /// Takes in the fate of an update.
    pub(super) fn receipt(&mut self, serial: Serial, fate: &Fate) {
        let Some(sent) = self.sent(serial) else { return };
        match fate {
            Fate::Merged { version, .. } => sent.stage = Stage::Merged(*version),
            Fate::Late(_) | Fate::Refused(_) => self.sent = None,
        }
    }

    /// Takes in the state of a `Welcome` after a lost connection: the last merged update, and the received update
    /// without a fate. Any other update that was sent is lost. So is one that was merged by a syncer that has since
    /// forgotten it.
    pub(super) fn welcome(&mut self, version: Version, merged: Option<Serial>, unsettled: Option<Serial>) {
        self.queue.clear();
        // A new connection does not reset the count of failures: repeated failures must not defeat the backoff.
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

    /// Returns true if the last update is part of the version held, or of `coming`. Its steps and tokens then no
    /// longer count as progress.
    pub(super) fn include(&mut self, coming: Option<Version>) -> bool {
        let held = coming.or(self.version);
        let is_in = |sent: &Sent| matches!(sent.stage, Stage::Merged(version) if Some(version) <= held);
        let Some(sent) = self.sent.take_if(|sent| is_in(sent)) else { return false };
        self.steps -= sent.steps.min(self.steps);
        self.tokens -= sent.tokens.min(self.tokens);
        self.seen.iter_mut().zip(sent.seen).for_each(|(seen, sent)| *seen = seen.saturating_sub(sent));
        true
    }

    /// Records that the engine does not hold what `version` names. Θ̂ must be fetched, and no update is sent before.
    pub(super) fn drift(&mut self, now: Millis) {
        (self.sent, self.has_drifted) = (None, true);
        if let Some(version) = self.version.filter(|_| self.fetch == Fetch::Idle) {
            self.fetch = Fetch::DueAt(version, now);
        }
    }

    /// Records that the learner now holds `version`, with this digest.
    ///
    /// A policy that drops local progress drops its tokens too: they are trained and never merged.
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

    /// Queues `merged` until Θ̂ is there.
    pub(super) fn queue(&mut self, merged: Merged) {
        if self.queue.len() == QUEUE_MAX {
            self.queue.clear();
        }
        self.queue.push_back(merged);
    }

    /// Removes and returns the queued change that follows the version held, if there is one. Older changes are
    /// dropped.
    pub(super) fn next_queued(&mut self) -> Option<Merged> {
        let version = self.version?;
        self.queue.retain(|merged| merged.version > version);
        let next = self.queue.iter().position(|merged| merged.base == version)?;
        self.queue.remove(next)
    }

    /// Returns the newest queued version that the learner does not hold, if there is one.
    pub(super) fn gap(&self) -> Option<Version> {
        let newest = self.queue.iter().map(|merged| merged.version).max();
        newest.filter(|newest| self.version.is_none_or(|held| held < *newest))
    }
}

/// Counts since the learner began or restarted, and averages since the last report.
#[derive(Default)]
pub(super) struct Meter {
    steps: u64,
    tokens: u64,
    /// Steps with tokens.
    trained: u64,
    /// Mean step time of the last report that had one.
    step_ms: f32,
    /// Total time of the steps since then, and their number.
    spent_ms: f64,
    timed: u32,
    /// Sum of token losses since the last report, and the number of these tokens.
    loss_sum: f64,
    loss_tokens: u64,
    pub(super) reported: Option<Millis>,
}

impl Meter {
    /// Records a step. Returns true for the first one with a meaningful time.
    ///
    /// The time of a step without tokens is unknown: an engine that prepares a batch while it trains on the previous
    /// one returns from its second step at once. That time is part of the next step.
    pub(super) fn step(&mut self, step: Step) -> bool {
        self.steps += 1;
        self.tokens = self.tokens.saturating_add(step.tokens);
        if self.trained == 1 && self.timed == 1 {
            // The first step takes longer than others, so its time is dropped.
            (self.spent_ms, self.timed) = (0.0, 0);
        }
        // A moving average would weight the newest step most. A slow step is more likely than others to be the newest
        // when a report is due.
        self.spent_ms += f64::from(step.step_ms);
        if step.tokens == 0 {
            return false;
        }
        self.loss_sum += f64::from(step.loss) * step.tokens as f64;
        self.loss_tokens = self.loss_tokens.saturating_add(step.tokens);
        (self.trained, self.timed) = (self.trained + 1, self.timed + 1);
        self.trained == 2
    }

    pub(super) fn report(&mut self, now: Millis, run: RunId, state: LearnerState) -> Progress {
        let loss = (self.loss_sum / self.loss_tokens as f64) as f32;
        if self.timed > 0 {
            self.step_ms = (self.spent_ms / f64::from(self.timed)) as f32;
            (self.spent_ms, self.timed) = (0.0, 0);
        }
        (self.loss_sum, self.loss_tokens) = (0.0, 0);
        self.reported = Some(now);
        Progress {
            run,
            leases: Vec::new(),
            steps: self.steps,
            tokens: self.tokens,
            step_ms: self.step_ms,
            loss,
            state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FragmentId, RunId};

    const KEEP: ApplyPolicy = ApplyPolicy::Keep { residue: true };

    /// Creates a track at version 1 that has sent three steps, and received the receipt that merges them into version
    /// 2.
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

    /// Goal: the tokens of an expert are reported once, with the update of their steps.
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

    /// Goal: versions from other learners in between neither count nor forget an update on its way.
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

    /// Goal: a syncer that crashed after the receipt, and has an older state, costs no progress.
    #[test]
    fn what_was_merged_by_a_syncer_that_forgot_it_is_reported_again() {
        let mut track = merged_into_2();
        track.welcome(Version(1), None, None);
        assert!(!track.include(Some(Version(1 << 32))), "a version of others");
        assert!(track.has_progress() && track.sent.is_none());
    }

    /// Goal: changes may come in any order, also useless ones, and the version held is no gap.
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

    /// Goal: a report has the mean time of its steps, however they scatter, and not that of the last one.
    #[test]
    fn a_report_is_of_the_steps_since_the_one_before() {
        let mut meter = Meter::default();
        let mut said = |steps: &[f32]| {
            let step = |step_ms: &f32| Step { tokens: 1, loss: 1.0, step_ms: *step_ms };
            for step_ms in steps {
                meter.step(step(step_ms));
            }
            meter.report(Millis(0), RunId(1), LearnerState::Training).step_ms
        };
        assert_eq!(said(&[]), 0.0);
        assert_eq!(said(&[900.0]), 900.0, "nothing else is known");
        assert_eq!(said(&[100.0, 200.0]), 150.0);
        assert_eq!(said(&[]), 150.0);
        let mut meter = Meter::default();
        for step_ms in [900.0, 100.0] {
            meter.step(Step { tokens: 1, loss: 1.0, step_ms });
        }
        assert_eq!(meter.report(Millis(0), RunId(1), LearnerState::Training).step_ms, 100.0);
    }

    /// Goal: an engine that trains asynchronously reports true step times, and never a time of zero.
    #[test]
    fn a_step_of_no_tokens_is_none_whose_time_is_known() {
        let step = |tokens, step_ms| Step { tokens, loss: 1.0, step_ms };
        let mut meter = Meter::default();
        let told = |meter: &mut Meter| meter.report(Millis(0), RunId(1), LearnerState::Training).step_ms;
        assert!(!meter.step(step(64, 300.0)), "the first takes longer than others do");
        assert_eq!(told(&mut meter), 300.0);
        assert!(!meter.step(step(0, 0.5)));
        assert_eq!(told(&mut meter), 300.0);
        assert!(meter.step(step(64, 12.0)), "it is known for the first time what a step takes");
        assert_eq!(told(&mut meter), 12.5);
        for (tokens, step_ms) in [(128, 10.0), (0, 2.0), (64, 12.0)] {
            assert!(!meter.step(step(tokens, step_ms)));
        }
        let progress = meter.report(Millis(0), RunId(1), LearnerState::Training);
        assert_eq!((progress.step_ms, progress.steps, progress.tokens), (12.0, 6, 320));
        // An engine that waits for its second batch before training takes the time of that batch.
        let mut meter = Meter::default();
        for (tokens, step_ms) in [(64, 300.0), (0, 0.0), (0, 8.0), (64, 12.0)] {
            meter.step(step(tokens, step_ms));
        }
        assert_eq!(told(&mut meter), 20.0);
    }

    /// Goal: a loss is weighted by its tokens, however often an engine reports it.
    #[test]
    fn a_loss_is_that_of_tokens() {
        let mut meter = Meter::default();
        let told = |meter: &mut Meter| meter.report(Millis(0), RunId(1), LearnerState::Training).loss;
        for (tokens, loss) in [(64, 3.0), (0, 3.0), (192, 2.0)] {
            meter.step(Step { tokens, loss, step_ms: 1.0 });
        }
        assert_eq!(told(&mut meter), 2.25);
        meter.step(Step { tokens: 0, loss: 2.0, step_ms: 1.0 });
        assert!(told(&mut meter).is_nan(), "nothing was trained on since");
    }
}
