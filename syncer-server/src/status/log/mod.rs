//! The log of a run: who came and went, what was refused, what the owner did, and what went wrong.
//!
//! A line is told once it is on the disk, so that a syncer that starts anew still has all that was told. While the disk
//! takes nothing, lines are told at once, and written when it takes them again.

mod entry;
mod repeats;
mod words;

use std::collections::VecDeque;

use archipelago_core::diloco::Millis;

pub use entry::{Happening, LogEntry};
pub use words::{LogEntryView, LogKind, LogQuery, LogView, sentence, view as log_of};

use repeats::Repeats;

/// Lines kept: the newest.
pub const LOG_MAX: usize = 1_000;

/// The log of a run.
#[derive(Debug, Default)]
pub struct EventLog {
    /// Oldest first.
    told: VecDeque<LogEntry>,
    /// Those on their way to the disk.
    pending: VecDeque<LogEntry>,
    /// The number of the newest line.
    last: u64,
    repeats: Repeats,
}

impl EventLog {
    /// A log that goes on from `kept`, oldest first.
    #[must_use]
    pub fn new(kept: Vec<LogEntry>) -> Self {
        let last = kept.last().map_or(0, |entry| entry.seq);
        let mut log = Self { told: kept.into(), last, ..Self::default() };
        log.trim();
        log
    }

    /// Adds a line, and gives it to be written; `None` if it is only counted, to be told later. `at_ms` is in
    /// milliseconds since 1970.
    pub fn add(&mut self, now: Millis, at_ms: u64, what: Happening) -> Option<LogEntry> {
        let what = self.repeats.pass(now, what)?;
        self.last += 1;
        let entry = LogEntry { seq: self.last, at_ms, what };
        self.pending.push_back(entry.clone());
        Some(entry)
    }

    /// Lines up to `seq` are on the disk; if it `is_faulty`, none is waited for. How many are told now that were not
    /// before.
    pub fn reach(&mut self, seq: u64, is_faulty: bool) -> usize {
        let mut count = 0;
        while let Some(entry) = self.pending.pop_front_if(|entry| is_faulty || entry.seq <= seq) {
            self.told.push_back(entry);
            count += 1;
        }
        self.trim();
        count.min(LOG_MAX)
    }

    /// What is told, the newest first.
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
            log.add(Millis(0), 5, Happening::Held { held: true }).unwrap();
        }
        assert_eq!((log.reach(0, false), seqs(&log)), (0, vec![]));
        assert_eq!((log.reach(2, false), seqs(&log)), (2, vec![2, 1]));
        assert_eq!((log.reach(2, true), seqs(&log)), (1, vec![3, 2, 1]));
    }

    #[test]
    fn the_newest_lines_stay_and_numbers_go_on() {
        let mut log = EventLog::default();
        for _ in 0..LOG_MAX + 7 {
            log.add(Millis(0), 5, Happening::Finishing).unwrap();
        }
        log.reach(u64::MAX, false);
        let newest = seqs(&log);
        assert_eq!((newest.len(), newest[0]), (LOG_MAX, LOG_MAX as u64 + 7));
        let mut again = EventLog::new(log.told.iter().cloned().collect());
        assert_eq!(again.add(Millis(0), 5, Happening::Finished).unwrap().seq, LOG_MAX as u64 + 8);
    }
}
