//! Frozen weights that a run builds on, their download in parts, and their storage across starts. Without them the
//! learner has no engine, but it still obeys its owner, reports and reconnects.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fmt, fs, io, process};

use archipelago_core::bytes::hex;
use archipelago_core::driver::Input;
use archipelago_core::model::{FrozenError, FrozenWeights, ModelError, ModelSpec};
use archipelago_core::wire::{Frozen, RunSpec, Welcome};
use archipelago_runtime::engine::{Engine, EngineError};
use futures::future::{LocalBoxFuture, ready};

use super::event::Event;
use super::session::LearnerSession;
use super::{Basis, RunError};

/// First and maximum wait before a missing part is requested again, in milliseconds; each wait doubles.
const RETRY_MS: (u64, u64) = (250, 15_000);

/// The complete frozen weights of a run.
pub(super) struct Weights {
    /// Their description in the run.
    pub(super) frozen: Frozen,
    pub(super) weights: Arc<FrozenWeights>,
}

/// Frozen weights during their download.
pub(super) struct FrozenDownload {
    /// Most recent welcome.
    pub(super) welcome: Box<Welcome>,
    pub(super) frozen: Frozen,
    /// Bytes of all parts before `next`.
    pub(super) bytes: Vec<u8>,
    pub(super) next: u32,
    pub(super) is_fetching: bool,
    /// Earliest time of the next request, in microseconds.
    pub(super) after_us: u64,
    wait_ms: u64,
}

impl FrozenDownload {
    /// Returns the download of the frozen weights of `welcome`, with no part yet. Fails with a sentence if their length
    /// does not fit the model.
    pub(super) fn new(welcome: &Welcome, frozen: &Frozen) -> Result<Self, String> {
        frozen.check().map_err(|error| error.to_string())?;
        let expected = ModelSpec::of(&welcome.spec.model)
            .and_then(|model| FrozenWeights::bytes_len(&model, frozen.form))
            .map_err(|error| error.to_string())?;
        // Checked before the download: no description justifies a download of arbitrary size.
        if frozen.bytes != expected {
            return Err(FrozenError::Length { found: frozen.bytes, expected }.to_string());
        }
        let mut bytes = Vec::new();
        let room = usize::try_from(frozen.bytes).ok().and_then(|len| bytes.try_reserve_exact(len).ok());
        room.ok_or_else(|| format!("not enough memory for their {} bytes", frozen.bytes))?;
        let (frozen, welcome) = (frozen.clone(), Box::new(welcome.clone()));
        Ok(Self { welcome, frozen, bytes, next: 0, is_fetching: false, after_us: 0, wait_ms: 0 })
    }

    /// Returns the next part, named by its checksum, and its length; `None` if all parts are present.
    pub(super) fn wanted(&self) -> Option<(String, u64)> {
        let (start, end) = self.frozen.range(self.next)?;
        Some((hex(self.frozen.checksum(self.next)?), end - start))
    }

    /// Adds `part` if it is the next one.
    pub(super) fn add(&mut self, part: &[u8]) -> bool {
        let fits = self.frozen.is_part(self.next, part);
        if fits {
            self.bytes.extend_from_slice(part);
            (self.next, self.wait_ms) = (self.next + 1, 0);
        }
        fits
    }

    /// Postpones the next request, each time for twice as long.
    pub(super) fn postpone(&mut self, now_us: u64) {
        let (least_ms, most_ms) = RETRY_MS;
        self.wait_ms = (2 * self.wait_ms).clamp(least_ms, most_ms);
        self.after_us = now_us.saturating_add(1_000 * self.wait_ms);
    }

    /// Returns the bytes present, and the total.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.bytes.len() as u64, self.frozen.bytes)
    }
}

impl Weights {
    /// Returns the total bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.frozen.bytes
    }
}

