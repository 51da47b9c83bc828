//! The lines of the log as sentences.

use archipelago_core::diloco::LearnerId;
use archipelago_core::diloco::syncer::LeaveCause;
use archipelago_core::wire::Refusal;
use serde::{Deserialize, Serialize};

use super::super::learners::hidden_name;
use super::super::learners::suspicion_reason;
use super::{EventLog, LOG_MAX, LogEntry, LogEvent};

/// `/v1/log` and the event `log`: lines of the run's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LogView {
    /// Current time by the syncer's clock, in milliseconds since 1970. The difference to a line's time is the line's
    /// age.
    pub now_ms: u64,
    /// The lines, newest first.
    pub entries: Vec<LogEntryView>,
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LogEntryView {
    /// Sequence number, from 1. It continues across restarts of the syncer.
    pub seq: u64,
    /// Time of the event, in milliseconds since 1970, by the syncer's clock.
    pub at_ms: u64,
    /// Kind of the event.
    pub kind: LogKind,
    /// Learner that the event is about, if any.
    pub learner: Option<LearnerId>,
    /// Name that the learner had at that time.
    pub name: Option<String>,
    /// The event, as a sentence for people.
    pub text: String,
}

/// Kinds of events in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum LogKind {
    /// The syncer started or shut down.
    Syncer,
    /// A learner joined.
    Joined,
    /// A learner left.
    Left,
    /// A peer could not join, or an update was refused.
    Refused,
    /// The owner changed something.
    Owner,
    /// The run is ending or complete.
    Finished,
    /// A problem began.
    Trouble,
    /// A problem ended.
    Mended,
}

/// Query parameters of `/v1/log`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    /// Text that the learner's name must contain, ignoring case. Empty selects all lines.
    #[serde(default)]
    pub name: String,
    /// Maximum number of lines, from the newest back, 1 to [`LOG_MAX`].
    #[serde(default = "all")]
    pub limit: usize,
}

fn all() -> usize {
    LOG_MAX
}

impl EventLog {
    /// Returns the lines that `query` selects. `now_ms` is the current time in milliseconds since 1970. If
    /// `names_hidden`, numbers replace the learners' names.
    #[must_use]
    pub fn view(&self, now_ms: u64, query: &LogQuery, names_hidden: bool) -> LogView {
        view(self.published(), now_ms, query, names_hidden)
    }
}

/// Returns the lines of `entries`, newest first, that `query` selects.
#[must_use]
pub fn view<'a>(
    entries: impl Iterator<Item = &'a LogEntry>,
    now_ms: u64,
    query: &LogQuery,
    names_hidden: bool,
) -> LogView {
    let wanted = query.name.to_lowercase();
    let shown = entries.map(|entry| LogEntryView::new(entry, names_hidden)).filter(|entry| {
        wanted.is_empty() || entry.name.as_ref().is_some_and(|name| name.to_lowercase().contains(&wanted))
    });
    LogView { now_ms, entries: shown.take(query.limit).collect() }
}

impl LogEntryView {
    fn new(entry: &LogEntry, names_hidden: bool) -> Self {
        let LogEntry { seq, at_ms, what } = entry;
        let learner = what.learner();
        let name = learner.map(|learner| match what.name() {
            Some(name) if !names_hidden && !name.is_empty() => name.to_owned(),
            _ if names_hidden => hidden_name(learner),
            _ => format!("learner {learner}"),
        });
        let text = sentence(what, name.as_deref().unwrap_or_default(), names_hidden);
        Self { seq: *seq, at_ms: *at_ms, kind: kind(what), learner, name, text }
    }
}

