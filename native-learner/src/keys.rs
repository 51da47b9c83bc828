//! The command `identity`: shows, exports or imports a learner's key.

use std::io;
use std::path::PathBuf;

use archipelago::run::identity::{default_folder, first_file, of_text, read, to_text, write};
use archipelago::run::{Address, Key, Signer};
use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::show::print;

pub(crate) fn identity(args: &IdentityArgs) -> Result<(), Failure> {
    let path = args.path()?;
    let failed = |error| Failure::new(Exit::Identity, error);
    let shown = |key: &Key| key.identity().fingerprint().to_string();
    let (key, text) = match args.order {
        KeyOrder::Show => {
            let key = read(&path).map_err(failed)?;
            let text = format!("{}\nin {}", shown(&key), path.display());
            (key, text)
        }
        KeyOrder::Export => {
            let key = read(&path).map_err(failed)?;
            let text = to_text(&key);
            (key, text)
        }
        KeyOrder::Import => {
            let mut line = String::new();
            io::stdin().read_line(&mut line).map_err(|error| Failure::new(Exit::Identity, error))?;
            let key = of_text(&line).map_err(failed)?;
            write(&path, &key, args.force).map_err(failed)?;
            let text = format!("stored {} in {}", shown(&key), path.display());
            (key, text)
        }
    };
    if !args.json {
        print(&text);
        return Ok(());
    }
    let mut output = json!({ "fingerprint": shown(&key), "file": path });
    if args.order == KeyOrder::Export {
        output["key"] = text.into();
    }
    print(&output);
    Ok(())
}

/// Settings of `identity`.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct IdentityArgs {
    /// Action on the key
    #[arg(value_name = "ORDER", value_enum)]
    pub(crate) order: KeyOrder,
    /// The syncer that the key is for: ws://HOST:PORT, a link to its page, or HOST:PORT
    syncer: Option<String>,
    /// TOML file with settings of any verb, under the names of the flags
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// File that holds the key
    #[arg(long, value_name = "FILE", conflicts_with = "identity_dir")]
    identity: Option<PathBuf>,
    /// Folder of keys; the first key for the syncer is used [default: in the XDG state folder]
    #[arg(long, value_name = "FOLDER")]
    identity_dir: Option<PathBuf>,
    /// For import: replace an existing key, whose account is lost
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
    /// Read an exported key from standard input and store it
    Import,
}

impl IdentityArgs {
    /// Returns the path of the key file that the arguments select.
    ///
    /// # Errors
    /// - `Usage`: neither a file nor a syncer is named, or the syncer's address is malformed.
    /// - `Identity`: no folder for keys can be found.
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
