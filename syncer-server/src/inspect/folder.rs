//! Read access to the folder of a run, which a syncer may be using at the same time.

use std::path::Path;

use archipelago_core::diloco::Millis;
use archipelago_core::diloco::syncer::{Syncer, SyncerConfig};
use serde::{Deserialize, Serialize};

use crate::clock::{unix_ms, unix_s};
use crate::errors::ServerError;
use crate::status::{
    LearnerView, LearnersQuery, LogEntry, PAGE_MAX, RunStatistics, SeriesView, Sort, learners_of, series_of,
    view,
};
use crate::store::{Manifest, Snapshot, Store};
use crate::tape::{Rows, later_figures, recover, rows_error};

/// A run in a folder.
pub struct Folder {
    store: Store,
    manifest: Manifest,
    snapshot: Option<Snapshot>,
}

/// The part of `/v1/status` that can be read from a folder, under the same names.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FolderStatus {
    /// State of the core.
    #[serde(flatten)]
    pub core: view::Run,
    /// Held-out loss before training, in nats per token.
    pub val_loss_first: Option<f32>,
    /// Newest held-out loss, in nats per token.
    pub val_loss_last: Option<f32>,
    /// Time since the newest merge, in seconds.
    pub last_merge_age_s: Option<f64>,
    /// Total time that syncers of the run were up, in seconds.
    pub run_s: f64,
}

impl Folder {
    /// Opens the folder `dir` for reading.
    ///
    /// # Errors
    /// - `NoRun`: the folder holds no run.
    /// - `Disk`, `DirCorrupt`: the folder cannot be read.
    pub fn open(dir: &Path) -> Result<Self, ServerError> {
        let store = Store::open_read_only(dir);
        let manifest = store.begun()?;
        let snapshot = store.latest(manifest.run)?;
        Ok(Self { store, manifest, snapshot })
    }

    /// Returns the state of the run, as in `/v1/status`, from its newest snapshot and the tape after it.
    ///
    /// # Errors
    /// - `Disk`, `DirCorrupt`: the tape or the snapshot cannot be read.
    /// - `Internal`: tape and snapshot do not match.
    pub fn status(&self) -> Result<FolderStatus, ServerError> {
        let statistics = self.statistics()?;
        let merged_ms = self.rows()?.map(|rows| rows.last_merge_ms()).transpose();
        let merged_ms = merged_ms.map_err(|error| rows_error(&self.store.tape_path(), error))?.flatten();
        Ok(FolderStatus {
            core: self.syncer()?.status().into(),
            val_loss_first: statistics.history.first(),
            val_loss_last: statistics.history.last(),
            last_merge_age_s: merged_ms.map(|at_ms| unix_ms().saturating_sub(at_ms) as f64 / 1e3),
            run_s: statistics.run_s,
        })
    }

    /// Returns the series and evaluations of the run. The last ten seconds may be missing.
    ///
    /// # Errors
    /// - `NoSnapshot`: neither a snapshot nor the tape has any.
    /// - `Disk`, `DirCorrupt`: the tape cannot be read.
    pub fn series(&self) -> Result<SeriesView, ServerError> {
        let statistics = self.statistics()?;
        if statistics == RunStatistics::default() {
            return Err(ServerError::NoSnapshot { dir: self.store.dir().to_owned() });
        }
        Ok(series_of(&statistics.series, &statistics.history))
    }

    /// Returns all learners that ever took part, in descending order of merged tokens.
    ///
    /// # Errors
    /// Those of [`Self::status`].
    pub fn learners(&self) -> Result<Vec<LearnerView>, ServerError> {
        let syncer = self.syncer()?;
        let total = syncer.ledger().len();
        let page = |offset| LearnersQuery { offset, limit: PAGE_MAX, sort: Sort::Merged };
        let pages = (0..total).step_by(PAGE_MAX).map(|offset| learners_of(&syncer, Millis(0), page(offset)));
        Ok(pages.flat_map(|page| page.learners).collect())
    }

    /// Returns the run's log, oldest line first.
    ///
    /// # Errors
    /// - `Disk`, `DirCorrupt`: the tape cannot be read.
    pub fn log(&self) -> Result<Vec<LogEntry>, ServerError> {
        let Some(rows) = self.rows()? else { return Ok(Vec::new()) };
        rows.log().map_err(|error| rows_error(&self.store.tape_path(), error))
    }

    /// Returns the statistics in the newest snapshot, or those in the tape's file if they are newer.
    fn statistics(&self) -> Result<RunStatistics, ServerError> {
        let saved = self.snapshot.as_ref().map(|snapshot| snapshot.statistics.clone()).unwrap_or_default();
        later_figures(&self.store, self.manifest.run, saved)
    }

    fn rows(&self) -> Result<Option<Rows>, ServerError> {
        let path = self.store.tape_path();
        if !self.store.has_tape() {
            return Ok(None);
        }
        Rows::open_read_only(&path, self.manifest.run).map(Some).map_err(|error| rows_error(&path, error))
    }

    /// Returns the syncer's state after the last decision.
    fn syncer(&self) -> Result<Syncer, ServerError> {
        let internal = |error: &dyn std::fmt::Display| ServerError::Internal {
            what: format!("the run in its folder cannot be put together: {error}"),
        };
        let layout = self.manifest.layout()?;
        let config = SyncerConfig::default();
        let syncer = match &self.snapshot {
            Some(Snapshot { record, states, .. }) if !self.store.has_tape() => {
                Syncer::restore(record.clone(), &layout, config, states.clone(), unix_s())
            }
            snapshot => {
                let (recovered, _) = recover(&self.store, &self.manifest, snapshot.as_ref())?;
                Syncer::resume(recovered, &layout, config, unix_s())
            }
        };
        syncer.map_err(|error| internal(&error))
    }
}
