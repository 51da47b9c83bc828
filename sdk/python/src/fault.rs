//! Faults reported to the program, each in one sentence.

use archipelago::run::RunError;
use archipelago::wire::CloseCode;
use archipelago_runtime::engine::EngineError;

/// Reason for an error in the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A value is infinite or NaN. The learner continues with the run's parameters.
    #[error(
        "{what} is not finite; nothing of it was sent, and the parameters are reset to those of the run: reset the \
         optimiser and continue, or stop"
    )]
    NotFinite {
        /// The value that is not finite.
        what: String,
    },
    /// The run did not answer, or does not exist.
    #[error("{0}")]
    Unreachable(String),
    /// The tensors are not those of the run.
    #[error("{0}")]
    Layout(String),
    /// The run refuses this learner.
    #[error("{0}")]
    Refused(String),
    /// The loop ended for another reason.
    #[error("{0}")]
    Failed(String),
}

impl From<RunError> for ProgramError {
    fn from(error: RunError) -> Self {
        let text = error.to_string();
        match error {
            RunError::Unreachable { .. } | RunError::NoRun { .. } => Self::Unreachable(text),
            RunError::Build(EngineError::Unfit(reason)) => Self::Layout(reason),
            RunError::Refused { code: CloseCode::Layout, .. } => Self::Layout(text),
            RunError::Refused { .. } => Self::Refused(text),
            RunError::Build(_) | RunError::Frozen { .. } | RunError::Engine(_) | RunError::Random(_) => {
                Self::Failed(text)
            }
        }
    }
}
