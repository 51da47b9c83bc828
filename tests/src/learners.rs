//! Real learner process, killed when dropped.

use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use crate::children::{clock, ended, interrupt, kill, tail};

/// Running learner.
pub struct LearnerProcess {
    pub(crate) child: Child,
    pub(crate) log: PathBuf,
}

impl LearnerProcess {
    /// Kills the process without warning.
    pub fn kill(&mut self) {
        kill(&mut self.child);
    }

    /// Interrupts the learner, as Ctrl+C does, and waits. Returns its exit status and the duration.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn interrupt(&mut self) -> (ExitStatus, Duration) {
        let start = clock();
        interrupt(&self.child);
        let status = self.wait();
        (status, start.elapsed())
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let log = tail(&self.log);
        ended(&mut self.child, "learner", &log)
    }

    /// Returns true if the process is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for LearnerProcess {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}
