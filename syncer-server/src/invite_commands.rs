//! The verbs `invite`, `ban` and `token`: management of invites, bans and the owner's token.

use archipelago_core::wire::Fingerprint;
use archipelago_core::wire::http::INVITE_KEY;
use serde::Serialize;

use crate::clock::unix_ms;
use crate::config::{BanArgs, BanOrder, InviteArgs, InviteOrder, TokenArgs, TokenOrder};
use crate::errors::ServerError;
use crate::invites::{InviteStore, InviteTerms, InviteView};
use crate::store::Store;
use archipelago_cli::plain;

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Text to print.
    pub text: String,
    /// Description of the change and a remedy, for a change that is done even if its text cannot be printed.
    pub unshown: Option<String>,
}

impl From<String> for Outcome {
    fn from(text: String) -> Self {
        Self { text, unshown: None }
    }
}

/// Creates, lists or revokes personal invites.
///
/// # Errors
/// - `Config`: a required argument is missing, or the arguments make no sense.
/// - `NoRun`: there is no run in the folder.
/// - `Disk`, `DirCorrupt`, `System`: the invites cannot be read, created or stored.
pub fn invite(args: &InviteArgs) -> Result<Outcome, ServerError> {
    let invite_store = invite_store(&args.dir)?;
    match args.order {
        InviteOrder::Create => {
            let lasts_ms = args.expires.map(|time| time.ms());
            let made = invite_store
                .invite(&InviteTerms { uses: args.uses, lasts_ms, note: args.note.clone() }, unix_ms())?;
            let unshown = Some(format!(
                "the invite {} was made and cannot be shown again: revoke it with `syncer-server invite revoke \
                 --dir {} --id {}`",
                made.id,
                args.dir.display(),
                made.id
            ));
            let text = match args.json {
                true => json(&made),
                false => format!(
                    "{}\nAdd #{INVITE_KEY}{} to the run's link. It admits {} new keys; its name is {}. It is valid \
                     while the run is served with --invite.",
                    made.invite, made.invite, args.uses, made.id
                ),
            };
            Ok(Outcome { text, unshown })
        }
        InviteOrder::List => {
            let invites = invite_store.invites()?;
            if args.json {
                return Ok(json(&invites).into());
            }
            let now_ms = unix_ms();
            let lines = invites.iter().map(|invite| line(invite, now_ms));
            Ok(std::iter::once("name      used        state    note".to_owned())
                .chain(lines)
                .collect::<Vec<_>>()
                .join("\n")
                .into())
        }
        InviteOrder::Revoke => {
            let id = args.id.as_deref().ok_or_else(|| needs("--id NAME, which `invite list` shows"))?;
            match invite_store.revoke(id, unix_ms())? {
                Some(true) => Ok(format!("invite {id} is revoked: it admits no more learners").into()),
                Some(false) => Ok(format!("invite {id} was already revoked").into()),
                None => Err(ServerError::Config {
                    why: format!("there is no invite {id:?}: `invite list` shows them"),
                }),
            }
        }
    }
}

/// Bans a key, lifts a ban or lists the bans.
///
/// # Errors
/// As [`invite`].
pub fn ban(args: &BanArgs) -> Result<String, ServerError> {
    let invite_store = invite_store(&args.dir)?;
    let key = || args.key.ok_or_else(|| needs("--key FINGERPRINT, which `learners --json` shows"));
    let done = |key: Fingerprint, words: &str| match args.json {
        true => json(&serde_json::json!({ "fingerprint": key.to_string(), "done": words })),
        false => format!("{key} {words}"),
    };
    match args.order {
        BanOrder::Add => {
            let new = invite_store.ban(key()?, &args.note, unix_ms())?;
            Ok(done(key()?, if new { "is banned" } else { "was banned before" }))
        }
        BanOrder::Lift => {
            let was = invite_store.lift(key()?)?;
            Ok(done(key()?, if was { "may come back" } else { "was not banned" }))
        }
        BanOrder::List => {
            let bans = invite_store.bans()?;
            match args.json {
                true => Ok(json(&bans)),
                false => Ok(bans
                    .iter()
                    .map(|ban| format!("{}  {}", ban.fingerprint, plain(&ban.note)))
                    .collect::<Vec<_>>()
                    .join("\n")),
            }
        }
    }
}

/// Rotates the owner's token, and tells the location of the new one. The token itself is not printed.
///
/// # Errors
/// - `NoRun`: there is no run in the folder.
/// - `Disk`, `System`: the token cannot be created or stored.
pub fn token(args: &TokenArgs) -> Result<Outcome, ServerError> {
    let TokenOrder::Rotate = args.order;
    let store = Store::open_read_only(&args.dir);
    is_run(&store)?;
    store.rotate_admin_token()?;
    let text = format!(
        "the token in {} was replaced; the old one is no longer valid",
        store.admin_token_path().display()
    );
    Ok(Outcome { unshown: Some(text.clone()), text })
}

fn invite_store(dir: &std::path::Path) -> Result<InviteStore, ServerError> {
    is_run(&Store::open_read_only(dir))?;
    InviteStore::open(dir)
}

/// Checks that the folder has a run, so that a mistyped name does not create a folder.
fn is_run(store: &Store) -> Result<(), ServerError> {
    store.begun().map(drop)
}

fn needs(what: &str) -> ServerError {
    ServerError::Config { why: format!("no target given: add {what}") }
}

fn line(invite: &InviteView, now_ms: u64) -> String {
    let InviteView { id, note, uses, used, expires_ms, revoked_ms, .. } = invite;
    let state = match () {
        () if revoked_ms.is_some() => "revoked",
        () if expires_ms.is_some_and(|at_ms| at_ms <= now_ms) => "over",
        () if used >= uses => "used up",
        () => "good",
    };
    format!("{id:<9} {:<11} {state:<8} {}", format!("{used}/{uses}"), plain(note))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_run_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let args = TokenArgs { order: TokenOrder::Rotate, dir: dir.path().to_owned() };
        assert!(matches!(token(&args), Err(ServerError::NoRun { .. })));
    }
}
