//! Child process that ends when it is dropped.

use std::fs::File;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::Start;

/// Child process that ends when it is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts the program, with its output appended to a file.
    ///
    /// # Errors
    /// The program is missing, or the file cannot be written.
    pub fn start(start: &Start) -> io::Result<Self> {
        let log = File::options().append(true).create(true).open(start.log.with_extension("log"))?;
        let mut command = Command::new(&start.program);
        command.args(&start.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("{} did not start: {error}", start.program.display()))
        };
        Ok(Self(command.spawn().map_err(failed)?))
    }

    /// Waits for the end of the process without a time limit. Returns its exit status.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A process that has ended by itself need not be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
