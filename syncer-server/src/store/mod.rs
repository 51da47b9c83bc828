//! The folder of a run.
//!
//! ```text
//! run.json                        identity of the run (Manifest); written once
//! initial.safetensors             initial parameters, if they do not follow from the seed
//! frozen.bin                      frozen weights, if the run trains adapters
//! settings.toml                   settings of the next start, unless it overrides them
//! tokenizer.json                  text ⇄ tokens
//! held-out.json                   held-out windows, on which losses are measured
//! admin.token, invite.token       readable only by their owner
//! address                         address of the server that runs here
//! guests.sqlite                   personal invites, their learners, and bans: see `invites/`
//! snapshots/00000007.safetensors  the newest two
//! tape.sqlite, bodies/            decisions, and bodies of updates: see `tape/`
//! lock                            held while a server runs here
//! ```
//! Files are written under a temporary name in the same folder, synced and renamed, so each is complete or missing.

mod checksummed_json;
mod frozen;
mod held_out;
mod manifest;
mod place;
mod snapshot;
mod snapshots;
mod temporary;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use archipelago_core::bytes::hex;
use archipelago_core::wire::{Invite, Model};
use sha2::{Digest, Sha256};

use crate::config::{INVITE_AUTO, INVITE_PERSONAL, INVITE_SHORT};
use crate::errors::ServerError;

pub use held_out::HeldOut;
pub use manifest::{FORMAT, Initial, Manifest, decoder, readable};
pub use place::free_bytes;
pub use place::{fit, is_there, is_within, make_private, names, outside, sync_folder, write_private};
pub use snapshot::Snapshot;
pub use temporary::{is_temporary, sweep_files, temporary, whole_file, whole_folder};

use place::lacks_locks;

/// File with the owner's token.
const ADMIN_TOKEN: &str = "admin.token";

/// File with the address of the server that runs in the folder.
const ADDRESS: &str = "address";

/// The folder of one run.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// Lock held for the lifetime of this value; `None` if the folder is only read.
    _lock: Option<File>,
}

impl Store {
    /// Opens the folder for writing, and creates it if needed. No other process can open it until this value is
    /// dropped.
    ///
    /// # Errors
    /// - `Disk`: the folder cannot be created or written.
    /// - `DirForeign`: the folder holds other files and no run.
    /// - `DirInUse`: another process has opened the folder.
    pub fn open(dir: &Path) -> Result<Self, ServerError> {
        fit(dir)?;
        make_private(dir)?;
        let snapshots = dir.join("snapshots");
        fs::create_dir_all(&snapshots).map_err(disk("make", &snapshots))?;
        let lock = locked(dir, "lock")?;
        [dir, &snapshots].into_iter().for_each(temporary::sweep);
        Ok(Self { dir: dir.to_owned(), _lock: Some(lock) })
    }

