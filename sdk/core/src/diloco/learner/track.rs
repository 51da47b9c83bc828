//! State of one fragment in a learner, and the meter of its steps.

use std::collections::VecDeque;

use super::Step;
use crate::wire::{ApplyPolicy, Fate, LearnerState, Merged, Millis, Progress, RunId, Serial, Version};

/// Maximum number of queued changes while Θ̂ is fetched. With more, the queue is cleared and Θ̂ is fetched again. A
/// syncer sends fewer, because none of them is confirmed during the fetch.
const QUEUE_MAX: usize = 64;

/// State of one fragment.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Version of Θ̂ that the learner holds; `None` until the first is loaded.
    pub(super) version: Option<Version>,
    /// Digest of that Θ̂ according to the syncer.
    digest: u64,
    /// Whether the engine holds a Θ̂ with another digest, so that Θ̂ must be fetched again.
    pub(super) has_drifted: bool,
    /// Local steps that are not yet part of Θ̂. The next update reports them. `Overwrite` clears them with each new Θ̂,
    /// and `Blend` scales them.
    steps: u32,
    /// Tokens of these steps.
    tokens: u64,
    /// Part of these tokens that was routed to each expert, `[experts]`; empty if the engine does not report it.
    seen: Vec<u64>,
    /// Last update, until it is included in the version held, late or refused.
    pub(super) sent: Option<Sent>,
    pub(super) fetch: Fetch,
    /// Number of consecutive failed fetches.
    pub(super) failures: u32,
    /// Changes that cannot be applied yet.
    queue: VecDeque<Merged>,
}

/// State of the fetch of Θ̂.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fetch {
    #[default]
    Idle,
    /// A fetch of this version or a later one began at that time.
    Running(Version, Millis),
    /// A fetch of this version or a later one may begin at that time.
    DueAt(Version, Millis),
}

/// Update that is being coded or was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) serial: Serial,
    pub(super) base: Version,
    /// Digest of Θ̂ at version `base`.
    pub(super) digest: u64,
    pub(super) steps: u32,
    pub(super) tokens: u64,
    pub(super) seen: Vec<u64>,
    pub(super) stage: Stage,
}

/// Delivery state of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The engine codes the update.
    Coding,
    /// The update was sent at this time.
    Out(Millis),
    /// The syncer has received the update.
    Arrived,
    /// The update was merged into this version.
    Merged(Version),
}

impl Track {
    /// Creates the state of a fragment that must be fetched, with a fetch due at `now`.
    pub(super) fn wanting(version: Version, now: Millis) -> Self {
        Self { fetch: Fetch::DueAt(version, now), ..Self::default() }
    }

    pub(super) fn step(&mut self, tokens: u64) {
        self.steps = self.steps.saturating_add(1);
        self.tokens = self.tokens.saturating_add(tokens);
    }

    /// Adds tokens routed to each expert of the fragment, `[experts]`.
    pub(super) fn saw(&mut self, seen: impl ExactSizeIterator<Item = u64>) {
        self.seen.resize(seen.len(), 0);
        self.seen.iter_mut().zip(seen).for_each(|(sum, seen)| *sum = sum.saturating_add(seen));
    }

    pub(super) fn has_progress(&self) -> bool {
        self.steps > 0 && self.tokens > 0
    }

    /// Records that the current progress, relative to version `base`, is being coded.
    pub(super) fn code(&mut self, serial: Serial, base: Version) {
        let (digest, steps, tokens) = (self.digest, self.steps, self.tokens);
        let seen = self.seen.clone();
        self.sent = Some(Sent { serial, base, digest, steps, tokens, seen, stage: Stage::Coding });
    }

    /// Returns the pending update, if it has this serial number.
    pub(super) fn sent(&mut self, serial: Serial) -> Option<&mut Sent> {
        self.sent.as_mut().filter(|sent| sent.serial == serial)
    }

    /// Returns true if an update is being coded or in flight.
    pub(super) fn is_under_way(&self) -> bool {
        let stage = self.sent.as_ref().map(|sent| sent.stage);
        matches!(stage, Some(Stage::Coding | Stage::Out(_)))
    }

