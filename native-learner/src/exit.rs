//! Exit codes of the program.

use std::fmt::Display;

use archipelago::run::RunError;
use archipelago_cli::exit_codes;
use archipelago_core::wire::CloseCode;
use archipelago_runtime::engine::EngineError;

exit_codes! {
    /// Exit code of the program.
    pub(crate) enum Exit {
        Done = 0, "done";
        Failed = 1, "another failure";
        Usage = 2, "a flag, an environment variable or the configuration file is wrong";
        Unreachable = 3, "the syncer cannot be reached";
        Mismatch = 4, "the syncer speaks another version or lays out parameters differently";
        Untrusted = 5, "the syncer no longer trusts this learner, or its owner banned it";
        Replaced = 6, "another learner with the same identity took over";
        Identity = 7, "the key of this learner is in use, damaged or cannot be stored, or the syncer refuses it";
        Machine = 8, "this machine cannot train the run's model";
        Unwell = 9, "doctor found a failure";
        Uninvited = 10, "the run asks for an invite, or the one given is wrong, used up, expired or revoked";
        Interrupted = 130, "stopped at once by a second Ctrl+C";
    }
}

/// Failure of a command, with a sentence that includes a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Display) -> Self {
        Self { exit, message: message.to_string() }
    }

    /// Returns the failure for a wrong setting.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(Exit::Usage, message)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let exit = match &error {
            RunError::Unreachable { .. } | RunError::NoRun { .. } => Exit::Unreachable,
            RunError::Refused { code: CloseCode::Version | CloseCode::Layout, .. } => Exit::Mismatch,
            RunError::Refused { code: CloseCode::Invite, .. } => Exit::Uninvited,
            RunError::Refused { code: CloseCode::Untrusted | CloseCode::Banned, .. } => Exit::Untrusted,
            RunError::Refused { code: CloseCode::Replaced, .. } => Exit::Replaced,
            RunError::Refused { code: CloseCode::Identity, .. } => Exit::Identity,
            RunError::Build(EngineError::Codec(_) | EngineError::NoFragments | EngineError::Unfit(_)) => {
                Exit::Mismatch
            }
            RunError::Build(_) => Exit::Machine,
            // The bytes match the run's spec, but are not weights of its model.
            RunError::Frozen { .. } => Exit::Mismatch,
            RunError::Refused { .. } | RunError::Engine(_) | RunError::Random(_) => Exit::Failed,
        };
        Self::new(exit, error)
    }
}
