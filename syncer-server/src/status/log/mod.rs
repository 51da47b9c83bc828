//! The log of a run: joins and departures, refusals, the owner's orders, and faults.
//!
//! A line is published once it is on disk, so a restarted syncer still has every published line. While the disk fails,
//! lines are published immediately and written when the disk works again.

mod text;

use std::collections::{BTreeMap, VecDeque};

use archipelago_core::diloco::syncer::{Event, LeaveCause, Syncer};
use archipelago_core::diloco::{LearnerId, Millis};
use archipelago_core::wire::{CloseCode, Fate, Refusal, Share};
use serde::{Deserialize, Serialize};

use super::AlertKind;

pub use text::{LogEntryView, LogKind, LogQuery, LogView, sentence, view as log_of};

/// Maximum number of lines in the log. The newest stay.
pub const LOG_MAX: usize = 1_000;

/// The log of a run.
#[derive(Debug, Default)]
pub struct EventLog {
    /// Published lines, oldest first.
    published: VecDeque<LogEntry>,
    /// Lines that are not on disk yet.
    pending: VecDeque<LogEntry>,
    /// Number of the newest line.
    last: u64,
    repeats: Repeats,
}

impl EventLog {
    /// Creates a log that continues after the lines in `kept`, oldest first.
    #[must_use]
    pub fn new(kept: Vec<LogEntry>) -> Self {
        let last = kept.last().map_or(0, |entry| entry.seq);
        let mut log = Self { published: kept.into(), last, ..Self::default() };
        log.trim();
        log
    }

    /// Adds a line and returns it, so that it is written to disk. Returns `None` for a repeat, which is only counted
    /// and reported later. `at_ms` is in milliseconds since 1970.
    pub fn add(&mut self, now: Millis, at_ms: u64, what: LogEvent) -> Option<LogEntry> {
        let what = self.repeats.pass(now, what)?;
        self.last += 1;
        let entry = LogEntry { seq: self.last, at_ms, what };
        self.pending.push_back(entry.clone());
        Some(entry)
    }

    /// Publishes the lines up to number `seq`, which are on disk. If the disk `is_faulty`, publishes all lines. Returns
    /// the number of newly published lines.
    pub fn reach(&mut self, seq: u64, is_faulty: bool) -> usize {
        let mut count = 0;
        while let Some(entry) = self.pending.pop_front_if(|entry| is_faulty || entry.seq <= seq) {
            self.published.push_back(entry);
            count += 1;
        }
        self.trim();
        count.min(LOG_MAX)
    }

    /// Returns the published lines, newest first.
    pub fn published(&self) -> impl Iterator<Item = &LogEntry> {
        self.published.iter().rev()
    }

    fn trim(&mut self) {
        self.published.drain(..self.published.len().saturating_sub(LOG_MAX));
    }
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Sequence number, from 1. It continues across restarts of the syncer.
    pub seq: u64,
    /// Time of the event, in milliseconds since 1970, by the syncer machine's clock.
    pub at_ms: u64,
    /// The event.
    pub what: LogEvent,
}

