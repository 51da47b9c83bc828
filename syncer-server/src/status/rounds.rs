//! Reports on the last rounds, assembled from the core's events.

use std::collections::VecDeque;

use archipelago_core::diloco::syncer::Event;
use archipelago_core::diloco::{Decision, FragmentId, LearnerId, Millis, Round, Version};
use archipelago_core::wire::{Fate, LateReason, Refusal};
use serde::Serialize;

use super::view;

/// Maximum number of rounds kept.
pub const ROUNDS_KEPT: usize = 48;

/// Maximum number of answers listed per round. Further ones are only counted.
pub const ANSWERS_MAX: usize = 32;

/// Report on one round. `launched_ms` is on the server's clock. All other times are relative to it, except those in
/// `decision`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RoundReport {
    /// Number of the round.
    pub round: Round,
    /// Fragment that the round merges.
    pub fragment: FragmentId,
    /// Number of learners that were asked for an update.
    pub invited: u32,
    /// Time of the launch, in milliseconds since the server started.
    pub launched_ms: u64,
    /// Number of answers, in time or not.
    pub answered: u32,
    /// Answers in order of arrival, at most 32.
    pub answers: Vec<Answer>,
    /// Time at which the quorum was reached, in milliseconds after the launch.
    pub quorum_ms: Option<u64>,
    /// Length of the grace window in milliseconds, if there was one.
    pub grace_ms: Option<u64>,
    /// Time at which the grace window ends, or would have ended, in milliseconds after the launch.
    pub grace_end_ms: Option<u64>,
    /// Last decision about the round. Times in it are on the server's clock.
    pub decision: Option<view::Decision>,
    /// Time at which the merge began, in milliseconds after the launch.
    pub merge_start_ms: Option<u64>,
    /// Time at which the merge ended or failed, in milliseconds after the launch.
    pub merge_end_ms: Option<u64>,
    /// Result of the merge, once it is done.
    pub merged: Option<MergedReport>,
}

/// Answer of one learner in a round.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Answer {
    /// Learner that answered.
    pub learner: LearnerId,
    /// Time of arrival, in milliseconds after the launch; 0 if the answer came before it.
    pub after_ms: u64,
    /// Credited tokens of a merged update, claimed tokens of any other; 0 if the learner had nothing to merge.
    pub tokens: u64,
    /// Fate of the answer.
    pub fate: AnswerFate,
    /// True if the answer arrived before the round was launched.
    pub early: bool,
    /// Reason why the update was late, if it was.
    pub late: Option<LateReason>,
    /// Reason why the update was refused, if it was.
    pub refused: Option<Refusal>,
}

/// Fate of an answer in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum AnswerFate {
    /// The round is still in progress.
    Pending,
    /// The learner had nothing to merge.
    Passed,
    /// The update was merged.
    Merged,
    /// The update was late. Its learner keeps the progress for the next round.
    Late,
    /// The update was refused.
    Refused,
}

/// Result of a merge.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct MergedReport {
    /// Version of the fragment after the merge.
    pub version: Version,
    /// Number of merged updates.
    pub updates: u32,
    /// Merged tokens.
    pub tokens: u64,
    /// L2 norm of the merged delta.
    pub norm: f64,
    /// Time from launch to the end of collecting, in milliseconds.
    pub collect_ms: u64,
    /// Time from the end of collecting until the change is sent, in milliseconds.
    pub sync_ms: u64,
}

/// `/v1/rounds` and the event `rounds`: reports on some of the last rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct RoundsView {
    /// Current time on the server's clock, in milliseconds since it started.
    pub now_ms: u64,
    /// Reports, oldest round first.
    pub rounds: Vec<RoundReport>,
}

/// Reports on the last rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    /// Reports, oldest first, each with a flag: it changed since the last [`Rounds::take_changed`].
    reports: VecDeque<(RoundReport, bool)>,
    /// Answers that arrived before the next round of their fragment.
    early: Vec<(FragmentId, Answer)>,
}

impl Rounds {
    /// Records an event at `now`.
    pub fn note(&mut self, now: Millis, event: &Event) {
        match event {
            Event::Launched { round, fragment, invited, .. } => {
                return self.launch(now, *round, *fragment, *invited);
            }
            Event::Answered { round: None, fragment, learner, tokens, .. } => {
                return self.early.push((*fragment, Answer::early(*learner, *tokens)));
            }
            _ => {}
        }
        let of = |report: &RoundReport| match event {
            // The fate of an update that belonged to no round is added to the last round of its fragment.
            Event::Settled { round: None, fragment, .. } => report.fragment == *fragment,
            _ => round_of(event) == Some(report.round),
        };
        let Some((report, changed)) = self.reports.iter_mut().rev().find(|(report, _)| of(report)) else {
            return;
        };
        report.note(now, event);
        *changed = true;
    }

