//! Settings of the commands for invites, bans and tokens. They work on the run's folder, with or without a running
//! server.

use std::path::PathBuf;

use archipelago_cli::{Span, some_time};
use archipelago_core::wire::Fingerprint;

use super::DEFAULT_FOLDER;

/// Settings of `invite`.
#[derive(clap::Args, Clone, Debug)]
pub struct InviteArgs {
    /// Action to take
    #[arg(value_name = "ORDER", value_enum, required = true)]
    pub order: InviteOrder,
    /// For revoke: the invite's name, as list shows it
    #[arg(long, value_name = "NAME")]
    pub id: Option<String>,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
    /// For create: number of new keys that the invite admits
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub uses: u32,
    /// For create: time for which the invite is valid (e.g. 12h, 7d) [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub expires: Option<Span>,
    /// For create: note for yourself, at most 200 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub note: String,
    /// Print one JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

/// Actions on invites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum InviteOrder {
    /// Create an invite and print it; it is shown only once
    Create,
    /// List all invites, including used-up, expired and revoked ones
    List,
    /// Revoke an invite. Learners that already used it stay
    Revoke,
}

/// Settings of `ban`.
#[derive(clap::Args, Clone, Debug)]
pub struct BanArgs {
    /// Action to take
    #[arg(value_name = "ORDER", value_enum, required = true)]
    pub order: BanOrder,
    /// For add and lift: the key's fingerprint, 32 hex digits, as `learners --json` shows it
    #[arg(long, value_name = "FINGERPRINT")]
    pub key: Option<Fingerprint>,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
    /// For add: note for yourself, at most 200 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub note: String,
    /// Print one JSON value on standard output
    #[arg(long)]
    pub json: bool,
}

/// Actions on bans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BanOrder {
    /// Ban a key: the server disconnects a connected learner within a second, with the reason
    Add,
    /// Lift a ban
    Lift,
    /// List banned keys
    List,
}

/// Settings of `token`.
#[derive(clap::Args, Clone, Debug)]
pub struct TokenArgs {
    /// Action to take
    #[arg(value_name = "ORDER", value_enum, required = true)]
    pub order: TokenOrder,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
}

/// Actions on the owner's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TokenOrder {
    /// Replace the token; a running server requires the new one at once, unless it was started with --admin-token
    Rotate,
}