    /// Returns true if the syncer has received an update that has no fate yet.
    pub(super) fn has_arrived(&self) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.stage == Stage::Arrived)
    }

    /// Returns the tokens of the received update without a fate; 0 if every received update has a fate.
    pub(super) fn tokens_unsettled(&self) -> u64 {
        self.sent.as_ref().filter(|sent| sent.stage == Stage::Arrived).map_or(0, |sent| sent.tokens)
    }

    /// Handles the fate of an update.
    pub(super) fn receipt(&mut self, serial: Serial, fate: &Fate) {
        let Some(sent) = self.sent(serial) else { return };
        match fate {
            Fate::Merged { version, .. } => sent.stage = Stage::Merged(*version),
            Fate::Late(_) | Fate::Refused(_) => self.sent = None,
        }
    }

    /// Handles a `Welcome` after a lost connection. `merged` is the last merged update, and `unsettled` the received
    /// update without a fate. Any other update that was sent is lost, also one that was merged before the syncer lost
    /// its state in a crash.
    pub(super) fn welcome(&mut self, version: Version, merged: Option<Serial>, unsettled: Option<Serial>) {
        self.queue.clear();
        // A new connection does not reset `failures`, so that the backoff of fetches continues.
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

    /// Returns true if the last update was merged into the version held or an older one, or up to `coming` if that is
    /// given. Its steps and tokens are then removed from the progress.
    pub(super) fn include(&mut self, coming: Option<Version>) -> bool {
        let held = coming.or(self.version);
        let is_in = |sent: &Sent| matches!(sent.stage, Stage::Merged(version) if Some(version) <= held);
        let Some(sent) = self.sent.take_if(|sent| is_in(sent)) else { return false };
        self.steps -= sent.steps.min(self.steps);
        self.tokens -= sent.tokens.min(self.tokens);
        self.seen.iter_mut().zip(sent.seen).for_each(|(seen, sent)| *seen = seen.saturating_sub(sent));
        true
    }

    /// Records that the Θ̂ of the engine has a wrong digest. Θ̂ is fetched again, and no update is sent before.
    pub(super) fn drift(&mut self, now: Millis) {
        (self.sent, self.has_drifted) = (None, true);
        if let Some(version) = self.version.filter(|_| self.fetch == Fetch::Idle) {
            self.fetch = Fetch::DueAt(version, now);
        }
    }

    /// Records that the learner now holds `version`, with this digest. If the policy drops or scales local progress,
    /// its steps and tokens are dropped or scaled, too.
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

    /// Queues a change.
    pub(super) fn queue(&mut self, merged: Merged) {
        if self.queue.len() == QUEUE_MAX {
            self.queue.clear();
        }
        self.queue.push_back(merged);
    }

    /// Removes and returns the queued change whose base is the version held, if there is one. Drops older changes.
    pub(super) fn next_queued(&mut self) -> Option<Merged> {
        let version = self.version?;
        self.queue.retain(|merged| merged.version > version);
        let next = self.queue.iter().position(|merged| merged.base == version)?;
        self.queue.remove(next)
    }

    /// Returns the newest queued version, if it is newer than the version held.
    pub(super) fn gap(&self) -> Option<Version> {
        let newest = self.queue.iter().map(|merged| merged.version).max();
        newest.filter(|newest| self.version.is_none_or(|held| held < *newest))
    }
}

/// Meter of steps, tokens, step times and losses, for reports.
#[derive(Default)]
pub(super) struct Meter {
    /// Number of steps of this process.
    steps: u64,
    /// Trained tokens of this process.
    tokens: u64,
    /// Number of steps with tokens.
    trained: u64,
    /// Mean step time in the last report, in milliseconds; 0 until known.
    step_ms: f32,
    /// Total time of the steps since that report, in milliseconds.
    spent_ms: f64,
    /// Number of steps with tokens since that report.
    timed: u32,
    /// Sum of token losses since the last report, in nats.
    loss_sum: f64,
    /// Number of tokens in `loss_sum`.
    loss_tokens: u64,
    /// Time of the last report.
    pub(super) reported: Option<Millis>,
}

impl Meter {
    /// Records a step. Returns true for the second step with tokens, which is the first with a typical duration.
    ///
    /// The duration of a step without tokens is added to the next step. An asynchronous engine, which prepares a batch
    /// while it trains on the previous one, returns from its second step at once.
    pub(super) fn step(&mut self, step: Step) -> bool {
        self.steps += 1;
        self.tokens = self.tokens.saturating_add(step.tokens);
        if self.trained == 1 && self.timed == 1 {
            // The first step takes longer than others, so its duration is dropped.
            (self.spent_ms, self.timed) = (0.0, 0);
        }
        // A moving average would give the newest step the largest weight, and a slow step is more likely than others to
        // be the newest one when a report is due.
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

    /// Creates a track at version 1 whose update of three steps was merged into version 2.
    fn merged_into_2() -> Track {
        let mut track = Track { version: Some(Version(1)), ..Track::default() };
        (0..3).for_each(|_| track.step(10));
        track.code(Serial(7), Version(1));
        track.receipt(Serial(7), &Fate::Merged { version: Version(2), weight: 1.0, tokens: 30 });
        track
    }

    #[test]
    fn merged_steps_are_not_reported_again() {
        let mut track = merged_into_2();
        assert!(!track.include(None), "the version that holds it is not there yet");
        assert!(track.include(Some(Version(2))));
        track.advance(Version(2), 0, KEEP);
        assert!(!track.has_progress() && !track.include(None), "it counts once");
    }

    /// Goal: the tokens of each expert are reported once, with the update of their steps.
    #[test]
    fn expert_tokens_are_reported_with_their_steps() {
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

    /// Goal: versions that do not include the update neither remove it nor its steps.
    #[test]
    fn update_in_flight_survives_versions_of_others() {
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

    /// Goal: no progress is lost if the syncer crashes after the receipt and resumes from an older state.
    #[test]
    fn update_that_a_crashed_syncer_lost_is_reported_again() {
        let mut track = merged_into_2();
        track.welcome(Version(1), None, None);
        assert!(!track.include(Some(Version(1 << 32))), "a version of others");
        assert!(track.has_progress() && track.sent.is_none());
    }

    /// Goal: queued changes may arrive in any order and be useless, and the version held is no gap.
    #[test]
    fn queued_changes_are_applied_in_order_up_to_a_gap() {
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
    fn welcome_determines_the_state_of_the_last_update() {
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

    /// Goal: a report has the mean duration of the steps since the previous report.
    #[test]
    fn report_has_the_mean_step_time() {
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

    /// Goal: with an asynchronous engine, reported step times are correct and never 0.
    #[test]
    fn step_without_tokens_adds_its_time_to_the_next() {
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
        // An engine that waits for its second batch before it trains adds the waiting time to the next step.
        let mut meter = Meter::default();
        for (tokens, step_ms) in [(64, 300.0), (0, 0.0), (0, 8.0), (64, 12.0)] {
            meter.step(step(tokens, step_ms));
        }
        assert_eq!(told(&mut meter), 20.0);
    }

    /// Goal: losses are weighted by their tokens.
    #[test]
    fn report_has_the_mean_loss_per_token() {
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