    /// Returns all reports.
    #[must_use]
    pub fn all(&self, now: Millis) -> RoundsView {
        RoundsView { now_ms: now.0, rounds: self.reports.iter().map(|(report, _)| report.clone()).collect() }
    }

    /// Returns the reports that changed since the last call; `None` if none did.
    pub fn take_changed(&mut self, now: Millis) -> Option<RoundsView> {
        let changed = self
            .reports
            .iter_mut()
            .filter_map(|(report, changed)| std::mem::take(changed).then(|| report.clone()));
        let rounds: Vec<_> = changed.collect();
        (!rounds.is_empty()).then_some(RoundsView { now_ms: now.0, rounds })
    }

    fn launch(&mut self, now: Millis, round: Round, fragment: FragmentId, invited: u32) {
        if self.reports.len() == ROUNDS_KEPT {
            self.reports.pop_front();
        }
        let early = self.early.extract_if(.., |(of, _)| *of == fragment).map(|(_, answer)| answer);
        let early: Vec<_> = early.collect();
        let report = RoundReport {
            round,
            fragment,
            invited,
            launched_ms: now.0,
            answered: early.len() as u32,
            answers: early.into_iter().take(ANSWERS_MAX).collect(),
            quorum_ms: None,
            grace_ms: None,
            grace_end_ms: None,
            decision: None,
            merge_start_ms: None,
            merge_end_ms: None,
            merged: None,
        };
        self.reports.push_back((report, true));
    }
}

impl RoundReport {
    fn note(&mut self, now: Millis, event: &Event) {
        let after_ms = now.0.saturating_sub(self.launched_ms);
        match event {
            Event::Answered { learner, tokens, after_ms, .. } => {
                let fate = if *tokens == 0 { AnswerFate::Passed } else { AnswerFate::Pending };
                let (learner, after_ms, tokens) = (*learner, *after_ms, *tokens);
                self.answer(Answer {
                    learner,
                    after_ms,
                    tokens,
                    fate,
                    early: false,
                    late: None,
                    refused: None,
                });
            }
            Event::Quorum { after_ms, .. } => self.quorum_ms = Some(*after_ms),
            Event::Decided { decision, .. } => {
                self.decision = Some((*decision).into());
                match decision {
                    Decision::AwaitGrace { grace_ms, until } => {
                        self.grace_ms = Some(*grace_ms);
                        self.grace_end_ms = Some(until.0.saturating_sub(self.launched_ms));
                    }
                    Decision::Merge { .. } => self.merge_start_ms = Some(after_ms),
                    Decision::AwaitQuorum { .. } | Decision::Abandon { .. } => {}
                }
            }
            Event::Settled { learner, tokens, fate, .. } => {
                self.record_fate(*learner, after_ms, *tokens, fate);
            }
            Event::Merged { version, updates, tokens, norm, collect_ms, sync_ms, .. } => {
                self.merge_end_ms = Some(collect_ms + sync_ms);
                self.merged = Some(MergedReport {
                    version: *version,
                    updates: *updates,
                    tokens: *tokens,
                    norm: *norm,
                    collect_ms: *collect_ms,
                    sync_ms: *sync_ms,
                });
            }
            Event::MergeFailed { .. } => self.merge_end_ms = Some(after_ms),
            _ => {}
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.answered += 1;
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push(answer);
        }
    }

    /// Records the fate of an update. Late and refused updates that were not accepted before are added as further
    /// answers.
    fn record_fate(&mut self, learner: LearnerId, after_ms: u64, tokens: u64, fate: &Fate) {
        let pending = |answer: &&mut Answer| answer.learner == learner && answer.fate == AnswerFate::Pending;
        let taken = self.answers.iter_mut().find(pending);
        let fate_late = AnswerFate::Late;
        let answer =
            Answer { learner, after_ms, tokens, fate: fate_late, early: false, late: None, refused: None };
        match (fate, taken) {
            (Fate::Merged { tokens, .. }, Some(answer)) => {
                (answer.fate, answer.tokens) = (AnswerFate::Merged, *tokens);
            }
            // The answer is one of those beyond the list.
            (Fate::Merged { .. }, None) => {}
            // The update was accepted, but its merge failed.
            (Fate::Late(reason @ LateReason::RoundOver), Some(answer)) => {
                (answer.fate, answer.late) = (AnswerFate::Late, Some(*reason));
            }
            (Fate::Late(reason), _) => self.answer(Answer { late: Some(*reason), ..answer }),
            (Fate::Refused(reason), _) => {
                self.answer(Answer { fate: AnswerFate::Refused, refused: Some(*reason), ..answer });
            }
        }
    }
}

impl Answer {
    /// Creates an answer that arrived before the launch of its round.
    fn early(learner: LearnerId, tokens: u64) -> Self {
        let fate = AnswerFate::Pending;
        Self { learner, after_ms: 0, tokens, fate, early: true, late: None, refused: None }
    }
}