/// An event that the owner of a run may want to see later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum LogEvent {
    /// A syncer took over the run. `resumed` is true if the run already existed.
    Started {
        resumed: bool,
        /// Run that this one was forked from, and its last decision before the fork. Only at the fork's first start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forked: Option<(String, u64)>,
    },
    /// The syncer shut down in an orderly way.
    Stopped,
    Joined {
        learner: LearnerId,
        name: String,
        device: String,
        returning: bool,
    },
    Left {
        learner: LearnerId,
        name: String,
        why: LeaveCause,
    },
    /// The owner keeps a learner out for `wait_ms`; 0 lets it return immediately.
    Dropped {
        learner: LearnerId,
        name: String,
        wait_ms: u32,
    },
    /// The owner limited a learner to a share of its pace.
    Paced {
        learner: LearnerId,
        name: String,
        share: Share,
    },
    /// An update was refused. `times` counts equal refusals since the last such line, this one included.
    Refused {
        learner: LearnerId,
        name: String,
        why: Refusal,
        times: u32,
    },
    /// A peer could not join. `reason` is the message that the peer received. `times` counts equal refusals since the
    /// last such line, this one included.
    TurnedAway {
        reason: String,
        times: u32,
    },
    /// The owner paused or resumed the run.
    Held {
        held: bool,
    },
    /// The owner changed a setting during the run.
    Retuned {
        setting: String,
        from: String,
        to: String,
    },
    /// A rollback of a learner's updates. They raised the held-out loss from the first of `losses` to the second;
    /// `without` is the loss without them. The learner may return after a while, unless it is kept out `for_good`.
    Undone {
        learner: LearnerId,
        name: String,
        losses: (f32, f32),
        without: f32,
        for_good: bool,
    },
    /// A learner is suspected after `looks` loss checks that do not show training. 0 ends the suspicion.
    Doubted {
        learner: LearnerId,
        name: String,
        looks: u32,
    },
    /// The held-out loss rose from the first of `losses` to the second, and attribution found no learners that caused
    /// it.
    LossUnexplained {
        losses: (f32, f32),
    },
    Finishing,
    Finished,
    /// The disk accepts no decisions (`is_tape`), or a snapshot could not be written.
    DiskFault {
        why: String,
        is_tape: bool,
    },
    DiskMended {
        is_tape: bool,
    },
    /// A service that the run's processes share failed.
    ServicesFault {
        why: String,
    },
    ServicesMended,
    /// A new certificate is in use (`shown`), or cannot be used.
    Certificate {
        shown: bool,
    },
    /// An alert other than a disk fault was raised or cleared.
    Alert {
        alert: AlertKind,
        raised: bool,
        text: String,
    },
}

impl LogEvent {
    /// Returns the log event for `event`, if the log reports it. `syncer` is the state after the event. Events of
    /// single rounds or steps are not reported, nor are departures that another line covers.
    #[must_use]
    pub fn of(syncer: &Syncer, event: &Event) -> Option<Self> {
        let name_of = |learner: LearnerId| {
            let account = syncer.ledger().account(learner);
            account.map(|account| account.name.clone()).unwrap_or_default()
        };
        Some(match event {
            Event::Joined { learner, name, device, returning } => Self::Joined {
                learner: *learner,
                name: name.clone(),
                device: device.clone(),
                returning: *returning,
            },
            Event::Left { why: LeaveCause::Closed { code, .. }, .. } if is_covered(*code) => return None,
            Event::Left { learner, why } => {
                Self::Left { learner: *learner, name: name_of(*learner), why: why.clone() }
            }
            Event::TurnedAway { code, .. } if is_covered(*code) => return None,
            Event::TurnedAway { reason, .. } => Self::TurnedAway { reason: reason.clone(), times: 1 },
            Event::Dropped { learner, wait_ms } => {
                Self::Dropped { learner: *learner, name: name_of(*learner), wait_ms: *wait_ms }
            }
            Event::Paced { learner, share } => {
                Self::Paced { learner: *learner, name: name_of(*learner), share: *share }
            }
            Event::Settled { learner, fate: Fate::Refused(why), .. } => {
                Self::Refused { learner: *learner, name: name_of(*learner), why: *why, times: 1 }
            }
            Event::Doubted { learner, doubt } => Self::Doubted {
                learner: *learner,
                name: name_of(*learner),
                looks: doubt.map_or(0, |doubt| doubt.looks),
            },
            Event::Held { held } => Self::Held { held: *held },
            _ => return None,
        })
    }

    /// Returns the learner that the event is about.
    #[must_use]
    pub fn learner(&self) -> Option<LearnerId> {
        match self {
            Self::Joined { learner, .. }
            | Self::Left { learner, .. }
            | Self::Dropped { learner, .. }
            | Self::Paced { learner, .. }
            | Self::Undone { learner, .. }
            | Self::Doubted { learner, .. }
            | Self::Refused { learner, .. } => Some(*learner),
            _ => None,
        }
    }

