//! Errors of the program, each with its exit code.

use std::fmt::Display;
use std::path::PathBuf;

use archipelago_cli::{SettingError, exit_codes};

exit_codes! {
    /// Exit codes. The same causes have the same codes in `syncer-server`.
    pub enum Exit {
        Done = 0, "the table was computed";
        Failed = 1, "the program failed";
        Usage = 2, "a flag is unknown or malformed";
        Settings = 3, "a setting is out of range, or settings do not go together";
        Preset = 8, "no such preset";
        Disk = 15, "a file cannot be read or written";
    }
}

/// The reason why a simulation failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The settings do not go together: a model refused them.
    #[error("{why}")]
    Refused {
        /// The model's explanation.
        why: String,
    },
    /// There is no such preset.
    #[error("{why}")]
    Preset {
        /// The requested preset, and the known ones.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {}: {source}; check space and permissions, or give another place", .path.display())]
    Disk {
        /// The failed operation, as a verb.
        what: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The simulated run broke an invariant, which is a bug.
    #[error("{what}")]
    Broken {
        /// The broken invariant.
        what: String,
    },
}

impl SimulateError {
    /// Creates the error for settings that a model refuses.
    pub fn refused(why: impl Display) -> Self {
        Self::Refused { why: why.to_string() }
    }

    /// Returns the exit code.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Broken { .. } => Exit::Failed,
            Self::Setting(_) | Self::Refused { .. } => Exit::Settings,
            Self::Preset { .. } => Exit::Preset,
            Self::Disk { .. } => Exit::Disk,
        }
    }
}
