//! State of the run's tape, snapshots and shared services.

use std::sync::Arc;

use archipelago_core::diloco::Millis;
use serde::{Deserialize, Serialize};

use super::LogEvent;
use super::log::sentence;

/// State of tape, snapshots and shared services, for the status.
#[derive(Debug, Default)]
pub struct Disk {
    tape: Taped,
    /// Time of the newest snapshot written by this process.
    saved: Option<Millis>,
    snapshot_fault: Option<Arc<str>>,
    /// Warning that the disk was nearly full after the newest snapshot, as a sentence.
    shortage: Option<Arc<str>>,
    services_fault: Option<Arc<str>>,
}

/// State of the tape.
#[derive(Clone, Debug, Default)]
pub struct Taped {
    /// Number of decisions on disk.
    pub decisions: u64,
    /// Size of update bodies on disk, in bytes.
    pub update_bytes: u64,
    /// Reason why the tape cannot be written at present, if any.
    pub fault: Option<Arc<str>>,
    /// Time for which the oldest unwritten decision has waited for the disk, in milliseconds.
    pub waits_ms: Option<u64>,
}

/// Maximum wait of a decision for a working disk, in milliseconds. After it, the disk counts as hanging. A busy disk
/// needs far less.
pub const UNSAVED_MS_MAX: u64 = 3_000;

impl Taped {
    /// Adds a fault if a decision has waited for the disk too long.
    fn judged(mut self) -> Self {
        let hangs = self.waits_ms.is_some_and(|ms| ms > UNSAVED_MS_MAX);
        let no_answer = || format!("it has not answered for more than {} s", UNSAVED_MS_MAX / 1_000).into();
        self.fault = self.fault.or_else(|| hangs.then(no_answer));
        self
    }
}

/// State of the run's tape and snapshots on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct DiskView {
    /// Reason why the tape cannot be written. The run pauses until it can be written, and then resumes by itself.
    pub tape_fault: Option<String>,
    /// Reason why the newest snapshot was not written. Decisions are still recorded.
    pub snapshot_fault: Option<String>,
    /// In a run on several machines, the fault of a shared service that stops merges, as this process sees it. Merges
    /// resume by themselves.
    pub services_fault: Option<String>,
    /// Number of decisions on disk since the run began.
    pub decisions: u64,
    /// Number of decisions that are not on disk yet. The status includes them, but a crash now would undo them.
    /// Learners are not informed of them yet.
    pub unsaved: u64,
    /// Time for which the oldest unwritten decision has waited for the disk, in seconds.
    pub unsaved_age_s: Option<f64>,
    /// Size of update bodies on disk, in bytes.
    pub update_bytes: u64,
    /// Age of the newest snapshot written by this process, in seconds.
    pub snapshot_age_s: Option<f64>,
}

impl Disk {
    /// Records the state of the tape. Returns a log event if the tape started to fail or works again.
    pub fn taped(&mut self, tape: Taped) -> Option<LogEvent> {
        let tape = tape.judged();
        let news = news(self.tape.fault.as_ref(), tape.fault.as_ref(), true);
        self.tape = tape;
        news
    }

    /// Records that a snapshot was written, or why not, and a `shortage` of disk space. Returns a log event if the
    /// fault began or ended.
    pub fn saved(
        &mut self,
        now: Millis,
        fault: Option<Arc<str>>,
        shortage: Option<Arc<str>>,
    ) -> Option<LogEvent> {
        self.shortage = shortage;
        if fault.is_none() {
            self.saved = Some(now);
        }
        let news = news(self.snapshot_fault.as_ref(), fault.as_ref(), false);
        self.snapshot_fault = fault;
        news
    }

    /// Records the fault of the services that the run's processes share, if any. Returns a log event if this changed.
    pub fn served(&mut self, fault: Option<Arc<str>>) -> Option<LogEvent> {
        match (std::mem::replace(&mut self.services_fault, fault), &self.services_fault) {
            (None, Some(why)) => Some(LogEvent::ServicesFault { why: why.to_string() }),
            (Some(_), None) => Some(LogEvent::ServicesMended),
            _ => None,
        }
    }

    /// Returns the warning that the disk is nearly full, as a sentence.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        self.shortage.as_deref().map(str::to_owned)
    }

    /// Returns the fault as a sentence.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let of = |fault: &Option<Arc<str>>, is_tape| news(None, fault.as_ref(), is_tape);
        let fault = of(&self.tape.fault, true).or_else(|| of(&self.snapshot_fault, false));
        fault.map(|fault| sentence(&fault, "", false))
    }

    /// Returns the age of the newest snapshot in milliseconds; without a snapshot, the time since the start.
    #[must_use]
    pub fn snapshot_age_ms(&self, now: Millis) -> u64 {
        now.since(self.saved.unwrap_or(Millis(0)))
    }

    /// Returns true if the tape cannot be written at present.
    #[must_use]
    pub fn is_faulty(&self) -> bool {
        self.tape.fault.is_some()
    }

    /// Returns the view for the status.
    #[must_use]
    pub fn view(&self, now: Millis) -> DiskView {
        let text = |fault: &Option<Arc<str>>| fault.as_deref().map(str::to_owned);
        DiskView {
            tape_fault: text(&self.tape.fault),
            snapshot_fault: text(&self.snapshot_fault),
            services_fault: text(&self.services_fault),
            decisions: self.tape.decisions,
            // The actor sets these two fields.
            unsaved: 0,
            unsaved_age_s: None,
            update_bytes: self.tape.update_bytes,
            snapshot_age_s: self.saved.map(|saved| now.since(saved) as f64 / 1e3),
        }
    }
}

/// Returns the log event for a change of a fault from `before` to `now`, if it appeared or disappeared.
fn news(before: Option<&Arc<str>>, now: Option<&Arc<str>>, is_tape: bool) -> Option<LogEvent> {
    match (before, now) {
        (None, Some(why)) => Some(LogEvent::DiskFault { why: why.to_string(), is_tape }),
        (Some(_), None) => Some(LogEvent::DiskMended { is_tape }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a hanging disk is reported like a failing one, once each time, and a slow disk is not reported.
    #[test]
    fn a_disk_that_hangs_takes_nothing() {
        let mut disk = Disk::default();
        let mut look = |waits_ms: Option<u64>, fault: Option<&str>| {
            disk.taped(Taped { waits_ms, fault: fault.map(Arc::from), ..Taped::default() })
        };
        assert_eq!((look(None, None), look(Some(UNSAVED_MS_MAX), None)), (None, None));
        let told = look(Some(UNSAVED_MS_MAX + 1), None).unwrap();
        assert!(
            matches!(&told, LogEvent::DiskFault { why, is_tape: true } if why.contains("3 s")),
            "{told:?}"
        );
        assert_eq!((look(Some(9_000), None), look(Some(9_500), Some("locked"))), (None, None));
        assert_eq!(look(Some(40), None), Some(LogEvent::DiskMended { is_tape: true }));
        assert_eq!(look(None, None), None);
    }
}
