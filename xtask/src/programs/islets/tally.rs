//! Statistics over all learners of this process.

use serde_json::{Value, json};
use tokio::time::Instant;

/// Counts since the start, and times since the last line.
pub struct Tally {
    began: Instant,
    set_out: usize,
    ready: usize,
    ended: usize,
    pub steps: u64,
    pub updates: u64,
    pub merged: u64,
    pub late: u64,
    pub refused: u64,
    /// Number of received changes.
    pub changes: u64,
    /// Number of fragments that were downloaded whole.
    pub loads: u64,
    /// Number of errors, and the last one.
    pub troubles: u64,
    pub trouble: String,
    /// Milliseconds from an update to its confirmation, and from a hello to the welcome.
    pub arrived_ms: Vec<f64>,
    pub welcomed_ms: Vec<f64>,
}

impl Tally {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            set_out: 0,
            ready: 0,
            ended: 0,
            steps: 0,
            updates: 0,
            merged: 0,
            late: 0,
            refused: 0,
            changes: 0,
            loads: 0,
            troubles: 0,
            trouble: String::new(),
            arrived_ms: Vec::new(),
            welcomed_ms: Vec::new(),
        }
    }

    /// Counts a learner that starts to join.
    pub fn set_out(&mut self) {
        self.set_out += 1;
    }

    /// Counts a learner that takes part for the first time.
    pub fn is_ready(&mut self) {
        self.ready += 1;
    }

    /// Counts a learner that is gone for good; `was_ready` is true if it had taken part.
    pub fn end(&mut self, was_ready: bool) {
        self.ended += 1;
        self.ready += usize::from(!was_ready);
    }

    /// Returns the number of learners that have started to join and do not take part yet.
    pub fn joining(&self) -> usize {
        self.set_out.saturating_sub(self.ready)
    }

    /// Records an error of a learner.
    pub fn note(&mut self, trouble: String) {
        self.troubles += 1;
        self.trouble = trouble;
    }

    /// Returns all statistics as one JSON line.
    pub fn line(&mut self, now: Instant) -> Value {
        json!({
            "at_s": (now - self.began).as_secs_f64(),
            "ready": self.ready - self.ended.min(self.ready),
            "ended": self.ended,
            "steps": self.steps,
            "updates": self.updates,
            "merged": self.merged,
            "late": self.late,
            "refused": self.refused,
            "changes": self.changes,
            "loads": self.loads,
            "troubles": self.troubles,
            "trouble": self.trouble,
            "arrived_ms": std::mem::take(&mut self.arrived_ms),
            "welcomed_ms": std::mem::take(&mut self.welcomed_ms),
        })
    }
}