    /// Opens the folder for reading only. A server may run there at the same time.
    #[must_use]
    pub fn open_read_only(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), _lock: None }
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the tokenizer file.
    #[must_use]
    pub fn tokenizer_path(&self) -> PathBuf {
        self.dir.join("tokenizer.json")
    }

    /// Checks that the stored tokenizer matches `manifest`.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: the tokenizer does not match.
    pub fn check_tokenizer(&self, manifest: &Manifest) -> Result<(), ServerError> {
        let path = self.tokenizer_path();
        let json = fs::read(&path).map_err(disk("read", &path))?;
        match digest(&json) == manifest.tokenizer {
            true => Ok(()),
            false => {
                let why = "it is damaged: it does not match the checksum in run.json; restore it from a copy of the \
                     folder";
                Err(ServerError::DirCorrupt { path, why: why.into() })
            }
        }
    }

    fn held_out_path(&self) -> PathBuf {
        self.dir.join("held-out.json")
    }

    /// Reads the manifest. Returns `None` if the folder holds no run.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: the file is not a valid manifest, or is missing although the folder holds a tape or snapshots.
    pub fn manifest(&self) -> Result<Option<Manifest>, ServerError> {
        let path = self.dir.join("run.json");
        if !is_there(&path)? {
            return match self.has_tape() || !self.snapshots()?.is_empty() {
                true => Err(ServerError::DirCorrupt {
                    path,
                    why:
                        "it is missing, but the folder holds a run: restore it, or give --dir another folder"
                            .into(),
                }),
                false => Ok(None),
            };
        }
        let json = fs::read(&path).map_err(disk("read", &path))?;
        checksummed_json::unseal(&json).map(Some).map_err(|error| ServerError::DirCorrupt {
            path,
            why: format!(
                "not a description of a run ({error}): give --dir another folder, or move this one away"
            ),
        })
    }

    /// Reads the manifest of a run that must exist.
    ///
    /// # Errors
    /// - `NoRun`: the folder holds no run.
    /// - Those of [`Self::manifest`].
    pub fn begun(&self) -> Result<Manifest, ServerError> {
        self.manifest()?.ok_or_else(|| ServerError::NoRun { dir: self.dir.clone() })
    }

    /// Creates a run in the folder. The initial parameters `theta`, `[len]`, if given, are stored unless they follow
    /// from the seed. `run.json` is written after all files that it refers to.
    ///
    /// # Errors
    /// - `Disk`: a file cannot be written.
    /// - `Internal`: the manifest has no valid model.
    pub fn begin(
        &self,
        manifest: &Manifest,
        tokenizer_json: &str,
        theta: Option<&[f32]>,
    ) -> Result<(), ServerError> {
        write_private(&self.tokenizer_path(), tokenizer_json)?;
        theta.map_or(Ok(()), |theta| self.keep_initial(manifest, theta))?;
        let json = serde_json::to_string_pretty(&checksummed_json::seal(manifest)).expect("plain data");
        write_private(&self.dir.join("run.json"), &json)
    }

    /// Removes the files of a run whose creation was not completed. The settings and the tokens stay, so that the next
    /// start uses them.
    pub fn withdraw(&self) {
        let snapshots = self.snapshots().unwrap_or_default();
        let begun = place::OF_A_BEGINNING.iter().chain(&["run.json"]).map(|name| self.dir.join(name));
        for path in begun.chain(snapshots) {
            // A missing file is no error. The next start checks any file that cannot be removed.
            let _ = fs::remove_file(path);
        }
    }

    /// Stores the held-out windows, unless some are stored already.
    ///
    /// # Errors
    /// `Disk`: the file cannot be written.
    pub fn keep_held_out(&self, held_out: &HeldOut) -> Result<(), ServerError> {
        let path = self.held_out_path();
        if is_there(&path)? {
            return Ok(());
        }
        write_private(&path, &serde_json::to_string(&checksummed_json::seal(held_out)).expect("plain data"))
    }

    /// Reads the held-out windows. Returns `None` if none are stored.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: the file is damaged, or does not fit a model with the shape of `model`.
    pub fn held_out(&self, model: &Model) -> Result<Option<HeldOut>, ServerError> {
        let path = self.held_out_path();
        if !is_there(&path)? {
            return Ok(None);
        }
        let json = fs::read(&path).map_err(disk("read", &path))?;
        let why = match checksummed_json::unseal::<HeldOut>(&json) {
            Ok(held_out) if held_out.fits(model) => return Ok(Some(held_out)),
            Ok(_) => "it does not fit the run".to_owned(),
            Err(why) => why,
        };
        let why = format!("{why}: remove it, and the next start writes it again");
        Err(ServerError::DirCorrupt { path, why })
    }

    /// Returns the path of the SQLite file with the tape's rows.
    #[must_use]
    pub fn tape_path(&self) -> PathBuf {
        self.dir.join("tape.sqlite")
    }

    /// Returns true if the run has a tape. If the system cannot tell, the result is true, and reading the tape reports
    /// the error.
    #[must_use]
    pub fn has_tape(&self) -> bool {
        is_there(&self.tape_path()).unwrap_or(true)
    }

    /// Returns the owner's token: `given`, else the stored one, else a new one.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read or written.
    /// - `System`: the system provides no random numbers.
    pub fn admin_token(&self, given: Option<&str>) -> Result<String, ServerError> {
        if let Some(token) = given {
            return Ok(token.to_owned());
        }
        self.token(ADMIN_TOKEN, random_hex)
    }

    /// Returns the invite that all learners may use: `given`, or, for `auto` and `short`, the stored one or else a new
    /// one. Returns `None` if there is no common invite, or for `personal`.
    ///
    /// # Errors
    /// Those of [`Self::admin_token`].
    pub fn invite(&self, given: Option<&str>) -> Result<Option<Invite>, ServerError> {
        match given {
            None => Ok(None),
            Some(INVITE_PERSONAL) => Ok(None),
            Some(INVITE_AUTO) => self.token("invite.token", random_hex).map(|token| Some(Invite::new(token))),
            Some(INVITE_SHORT) => self.token("invite.token", short).map(|token| Some(Invite::new(token))),
            Some(token) => Ok(Some(Invite::new(token))),
        }
    }

    /// Returns the secret in the file `name`. If the file is missing, stores and returns a new secret from `make`.
    fn token(&self, name: &str, make: fn() -> Result<String, ServerError>) -> Result<String, ServerError> {
        let path = self.dir.join(name);
        if let Some(token) = read_token(&path)? {
            return Ok(token);
        }
        let token = make()?;
        self.keep_token(&path, &token)?;
        Ok(token)
    }

    /// Replaces the stored owner's token. The old one is then invalid.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be written.
    /// - `System`: the system provides no random numbers.
    pub fn rotate_admin_token(&self) -> Result<String, ServerError> {
        let token = random_hex()?;
        self.keep_token(&self.admin_token_path(), &token)?;
        Ok(token)
    }

    /// Returns the path of the file with the owner's token.
    #[must_use]
    pub fn admin_token_path(&self) -> PathBuf {
        self.dir.join(ADMIN_TOKEN)
    }

    /// Stores the address of the server that runs in the folder, for admin commands. A failure is only logged.
    pub fn note_address(&self, url: &str) {
        if let Err(error) = write_private(&self.dir.join(ADDRESS), &format!("{url}\n")) {
            tracing::warn!("cannot store the server's address, so commands need --url: {error}");
        }
    }

    /// Returns the stored address of the server that runs in the folder; `None` if no address is stored.
    ///
    /// # Errors
    /// `Disk`: the file cannot be read.
    pub fn address(&self) -> Result<Option<String>, ServerError> {
        read_token(&self.dir.join(ADDRESS))
    }

    /// Removes the stored address. The server calls this when it ends.
    pub fn forget_address(&self) {
        // If the file stays, commands find that no server answers at the address, and report it.
        let _ = fs::remove_file(self.dir.join(ADDRESS));
    }

    fn keep_token(&self, path: &Path, token: &str) -> Result<(), ServerError> {
        make_private(&self.dir)?;
        write_private(path, &format!("{token}\n"))
    }
}

