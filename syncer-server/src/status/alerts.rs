//! Alerts for the owner: no learner, a rising loss, an old snapshot, a failing or nearly full disk.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use archipelago_core::diloco::{LearnerId, Millis};
use serde::{Deserialize, Serialize};

/// Thresholds of alerts. 0 turns an alert off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AlertTerms {
    /// Time without a learner in rounds after which the owner is alerted, in milliseconds.
    pub no_learner_ms: u64,
    /// Ratio of the newest to the lowest held-out loss above which the owner is alerted; more than 1, or 0.
    pub loss_ratio: f64,
    /// Age of the newest snapshot from which on the owner is alerted, in milliseconds.
    pub snapshot_age_ms: u64,
}

/// State of a run on which alerts depend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlertInputs {
    /// Number of learners in rounds.
    pub live: u32,
    /// Newest held-out loss and lowest so far, in nats per token.
    pub losses: Option<(f32, f32)>,
    /// Age of the newest snapshot in milliseconds; without a snapshot, the time since the start.
    pub snapshot_age_ms: u64,
    /// Fault of the disk, as a sentence.
    pub disk_fault: Option<String>,
    /// The shortage of disk space, as a sentence.
    pub disk_shortage: Option<String>,
    /// Learners that are suspected of not training.
    pub suspects: Vec<LearnerId>,
    /// True if the owner paused the run.
    pub is_held: bool,
    /// True if the run is complete.
    pub is_over: bool,
}

/// Kinds of alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum AlertKind {
    /// No learner has taken part in rounds for a while.
    NoLearner,
    /// The held-out loss is far above its lowest value.
    LossRose,
    /// The newest snapshot is old.
    SnapshotOld,
    /// The disk accepts no writes, or a snapshot could not be written.
    DiskFault,
    /// The disk is nearly full.
    DiskNearlyFull,
    /// Some learners do not seem to train.
    Suspects,
}

impl AlertKind {
    /// Returns the sentence for the end of this alert.
    fn cleared_text(self) -> &'static str {
        match self {
            Self::NoLearner => "A learner takes part again.",
            Self::LossRose => "The held-out loss came down again.",
            Self::SnapshotOld => "The run has been saved again.",
            Self::DiskFault => "The syncer's disk accepts writes again.",
            Self::DiskNearlyFull => "The syncer's disk has room again.",
            Self::Suspects => "No learner is suspected now.",
        }
    }
}

/// An active alert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct AlertView {
    /// Kind of the alert.
    pub kind: AlertKind,
    /// Description of the problem, as a sentence for people.
    pub text: String,
    /// Time since the alert was raised, in seconds.
    pub for_s: f64,
}

/// An alert that was raised or cleared.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertChange {
    /// Kind of the alert.
    pub kind: AlertKind,
    /// True if the alert was raised, false if it was cleared.
    pub is_raised: bool,
    /// Description of the problem or of its end, as a sentence for people.
    pub text: String,
}

/// The active alerts of a run.
#[derive(Clone, Debug)]
pub struct Alerts {
    terms: AlertTerms,
    /// Time of the raise and current text of each active alert.
    raised: BTreeMap<AlertKind, (Millis, String)>,
    /// Last time at which a learner took part, or at which none was expected.
    accompanied: Millis,
}

impl Alerts {
    /// Creates inactive alerts at time 0.
    #[must_use]
    pub fn new(terms: AlertTerms) -> Self {
        Self { terms, raised: BTreeMap::new(), accompanied: Millis(0) }
    }

    /// Updates the alerts for the state in `inputs` at `now`. Returns the alerts that were raised or cleared.
    pub fn update(&mut self, now: Millis, inputs: &AlertInputs) -> Vec<AlertChange> {
        if inputs.live > 0 || inputs.is_held || inputs.is_over {
            self.accompanied = now;
        }
        let is_on = |kind| self.raised.contains_key(&kind);
        let wrong = judge(&self.terms, now.since(self.accompanied), is_on(AlertKind::LossRose), inputs);
        let mut changes = Vec::new();
        self.raised.retain(|kind, _| {
            let stays = wrong.contains_key(kind);
            if !stays {
                changes.push(AlertChange { kind: *kind, is_raised: false, text: kind.cleared_text().into() });
            }
            stays
        });
        for (kind, text) in wrong {
            match self.raised.entry(kind) {
                // An alert is reported only when it is raised, but its text is kept current.
                Entry::Occupied(mut raised) => raised.get_mut().1 = text,
                Entry::Vacant(free) => {
                    changes.push(AlertChange { kind, is_raised: true, text: text.clone() });
                    free.insert((now, text));
                }
            }
        }
        changes
    }

