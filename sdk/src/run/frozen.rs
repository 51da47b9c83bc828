//! Frozen weights of a run: their download in parts, and their cache across starts. Until they are complete the
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
use super::{EngineInputs, FrozenSource, RunError};

/// First and maximum wait before a failed part is requested again, in milliseconds. Each wait is twice the previous
/// one.
const RETRY_MS: (u64, u64) = (250, 15_000);

/// Complete frozen weights of a run.
pub(super) struct Weights {
    /// Description in [`RunSpec`].
    pub(super) frozen: Frozen,
    pub(super) weights: Arc<FrozenWeights>,
}

/// Incomplete frozen weights of a run.
pub(super) struct FrozenDownload {
    /// Most recent welcome.
    pub(super) welcome: Box<Welcome>,
    pub(super) frozen: Frozen,
    /// Bytes of all parts before part `next`.
    pub(super) bytes: Vec<u8>,
    pub(super) next: u32,
    pub(super) is_fetching: bool,
    /// Earliest time of the next request, in microseconds.
    pub(super) after_us: u64,
    wait_ms: u64,
}

impl FrozenDownload {
    /// Returns a download without parts. Fails with a sentence if the description is invalid, does not fit the model,
    /// or needs more memory than is available.
    pub(super) fn new(welcome: &Welcome, frozen: &Frozen) -> Result<Self, String> {
        frozen.check().map_err(|error| error.to_string())?;
        let expected = ModelSpec::of(&welcome.spec.model)
            .and_then(|model| FrozenWeights::bytes_len(&model, frozen.form))
            .map_err(|error| error.to_string())?;
        // This check precedes the download, so that a description cannot cause a download of arbitrary size.
        if frozen.bytes != expected {
            return Err(FrozenError::Length { found: frozen.bytes, expected }.to_string());
        }
        let mut bytes = Vec::new();
        let room = usize::try_from(frozen.bytes).ok().and_then(|len| bytes.try_reserve_exact(len).ok());
        room.ok_or_else(|| format!("not enough memory for their {} bytes", frozen.bytes))?;
        let (frozen, welcome) = (frozen.clone(), Box::new(welcome.clone()));
        Ok(Self { welcome, frozen, bytes, next: 0, is_fetching: false, after_us: 0, wait_ms: 0 })
    }

    /// Returns the hexadecimal checksum of the next part, which is its name in the cache, and its length; `None` if
    /// all parts are present.
    pub(super) fn wanted(&self) -> Option<(String, u64)> {
        let (start, end) = self.frozen.range(self.next)?;
        Some((hex(self.frozen.checksum(self.next)?), end - start))
    }

    /// Adds `part` if it is the next one, and returns whether it is.
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

    /// Returns the number of bytes present, and the total.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.bytes.len() as u64, self.frozen.bytes)
    }
}

impl Weights {
    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.frozen.bytes
    }
}

