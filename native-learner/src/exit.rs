//! How the command ends.

use std::fmt;
use std::process::ExitCode;

use archipelago::engine::EngineError;
use archipelago::run::RunError;
use archipelago::wire::CloseCode;

/// Exit codes; the numbers are promised in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Something failed that has no number of its own.
    Failed = 1,
    /// A flag, an environment variable or the configuration file is wrong.
    Usage = 2,
    /// The syncer cannot be reached.
    Unreachable = 3,
    /// The syncer speaks another version or lays out parameters differently.
    Mismatch = 4,
    /// The syncer does not trust this learner any more.
    Untrusted = 5,
    /// Another learner with the same identity took over.
    Replaced = 6,
    /// The identity file is in use, damaged or cannot be written.
    Identity = 7,
    /// This machine cannot train the run's model.
    Machine = 8,
    /// `doctor` found something wrong.
    Unwell = 9,
    /// Stopped at once by a second Ctrl+C.
    Interrupted = 130,
}

/// The codes, as `--help` shows them.
pub(crate) const HELP: &str = "\
Exit codes:
    0  done
    1  something failed that has no number of its own
    2  a flag, an environment variable or the configuration file is wrong
    3  the syncer cannot be reached
    4  the syncer speaks another version or lays out parameters differently
    5  the syncer does not trust this learner any more
    6  another learner with the same identity took over
    7  the identity file is in use, damaged or cannot be written
    8  this machine cannot train the run's model
    9  doctor found something wrong
  130  stopped at once by a second Ctrl+C";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why the command failed, in one sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The sentence.
    pub message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let exit = match &error {
            RunError::Unreachable { .. } => Exit::Unreachable,
            RunError::Refused { code: CloseCode::Version | CloseCode::Layout, .. } => Exit::Mismatch,
            RunError::Refused { code: CloseCode::Untrusted, .. } => Exit::Untrusted,
            RunError::Refused { code: CloseCode::Replaced, .. } => Exit::Replaced,
            RunError::Build(EngineError::Codec(_) | EngineError::NoFragments) => Exit::Mismatch,
            RunError::Build(_) => Exit::Machine,
            RunError::Refused { .. } | RunError::Engine(_) | RunError::Random(_) => Exit::Failed,
        };
        Self::new(exit, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_code() {
        use Exit as E;
        let all = [
            E::Failed,
            E::Usage,
            E::Unreachable,
            E::Mismatch,
            E::Untrusted,
            E::Replaced,
            E::Identity,
            E::Machine,
            E::Unwell,
            E::Interrupted,
        ];
        for exit in all {
            let code = exit as u8;
            assert!(HELP.lines().any(|line| line.starts_with(&format!("{code:5}  "))), "{exit:?}");
        }
    }
}
