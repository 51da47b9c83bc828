//! The folder of a run: what it is, its newest snapshots, its tokenizer, its admin token.
//!
//! ```text
//! run.json                        what the run is (Manifest); written once
//! initial.safetensors             the first parameters, if the run began with given ones
//! frozen.bin                      the weights that adapters are trained on, if the run trains no others
//! settings.toml                   what the next start goes on with, unless it is given something else
//! tokenizer.json                  text ⇄ tokens
//! held-out.json                   the part of the held-out text that is measured on
//! admin.token, invite.token       readable by their owner only
//! address                         what the server that works here listens on
//! guests.sqlite                   personal invites, whom they took in, and the banned: see `guests/`
//! snapshots/00000007.safetensors  the newest two
//! tape.sqlite, bodies/            what was decided, and what learners sent: see `tape/`
//! lock                            held while a server works here
//! ```
//! Files are written beside their place, synced and renamed, so each is whole or not there.

mod architecture;
mod frozen;
mod held_out;
mod initial;
mod manifest;
mod place;
mod room;
mod seal;
mod snapshot;
mod snapshots;
mod temporary;
mod whole;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use archipelago_core::bytes::hex;
use archipelago_core::wire::{Invite, Model};
use sha2::{Digest, Sha256};

use crate::config::{INVITE_AUTO, INVITE_PERSONAL, INVITE_SHORT};
use crate::errors::ServerError;

pub use architecture::{decoder, readable};
pub use held_out::HeldOut;
pub use manifest::{FORMAT, Initial, Manifest};
pub use place::{fit, is_there, is_within, make_private, names, outside, sync_folder, write_private};
pub use room::free_bytes;
pub use snapshot::Snapshot;
pub use temporary::{is_temporary, temporary};
pub use whole::whole_folder;

use place::lacks_locks;

/// The file with the owner's token.
const ADMIN_TOKEN: &str = "admin.token";

/// The file with the address of the server that works here.
const ADDRESS: &str = "address";

/// The folder of one run.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// Locked while this lives; `None` if the folder is only read.
    _lock: Option<File>,
}

impl Store {
    /// Opens the folder to work in it, and makes it if needed. Nobody else can until this is dropped.
    ///
    /// # Errors
    /// - `Disk`: it cannot be made or written.
    /// - `DirForeign`: it holds no run, but something else.
    /// - `DirInUse`: another process works in it.
    pub fn open(dir: &Path) -> Result<Self, ServerError> {
        fit(dir)?;
        make_private(dir)?;
        let snapshots = dir.join("snapshots");
        fs::create_dir_all(&snapshots).map_err(disk("make", &snapshots))?;
        let lock = locked(dir, "lock")?;
        [dir, &snapshots].into_iter().for_each(temporary::sweep);
        Ok(Self { dir: dir.to_owned(), _lock: Some(lock) })
    }

