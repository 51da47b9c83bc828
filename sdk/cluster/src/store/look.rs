//! Inspection of storage: writes, reads and removes a test object, and leaves the run's data unchanged.

use std::path::{Path as Folder, PathBuf};

use bytes::Bytes;
use object_store::ObjectStoreExt;

use super::{Ahead, Store, StoreSettings, by_disk, folder};
use crate::error::ServiceError;
use crate::inspection::{Storage, Stored};
use crate::timestamp;

/// Inspects storage under `prefix`.
pub(crate) async fn look(settings: &StoreSettings, prefix: &str) -> Storage {
    let ahead = Ahead::default();
    let place = format!("{}, prefix {prefix}", settings.place);
    let made = match folder(&settings.place) {
        Ok(Some(at)) => Made::below(&at, prefix, &settings.place),
        Ok(None) => Ok(Made::default()),
        Err(error) => Err(error),
    };
    let mut written_ahead_ms = None;
    let found = match made.and_then(|made| {
        let store = Store::at_place(&settings.place, &settings.variables, prefix, ahead.clone())?;
        Ok((made, store))
    }) {
        Ok((_made, store)) => store.in_time(0, store.probe(&mut written_ahead_ms)).await,
        Err(error) => Err(error),
    };
    Storage { place, found, ahead_ms: ahead.ms().or(written_ahead_ms) }
}

/// Folders created for the inspection. Dropping this removes those that are still empty.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Creates the missing parts of `folder`, for writing under `prefix`.
    fn below(folder: &Folder, prefix: &str, place: &str) -> Result<Self, ServiceError> {
        let inner = folder.join(prefix);
        let missing = inner.ancestors().take_while(|part| !part.exists()).map(Folder::to_owned).collect();
        let made = Self(missing);
        std::fs::create_dir_all(&inner)
            .map_err(|error| by_disk(&error, place.to_owned(), error.to_string()))?;
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for folder in &self.0 {
            // A folder that is not empty is in use, and stays.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

impl Store {
    /// Writes an object with a unique name, checks that a second write fails, reads it, and removes it. For a folder,
    /// the object's time sets `ahead_ms`.
    async fn probe(&self, ahead_ms: &mut Option<i64>) -> Result<Stored, ServiceError> {
        let at = self.root.clone().join(format!("look-{:016x}", crate::random()));
        let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
        let asked_ms = timestamp::now_ms();
        let is_new = self.create(&at, first.clone()).await?;
        let written_ms = asked_ms.midpoint(timestamp::now_ms());
        let checked = self.check(&at, is_new, (first, second), written_ms, ahead_ms).await;
        let removed = self.store.delete(&at).await;
        checked?;
        let left = removed.err().map(|_| at.to_string());
        Ok(Stored { mark: self.mark().await?, left })
    }

    async fn check(
        &self,
        at: &object_store::path::Path,
        is_new: bool,
        (first, second): (Bytes, Bytes),
        written_ms: i64,
        ahead_ms: &mut Option<i64>,
    ) -> Result<(), ServiceError> {
        let is_twice = self.create(at, second).await?;
        let found = self.find(at).await?;
        if let Some(found) = &found {
            *ahead_ms = Some(found.meta.last_modified.timestamp_millis() - written_ms);
        }
        let there = match found {
            Some(found) => Some(self.bytes(found).await?),
            None => None,
        };
        if is_new && !is_twice && there.as_ref() == Some(&first) {
            return Ok(());
        }
        let detail = match is_twice {
            true => "it overwrites existing objects, although `If-None-Match: *` asked it not to: use a storage that \
                 honours that header"
                .to_owned(),
            false => format!("reading returned other bytes than were written: {there:?}"),
        };
        Err(ServiceError::Setting { place: self.place.clone(), detail })
    }
}