fn round_of(event: &Event) -> Option<Round> {
    match event {
        Event::Answered { round, .. } | Event::Settled { round, .. } => *round,
        Event::Quorum { round, .. }
        | Event::Decided { round, .. }
        | Event::Merged { round, .. }
        | Event::MergeFailed { round, .. } => Some(*round),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::diloco::{MergeCause, Serial};

    use super::*;

    const FRAGMENT: FragmentId = FragmentId(3);

    fn launched(round: u64) -> Event {
        Event::Launched { round: Round(round), fragment: FRAGMENT, invited: 40, step_ms: 1.0 }
    }

    fn answered(learner: u32, tokens: u64, after_ms: u64) -> Event {
        let (round, learner) = (Round(1), LearnerId(learner));
        Event::Answered { round: Some(round), fragment: FRAGMENT, learner, tokens, after_ms }
    }

    fn settled(learner: u32, fate: Fate) -> Event {
        let (round, learner) = (Round(1), LearnerId(learner));
        Event::Settled { round: Some(round), fragment: FRAGMENT, learner, serial: Serial(1), tokens: 9, fate }
    }

    #[test]
    fn a_round_is_reported_from_launch_to_version() {
        let mut rounds = Rounds::default();
        let (round, fragment) = (Round(1), FRAGMENT);
        let decided = |decision| Event::Decided { round, fragment, decision };
        let merged = Fate::Merged { version: Version(5), weight: 1.0, tokens: 7 };
        for (at, event) in [
            (1_000, launched(1)),
            (1_010, answered(1, 8, 10)),
            (1_010, Event::Quorum { round, fragment, updates: 1, after_ms: 10 }),
            (1_010, decided(Decision::AwaitGrace { grace_ms: 50, until: Millis(1_060) })),
            (1_020, answered(2, 0, 20)),
            (1_030, settled(3, Fate::Refused(Refusal::Norm))),
            (1_060, decided(Decision::Merge { why: MergeCause::GraceOver })),
            (1_070, settled(4, Fate::Late(LateReason::RoundOver))),
            (1_075, settled(1, merged)),
        ] {
            rounds.note(Millis(at), &event);
        }
        let (updates, tokens, norm) = (1, 7, 0.5);
        let (version, collect_ms, sync_ms) = (Version(5), 60, 15);
        let event = Event::Merged { round, fragment, version, updates, tokens, norm, collect_ms, sync_ms };
        rounds.note(Millis(1_075), &event);

        let [report] = &rounds.all(Millis(2_000)).rounds[..] else { panic!("one round") };
        assert_eq!((report.invited, report.launched_ms, report.answered), (40, 1_000, 4));
        assert_eq!((report.quorum_ms, report.grace_ms, report.grace_end_ms), (Some(10), Some(50), Some(60)));
        assert_eq!((report.merge_start_ms, report.merge_end_ms), (Some(60), Some(75)));
        assert_eq!(report.decision, Some(view::Decision::Merge { why: view::MergeCause::GraceOver }));
        let fates: Vec<_> =
            report.answers.iter().map(|a| (a.learner.0, a.after_ms, a.tokens, a.fate)).collect();
        let expected = [
            (1, 10, 7, AnswerFate::Merged),
            (2, 20, 0, AnswerFate::Passed),
            (3, 30, 9, AnswerFate::Refused),
            (4, 70, 9, AnswerFate::Late),
        ];
        assert_eq!(fates, expected);
        assert_eq!(report.merged.as_ref().map(|merged| merged.version), Some(version));
        assert_eq!(report.answers[2].refused, Some(Refusal::Norm));
        assert_eq!(report.answers[3].late, Some(LateReason::RoundOver));
    }

    #[test]
    fn many_rounds_and_answers_stay_few() {
        let mut rounds = Rounds::default();
        for round in 0..100 {
            rounds.note(Millis(round), &launched(round));
        }
        let all = rounds.all(Millis(100)).rounds;
        assert_eq!((all.len(), all[0].round, all[47].round), (ROUNDS_KEPT, Round(52), Round(99)));
        let mut rounds = Rounds::default();
        rounds.note(Millis(0), &launched(1));
        for learner in 0..40 {
            rounds.note(Millis(5), &answered(learner, 1, 5));
        }
        let report = &rounds.all(Millis(9)).rounds[0];
        assert_eq!((report.answered, report.answers.len()), (40, ANSWERS_MAX));
    }

    #[test]
    fn changed_rounds_are_returned_once() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.take_changed(Millis(0)), None);
        rounds.note(Millis(1), &launched(1));
        rounds.note(Millis(2), &launched(2));
        assert_eq!(rounds.take_changed(Millis(3)).map(|view| view.rounds.len()), Some(2));
        assert_eq!(rounds.take_changed(Millis(4)), None);
        rounds.note(Millis(5), &answered(1, 1, 4));
        let view = rounds.take_changed(Millis(6)).unwrap();
        assert_eq!((view.now_ms, view.rounds.len(), view.rounds[0].round), (6, 1, Round(1)));
    }
}