fn kind(what: &LogEvent) -> LogKind {
    match what {
        LogEvent::Started { .. } | LogEvent::Stopped | LogEvent::Certificate { shown: true } => {
            LogKind::Syncer
        }
        LogEvent::Joined { .. } => LogKind::Joined,
        LogEvent::Left { .. } => LogKind::Left,
        LogEvent::Refused { .. } | LogEvent::TurnedAway { .. } => LogKind::Refused,
        LogEvent::Dropped { .. }
        | LogEvent::Paced { .. }
        | LogEvent::Held { .. }
        | LogEvent::Retuned { .. } => LogKind::Owner,
        LogEvent::Finishing | LogEvent::Finished => LogKind::Finished,
        LogEvent::DiskFault { .. }
        | LogEvent::ServicesFault { .. }
        | LogEvent::Certificate { shown: false }
        | LogEvent::Undone { .. }
        | LogEvent::LossUnexplained { .. }
        | LogEvent::Doubted { looks: 1.., .. }
        | LogEvent::Alert { raised: true, .. } => LogKind::Trouble,
        LogEvent::DiskMended { .. }
        | LogEvent::ServicesMended
        | LogEvent::Doubted { looks: 0, .. }
        | LogEvent::Alert { raised: false, .. } => LogKind::Mended,
    }
}

/// Returns `what` as a sentence. `name` is the name of the learner that it is about.
pub fn sentence(what: &LogEvent, name: &str, names_hidden: bool) -> String {
    match what {
        LogEvent::Started { forked: Some((run, at)), .. } => {
            format!("The run began from the state of run {run} after decision {at}.")
        }
        LogEvent::Started { resumed: false, .. } => "The run began.".into(),
        LogEvent::Started { resumed: true, .. } => {
            "The syncer was started again, and the run continues.".into()
        }
        LogEvent::Stopped => "The syncer was told to stop, and saved the run.".into(),
        LogEvent::Joined { device, returning, .. } => {
            let came = if *returning { "came back" } else { "joined" };
            let device =
                if names_hidden || device.is_empty() { String::new() } else { format!(" ({device})") };
            format!("{name} {came}{device}.")
        }
        LogEvent::Left { why: LeaveCause::Polite, .. } => format!("{name} left."),
        LogEvent::Left { why: LeaveCause::Lost, .. } => format!("The connection to {name} broke."),
        LogEvent::Left { why: LeaveCause::Closed { reason, .. }, .. } => {
            format!("{name} was disconnected: {reason}.")
        }
        LogEvent::Dropped { wait_ms: 0, .. } => format!("The owner lets {name} come back."),
        LogEvent::Dropped { wait_ms, .. } => {
            format!("The owner sent {name} away for {} s.", f64::from(*wait_ms) / 1e3)
        }
        LogEvent::Paced { share, .. } if share.ratio() >= 1.0 => {
            format!("The owner lets {name} train all the time.")
        }
        LogEvent::Paced { share, .. } => {
            let percent = share.ratio() * 100.0;
            format!("The owner limited {name} to {percent} % of its time.")
        }
        LogEvent::Refused { why, times, .. } => {
            format!("An update of {name} was refused: {}{}.", because(*why), often(*times))
        }
        LogEvent::TurnedAway { reason, times } => {
            format!("A learner could not join, and was told: {reason}{}.", often(*times))
        }
        LogEvent::Held { held: true } => "The owner paused the run.".into(),
        LogEvent::Held { held: false } => "The owner resumed the run.".into(),
        LogEvent::Retuned { setting, from, to } => {
            format!("The owner changed {setting} from {from} to {to}.")
        }
        LogEvent::Finishing => "The run is ending: the last progress is collected.".into(),
        LogEvent::Finished => "The run is complete, and all learners were sent home.".into(),
        LogEvent::DiskFault { why, is_tape: true } => {
            format!("The run stands still, because the syncer's disk accepts no writes: {why}.")
        }
        LogEvent::DiskFault { why, is_tape: false } => format!("A snapshot could not be written: {why}."),
        LogEvent::DiskMended { is_tape: true } => {
            "The syncer's disk accepts writes again, and the run continues.".into()
        }
        LogEvent::Certificate { shown: true } => "A new certificate is in use.".into(),
        // Everyone can read the log, but file names are for the owner only.
        LogEvent::Certificate { shown: false } => {
            "A new certificate cannot be used, and the old one stays in use: the syncer's own log says why."
                .into()
        }
        LogEvent::Undone { .. } | LogEvent::Doubted { .. } | LogEvent::LossUnexplained { .. } => {
            harm_text(what, name)
        }
        LogEvent::Alert { text, .. } => text.clone(),
        LogEvent::DiskMended { is_tape: false } => "Snapshots can be written again.".into(),
        LogEvent::ServicesFault { why } => {
            format!(
                "Nothing is merged, because {why}. The run continues by itself once that ends, and learners train on."
            )
        }
        LogEvent::ServicesMended => {
            "The shared services of the run answer again, and the run continues.".into()
        }
    }
}