    /// Returns the active alerts.
    #[must_use]
    pub fn view(&self, now: Millis) -> Vec<AlertView> {
        let shown = |(kind, (since, text)): (&AlertKind, &(Millis, String))| AlertView {
            kind: *kind,
            text: text.clone(),
            for_s: now.since(*since) as f64 / 1e3,
        };
        self.raised.iter().map(shown).collect()
    }
}

/// Returns the problems of a run that has had no learner for `alone_ms`, with their texts. If the loss `was_high`, it
/// must fall halfway back to end the alert, so that the alert does not switch with each measurement.
fn judge(
    terms: &AlertTerms,
    alone_ms: u64,
    was_high: bool,
    inputs: &AlertInputs,
) -> BTreeMap<AlertKind, String> {
    let mut wrong = BTreeMap::new();
    if let Some(why) = &inputs.disk_fault {
        wrong.insert(AlertKind::DiskFault, why.clone());
    }
    if inputs.is_over {
        return wrong;
    }
    if let Some(why) = &inputs.disk_shortage {
        wrong.insert(AlertKind::DiskNearlyFull, why.clone());
    }
    if let [first, more @ ..] = &inputs.suspects[..] {
        let others = if more.is_empty() { String::new() } else { format!(" and of {} others", more.len()) };
        let text = format!(
            "Updates of learner {first}{others} do not lower the loss on their own text as other learners' updates \
             do: it may not train at all."
        );
        wrong.insert(AlertKind::Suspects, text);
    }
    let AlertTerms { no_learner_ms, loss_ratio, snapshot_age_ms } = *terms;
    if no_learner_ms > 0 && alone_ms >= no_learner_ms {
        let text = format!("No learner has taken part for {}.", words(whole(alone_ms)));
        wrong.insert(AlertKind::NoLearner, text);
    }
    if snapshot_age_ms > 0 && inputs.snapshot_age_ms >= snapshot_age_ms {
        let text = format!("The run has not been saved for {}.", words(whole(inputs.snapshot_age_ms)));
        wrong.insert(AlertKind::SnapshotOld, text);
    }
    if let Some((last, best)) = inputs.losses.filter(|_| loss_ratio > 0.0) {
        let bearable = f64::from(best) * if was_high { f64::midpoint(1.0, loss_ratio) } else { loss_ratio };
        // NaN is too high.
        if last.is_nan() || f64::from(last) > bearable {
            let text = format!(
                "The model got worse: its held-out loss is {last:.3}, more than {loss_ratio} times its best, {best:.3}."
            );
            wrong.insert(AlertKind::LossRose, text);
        }
    }
    wrong
}

/// Rounds down to whole seconds, and from one minute on to whole minutes, so that texts do not change every second.
fn whole(ms: u64) -> u64 {
    let step_ms = if ms < 60_000 { 1_000 } else { 60_000 };
    if ms < 1_000 { ms } else { ms / step_ms * step_ms }
}

