//! The folder of a run: what it is, its newest snapshots, its tokenizer, its admin token.
//!
//! ```text
//! run.json                        what the run is (Manifest); written once
//! initial.safetensors             the first parameters, if the run began with given ones
//! settings.toml                   what the next start goes on with, unless it is given something else
//! tokenizer.json                  text ⇄ tokens
//! held-out.json                   the part of the held-out text that is measured on
//! admin.token, invite.token       readable by their owner only
//! guests.sqlite                   personal invites, whom they took in, and the banned: see `guests/`
//! snapshots/00000007.safetensors  the newest two
//! tape.sqlite, bodies/            what was decided, and what learners sent: see `tape/`
//! lock                            held while a server works here
//! ```
//! Files are written beside their place, synced and renamed, so each is whole or not there.

mod held_out;
mod initial;
mod manifest;
mod own;
mod place;
mod snapshot;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use archipelago::wire::{Invite, ModelSpec, RunId};

use crate::config::{INVITE_AUTO, INVITE_PERSONAL, INVITE_SHORT};
use crate::errors::ServerError;

pub use held_out::HeldOut;
pub use manifest::{FORMAT, Initial, Manifest};
pub use own::NamedTensor;
pub use place::{fit, is_there, is_within, make_private, names, outside, write_private};
pub use snapshot::Snapshot;

/// Snapshots kept: the newest, and the one before in case the newest is damaged.
const SNAPSHOTS_KEPT: usize = 2;

/// The file with the owner's token.
const ADMIN_TOKEN: &str = "admin.token";

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
        let path = dir.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(disk("write", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(ServerError::DirInUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(source)) => Err(disk("lock", &path)(source)),
        }
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
        serde_json::from_slice(&json).map(Some).map_err(|error| ServerError::DirCorrupt {
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

    /// Begins a run here, whose first parameters are `theta`, `[len]`; they are kept if they do not follow from
    /// its seed. What `run.json` speaks of is there before it is.
    ///
    /// # Errors
    /// - `Disk`: a file cannot be written.
    /// - `Internal`: the run has no model.
    pub fn begin(&self, manifest: &Manifest, tokenizer_json: &str, theta: &[f32]) -> Result<(), ServerError> {
        write_private(&self.tokenizer_path(), tokenizer_json)?;
        self.keep_initial(manifest, theta)?;
        let json = serde_json::to_string_pretty(manifest).expect("plain data");
        write_private(&self.dir.join("run.json"), &json)
    }

    /// Keeps what is measured on, unless it is there.
    ///
    /// # Errors
    /// `Disk`: the file cannot be written.
    pub fn keep_held_out(&self, held_out: &HeldOut) -> Result<(), ServerError> {
        let path = self.held_out_path();
        match path.exists() {
            true => Ok(()),
            false => write_private(&path, &serde_json::to_string(held_out).expect("plain data")),
        }
    }

    /// What is measured on; `None` if it was not kept, as in folders of former versions.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: it is not what was kept for a model like `spec`.
    pub fn held_out(&self, spec: &ModelSpec) -> Result<Option<HeldOut>, ServerError> {
        let path = self.held_out_path();
        if !is_there(&path)? {
            return Ok(None);
        }
        let json = fs::read(&path).map_err(disk("read", &path))?;
        match serde_json::from_slice::<HeldOut>(&json) {
            Ok(held_out) if held_out.fits(spec) => Ok(Some(held_out)),
            _ => {
                let why = "it does not fit the run: remove it, and the next start writes it again".into();
                Err(ServerError::DirCorrupt { path, why })
            }
        }
    }

    /// The newest snapshot that is whole; damaged ones are passed over with a warning.
    ///
    /// # Errors
    /// - `Disk`: the folder cannot be read.
    /// - `DirCorrupt`: there are snapshots, and none is whole or of `run`.
    pub fn latest(&self, run: RunId) -> Result<Option<Snapshot>, ServerError> {
        let paths = self.snapshots()?;
        let mut last_fault = None;
        for path in paths.iter().rev() {
            // That it may not be read is no damage: the one before would be an older run.
            File::open(path).map_err(disk("read", path))?;
            match Snapshot::read(path) {
                Ok(snapshot) if snapshot.record.run == run => return Ok(Some(snapshot)),
                Ok(snapshot) => last_fault = Some(format!("it is of run {}, not {run}", snapshot.record.run)),
                Err(why) => {
                    tracing::warn!(snapshot = %path.display(), %why, "snapshot is damaged, taking the one before");
                    last_fault = Some(why);
                }
            }
        }
        match last_fault {
            None => Ok(None),
            Some(why) => Err(ServerError::DirCorrupt {
                path: self.dir.join("snapshots"),
                why: format!(
                    "no snapshot can be used ({why}): give --dir another folder, or move this one away"
                ),
            }),
        }
    }

    /// The oldest snapshot that is whole.
    ///
    /// # Errors
    /// `Disk`: the folder cannot be read.
    pub fn oldest(&self, run: RunId) -> Result<Option<Snapshot>, ServerError> {
        let whole = |path: &PathBuf| Snapshot::read(path).ok().filter(|snapshot| snapshot.record.run == run);
        Ok(self.snapshots()?.iter().find_map(whole))
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

    /// Writes `snapshot` as the newest and removes all but the newest two.
    ///
    /// # Errors
    /// `Disk`: it cannot be written; what was there before still is.
    pub fn save(&self, snapshot: &Snapshot) -> Result<PathBuf, ServerError> {
        let before = self.snapshots()?;
        let next = before.last().map_or(1, |path| number(path).unwrap_or(0) + 1);
        let folder = self.dir.join("snapshots");
        let path = folder.join(format!("{next:08}.safetensors"));
        let partial = folder.join(format!("{next:08}.partial"));
        snapshot.write(&partial).map_err(disk("write", &partial))?;
        publish(&partial, &path)?;
        for old in before.iter().rev().skip(SNAPSHOTS_KEPT - 1) {
            fs::remove_file(old).map_err(disk("remove", old))?;
        }
        Ok(path)
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

    fn keep_token(&self, path: &Path, token: &str) -> Result<(), ServerError> {
        make_private(&self.dir)?;
        write_private(path, &format!("{token}\n"))
    }

    /// The snapshots, oldest first.
    pub(crate) fn snapshots(&self) -> Result<Vec<PathBuf>, ServerError> {
        let folder = self.dir.join("snapshots");
        if !is_there(&folder)? {
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(&folder).map_err(disk("read", &folder))? {
            let path = entry.map_err(disk("read", &folder))?.path();
            if path.extension().is_some_and(|ending| ending == "safetensors") && number(&path).is_some() {
                paths.push(path);
            }
        }
        paths.sort_by_key(|path| number(path));
        Ok(paths)
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
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes).map_err(disk("write", &partial))?;
    publish(&partial, path)
}

/// Syncs `partial` and gives it its name.
fn publish(partial: &Path, path: &Path) -> Result<(), ServerError> {
    let file = File::options().write(true).open(partial).map_err(disk("write", partial))?;
    file.sync_all().map_err(disk("sync", partial))?;
    fs::rename(partial, path).map_err(disk("write", path))?;
    // Some systems cannot open a folder, and do not need it synced either.
    if let Some(Ok(folder)) = path.parent().map(File::open) {
        folder.sync_all().map_err(disk("sync", path))?;
    }
    Ok(())
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

fn number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}
