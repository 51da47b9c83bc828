//! What all learners together have done and seen.

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
    /// Changes of fragments that came.
    pub changes: u64,
    /// Fragments that had to be fetched whole.
    pub loads: u64,
    /// What went wrong, and the last of it.
    pub troubles: u64,
    pub trouble: String,
    /// Milliseconds from an update to the word that it arrived, and from a greeting to the welcome.
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

    /// Another one sets out.
    pub fn set_out(&mut self) {
        self.set_out += 1;
    }

    /// One takes part for the first time.
    pub fn is_ready(&mut self) {
        self.ready += 1;
    }

    /// One is gone for good; `was_ready`: it had taken part.
    pub fn end(&mut self, was_ready: bool) {
        self.ended += 1;
        self.ready += usize::from(!was_ready);
    }

    /// Those who have set out and do not take part yet.
    pub fn joining(&self) -> usize {
        self.set_out.saturating_sub(self.ready)
    }

    /// Something went wrong for one of them.
    pub fn note(&mut self, trouble: String) {
        self.troubles += 1;
        self.trouble = trouble;
    }

    /// All of it, as one line.
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
