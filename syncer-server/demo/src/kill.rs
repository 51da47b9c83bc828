//! `--kill-one`: a learner is killed mid-run and restarted later.

use serde_json::{Value, json};

use crate::{error::DemoError, history::History, process::Process, programs::Programs, status::Status};

/// Length that the plan assumes for a run without one, in seconds.
const RUN_S: f64 = 60.0;

/// Plan and outcome of the kill. Times are seconds since the run began.
pub struct Kill {
    /// Name of the learner to kill.
    pub name: String,
    killed: f64,
    restarted: f64,
    tokens_merged_at_restart: u64,
    merged_again: Option<f64>,
    stage: Stage,
}

#[derive(PartialEq)]
enum Stage {
    Waiting,
    Dead,
    Back,
}

impl Kill {
    /// Kills `name` after a third of the run and starts it again after half of it.
    pub fn new(name: &str, run_s: Option<f64>) -> Self {
        let run_s = run_s.unwrap_or(RUN_S);
        Self {
            name: name.to_owned(),
            killed: run_s / 3.0,
            restarted: run_s / 2.0,
            tokens_merged_at_restart: 0,
            merged_again: None,
            stage: Stage::Waiting,
        }
    }

    /// Carries out the actions due at `now`, and returns a sentence about them.
    ///
    /// # Errors
    /// [`DemoError::System`]: the learner could not be restarted.
    pub fn step(
        &mut self,
        now: f64,
        status: &Status,
        process: &mut Process,
        programs: &Programs,
        join: &str,
    ) -> Result<Option<String>, DemoError> {
        match self.stage {
            Stage::Waiting if now >= self.killed => {
                process.kill();
                (self.killed, self.stage) = (now, Stage::Dead);
                Ok(Some(format!("{} killed (SIGKILL)", self.name)))
            }
            Stage::Dead if now >= self.restarted => {
                self.tokens_merged_at_restart = self.tokens_merged(status);
                *process = programs.start_learner(&self.name, join)?;
                (self.restarted, self.stage) = (now, Stage::Back);
                Ok(Some(format!("{} started again", self.name)))
            }
            _ => Ok(self.look(now, status)),
        }
    }

    /// Returns a sentence, once, when the learner has been merged again by `now`.
    pub fn look(&mut self, now: f64, status: &Status) -> Option<String> {
        let back = self.stage == Stage::Back && self.tokens_merged(status) > self.tokens_merged_at_restart;
        if !back || self.survived() {
            return None;
        }
        let seconds = now - self.restarted;
        self.merged_again = Some(seconds);
        Some(format!("{} merged again {seconds:.1} s after its restart", self.name))
    }

    /// Returns true if the learner's process should be dead.
    pub fn is_dead(&self) -> bool {
        self.stage == Stage::Dead
    }

    /// Returns true if the learner was killed, came back and was merged.
    pub fn survived(&self) -> bool {
        self.merged_again.is_some()
    }

    /// Returns the figures. The other learners' speed is measured over equal times before and after the kill.
    pub fn report(&self, history: &History) -> Value {
        let others = |name: &str| name != self.name;
        let dead_s = self.restarted - self.killed;
        let before = history.tokens_per_s(self.killed - dead_s, self.killed, others);
        let after = history.tokens_per_s(self.killed, self.restarted, others);
        json!({
            "learner": self.name,
            "killed_s": self.killed,
            "restarted_s": self.restarted,
            "others_tokens_per_s_before": before,
            "others_tokens_per_s_after": after,
            "others_ratio": after / before,
            "merged_again_after_s": self.merged_again,
        })
    }

    fn tokens_merged(&self, status: &Status) -> u64 {
        status
            .learners
            .iter()
            .filter(|learner| learner.name == self.name)
            .map(|learner| learner.tokens_merged)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Learner;

    #[test]
    fn is_back_once_more_is_merged_than_at_its_restart() {
        let status = |tokens_merged: u64| {
            let bert = Learner { name: "bert".to_owned(), tokens_merged, ..Learner::default() };
            Status { learners: vec![bert], ..Status::default() }
        };
        let mut kill = Kill::new("bert", None);
        assert_eq!(kill.look(1.0, &status(99)), None, "it was not killed yet");
        (kill.stage, kill.restarted, kill.tokens_merged_at_restart) = (Stage::Back, 30.0, 10);
        assert_eq!(kill.look(31.0, &status(10)), None);
        assert_eq!(kill.look(32.5, &status(11)).unwrap(), "bert merged again 2.5 s after its restart");
        assert_eq!(kill.look(33.0, &status(12)), None, "once is enough");
        assert!(kill.survived());
    }
}
