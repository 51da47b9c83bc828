//! Settings of the commands for invites, bans and tokens. They work on the run's folder, with or without a running
//! server.

use std::path::PathBuf;

use archipelago_cli::{Span, some_time};
use archipelago_core::wire::Fingerprint;

use super::DEFAULT_FOLDER;

/// Settings of `invite`.
#[derive(clap::Args, Clone, Debug)]
pub struct InviteArgs {
    /// What is to be done
    #[arg(value_name = "ORDER", value_enum, required = true)]
    pub order: InviteOrder,
    /// For revoke: the invite's name, as list shows it
    #[arg(long, value_name = "NAME")]
    pub id: Option<String>,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
    /// For create: new keys that it takes in
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub uses: u32,
    /// For create: how long it is good (e.g. 12h, 7d) [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub expires: Option<Span>,
    /// For create: what to remember it by, at most 200 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub note: String,
    /// One JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

/// What may be done with invites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum InviteOrder {
    /// Make one and print it, this once
    Create,
    /// List all, used up, over and revoked ones too
    List,
    /// Take one back: it takes in nobody any more, and who came by it stays
    Revoke,
}

/// Settings of `ban`.
#[derive(clap::Args, Clone, Debug)]
pub struct BanArgs {
    /// What is to be done
    #[arg(value_name = "ORDER", value_enum, required = true)]
    pub order: BanOrder,
    /// For add and lift: the key's fingerprint, 32 hex digits, as `learners --json` shows it
    #[arg(long, value_name = "FINGERPRINT")]
    pub key: Option<Fingerprint>,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
    /// For add: what to remember it by, at most 200 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub note: String,
    /// One JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

/// What may be done with bans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BanOrder {
    /// Ban a key: a learner that is there goes within a second, and is told why
    Add,
    /// Let it come back
    Lift,
    /// List the banned
    List,
}

/// Settings of `token`.
#[derive(clap::Args, Clone, Debug)]
pub struct TokenArgs {
    /// What is to be done
    #[arg(value_name = "ORDER", value_enum, required = true)]
    pub order: TokenOrder,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
}

/// What may be done with the owner's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TokenOrder {
    /// Make another one; a server that runs there asks for it at once, unless it was started with --admin-token
    Rotate,
}
