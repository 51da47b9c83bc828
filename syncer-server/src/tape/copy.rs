//! Copying of a run's folder while a syncer uses it.
//!
//! An open file stays readable after the syncer has removed it. So the copy first opens the snapshots, then the
//! segments of bodies, and copies the rows as of one moment. It then opens segments that have appeared since, and
//! copies all open files up to their current length. The snapshots are older than the rows, so they contain no decision
//! that the rows lack. A row's bodies are on disk before the row. Rows that the copied snapshots need are missing only
//! if two snapshots are written while the copy opens files and copies rows. The final check detects this.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use archipelago_core::diloco::{Codec, Entry, Fragments, Part, STATE_BYTES, checksum};

use super::bodies::{Reader, segments};
use super::recover::{BODIES, Broken, broken, corrupt, damaged};
use super::{Rows, RowsError};
use crate::errors::ServerError;
use crate::store::{Manifest, Snapshot, Store, at_fault, disk, is_temporary, sync_folder};

/// Name of the snapshot folder inside the run's folder.
const SNAPSHOTS: &str = "snapshots";

/// Facts about a completed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySummary {
    /// Number of the last decision in the copy.
    pub last: u64,
    /// Total size of the copied files, in bytes.
    pub bytes: u64,
}

/// Copies the run in the folder of `store` to the empty folder `to`, and checks the copy. The check reads every row
/// that a start from any of the snapshots needs, and every update of these rows.
///
/// # Errors
/// - `Disk`: a file cannot be read or written.
/// - `DirCorrupt`: a file is damaged or missing, or was removed during the copy.
pub fn copy(store: &Store, manifest: &Manifest, to: &Path) -> Result<CopySummary, ServerError> {
    let dir = store.dir();
    for sub in ["", SNAPSHOTS, BODIES] {
        fs::create_dir_all(to.join(sub)).map_err(disk("make", to))?;
    }
    let snapshots = open_all(dir, SNAPSHOTS, "safetensors")?;
    let mut bodies = open_all(dir, BODIES, "bodies")?;
    let path = store.tape_path();
    if store.has_tape() {
        let rows = Rows::open_read_only(&path, manifest.run).map_err(|error| broken(&path, error))?;
        let copy = Store::open_read_only(to).tape_path();
        rows.copy_to(&copy).map_err(|error| match &error {
            RowsError::Sqlite(cause) => broken(at_fault(cause, &path, &copy), error),
            _ => broken(&path, error),
        })?;
        File::options()
            .write(true)
            .open(&copy)
            .and_then(|file| file.sync_all())
            .map_err(disk("sync", &copy))?;
    }
    let known: BTreeSet<PathBuf> = bodies.iter().map(|held| held.name.clone()).collect();
    bodies.extend(open_all(dir, BODIES, "bodies")?.into_iter().filter(|held| !known.contains(&held.name)));
    for held in &mut bodies {
        held.grow().map_err(disk("read", &dir.join(&held.name)))?;
    }
    let rest = rest(dir)?.into_iter().map(|name| OpenFile::open(dir, name)).collect::<Result<Vec<_>, _>>()?;

    for held in snapshots.into_iter().chain(bodies).chain(rest) {
        let target = to.join(&held.name);
        held.write(&target).map_err(disk("write", &target))?;
    }
    for sub in [SNAPSHOTS, BODIES, ""] {
        let folder = to.join(sub);
        sync_folder(&folder).map_err(disk("sync", &folder))?;
    }
    let last = check(&Store::open_read_only(to), manifest)?;
    Ok(CopySummary { last, bytes: bytes(to).map_err(disk("read", to))? })
}

/// An open file of the run, which stays readable after its removal.
struct OpenFile {
    /// Path relative to the run's folder.
    name: PathBuf,
    file: File,
    len: u64,
    permissions: Permissions,
}

impl OpenFile {
    fn open(dir: &Path, name: PathBuf) -> Result<Self, ServerError> {
        let path = dir.join(&name);
        let file = File::open(&path).map_err(disk("read", &path))?;
        let metadata = file.metadata().map_err(disk("read", &path))?;
        Ok(Self { name, file, len: metadata.len(), permissions: metadata.permissions() })
    }

    /// Updates the length to the file's current one, because the copied rows may refer to bytes appended since.
    fn grow(&mut self) -> io::Result<()> {
        self.len = self.file.metadata()?.len();
        Ok(())
    }

    /// Writes the file up to its recorded length to the new file `target`, with the same permissions.
    fn write(self, target: &Path) -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).open(target)?;
        let copied = io::copy(&mut self.file.take(self.len), &mut file)?;
        if copied < self.len {
            return Err(io::Error::other(format!("only {copied} of {} bytes are there", self.len)));
        }
        file.set_permissions(self.permissions)?;
        file.sync_all()
    }
}

