//! A program that ends when it is dropped.

use std::fs::File;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::Start;

/// A program that ends when it is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it, with what it says added to a file.
    ///
    /// # Errors
    /// It is not there, or the file cannot be written.
    pub fn start(start: &Start) -> io::Result<Self> {
        let log = File::options().append(true).create(true).open(start.log.with_extension("log"))?;
        let mut command = Command::new(&start.program);
        command.args(&start.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("{} did not start: {error}", start.program.display()))
        };
        Ok(Self(command.spawn().map_err(failed)?))
    }

    /// Waits for its end, however long that takes; how it ended.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }

    /// Its number in the system.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended by itself need not be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
