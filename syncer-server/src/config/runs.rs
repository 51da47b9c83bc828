//! Settings of the commands for a server of several runs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use archipelago_cli::secret;
use serde::{Deserialize, Serialize};

use super::RunFlags;

/// Settings of `runs`.
#[derive(clap::Args, Clone, Debug)]
pub struct RunsArgs {
    /// Address of the syncer: http://HOST:PORT, https://HOST, or a link to its page
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7700")]
    pub url: String,
    /// Trust only the certificate authorities in this PEM file, for example for a self-signed certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Print one JSON object, as /v1/runs returns it
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values with a header line
    #[arg(long)]
    pub csv: bool,
}

/// Settings of `run`.
#[derive(clap::Args, Clone, Debug)]
pub struct OrderArgs {
    /// Action
    #[arg(value_name = "ORDER", value_enum)]
    pub order: RunOrder,
    /// The run's name: 1 to 32 characters from a to z, 0 to 9 and -
    #[arg(value_name = "RUN")]
    pub name: RunName,
    /// For create: TOML file with the run's settings, whose keys are flags of `serve`; flags below override it
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Address of the syncer: http://HOST:PORT, https://HOST, or a link to its page
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7700")]
    pub url: String,
    /// Trust only the certificate authorities in this PEM file, for example for a self-signed certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Folder of the runs, whose admin.token authorises the request
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    pub runs: PathBuf,
    /// The owner's token, instead of the one in the folder
    #[arg(long, value_name = "TOKEN", hide_env_values = true, value_parser = secret)]
    pub token: Option<String>,
    /// Delete without asking
    #[arg(long)]
    pub yes: bool,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub flags: RunFlags,
}

/// Actions on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RunOrder {
    /// Create a run and start it
    Create,
    /// Serve a run that is archived, that failed, or whose folder was added by hand
    Start,
    /// Pause a run: nothing is merged, and learners wait
    Pause,
    /// Resume a paused run
    Resume,
    /// Collect the learners' last progress, then end the run; its pages stay
    Finish,
    /// Stop serving a run, and keep its folder
    Archive,
    /// Stop a run and remove its folder
    Delete,
}

impl RunOrder {
    /// Returns the path of the order below the run's path.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Create | Self::Delete => "",
            Self::Start => "start",
            Self::Pause => "admin/pause",
            Self::Resume => "admin/resume",
            Self::Finish => "admin/finish",
            Self::Archive => "archive",
        }
    }
}

/// Maximum length of a name in characters. A name is also a folder and a part of links.
const CHARS_MAX: usize = 32;
/// Number of hex digits in a run's number. Paths may contain this number instead of a name.
const RUN_DIGITS: usize = 16;

/// Name of a run: 1 to 32 lower-case letters a to z, digits and hyphens, not beginning with a hyphen. It is also the
/// run's folder, and cannot refer to another folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RunName(String);

/// Error for a text that is not a valid name of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a name of a run: give 1 to {CHARS_MAX} of a to z, 0 to 9 and -, a letter or digit first, and not \
     {RUN_DIGITS} hex digits, which would be a run's number"
)]
pub struct NoRunName {
    /// The text, or its beginning.
    pub text: String,
}

impl RunName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunName {
    type Err = NoRunName;

    fn from_str(text: &str) -> Result<Self, NoRunName> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_number = text.len() == RUN_DIGITS && text.chars().all(|c| c.is_ascii_hexdigit());
        let fits = (1..=CHARS_MAX).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('-');
        match fits && !is_number {
            true => Ok(Self(text.to_owned())),
            false => Err(NoRunName { text: text.chars().take(2 * CHARS_MAX).collect() }),
        }
    }
}

impl TryFrom<String> for RunName {
    type Error = NoRunName;

    fn try_from(text: String) -> Result<Self, NoRunName> {
        text.parse()
    }
}

impl From<RunName> for String {
    fn from(name: RunName) -> Self {
        name.0
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_folder() {
        for name in ["a", "poems-2", "0", &"x".repeat(32), "0123456789abcde", "0123456789abcdeg"] {
            assert_eq!(name.parse::<RunName>().unwrap().as_str(), name);
        }
        for text in ["", "..", ".", "a/b", "A", "-a", "a b", "a.b", "é", &"x".repeat(33), "0123456789abcdef"]
        {
            let error = text.parse::<RunName>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is not a name of a run")), "{error}");
        }
        assert!("x".repeat(10_000).parse::<RunName>().unwrap_err().to_string().len() < 400);
        assert!(serde_json::from_str::<RunName>("\"../a\"").is_err());
    }
}
