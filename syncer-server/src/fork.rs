//! The verb `fork`: a new run that starts from a decision of another run.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_cli::{key_of, tokens, with_key};
use archipelago_core::diloco::{Restrictions, RunId};
use serde::Serialize;

use crate::config::{ForkArgs, SETTINGS_FILE};
use crate::errors::ServerError;
use crate::status::RunStatistics;
use crate::store::{
    Manifest, Snapshot, Store, disk, is_there, random_u64, vacant, whole_folder, write_private,
};
use crate::tape::{Recording, Replayed};

/// The result of a fork.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkResult {
    /// The folder of the new run.
    pub to: PathBuf,
    /// The new run, as 16 hex digits.
    pub run: String,
    /// The original run, as 16 hex digits.
    pub of: String,
    /// The last decision of the original run that the new run includes.
    pub at: u64,
    /// Tokens merged into its model.
    pub tokens_merged: u64,
    /// Stop of the original run, in tokens, if the run had already passed it. The new run drops this stop.
    pub dropped_stop: Option<u64>,
}

/// Creates a new run in `args.to` with the model, the outer optimiser's momentum and the ledger that the run in
/// `args.folder` had after decision `args.at`. The new run is neither paused nor complete, and its curves start again.
/// A stop that the run had already passed is dropped. The folder is created completely or not at all.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: there is no run, or no snapshot is intact.
/// - `DirTaken`: `args.to` exists and is not an empty folder.
/// - `Disk`: a file cannot be read or written.
/// - `DirCorrupt`: the run's tape is missing or damaged.
/// - `Config`: there is no such decision.
/// - `System`: the system gives no random numbers.
pub fn fork(args: &ForkArgs) -> Result<ForkResult, ServerError> {
    let recording = Recording::open(args.folder.path())?;
    vacant(&args.to)?;
    let Replayed { last, recovery, .. } = recording.play(args.at, |_, _| Ok(()))?;
    if last != args.at && args.at != u64::MAX {
        let why = format!("--at {}: the tape has decisions up to {last} that a run can begin from", args.at);
        return Err(ServerError::Config { why });
    }
    let there = recording.store();
    let tokenizer = there.tokenizer_path();
    let tokenizer = fs::read_to_string(&tokenizer).map_err(disk("read", &tokenizer))?;
    let (mut record, states) = recovery.into_parts();
    let of = record.run;
    record.run = RunId(random_u64()?);
    (record.held, record.finishing, record.finished) = (false, false, false);
    record.restrictions = Restrictions::default();
    let (run, tokens_merged) = (RunId::to_string(&record.run), record.ledger.clock_tokens());
    let manifest = Manifest { run: record.run, forked: Some((of, last)), ..recording.manifest().clone() };
    let snapshot = Snapshot { seq: 0, record, states, statistics: RunStatistics::default() };
    let filled = |folder: &Path| begin(folder, there, (&manifest, &tokenizer), &snapshot);
    let dropped_stop = whole_folder(&args.to, filled)?;
    Ok(ForkResult { to: args.to.clone(), run, of: of.to_string(), at: last, tokens_merged, dropped_stop })
}

/// Fills `folder` with a run: its `manifest`, the tokenizer, its first `snapshot`, and the permanent files of the
/// original run in `there`. Returns the stop of the original run, in tokens, if it was dropped because the run had
/// passed it.
fn begin(
    folder: &Path,
    there: &Store,
    (manifest, tokenizer): (&Manifest, &str),
    snapshot: &Snapshot,
) -> Result<Option<u64>, ServerError> {
    let here = Store::open(folder)?;
    let spec = &snapshot.record.spec;
    if let Some(held_out) = there.held_out(&spec.model)? {
        here.keep_held_out(&held_out)?;
    }
    // A run that started from a folder keeps its initial parameters, and so does its fork.
    let theta = manifest.init.as_ref().map(|_| there.initial(manifest)).transpose()?;
    // A run of adapters keeps its frozen weights, and so does its fork.
    if let Some(frozen) = there.frozen(spec)? {
        here.keep_frozen(spec, &frozen)?;
    }
    // The fork keeps the stored settings, if there are any.
    let kept = there.dir().join(SETTINGS_FILE);
    let mut dropped_stop = None;
    if is_there(&kept)? {
        let kept = fs::read_to_string(&kept).map_err(disk("read", &kept))?;
        let counted = snapshot.record.ledger.schedule_tokens();
        dropped_stop = stop_of(&kept).filter(|stop| (1..=counted).contains(stop));
        let kept = if dropped_stop.is_some() { with_key(&kept, STOP, "0") } else { kept };
        write_private(&here.dir().join(SETTINGS_FILE), &kept)?;
    }
    here.save(snapshot)?;
    here.begin(manifest, tokenizer, theta.as_deref())?;
    Ok(dropped_stop)
}

/// The setting that ends a run.
const STOP: &str = "stop-at-tokens";

/// Returns the number of tokens at which the run with the TOML `settings` stops, if they set one.
fn stop_of(settings: &str) -> Option<u64> {
    tokens(&key_of(settings, STOP)?).ok()
}