/// Returns an event about harmful or suspected learners as a sentence.
fn harm_text(what: &LogEvent, name: &str) -> String {
    match what {
        LogEvent::Undone { losses: (good, bad), without, for_good, .. } => {
            let until = if *for_good { "until the owner lets it back" } else { "for a while" };
            format!(
                "The held-out loss rose from {good:.3} to {bad:.3}, and would be {without:.3} without the updates of \
                 {name}: those were rolled back, and {name} was sent away {until}."
            )
        }
        LogEvent::Doubted { looks: 0, .. } => {
            format!("{name} shows again that it trains: it is no longer suspected, and counts as before.")
        }
        LogEvent::Doubted { looks, .. } => format!(
            "{name} is suspected, and its updates and tokens do not count until it shows that it trains: its {}.",
            suspicion_reason(*looks)
        ),
        LogEvent::LossUnexplained { losses: (good, bad) } => format!(
            "The held-out loss rose from {good:.3} to {bad:.3}, but not because of a few learners' updates: nothing \
             was rolled back."
        ),
        _ => String::new(),
    }
}

fn often(times: u32) -> String {
    if times > 1 { format!(" ({times} times since the last such line)") } else { String::new() }
}

/// Returns the reason of a refusal, to follow "was refused: ".
fn because(why: Refusal) -> &'static str {
    match why {
        Refusal::NotInvited => "it was not requested",
        Refusal::Unsettled => "the update before it was still in progress",
        Refusal::Empty => "there was no progress in it",
        Refusal::Shape => "it has the wrong size",
        Refusal::Checksum => "it was damaged on its way",
        Refusal::NotFinite => "it holds values that are not numbers",
        Refusal::Norm => "it is far larger than usual",
        Refusal::Unleased => "it reports more tokens than were leased to the learner",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seq: u64, what: LogEvent) -> LogEntry {
        LogEntry { seq, at_ms: 1_000 * seq, what }
    }

    fn joined(number: u64, name: &str) -> LogEvent {
        let (learner, name, device) = (LearnerId(number as u32), name.to_owned(), "cpu, 1 thread".to_owned());
        LogEvent::Joined { learner, name, device, returning: number > 1 }
    }

    fn texts(query: &LogQuery, names_hidden: bool) -> Vec<String> {
        let entries = [
            entry(4, LogEvent::Held { held: true }),
            entry(3, joined(3, "")),
            entry(2, joined(2, "Anna")),
            entry(1, joined(1, "bob")),
        ];
        let shown = view(entries.iter(), 9_000, query, names_hidden);
        shown.entries.into_iter().map(|entry| entry.text).collect()
    }

    #[test]
    fn lines_are_sentences_and_can_be_filtered_by_name() {
        let query = |name: &str, limit| LogQuery { name: name.into(), limit };
        assert_eq!(
            texts(&query("", 9), false),
            [
                "The owner paused the run.",
                "learner 3 came back (cpu, 1 thread).",
                "Anna came back (cpu, 1 thread).",
                "bob joined (cpu, 1 thread)."
            ]
        );
        assert_eq!(texts(&query("", 1), false), ["The owner paused the run."]);
        assert_eq!(texts(&query("NN", 9), false), ["Anna came back (cpu, 1 thread)."]);
    }

    #[test]
    fn hidden_names_are_neither_shown_nor_found() {
        let query = |name: &str| LogQuery { name: name.into(), limit: 9 };
        assert_eq!(texts(&query("islet 1"), true), ["islet 1 joined."]);
        assert_eq!(texts(&query("bob"), true), Vec::<String>::new());
    }

    #[test]
    fn refusals_have_their_reason_and_count() {
        let why = Refusal::Norm;
        let refused = LogEvent::Refused { learner: LearnerId(1), name: "bob".into(), why, times: 3 };
        let text = LogEntryView::new(&entry(1, refused), false).text;
        let said =
            "An update of bob was refused: it is far larger than usual (3 times since the last such line).";
        assert_eq!(text, said);
    }
}
