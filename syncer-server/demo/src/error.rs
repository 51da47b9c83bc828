//! Errors of a demo.

use std::{io, path::PathBuf};

/// Reason why a demo failed. Each message is one sentence with the cause and a remedy.
#[derive(Debug)]
pub enum DemoError {
    /// The machine or a build failed.
    System(String),
    /// A program ended on its own.
    Ended {
        /// Name of the program.
        name: String,
        /// Its exit code.
        code: i32,
        /// Its last message.
        words: String,
    },
    /// A program does not answer.
    Silent(String),
    /// The user stopped the demo before it reached its goal.
    Interrupted,
    /// The held-out loss did not fall below its first value.
    LossDidNotFall { first: Option<f64>, last: Option<f64> },
    /// The held-out loss stayed above `--until-loss`.
    LossNotReached { asked: f64, last: Option<f64> },
    /// Number of updates without a fate.
    WithoutFate(u64),
    /// The export is missing.
    NoExport(PathBuf),
    /// The killed learner took part in no merge after its restart.
    NotMergedAgain(String),
}

/// Exit codes in the form of `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  the run did what was asked
    1  the system, the build or a program failed
    2  a flag is unknown or malformed
 3-19  the syncer's own: `syncer-server serve --help` lists them
   20  a program stopped answering
   21  the held-out loss did not fall
   22  --until-loss was not reached
   23  an update met no fate
   24  the export is not there
   25  the killed learner was not merged again
  130  stopped by hand before the end";

impl DemoError {
    /// Returns the exit code of the process; [`EXIT_CODES`] lists the codes.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::System(_) => 1,
            Self::Ended { code, .. } => u8::try_from(*code).ok().filter(|code| *code != 0).unwrap_or(1),
            Self::Silent(_) => 20,
            Self::LossDidNotFall { .. } => 21,
            Self::LossNotReached { .. } => 22,
            Self::WithoutFate(_) => 23,
            Self::NoExport(_) => 24,
            Self::NotMergedAgain(_) => 25,
            Self::Interrupted => 130,
        }
    }
}

impl std::fmt::Display for DemoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let loss = |loss: &Option<f64>| loss.map_or("never measured".to_owned(), |loss| format!("{loss:.3}"));
        match self {
            Self::System(what) | Self::Silent(what) => f.write_str(what),
            Self::Ended { name, code, words } => {
                let words = words.trim_start_matches("error: ");
                if words.is_empty() {
                    write!(f, "{name} ended with code {code}")
                } else {
                    write!(f, "{name}: {words}")
                }
            }
            Self::Interrupted => f.write_str("stopped by hand before the end"),
            Self::LossDidNotFall { first, last } => {
                write!(
                    f,
                    "the held-out loss did not fall: first {}, last {}; train longer",
                    loss(first),
                    loss(last)
                )
            }
            Self::LossNotReached { asked, last } => {
                write!(f, "the held-out loss is {}, not at most {asked}; train longer", loss(last))
            }
            Self::WithoutFate(count) => {
                write!(f, "{count} updates met no fate; that is a bug, please report it")
            }
            Self::NoExport(folder) => write!(f, "nothing was written to {}", folder.display()),
            Self::NotMergedAgain(name) => {
                write!(f, "{name} was killed and started again, and was not merged after that; train longer")
            }
        }
    }
}

impl From<io::Error> for DemoError {
    fn from(error: io::Error) -> Self {
        Self::System(error.to_string())
    }
}

impl From<String> for DemoError {
    fn from(what: String) -> Self {
        Self::System(what)
    }
}
