//! The log of a run: joins and departures, refusals, the owner's orders, and faults.
//!
//! A line is published once it is on disk, so a restarted syncer still has every published line. While the disk fails,
//! lines are published at once and written when the disk works again.

mod entry;
mod repeats;
mod words;

use std::collections::VecDeque;

use archipelago_core::diloco::Millis;

pub use entry::{LogEntry, LogEvent};
pub use words::{LogEntryView, LogKind, LogQuery, LogView, sentence, view as log_of};

use repeats::Repeats;

/// Maximum number of lines kept; the newest stay.
pub const LOG_MAX: usize = 1_000;

/// The log of a run.
#[derive(Debug, Default)]
pub struct EventLog {
    /// Published lines, oldest first.
    told: VecDeque<LogEntry>,
    /// Lines that are not on disk yet.
    pending: VecDeque<LogEntry>,
    /// The number of the newest line.
    last: u64,
    repeats: Repeats,
}

impl EventLog {
    /// Creates a log that continues from `kept`, oldest first.
    #[must_use]
    pub fn new(kept: Vec<LogEntry>) -> Self {
        let last = kept.last().map_or(0, |entry| entry.seq);
        let mut log = Self { told: kept.into(), last, ..Self::default() };
        log.trim();
        log
    }

    /// Adds a line and returns it to be written, or `None` if a repeat is only counted and reported later. `at_ms` is
    /// in milliseconds since 1970.
    pub fn add(&mut self, now: Millis, at_ms: u64, what: LogEvent) -> Option<LogEntry> {
        let what = self.repeats.pass(now, what)?;
        self.last += 1;
        let entry = LogEntry { seq: self.last, at_ms, what };
        self.pending.push_back(entry.clone());
        Some(entry)
    }

    /// Publishes the lines up to `seq`, which are on disk; if the disk `is_faulty`, publishes all lines. Returns the
    /// number of newly published lines.
    pub fn reach(&mut self, seq: u64, is_faulty: bool) -> usize {
        let mut count = 0;
        while let Some(entry) = self.pending.pop_front_if(|entry| is_faulty || entry.seq <= seq) {
            self.told.push_back(entry);
            count += 1;
        }
        self.trim();
        count.min(LOG_MAX)
    }

    /// Returns the published lines, newest first.
    pub fn told(&self) -> impl Iterator<Item = &LogEntry> {
        self.told.iter().rev()
    }

    fn trim(&mut self) {
        self.told.drain(..self.told.len().saturating_sub(LOG_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(log: &EventLog) -> Vec<u64> {
        log.told().map(|entry| entry.seq).collect()
    }

    #[test]
    fn a_line_is_told_once_it_is_on_the_disk_or_the_disk_is_broken() {
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
        let mut again = EventLog::new(log.told.iter().cloned().collect());
        assert_eq!(again.add(Millis(0), 5, LogEvent::Finished).unwrap().seq, LOG_MAX as u64 + 8);
    }
}