/// Creates the file `name` in `dir` if it is missing, and locks it until the returned value is dropped.
///
/// # Errors
/// - `Disk`: the file cannot be created or locked.
/// - `DirInUse`: another process holds the lock.
fn locked(dir: &Path, name: &str) -> Result<File, ServerError> {
    let path = dir.join(name);
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(disk("write", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(ServerError::DirInUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) if lacks_locks(&error) => {
            let dir = dir.display();
            tracing::warn!(%error, %dir, "this file system has no locks: make sure that no other server uses the \
                 folder");
            Ok(lock)
        }
        Err(TryLockError::Error(source)) => Err(disk("lock", &path)(source)),
    }
}

/// Returns the trimmed content of the file at `path`; `None` if it is missing or empty.
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

/// Checks that `dir` is missing or an empty folder.
///
/// # Errors
/// `DirTaken`: the folder has content.
pub fn vacant(dir: &Path) -> Result<(), ServerError> {
    let is_empty = || fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    if !dir.exists() || is_empty() { Ok(()) } else { Err(ServerError::DirTaken { dir: dir.to_owned() }) }
}

/// Returns a random number from the system.
///
/// # Errors
/// `System`: the system provides no random numbers.
pub fn random_u64() -> Result<u64, ServerError> {
    getrandom::u64().map_err(|error| ServerError::System {
        what: "cannot get random numbers".into(),
        source: std::io::Error::other(error.to_string()),
    })
}

/// Writes a file atomically, and syncs it to disk.
///
/// # Errors
/// `Disk`: the file cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
    let partial = temporary::partial(path);
    let written = fs::write(&partial, bytes).map_err(disk("write", &partial));
    or_remove(written.and_then(|()| publish(&partial, path)), &partial)
}