/// Opens the files with the extension `ending` in the folder `sub`. Files that the syncer removes meanwhile are
/// skipped.
fn open_all(dir: &Path, sub: &str, ending: &str) -> Result<Vec<OpenFile>, ServerError> {
    let folder = dir.join(sub);
    let mut held = Vec::new();
    for entry in list(&folder)? {
        let name = Path::new(sub).join(entry);
        if name.extension().is_none_or(|found| found != ending) {
            continue;
        }
        match OpenFile::open(dir, name) {
            Err(ServerError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => held.push(other?),
        }
    }
    Ok(held)
}

/// Returns the names of all other files to copy, such as manifest, tokenizer and secrets. The lock, temporary files and
/// databases are left out; databases are copied separately.
fn rest(dir: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let is_ours = |name: &str| {
        let passing = is_temporary(name) || name.ends_with(".partial");
        !passing && name != "lock" && !name.contains(".sqlite")
    };
    let names = list(dir)?.into_iter().filter(|name| is_ours(&name.to_string_lossy()));
    Ok(names.filter(|name| dir.join(name).is_file()).collect())
}

/// Returns the names in a folder; empty if the folder does not exist.
fn list(folder: &Path) -> Result<Vec<PathBuf>, ServerError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder).map_err(disk("read", folder))?;
    entries.map(|entry| entry.map(|entry| entry.file_name().into()).map_err(disk("read", folder))).collect()
}

/// Reads a copy as a start from its oldest snapshot would, but without merging. Returns the number of the last
/// decision.
fn check(store: &Store, manifest: &Manifest) -> Result<u64, ServerError> {
    let run = manifest.run;
    let (mut from, mut newest, mut fault) = (None, 0, "the file does not exist".to_owned());
    for path in store.snapshots()? {
        match Snapshot::read_header(&path) {
            Ok((theirs, seq)) if theirs == run => {
                from = Some(from.unwrap_or(seq).min(seq));
                newest = newest.max(seq);
            }
            Ok((theirs, _)) => fault = format!("it is of run {theirs}, not {run}"),
            Err(why) => fault = why,
        }
    }
    let path = store.tape_path();
    let mut rows = match store.has_tape() {
        true => Rows::open_read_only(&path, run).map_err(|error| broken(&path, error))?,
        false if from.is_some_and(|seq| seq == 0) => return Ok(0),
        false => return Err(corrupt(&path, "it is missing, but a snapshot exists")),
    };
    let from = match from {
        Some(seq) => seq,
        None if rows.is_whole().map_err(|error| broken(&path, error))? => 0,
        None => {
            let why = format!("no snapshot can be used ({fault})");
            return Err(corrupt(&store.dir().join(SNAPSHOTS), &why));
        }
    };
    let folder = store.dir().join(BODIES);
    let there = segments(&folder).map_err(disk("read", &folder))?;
    // The syncer removes segments before the rows that refer to them. The copy may have been made in between.
    if let Some((oldest, _)) = there.first() {
        let gone = rows.last_before(*oldest).map_err(|error| broken(&path, error))?;
        let forgotten = gone.map_or(Ok(()), |gone| rows.forget(from.min(gone + 1)));
        forgotten.map_err(|error| broken(&path, error))?;
    }
    let lens = body_bytes(manifest)?;
    let mut bodies = Reader::new(&folder);
    let followed = rows.read(from, |row| {
        let (fragment, kept): (_, Vec<(u64, String)>) = match &row.entry {
            Entry::Merged(merge) => {
                let of = |part: &Part| (part.checksum, format!("the update of learner {}", part.learner));
                (merge.fragment, merge.parts.iter().map(of).collect())
            }
            Entry::RolledBack(rolled_back) => {
                (rolled_back.fragment, vec![(rolled_back.kept, "the state after a rollback".to_owned())])
            }
            _ => return Ok(()),
        };
        let broken = |why: String| Broken::Row(row.seq, row.entry.kind(), why);
        let mut place = row.place.ok_or_else(|| broken("it does not name the place of its bodies".into()))?;
        let (update, state) = lens.get(usize::from(fragment.0)).copied().unwrap_or_default();
        let len = if matches!(row.entry, Entry::RolledBack(_)) { state } else { update };
        for (sum, what) in kept {
            let at = place;
            let body = bodies.next(&mut place, len).map_err(broken)?;
            if checksum(&body) != sum {
                return Err(broken(damaged(&bodies, at, len, &format!("{what} is damaged"))));
            }
        }
        Ok(())
    });
    followed.map_err(|error: Broken| error.at(&path))?;
    if rows.last() < newest {
        return Err(corrupt(&path, &format!("its rows end before row {newest}, which a snapshot has")));
    }
    Ok(rows.last())
}

/// Returns the sizes of bodies per fragment, `[P]`: of an update, and of a state after a rollback, in bytes.
fn body_bytes(manifest: &Manifest) -> Result<Vec<(usize, usize)>, ServerError> {
    let impossible = |error: String| ServerError::Internal { what: format!("the run is invalid: {error}") };
    let spec = &manifest.spec;
    let layout = manifest.layout()?;
    let codec = Codec::new(&spec.exchange).map_err(|error| impossible(error.to_string()))?;
    let fragments =
        Fragments::plan(&layout, NonZeroU16::new(spec.exchange.fragments).unwrap_or(NonZeroU16::MIN));
    let lens = |p| {
        let update = codec.body_bytes(fragments.segments(p).unwrap_or_default());
        (update, STATE_BYTES * fragments.len(p))
    };
    Ok(fragments.ids().map(lens).collect())
}

/// Returns the total size of the files in a run's folder, in bytes.
fn bytes(dir: &Path) -> io::Result<u64> {
    let mut total = 0;
    for sub in ["", SNAPSHOTS, BODIES] {
        for entry in fs::read_dir(dir.join(sub))? {
            let metadata = entry?.metadata()?;
            total += if metadata.is_file() { metadata.len() } else { 0 };
        }
    }
    Ok(total)
}