impl<E, B, O> LearnerSession<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Basis) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Returns the frozen weights of the run of `spec`, if they are present.
    pub(super) fn frozen_weights(&self, spec: &RunSpec) -> Option<Arc<FrozenWeights>> {
        let frozen = spec.frozen.as_ref()?;
        let held = self.weights.as_ref().filter(|held| held.frozen == *frozen);
        held.map(|held| Arc::clone(&held.weights))
    }

    /// Returns true if everything is present that an engine for the run of `welcome` builds on. If not, gathering
    /// begins.
    ///
    /// # Errors
    /// - [`RunError::Frozen`]: the weights cannot be gathered here.
    /// - [`RunError::Build`]: this learner cannot use them.
    pub(super) fn has_basis(&mut self, welcome: &Welcome) -> Result<bool, RunError> {
        let Some(frozen) = welcome.spec.frozen.as_ref() else { return Ok(true) };
        if !self.config.takes_adapters {
            let why = "the run trains adapters on frozen weights (LoRA), which this learner does not support: take \
                 part with `native-learner join`, or train all weights in a run without --lora-rank";
            return Err(RunError::Build(EngineError::Unfit(why.to_owned())));
        }
        if self.frozen_weights(&welcome.spec).is_some() {
            return Ok(true);
        }
        match self.gathering.as_mut().filter(|gathering| gathering.frozen == *frozen) {
            Some(gathering) => {
                // The source of the parts is back.
                *gathering.welcome = welcome.clone();
                gathering.after_us = 0;
            }
            None => {
                self.weights = None;
                self.downloads.clear_frozen();
                let gathering =
                    FrozenDownload::new(welcome, frozen).map_err(|reason| RunError::Frozen { reason })?;
                self.gathering = Some(gathering);
                if self.config.shelf.take_if(|shelf| !shelf.has_room(frozen.bytes)).is_some() {
                    let reason = format!(
                        "the run's {:.0} MB of frozen weights exceed the size of the cache, so they are fetched at \
                         each start",
                        frozen.bytes as f64 / 1e6
                    );
                    (self.observe)(&Event::Trouble { reason });
                }
            }
        }
        Ok(false)
    }

    /// Takes the next part from the shelf, or requests it; the last part leads to an engine. Returns true if there was
    /// anything to do.
    ///
    /// # Errors
    /// - [`RunError::Frozen`]: the gathered bytes do not fit a model.
    /// - [`RunError::Build`]: no engine can be built on them here.
    pub(super) async fn gather(&mut self) -> Result<bool, RunError> {
        let may = self.is_here() && !self.control.is_paused();
        let now_us = self.clock.now_us();
        let is_due = |gathering: &&mut FrozenDownload| !gathering.is_fetching && gathering.after_us <= now_us;
        let Some(gathering) = self.gathering.as_mut().filter(is_due).filter(|_| may) else {
            return Ok(false);
        };
        let Some((name, bytes)) = gathering.wanted() else { return self.gathered().await.map(|()| true) };
        if let Some(shelf) = &self.config.shelf {
            let reason = match shelf.take(&name).await {
                Ok(Some(part)) if gathering.add(&part) => return Ok(true),
                Ok(Some(_)) => Some("the cached frozen weights are damaged: they are fetched again".into()),
                Ok(None) => None,
                Err(error) => Some(format!("the cached frozen weights are fetched again: {error}")),
            };
            reason.into_iter().for_each(|reason| (self.observe)(&Event::Trouble { reason }));
        }
        gathering.is_fetching = true;
        self.downloads.frozen(gathering.welcome.run, gathering.next, bytes);
        Ok(false)
    }

    /// Handles the result of the requested part.
    pub(super) async fn came_frozen(&mut self, came: Result<Vec<u8>, String>) {
        let now_us = self.clock.now_us();
        let Some(gathering) = &mut self.gathering else { return };
        gathering.is_fetching = false;
        let wanted = gathering.wanted();
        let reason = match came {
            Ok(part) if gathering.add(&part) => {
                let (Some(shelf), Some((name, _))) = (&self.config.shelf, wanted) else { return };
                let Err(error) = shelf.keep(&name, &part).await else { return };
                // The next part would fail too.
                self.config.shelf = None;
                format!("the frozen weights are not cached, and are fetched at the next start: {error}")
            }
            Ok(_) => {
                gathering.postpone(now_us);
                let part = gathering.next;
                format!("part {part} of the frozen weights has a wrong checksum: it is fetched again")
            }
            Err(reason) => {
                gathering.postpone(now_us);
                self.member.handle(now_us, Input::Unfed { reason: reason.clone() });
                format!("the frozen weights could not be fetched: {reason}")
            }
        };
        (self.observe)(&Event::Trouble { reason });
    }

    /// Builds the engine once all parts are present.
    async fn gathered(&mut self) -> Result<(), RunError> {
        let Some(FrozenDownload { welcome, frozen, bytes, .. }) = self.gathering.take() else {
            return Ok(());
        };
        let no_model = |error: ModelError| RunError::Frozen { reason: error.to_string() };
        let model = ModelSpec::of(&welcome.spec.model).map_err(no_model)?;
        let weights = FrozenWeights::from_bytes(&model, frozen.form, bytes);
        let weights = Arc::new(weights.map_err(|error| RunError::Frozen { reason: error.to_string() })?);
        self.weights = Some(Weights { frozen, weights });
        self.raise(&welcome).await
    }
}

/// File extension in a [`Folder`].
const ENDING: &str = "part";

/// Stores bytes under their checksums. It is only a cache: all data taken from it is checked, and fetched again if
/// missing or damaged.
pub trait WeightCache: fmt::Debug {
    /// Returns true if the shelf has room for `bytes`. Nothing is kept of weights that do not fit.
    fn has_room(&self, bytes: u64) -> bool;

    /// Returns the bytes stored under `name`, 64 hex digits, or `None`.
    ///
    /// # Errors
    /// [`ShelfError`]: the shelf cannot be read.
    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, ShelfError>>;

    /// Stores `bytes` under `name`, 64 hex digits, replacing earlier ones.
    ///
    /// # Errors
    /// [`ShelfError`]: the bytes cannot be stored.
    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), ShelfError>>;
}