/// Returns `written`. If it is an error, first removes `partial`, which may be what fills the disk.
fn or_remove<T>(written: Result<T, ServerError>, partial: &Path) -> Result<T, ServerError> {
    if written.is_err() {
        // The first error explains more than one of the removal.
        let _ = fs::remove_file(partial);
    }
    written
}

/// Returns the SHA-256 of `bytes` in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Syncs `partial` and renames it to `path`.
fn publish(partial: &Path, path: &Path) -> Result<(), ServerError> {
    let file = File::options().write(true).open(partial).map_err(disk("write", partial))?;
    file.sync_all().map_err(disk("sync", partial))?;
    fs::rename(partial, path).map_err(disk("write", path))?;
    path.parent().map_or(Ok(()), sync_folder).map_err(disk("sync", path))
}

/// Returns 128 random bits as 32 hex digits.
pub(crate) fn random_hex() -> Result<String, ServerError> {
    Ok(format!("{:016x}{:016x}", random_u64()?, random_u64()?))
}

/// Letters and digits that people do not confuse with each other.
const PLAIN: &[u8; 31] = b"abcdefghjkmnpqrstuvwxyz23456789";

/// Returns eight random characters of [`PLAIN`], 39 bits. They suffice because each guess needs a request to a server.
pub(crate) fn short() -> Result<String, ServerError> {
    let random = random_u64()?;
    let plain = |place| char::from(PLAIN[(random / 31_u64.pow(place) % 31) as usize]);
    Ok((0..8).map(plain).collect())
}

/// Returns a function that converts an I/O error to [`ServerError::Disk`].
pub(crate) fn disk<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> ServerError + use<'a> {
    move |source| ServerError::Disk { what, path: path.to_owned(), source }
}

/// Returns the file to which an error of copying the database `from` to the new file `to` belongs. The copy only reads
/// `from`.
pub(crate) fn at_fault<'a>(error: &rusqlite::Error, from: &'a Path, to: &'a Path) -> &'a Path {
    use rusqlite::{ErrorCode, ffi};
    let Some(found) = error.sqlite_error() else { return from };
    let reads = [ffi::SQLITE_IOERR_READ, ffi::SQLITE_IOERR_SHORT_READ];
    match found.code {
        ErrorCode::DiskFull | ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied => to,
        ErrorCode::SystemIoFailure if !reads.contains(&found.extended_code) => to,
        _ => from,
    }
}

/// Returns true if SQLite could not access the file. With any other error, the file's content is invalid.
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

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    /// Goal: an owner whose backup disk is full is not told to look at the disk of the live run.
    #[test]
    fn a_copy_that_cannot_be_written_is_not_the_fault_of_its_source() {
        let (from, to) = (Path::new("run/tape.sqlite"), Path::new("copy/tape.sqlite"));
        let fault = |code| {
            at_fault(&rusqlite::Error::SqliteFailure(ffi::Error::new(code), None), from, to).to_owned()
        };
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_CANTOPEN, ffi::SQLITE_READONLY, ffi::SQLITE_IOERR_WRITE] {
            assert_eq!(fault(code), to, "{code}");
        }
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_BUSY, ffi::SQLITE_IOERR_READ] {
            assert_eq!(fault(code), from, "{code}");
        }
    }

    #[test]
    fn a_file_is_no_folder_of_a_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(Store::open_read_only(file.path()).begun(), Err(ServerError::NoRun { .. })));
        let why = fit(file.path()).unwrap_err().to_string();
        assert!(why.ends_with("is a file: give --dir a folder"), "{why}");
    }
}