impl<E, B, O> LearnerSession<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, EngineInputs) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Returns the frozen weights of the run `spec`, if they are complete.
    pub(super) fn frozen_weights(&self, spec: &RunSpec) -> Option<Arc<FrozenWeights>> {
        let frozen = spec.frozen.as_ref()?;
        let held = self.weights.as_ref().filter(|held| held.frozen == *frozen);
        held.map(|held| Arc::clone(&held.weights))
    }

    /// Returns true if the learner need not fetch frozen weights for an engine of the run in `welcome`. Otherwise
    /// their download begins or continues.
    ///
    /// # Errors
    /// - [`RunError::Frozen`]: the description of the weights is invalid, or memory is too small.
    /// - [`RunError::Build`]: this learner does not support frozen weights.
    pub(super) fn has_frozen_weights(&mut self, welcome: &Welcome) -> Result<bool, RunError> {
        let Some(frozen) = welcome.spec.frozen.as_ref() else { return Ok(true) };
        if self.config.frozen == FrozenSource::Engine {
            return Ok(true);
        }
        if self.config.frozen == FrozenSource::Unsupported {
            let why = "the run trains adapters on frozen weights (LoRA), which this learner does not support: take \
                 part with `native-learner join`, or train all weights in a run without --lora-rank";
            return Err(RunError::Build(EngineError::Unfit(why.to_owned())));
        }
        if self.frozen_weights(&welcome.spec).is_some() {
            return Ok(true);
        }
        match self.frozen_download.as_mut().filter(|download| download.frozen == *frozen) {
            Some(download) => {
                // The syncer can be reached again, so the next part is requested at once.
                *download.welcome = welcome.clone();
                download.after_us = 0;
            }
            None => {
                self.weights = None;
                self.downloads.clear_frozen();
                let download =
                    FrozenDownload::new(welcome, frozen).map_err(|reason| RunError::Frozen { reason })?;
                self.frozen_download = Some(download);
                if self
                    .config
                    .weight_cache
                    .take_if(|weight_cache| !weight_cache.has_room(frozen.bytes))
                    .is_some()
                {
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

    /// Takes the next part from the cache or requests it. After the last part it builds the engine. Returns true if
    /// there was progress.
    ///
    /// # Errors
    /// - [`RunError::Frozen`]: the bytes do not fit the model.
    /// - [`RunError::Build`]: no engine can be built with them here.
    pub(super) async fn fetch_frozen(&mut self) -> Result<bool, RunError> {
        let may = self.is_here() && !self.control.is_paused();
        let now_us = self.clock.now_us();
        let is_due = |download: &&mut FrozenDownload| !download.is_fetching && download.after_us <= now_us;
        let Some(download) = self.frozen_download.as_mut().filter(is_due).filter(|_| may) else {
            return Ok(false);
        };
        let Some((name, bytes)) = download.wanted() else { return self.finish_frozen().await.map(|()| true) };
        if let Some(weight_cache) = &self.config.weight_cache {
            let reason = match weight_cache.take(&name).await {
                Ok(Some(part)) if download.add(&part) => return Ok(true),
                Ok(Some(_)) => Some("the cached frozen weights are damaged: they are fetched again".into()),
                Ok(None) => None,
                Err(error) => Some(format!("the cached frozen weights are fetched again: {error}")),
            };
            reason.into_iter().for_each(|reason| (self.observe)(&Event::Trouble { reason }));
        }
        download.is_fetching = true;
        self.downloads.frozen(download.welcome.run, download.next, bytes);
        Ok(false)
    }

    /// Handles the result of the requested part.
    pub(super) async fn on_frozen_part(&mut self, result: Result<Vec<u8>, String>) {
        let now_us = self.clock.now_us();
        let Some(download) = &mut self.frozen_download else { return };
        download.is_fetching = false;
        let wanted = download.wanted();
        let reason = match result {
            Ok(part) if download.add(&part) => {
                let (Some(weight_cache), Some((name, _))) = (&self.config.weight_cache, wanted) else {
                    return;
                };
                let Err(error) = weight_cache.keep(&name, &part).await else { return };
                // Storing the next part would fail too.
                self.config.weight_cache = None;
                format!("the frozen weights are not cached, and are fetched at the next start: {error}")
            }
            Ok(_) => {
                download.postpone(now_us);
                let part = download.next;
                format!("part {part} of the frozen weights has a wrong checksum: it is fetched again")
            }
            Err(reason) => {
                download.postpone(now_us);
                self.member.handle(now_us, Input::Unfed { reason: reason.clone() });
                format!("the frozen weights could not be fetched: {reason}")
            }
        };
        (self.observe)(&Event::Trouble { reason });
    }

    /// Builds the engine once all parts are present.
    async fn finish_frozen(&mut self) -> Result<(), RunError> {
        let Some(FrozenDownload { welcome, frozen, bytes, .. }) = self.frozen_download.take() else {
            return Ok(());
        };
        let no_model = |error: ModelError| RunError::Frozen { reason: error.to_string() };
        let model = ModelSpec::of(&welcome.spec.model).map_err(no_model)?;
        let weights = FrozenWeights::from_bytes(&model, frozen.form, bytes);
        let weights = Arc::new(weights.map_err(|error| RunError::Frozen { reason: error.to_string() })?);
        self.weights = Some(Weights { frozen, weights });
        self.build_engine(&welcome).await
    }
}

/// File extension of parts in a [`Folder`].
const ENDING: &str = "part";

/// Cache of bytes under their checksums. All data from it is verified, and fetched again if it is missing or damaged.
pub trait WeightCache: fmt::Debug {
    /// Returns true if the cache may store `bytes` bytes in total. Weights that do not fit are not cached at all.
    fn has_room(&self, bytes: u64) -> bool;

    /// Returns the bytes stored under `name`, 64 hex digits, or `None`.
    ///
    /// # Errors
    /// [`CacheError`]: the cache cannot be read.
    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, CacheError>>;

    /// Stores `bytes` under `name`, 64 hex digits, replacing earlier ones.
    ///
    /// # Errors
    /// [`CacheError`]: the bytes cannot be stored.
    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), CacheError>>;
}

/// Failure of a cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct CacheError {
    /// Cause of the failure.
    pub reason: String,
}

/// Cache in a folder of limited size; the oldest files are removed first.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    bytes_max: u64,
}

