//! What can go wrong, each with its exit code.

use std::fmt::Display;
use std::path::PathBuf;

use archipelago_cli::{SettingError, exit_codes};

exit_codes! {
    /// How the program ends. The same causes have the same codes in `syncer-server`.
    pub enum Exit {
        Done = 0, "the table was computed";
        Failed = 1, "the program failed";
        Usage = 2, "a flag is unknown or malformed";
        Settings = 3, "a setting is out of range, or settings do not go together";
        Preset = 8, "no such preset";
        Disk = 15, "a file cannot be read or written";
    }
}

/// Why nothing could be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The settings do not go together: a model refused them.
    #[error("{why}")]
    Refused {
        /// What the model says.
        why: String,
    },
    /// There is no such preset.
    #[error("{why}")]
    Preset {
        /// Which one was asked for, and which there are.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {}: {source}; check space and permissions, or give another place", .path.display())]
    Disk {
        /// The verb.
        what: &'static str,
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The simulated run broke a rule of ours: a bug.
    #[error("{what}")]
    Broken {
        /// Which rule.
        what: String,
    },
}

impl SimulateError {
    /// A model's refusal of the settings.
    pub fn refused(why: impl Display) -> Self {
        Self::Refused { why: why.to_string() }
    }

    /// How the program ends.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Broken { .. } => Exit::Failed,
            Self::Setting(_) | Self::Refused { .. } => Exit::Settings,
            Self::Preset { .. } => Exit::Preset,
            Self::Disk { .. } => Exit::Disk,
        }
    }
}