    /// Looks at the folder without working in it; a server may do so meanwhile.
    #[must_use]
    pub fn look(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), _lock: None }
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the tokenizer is kept.
    #[must_use]
    pub fn tokenizer_path(&self) -> PathBuf {
        self.dir.join("tokenizer.json")
    }

    /// Sees to it that the tokenizer is the one that the run of `manifest` began with.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: it is another one.
    pub fn check_tokenizer(&self, manifest: &Manifest) -> Result<(), ServerError> {
        let path = self.tokenizer_path();
        let json = fs::read(&path).map_err(disk("read", &path))?;
        match digest(&json) == manifest.tokenizer {
            true => Ok(()),
            false => {
                let why = "it is damaged: it does not match the checksum in run.json; put it back from a copy of the \
                           folder";
                Err(ServerError::DirCorrupt { path, why: why.into() })
            }
        }
    }

    fn held_out_path(&self) -> PathBuf {
        self.dir.join("held-out.json")
    }

    /// What the run is; `None` if none was begun here.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: it is no manifest of ours.
    pub fn manifest(&self) -> Result<Option<Manifest>, ServerError> {
        let path = self.dir.join("run.json");
        if !is_there(&path)? {
            return match self.has_tape() || !self.snapshots()?.is_empty() {
                true => Err(ServerError::DirCorrupt {
                    path,
                    why: "it is missing, and a run is here: put it back, or give --dir another folder".into(),
                }),
                false => Ok(None),
            };
        }
        let json = fs::read(&path).map_err(disk("read", &path))?;
        seal::unseal(&json).map(Some).map_err(|error| ServerError::DirCorrupt {
            path,
            why: format!(
                "not a run's description ({error}): give --dir another folder, or move this one away"
            ),
        })
    }

    /// What the run is that was begun here.
    ///
    /// # Errors
    /// - `NoRun`: none was.
    /// - Those of [`Self::manifest`].
    pub fn begun(&self) -> Result<Manifest, ServerError> {
        self.manifest()?.ok_or_else(|| ServerError::NoRun { dir: self.dir.clone() })
    }

    /// Begins a run here, whose first parameters are `theta`, `[len]`, if that is said; they are kept if they do not
    /// follow from its seed. What `run.json` speaks of is there before it is.
    ///
    /// # Errors
    /// - `Disk`: a file cannot be written.
    /// - `Internal`: the run has no model.
    pub fn begin(
        &self,
        manifest: &Manifest,
        tokenizer_json: &str,
        theta: Option<&[f32]>,
    ) -> Result<(), ServerError> {
        write_private(&self.tokenizer_path(), tokenizer_json)?;
        theta.map_or(Ok(()), |theta| self.keep_initial(manifest, theta))?;
        let json = serde_json::to_string_pretty(&seal::seal(manifest)).expect("plain data");
        write_private(&self.dir.join("run.json"), &json)
    }

    /// Removes the files of a run whose beginning was not completed. The settings and the tokens stay, so that the next
    /// start uses the same ones.
    pub fn withdraw(&self) {
        let snapshots = self.snapshots().unwrap_or_default();
        let begun = place::OF_A_BEGINNING.iter().chain(&["run.json"]).map(|name| self.dir.join(name));
        for path in begun.chain(snapshots) {
            // A missing file is no error, and the next start checks a file that cannot be removed.
            let _ = fs::remove_file(path);
        }
    }

    /// Keeps what is measured on, unless it is there.
    ///
    /// # Errors
    /// `Disk`: the file cannot be written.
    pub fn keep_held_out(&self, held_out: &HeldOut) -> Result<(), ServerError> {
        let path = self.held_out_path();
        if is_there(&path)? {
            return Ok(());
        }
        write_private(&path, &serde_json::to_string(&seal::seal(held_out)).expect("plain data"))
    }

    /// What is measured on; `None` if nothing was kept.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: it is not what was kept for a model like `model`.
    pub fn held_out(&self, model: &Model) -> Result<Option<HeldOut>, ServerError> {
        let path = self.held_out_path();
        if !is_there(&path)? {
            return Ok(None);
        }
        let json = fs::read(&path).map_err(disk("read", &path))?;
        let why = match seal::unseal::<HeldOut>(&json) {
            Ok(held_out) if held_out.fits(model) => return Ok(Some(held_out)),
            Ok(_) => "it does not fit the run".to_owned(),
            Err(why) => why,
        };
        let why = format!("{why}: remove it, and the next start writes it again");
        Err(ServerError::DirCorrupt { path, why })
    }

    /// Where the rows of the run's tape are.
    #[must_use]
    pub fn tape_path(&self) -> PathBuf {
        self.dir.join("tape.sqlite")
    }

    /// Whether the run's tape is there. One that cannot be looked at is: whoever reads it says why that fails.
    #[must_use]
    pub fn has_tape(&self) -> bool {
        self.tape_path().try_exists().unwrap_or(true)
    }

    /// The token that admin requests must show: `given`, or the one kept here, or a new one.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read or written.
    /// - `System`: the system gives no random numbers.
    pub fn admin_token(&self, given: Option<&str>) -> Result<String, ServerError> {
        if let Some(token) = given {
            return Ok(token.to_owned());
        }
        self.token(ADMIN_TOKEN, long)
    }

    /// What all learners may show: `given`, or if that is `auto` the one kept here, or a new one; nothing if it is
    /// `personal`.
    ///
    /// # Errors
    /// As [`Self::admin_token`].
    pub fn invite(&self, given: Option<&str>) -> Result<Option<Invite>, ServerError> {
        match given {
            None => Ok(None),
            Some(INVITE_PERSONAL) => Ok(None),
            Some(INVITE_AUTO) => self.token("invite.token", long).map(|token| Some(Invite::new(token))),
            Some(INVITE_SHORT) => self.token("invite.token", short).map(|token| Some(Invite::new(token))),
            Some(token) => Ok(Some(Invite::new(token))),
        }
    }

    /// The secret in the file `name`; if it is not there, what `make` makes.
    fn token(&self, name: &str, make: fn() -> Result<String, ServerError>) -> Result<String, ServerError> {
        let path = self.dir.join(name);
        if let Some(token) = read_token(&path)? {
            return Ok(token);
        }
        let token = make()?;
        self.keep_token(&path, &token)?;
        Ok(token)
    }

    /// Puts another owner's token in the place of the one that is kept here, which is worth nothing from then on.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be written.
    /// - `System`: the system gives no random numbers.
    pub fn rotate_admin_token(&self) -> Result<String, ServerError> {
        let token = long()?;
        self.keep_token(&self.admin_token_path(), &token)?;
        Ok(token)
    }

    /// Where the owner's token is kept.
    #[must_use]
    pub fn admin_token_path(&self) -> PathBuf {
        self.dir.join(ADMIN_TOKEN)
    }

    /// Notes the address of the server that works here, for verbs that give it orders. The run goes on if that fails.
    pub fn note_address(&self, url: &str) {
        if let Err(error) = write_private(&self.dir.join(ADDRESS), &format!("{url}\n")) {
            tracing::warn!("orders from a terminal need --url: {error}");
        }
    }

    /// Returns the address of the server that works here; `None` if no server works here, or if it did not note its
    /// address.
    ///
    /// # Errors
    /// `Disk`: the file cannot be read.
    pub fn address(&self) -> Result<Option<String>, ServerError> {
        read_token(&self.dir.join(ADDRESS))
    }

    /// Forgets the address, at the end of the server that kept it.
    pub fn forget_address(&self) {
        // A remaining address leads to a server that does not answer, which the verbs report.
        let _ = fs::remove_file(self.dir.join(ADDRESS));
    }

    fn keep_token(&self, path: &Path, token: &str) -> Result<(), ServerError> {
        make_private(&self.dir)?;
        write_private(path, &format!("{token}\n"))
    }
}