    /// Returns the name that the learner had.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Joined { name, .. }
            | Self::Left { name, .. }
            | Self::Dropped { name, .. }
            | Self::Paced { name, .. }
            | Self::Undone { name, .. }
            | Self::Doubted { name, .. }
            | Self::Refused { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Returns true if another line of the log covers a connection that was closed with `code`: the run is complete, or the
/// owner dropped the learner.
fn is_covered(code: u16) -> bool {
    [CloseCode::Done, CloseCode::Dropped].map(u16::from).contains(&code)
}

/// Time during which repeats of an event are only counted, in milliseconds.
const QUIET_MS: u64 = 600_000;

/// Maximum number of different events whose repeats are counted.
const KINDS_MAX: usize = 1_024;

/// Repeats of refusals, which are counted between log lines. A broken learner, or a stranger that retries every second,
/// must not push other lines out of the log.
#[derive(Debug, Default)]
pub struct Repeats {
    logged: BTreeMap<String, (Millis, u32)>,
}

impl Repeats {
    /// Returns `what` with its count if the log is to report it now; `None` if it was only counted.
    pub fn pass(&mut self, now: Millis, what: LogEvent) -> Option<LogEvent> {
        let key = match &what {
            LogEvent::Refused { learner, why, .. } => format!("{learner} {why:?}"),
            LogEvent::TurnedAway { reason, .. } => format!("- {reason}"),
            _ => return Some(what),
        };
        if let Some((at, unlogged)) = self.logged.get_mut(&key)
            && now.since(*at) < QUIET_MS
        {
            *unlogged = unlogged.saturating_add(1);
            return None;
        }
        let count = self.logged.remove(&key).map_or(1, |(_, unlogged)| unlogged.saturating_add(1));
        if self.logged.len() >= KINDS_MAX {
            self.logged.retain(|_, (at, _)| now.since(*at) < QUIET_MS);
        }
        if self.logged.len() >= KINDS_MAX {
            let oldest = self.logged.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.logged.remove(&oldest));
        }
        self.logged.insert(key, (now, 0));
        Some(match what {
            LogEvent::Refused { learner, name, why, .. } => {
                LogEvent::Refused { learner, name, why, times: count }
            }
            LogEvent::TurnedAway { reason, .. } => LogEvent::TurnedAway { reason, times: count },
            what => what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(log: &EventLog) -> Vec<u64> {
        log.published().map(|entry| entry.seq).collect()
    }

    #[test]
    fn lines_are_published_once_they_are_on_disk_or_the_disk_fails() {
        let mut log = EventLog::default();
        for _ in 0..3 {
            log.add(Millis(0), 5, LogEvent::Held { held: true }).unwrap();
        }
        assert_eq!((log.reach(0, false), seqs(&log)), (0, vec![]));
        assert_eq!((log.reach(2, false), seqs(&log)), (2, vec![2, 1]));
        assert_eq!((log.reach(2, true), seqs(&log)), (1, vec![3, 2, 1]));
    }

    #[test]
    fn the_newest_lines_stay_and_numbers_go_on() {
        let mut log = EventLog::default();
        for _ in 0..LOG_MAX + 7 {
            log.add(Millis(0), 5, LogEvent::Finishing).unwrap();
        }
        log.reach(u64::MAX, false);
        let newest = seqs(&log);
        assert_eq!((newest.len(), newest[0]), (LOG_MAX, LOG_MAX as u64 + 7));
        let mut again = EventLog::new(log.published.iter().cloned().collect());
        assert_eq!(again.add(Millis(0), 5, LogEvent::Finished).unwrap().seq, LOG_MAX as u64 + 8);
    }

    fn turned_away(reason: &str) -> LogEvent {
        LogEvent::TurnedAway { reason: reason.to_owned(), times: 1 }
    }

    #[test]
    fn repeats_are_logged_now_and_then_with_their_count() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.pass(Millis(0), turned_away("full")), Some(turned_away("full")));
        for second in 1..600 {
            assert_eq!(repeats.pass(Millis(second * 1_000), turned_away("full")), None, "{second}");
        }
        assert_eq!(repeats.pass(Millis(1_000), turned_away("no invite")), Some(turned_away("no invite")));
        let counted = LogEvent::TurnedAway { reason: "full".into(), times: 600 };
        assert_eq!(repeats.pass(Millis(600_000), turned_away("full")), Some(counted));
        assert_eq!(repeats.pass(Millis(600_001), turned_away("full")), None);
        assert_eq!(repeats.pass(Millis(600_001), LogEvent::Finishing), Some(LogEvent::Finishing));
    }

    #[test]
    fn a_flood_of_reasons_is_bounded() {
        let mut repeats = Repeats::default();
        for number in 0..3 * KINDS_MAX as u64 {
            assert!(repeats.pass(Millis(number), turned_away(&number.to_string())).is_some());
            assert!(repeats.logged.len() <= KINDS_MAX);
        }
    }
}
