//! A run's folder once more, while the run goes on.
//!
//! What is opened stays readable after the syncer has removed it, so the order is: open the snapshots, open
//! the segments of bodies, copy the rows as they are at one moment, open the segments that are new since
//! then, and only then copy what is open, as long as it is by then. Snapshots are older than the rows, and
//! hold nothing that is not among them; what a row names was on the disk before the row was. Only if two
//! snapshots are written between the first step and the third may rows be gone that the copied snapshots
//! need, which the check at the end notices.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use archipelago_core::diloco::{Codec, Entry, Fragments, KEPT_BYTES, Part, checksum};

use super::Rows;
use super::bodies::{Reader, segments};
use super::recover::{BODIES, Broken, broken, corrupt, damaged};
use crate::errors::ServerError;
use crate::store::{Manifest, Snapshot, Store, disk, is_temporary, sync_folder};

/// The folder of the snapshots in it.
const SNAPSHOTS: &str = "snapshots";

/// A copy that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The last decision in it.
    pub last: u64,
    /// Its files, in bytes.
    pub bytes: u64,
}

/// Copies the run in the folder of `store` to `to`, an empty folder, and checks the copy: every row that a
/// start from either snapshot follows is there, and every update that these rows name.
///
/// # Errors
/// - `Disk`: something cannot be read or written.
/// - `DirCorrupt`: something is damaged or missing, or was removed meanwhile.
pub fn copy(store: &Store, manifest: &Manifest, to: &Path) -> Result<Copied, ServerError> {
    let dir = store.dir();
    for sub in ["", SNAPSHOTS, BODIES] {
        fs::create_dir_all(to.join(sub)).map_err(disk("make", to))?;
    }
    let snapshots = hold_all(dir, SNAPSHOTS, "safetensors")?;
    let mut bodies = hold_all(dir, BODIES, "bodies")?;
    let path = store.tape_path();
    if store.has_tape() {
        let rows = Rows::look(&path, manifest.run).map_err(|error| broken(&path, error))?;
        let copy = Store::look(to).tape_path();
        rows.copy_to(&copy).map_err(|error| broken(&path, error))?;
        File::options()
            .write(true)
            .open(&copy)
            .and_then(|file| file.sync_all())
            .map_err(disk("sync", &copy))?;
    }
    let known: BTreeSet<PathBuf> = bodies.iter().map(|held| held.name.clone()).collect();
    bodies.extend(hold_all(dir, BODIES, "bodies")?.into_iter().filter(|held| !known.contains(&held.name)));
    for held in &mut bodies {
        held.grow().map_err(disk("read", &dir.join(&held.name)))?;
    }
    let rest = rest(dir)?.into_iter().map(|name| Held::open(dir, name)).collect::<Result<Vec<_>, _>>()?;

    for held in snapshots.into_iter().chain(bodies).chain(rest) {
        let target = to.join(&held.name);
        held.write(&target).map_err(disk("write", &target))?;
    }
    for sub in [SNAPSHOTS, BODIES, ""] {
        let folder = to.join(sub);
        sync_folder(&folder).map_err(disk("sync", &folder))?;
    }
    let last = check(&Store::look(to), manifest)?;
    Ok(Copied { last, bytes: bytes(to).map_err(disk("read", to))? })
}

/// A file of the run that is open, and so stays readable.
struct Held {
    /// From the run's folder on.
    name: PathBuf,
    file: File,
    len: u64,
    permissions: Permissions,
}

impl Held {
    fn open(dir: &Path, name: PathBuf) -> Result<Self, ServerError> {
        let path = dir.join(&name);
        let file = File::open(&path).map_err(disk("read", &path))?;
        let metadata = file.metadata().map_err(disk("read", &path))?;
        Ok(Self { name, file, len: metadata.len(), permissions: metadata.permissions() })
    }

    /// Takes in what was appended since it was opened: the copied rows may name that.
    fn grow(&mut self) -> io::Result<()> {
        self.len = self.file.metadata()?.len();
        Ok(())
    }

    /// Writes what was there when it was opened, or last grew, to `target`, a new file with the same mode.
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

/// The files of the folder `sub` that end in `ending`, opened. The syncer may remove one between looking and opening.
fn hold_all(dir: &Path, sub: &str, ending: &str) -> Result<Vec<Held>, ServerError> {
    let folder = dir.join(sub);
    let mut held = Vec::new();
    for entry in list(&folder)? {
        let name = Path::new(sub).join(entry);
        if name.extension().is_none_or(|found| found != ending) {
            continue;
        }
        match Held::open(dir, name) {
            Err(ServerError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => held.push(other?),
        }
    }
    Ok(held)
}

/// The other files of a run's folder: what the run is, its tokenizer, its secrets, and what else lies there. The lock
/// is nobody's, what is being written is not whole, and databases are copied by those who know them.
fn rest(dir: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let is_ours = |name: &str| {
        let passing = is_temporary(name) || name.ends_with(".partial");
        !passing && name != "lock" && !name.contains(".sqlite")
    };
    let names = list(dir)?.into_iter().filter(|name| is_ours(&name.to_string_lossy()));
    Ok(names.filter(|name| dir.join(name).is_file()).collect())
}

/// The names in a folder; none if it is not there.
fn list(folder: &Path) -> Result<Vec<PathBuf>, ServerError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder).map_err(disk("read", folder))?;
    entries.map(|entry| entry.map(|entry| entry.file_name().into()).map_err(disk("read", folder))).collect()
}

/// Looks at a copy as a start of the syncer from its oldest snapshot would, but merges nothing; gives the last
/// decision.
fn check(store: &Store, manifest: &Manifest) -> Result<u64, ServerError> {
    let run = manifest.run;
    let (mut from, mut newest, mut fault) = (None, 0, "there is none".to_owned());
    for path in store.snapshots()? {
        match Snapshot::peek(&path) {
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
        true => Rows::look(&path, run).map_err(|error| broken(&path, error))?,
        false if from.is_some_and(|seq| seq == 0) => return Ok(0),
        false => return Err(corrupt(&path, "it is missing, and a snapshot is there")),
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
    // The syncer removes segments first and then the rows that name them; the copy may be of the moment between.
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
            Entry::Remade(remade) => (remade.fragment, vec![(remade.kept, "what was undone to".to_owned())]),
            _ => return Ok(()),
        };
        let broken = |why: String| Broken::Row(row.seq, row.entry.kind(), why);
        let mut place = row.place.ok_or_else(|| broken("it does not say where its bodies are".into()))?;
        let (update, state) = lens.get(usize::from(fragment.0)).copied().unwrap_or_default();
        let len = if matches!(row.entry, Entry::Remade(_)) { state } else { update };
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

/// The length of an update on each fragment, and of what one is undone to, in bytes, `[P]`.
fn body_bytes(manifest: &Manifest) -> Result<Vec<(usize, usize)>, ServerError> {
    let impossible =
        |error: String| ServerError::Internal { what: format!("the run makes no sense: {error}") };
    let spec = &manifest.spec;
    let layout = manifest.layout()?;
    let codec = Codec::new(&spec.exchange).map_err(|error| impossible(error.to_string()))?;
    let fragments =
        Fragments::plan(&layout, NonZeroU16::new(spec.exchange.fragments).unwrap_or(NonZeroU16::MIN));
    let lens = |p| {
        let update = codec.body_bytes(fragments.segments(p).unwrap_or_default());
        (update, KEPT_BYTES * fragments.len(p))
    };
    Ok(fragments.ids().map(lens).collect())
}

/// All files below a folder of a run, in bytes.
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