/// Formats a duration in milliseconds as seconds, minutes or hours.
fn words(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{} s", ms as f64 / 1e3),
        60_000..7_200_000 => format!("{} min", (ms as f64 / 60e3 * 10.0).round() / 10.0),
        _ => format!("{} h", (ms as f64 / 3_600e3 * 10.0).round() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: AlertTerms =
        AlertTerms { no_learner_ms: 600_000, loss_ratio: 1.2, snapshot_age_ms: 900_000 };

    fn fine() -> AlertInputs {
        AlertInputs { live: 1, losses: Some((2.0, 2.0)), ..AlertInputs::default() }
    }

    /// Checks which alerts these states, one minute apart, raise (true) and clear (false).
    fn check(terms: AlertTerms, series: &[AlertInputs], expected: &[(u64, AlertKind, bool)]) {
        let mut alerts = Alerts::new(terms);
        let mut found = Vec::new();
        for (minute, inputs) in (0..).zip(series) {
            for change in alerts.update(Millis(minute * 60_000), inputs) {
                assert!(change.text.ends_with('.'), "{change:?}");
                found.push((minute, change.kind, change.is_raised));
            }
        }
        assert_eq!(found, expected);
    }

    fn times(inputs: &AlertInputs, count: usize) -> Vec<AlertInputs> {
        vec![inputs.clone(); count]
    }

    #[test]
    fn missing_learners_raise_an_alert_unless_the_run_is_paused_or_complete() {
        let nobody = AlertInputs { live: 0, ..fine() };
        let series = [times(&nobody, 12), times(&fine(), 1), times(&nobody, 11)].concat();
        let kind = AlertKind::NoLearner;
        check(TERMS, &series, &[(10, kind, true), (12, kind, false), (22, kind, true)]);
        let held = AlertInputs { is_held: true, ..nobody.clone() };
        check(TERMS, &[times(&nobody, 9), times(&held, 5), times(&nobody, 9)].concat(), &[]);
        let over = AlertInputs { is_over: true, ..nobody.clone() };
        check(
            TERMS,
            &[times(&nobody, 11), times(&over, 20)].concat(),
            &[(10, kind, true), (11, kind, false)],
        );
        check(AlertTerms { no_learner_ms: 0, ..TERMS }, &times(&nobody, 60), &[]);
    }

    #[test]
    fn a_loss_that_rose_has_to_come_halfway_back() {
        let losses = [2.0, 2.39, 2.41, 2.3, 2.21, 2.19, 2.39, f32::NAN];
        let series = losses.map(|last| AlertInputs { losses: Some((last, 2.0)), ..fine() });
        let kind = AlertKind::LossRose;
        check(TERMS, &series, &[(2, kind, true), (5, kind, false), (7, kind, true)]);
        check(AlertTerms { loss_ratio: 0.0, ..TERMS }, &series, &[]);
        check(TERMS, &[AlertInputs { losses: None, ..fine() }], &[]);
    }

    #[test]
    fn old_snapshots_and_disk_faults_raise_alerts() {
        let old = |minutes: u64| AlertInputs { snapshot_age_ms: minutes * 60_000, ..fine() };
        let kind = AlertKind::SnapshotOld;
        check(TERMS, &[old(14), old(15), old(16), old(0)], &[(1, kind, true), (3, kind, false)]);
        check(AlertTerms { snapshot_age_ms: 0, ..TERMS }, &[old(99)], &[]);
        let faulty = AlertInputs { disk_fault: Some("No space left.".into()), is_over: true, ..fine() };
        let kind = AlertKind::DiskFault;
        check(AlertTerms::default(), &[fine(), faulty, fine()], &[(1, kind, true), (2, kind, false)]);
        let short = AlertInputs { disk_shortage: Some("Little is left.".into()), ..fine() };
        let kind = AlertKind::DiskNearlyFull;
        check(AlertTerms::default(), &[short.clone(), short, fine()], &[(0, kind, true), (2, kind, false)]);
    }

    #[test]
    fn suspects_raise_one_alert_until_none_is_left() {
        let of = |learners: &[u32]| AlertInputs {
            suspects: learners.iter().copied().map(LearnerId).collect(),
            ..fine()
        };
        let kind = AlertKind::Suspects;
        check(TERMS, &[fine(), of(&[3]), of(&[3, 4]), fine()], &[(1, kind, true), (3, kind, false)]);
    }

    #[test]
    fn says_since_when_in_words() {
        let mut alerts = Alerts::new(TERMS);
        assert_eq!(alerts.update(Millis(600_000), &AlertInputs::default()).len(), 1);
        assert_eq!(alerts.update(Millis(660_000), &AlertInputs::default()), [], "it is reported once");
        let view = alerts.view(Millis(660_000));
        let text = "No learner has taken part for 11 min.".into();
        assert_eq!(view, [AlertView { kind: AlertKind::NoLearner, text, for_s: 60.0 }]);
        assert_eq!([900, 90_000, 5_400_000, 9_000_000].map(words), ["0.9 s", "1.5 min", "90 min", "2.5 h"]);
    }
}