/// Makes the file `name` in `dir` unless it is there, and locks it until it is dropped.
///
/// # Errors
/// - `Disk`: it cannot be made.
/// - `DirInUse`: another process has it locked.
fn locked(dir: &Path, name: &str) -> Result<File, ServerError> {
    let path = dir.join(name);
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(disk("write", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(ServerError::DirInUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) if lacks_locks(&error) => {
            let dir = dir.display();
            tracing::warn!(%error, %dir, "this file system has no locks: let no other server use the folder");
            Ok(lock)
        }
        Err(TryLockError::Error(source)) => Err(disk("lock", &path)(source)),
    }
}

/// The token in the file at `path`, if there is one.
///
/// # Errors
/// `Disk`: the file cannot be read.
pub(crate) fn read_token(path: &Path) -> Result<Option<String>, ServerError> {
    if !is_there(path)? {
        return Ok(None);
    }
    let token = fs::read_to_string(path).map_err(disk("read", path))?;
    Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
}

/// Sees to it that nothing is at `dir`, or an empty folder.
///
/// # Errors
/// `DirTaken`.
pub fn vacant(dir: &Path) -> Result<(), ServerError> {
    let is_empty = || fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    if !dir.exists() || is_empty() { Ok(()) } else { Err(ServerError::DirTaken { dir: dir.to_owned() }) }
}

/// A random number from the system.
///
/// # Errors
/// `System`: the system gives none.
pub fn random_u64() -> Result<u64, ServerError> {
    getrandom::u64().map_err(|error| ServerError::System {
        what: "cannot get random numbers".into(),
        source: std::io::Error::other(error.to_string()),
    })
}

/// Writes a file as a whole or not at all.
///
/// # Errors
/// `Disk`.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
    let partial = temporary::partial(path);
    let written = fs::write(&partial, bytes).map_err(disk("write", &partial));
    or_remove(written.and_then(|()| publish(&partial, path)), &partial)
}

/// `written`; if that failed, `partial` is removed, for it may be what the disk has no room for.
fn or_remove<T>(written: Result<T, ServerError>, partial: &Path) -> Result<T, ServerError> {
    if written.is_err() {
        // That it cannot be removed says no more than why it could not be written.
        let _ = fs::remove_file(partial);
    }
    written
}

/// SHA-256 of `bytes`, in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Syncs `partial` and gives it its name.
fn publish(partial: &Path, path: &Path) -> Result<(), ServerError> {
    let file = File::options().write(true).open(partial).map_err(disk("write", partial))?;
    file.sync_all().map_err(disk("sync", partial))?;
    fs::rename(partial, path).map_err(disk("write", path))?;
    path.parent().map_or(Ok(()), sync_folder).map_err(disk("sync", path))
}

/// 128 random bits as hex digits.
pub(crate) fn long() -> Result<String, ServerError> {
    Ok(format!("{:016x}{:016x}", random_u64()?, random_u64()?))
}

/// Letters and digits that are not mistaken for each other.
const PLAIN: &[u8; 31] = b"abcdefghjkmnpqrstuvwxyz23456789";

/// Eight of [`PLAIN`], 39 random bits: enough for as long as whoever guesses must ask a server each time.
pub(crate) fn short() -> Result<String, ServerError> {
    let random = random_u64()?;
    let plain = |place| char::from(PLAIN[(random / 31_u64.pow(place) % 31) as usize]);
    Ok((0..8).map(plain).collect())
}

/// Makes a `Disk` error of what the system says.
pub(crate) fn disk<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> ServerError + use<'a> {
    move |source| ServerError::Disk { what, path: path.to_owned(), source }
}

/// Whether SQLite could not get at the file. Else it could, and what it found there makes no sense.
pub(crate) fn is_of_the_disk(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode;
    let no_access = |code| {
        matches!(
            code,
            ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::NoLargeFileSupport
                | ErrorCode::OutOfMemory
        )
    };
    error.sqlite_error_code().is_some_and(no_access) || matches!(error, rusqlite::Error::InvalidPath(_))
}