/// Reason why storing or reading failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ShelfError {
    /// Cause of the failure.
    pub reason: String,
}

/// A folder of limited size; the oldest files are removed first.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    bytes_max: u64,
}

impl Folder {
    /// Returns the folder `path` for at most `bytes_max` bytes. It is created with the first stored bytes.
    #[must_use]
    pub fn new(path: PathBuf, bytes_max: u64) -> Self {
        Self { path, bytes_max }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{ENDING}"))
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, ShelfError> {
        let path = self.file(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ShelfError> {
        fs::create_dir_all(&self.path).map_err(|error| failed("make", &self.path, &error))?;
        self.make_room(bytes.len() as u64)?;
        // Written next to the target and renamed, so that another learner sees the whole file or none. A power failure
        // may still leave a partial file, which the check on reading detects.
        let (path, draft) = (self.file(name), self.path.join(format!("{name}.{}.tmp", process::id())));
        let written = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| {
            // The file may have filled the disk.
            let _ = fs::remove_file(&draft);
            failed("write", &path, &error)
        })
    }

    /// Removes the oldest files until there is room for `bytes` more.
    fn make_room(&self, bytes: u64) -> Result<(), ShelfError> {
        let mut kept = self.kept()?;
        kept.sort_by_key(|(written, _, path)| (*written, path.clone()));
        let mut held: u64 = kept.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in kept {
            if held.saturating_add(bytes) <= self.bytes_max {
                return Ok(());
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &path, &error));
                }
                _ => held -= len,
            }
        }
        match bytes <= self.bytes_max {
            true => Ok(()),
            false => {
                let reason =
                    format!("{} may hold {} bytes, not {bytes}", self.path.display(), self.bytes_max);
                Err(ShelfError { reason })
            }
        }
    }

    /// Returns the modification time, length and path of each file.
    fn kept(&self) -> Result<Vec<(SystemTime, u64, PathBuf)>, ShelfError> {
        let wrong = |error: io::Error| failed("read", &self.path, &error);
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            // Another learner may remove the file in the meantime.
            let Ok(metadata) = entry.metadata() else { continue };
            if entry.path().extension().is_some_and(|ending| ending == ENDING) {
                let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                kept.push((written, metadata.len(), entry.path()));
            }
        }
        Ok(kept)
    }
}

impl WeightCache for Folder {
    fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.bytes_max
    }

    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, ShelfError>> {
        Box::pin(ready(self.read(name)))
    }

    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), ShelfError>> {
        Box::pin(ready(self.write(name, bytes)))
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> ShelfError {
    ShelfError { reason: format!("cannot {what} {}: {error}", path.display()) }
}

/// Returns the default folder for frozen weights: `archipelago/frozen` in the cache folder of the environment `env`, or
/// `None` without a home folder.
pub fn default_shelf(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    Some(cache.or_else(|| Some(set("HOME")?.join(".cache")))?.join("archipelago/frozen"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn names(folder: &Folder) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&folder.path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_kept_comes_back() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path().join("made/for/it"), 100);
        assert_eq!(folder.read("a"), Ok(None));
        folder.write("a", &[1; 60]).unwrap();
        folder.write("a", &[2; 30]).unwrap();
        assert_eq!(folder.read("a"), Ok(Some(vec![2; 30])));
        assert_eq!(names(&folder), ["a.part"], "no draft is left");
    }

    #[test]
    fn it_grows_no_further_than_it_may() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path().to_owned(), 100);
        fs::write(place.path().join("notes.txt"), [0; 500]).unwrap();
        for (name, len, year) in [("old", 40, 1), ("older", 40, 0), ("new", 40, 2)] {
            folder.write(name, &vec![0; len]).unwrap();
            let written = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(year);
            File::options().write(true).open(folder.file(name)).unwrap().set_modified(written).unwrap();
        }
        // The third file did not fit next to two others; the older one was removed.
        assert_eq!(names(&folder), ["new.part", "notes.txt", "old.part"]);
        folder.write("all", &[0; 100]).unwrap();
        assert_eq!(names(&folder), ["all.part", "notes.txt"]);
        let error = folder.write("more", &[0; 101]).unwrap_err().to_string();
        assert!(error.contains("may hold 100 bytes, not 101"), "{error}");
        assert!(folder.has_room(100) && !folder.has_room(101));
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_said() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "x").unwrap();
        let folder = Folder::new(file, 100);
        assert!(folder.write("a", &[1]).unwrap_err().to_string().contains("cannot make"));
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |xdg: &str, home: &str| {
            default_shelf(|name| Some(if name == "HOME" { home } else { xdg }.to_owned()))
        };
        assert_eq!(folder("/x", "/h").unwrap(), Path::new("/x/archipelago/frozen"));
        assert_eq!(folder("relative", "/h").unwrap(), Path::new("/h/.cache/archipelago/frozen"));
        assert_eq!(folder("", ""), None);
    }
}
