//! Settings of the verb `identity`.

use std::path::PathBuf;

use archipelago::run::Address;
use archipelago::run::identity::{default_folder, first_file};
use clap::Args;

use crate::exit::{Exit, Failure};

/// Settings of `identity`.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct IdentityArgs {
    /// Action on the key
    #[arg(value_name = "ORDER", value_enum)]
    pub(crate) order: KeyOrder,
    /// The syncer that the key is for: ws://HOST:PORT, a link to its page, or HOST:PORT
    syncer: Option<String>,
    /// TOML file with any of the settings of any verb, named like the flags
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// File that holds the key
    #[arg(long, value_name = "FILE", conflicts_with = "identity_dir")]
    identity: Option<PathBuf>,
    /// Folder of keys; the first one for the syncer is used [default: in the XDG state folder]
    #[arg(long, value_name = "FOLDER")]
    identity_dir: Option<PathBuf>,
    /// For import: replace an existing key, and lose its account
    #[arg(long)]
    pub(crate) force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Actions on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KeyOrder {
    /// Print the key's fingerprint, by which a run's owner knows it, and its file
    Show,
    /// Print the secret key as one line, to move it to another machine; its holder can act as this learner
    Export,
    /// Read such a line from standard input and store the key
    Import,
}

impl IdentityArgs {
    /// Returns the key file named by the arguments.
    ///
    /// # Errors
    /// - `Usage`: neither a file nor a syncer is named, or the name is malformed.
    /// - `Identity`: there is no folder for keys.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(file) = &self.identity {
            return Ok(file.clone());
        }
        let syncer = self.syncer.as_deref().ok_or_else(|| {
            Failure::usage("a key belongs to one syncer: give its address, or --identity FILE")
        })?;
        let address: Address = syncer.parse().map_err(Failure::usage)?;
        let folder = match &self.identity_dir {
            Some(folder) => folder.clone(),
            None => default_folder(|name| std::env::var(name).ok())
                .map_err(|error| Failure::new(Exit::Identity, error))?,
        };
        Ok(first_file(&folder, &address))
    }
}