impl Folder {
    /// Returns a cache in the folder `path` with at most `bytes_max` bytes. The folder is created when bytes are
    /// first stored.
    #[must_use]
    pub fn new(path: PathBuf, bytes_max: u64) -> Self {
        Self { path, bytes_max }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{ENDING}"))
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, CacheError> {
        let path = self.file(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError> {
        fs::create_dir_all(&self.path).map_err(|error| failed("make", &self.path, &error))?;
        self.evict_oldest(bytes.len() as u64)?;
        // The bytes are written to a temporary file that is then renamed, so that another learner sees the whole file
        // or none. A power failure may still leave a partial file, which verification detects.
        let (path, draft) = (self.file(name), self.path.join(format!("{name}.{}.tmp", process::id())));
        let written = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| {
            // The disk may be full because of this file.
            let _ = fs::remove_file(&draft);
            failed("write", &path, &error)
        })
    }

    /// Removes the oldest files until `bytes` more bytes fit.
    fn evict_oldest(&self, bytes: u64) -> Result<(), CacheError> {
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
                Err(CacheError { reason })
            }
        }
    }

    /// Returns the modification time, length and path of each file.
    fn kept(&self) -> Result<Vec<(SystemTime, u64, PathBuf)>, CacheError> {
        let wrong = |error: io::Error| failed("read", &self.path, &error);
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            // Another learner may have removed the file meanwhile.
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

    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, CacheError>> {
        Box::pin(ready(self.read(name)))
    }

    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), CacheError>> {
        Box::pin(ready(self.write(name, bytes)))
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> CacheError {
    CacheError { reason: format!("cannot {what} {}: {error}", path.display()) }
}

/// Returns the default folder for frozen weights: `archipelago/frozen` in the XDG cache folder. `env` returns the
/// value of an environment variable. Without a home folder, returns `None`.
pub fn default_cache_folder(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
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
    fn stored_bytes_are_read_back() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path().join("made/for/it"), 100);
        assert_eq!(folder.read("a"), Ok(None));
        folder.write("a", &[1; 60]).unwrap();
        folder.write("a", &[2; 30]).unwrap();
        assert_eq!(folder.read("a"), Ok(Some(vec![2; 30])));
        assert_eq!(names(&folder), ["a.part"], "no draft is left");
    }

    #[test]
    fn folder_keeps_its_size_limit() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path().to_owned(), 100);
        fs::write(place.path().join("notes.txt"), [0; 500]).unwrap();
        for (name, len, year) in [("old", 40, 1), ("older", 40, 0), ("new", 40, 2)] {
            folder.write(name, &vec![0; len]).unwrap();
            let written = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(year);
            File::options().write(true).open(folder.file(name)).unwrap().set_modified(written).unwrap();
        }
        // The third file did not fit next to the two others, so the oldest one was removed.
        assert_eq!(names(&folder), ["new.part", "notes.txt", "old.part"]);
        folder.write("all", &[0; 100]).unwrap();
        assert_eq!(names(&folder), ["all.part", "notes.txt"]);
        let error = folder.write("more", &[0; 101]).unwrap_err().to_string();
        assert!(error.contains("may hold 100 bytes, not 101"), "{error}");
        assert!(folder.has_room(100) && !folder.has_room(101));
    }

    #[test]
    fn unusable_folder_is_reported() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "x").unwrap();
        let folder = Folder::new(file, 100);
        assert!(folder.write("a", &[1]).unwrap_err().to_string().contains("cannot make"));
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |xdg: &str, home: &str| {
            default_cache_folder(|name| Some(if name == "HOME" { home } else { xdg }.to_owned()))
        };
        assert_eq!(folder("/x", "/h").unwrap(), Path::new("/x/archipelago/frozen"));
        assert_eq!(folder("relative", "/h").unwrap(), Path::new("/h/.cache/archipelago/frozen"));
        assert_eq!(folder("", ""), None);
    }
}
