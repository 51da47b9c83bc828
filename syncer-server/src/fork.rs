//! The verb `fork`: a new run that begins where another one was after some decision.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_cli::{key_of, tokens, with_key};
use archipelago_core::diloco::{Reins, RunId};
use serde::Serialize;

use crate::config::{ForkArgs, SETTINGS_FILE};
use crate::errors::ServerError;
use crate::status::Carried;
use crate::store::{
    Manifest, Snapshot, Store, disk, is_there, random_u64, vacant, whole_folder, write_private,
};
use crate::tape::{Recording, Replayed};

/// What was forked.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Forked {
    /// The folder of the new run.
    pub to: PathBuf,
    /// The new run, as 16 hex digits.
    pub run: String,
    /// The run that it was, as 16 hex digits.
    pub of: String,
    /// The last decision of that run that is in it.
    pub at: u64,
    /// Tokens merged into its model.
    pub tokens_merged: u64,
    /// Stop of that run, in tokens, if the run had passed it by then. The new run drops this stop.
    pub dropped_stop: Option<u64>,
}

/// Begins a new run in `args.to` with the model, the outer optimiser's momentum and the books that the run in
/// `args.folder` had after decision `args.at`. It is neither paused nor complete, its curves begin again, and a stop
/// that has passed by then is dropped. The folder is whole or not there.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: there is no run, or none of its snapshots is whole.
/// - `DirTaken`: `args.to` is there already, and is not an empty folder.
/// - `Disk`: something cannot be read or written.
/// - `DirCorrupt`: the run's tape is missing or damaged.
/// - `Config`: there is no such decision.
/// - `System`: the system gives no random numbers.
pub fn fork(args: &ForkArgs) -> Result<Forked, ServerError> {
    let recording = Recording::open(args.folder.path())?;
    vacant(&args.to)?;
    let Replayed { last, recovery, .. } = recording.play(args.at, |_, _| Ok(()))?;
    if last != args.at && args.at != u64::MAX {
        let why = format!("--at {}: the tape has decisions up to {last} that can be begun from", args.at);
        return Err(ServerError::Config { why });
    }
    let there = recording.store();
    let tokenizer = there.tokenizer_path();
    let tokenizer = fs::read_to_string(&tokenizer).map_err(disk("read", &tokenizer))?;
    let (mut record, states) = recovery.into_parts();
    let of = record.run;
    record.run = RunId(random_u64()?);
    (record.held, record.finishing, record.finished) = (false, false, false);
    record.reins = Reins::default();
    let (run, tokens_merged) = (RunId::to_string(&record.run), record.ledger.clock_tokens());
    let manifest = Manifest { run: record.run, forked: Some((of, last)), ..recording.manifest().clone() };
    let snapshot = Snapshot { seq: 0, record, states, carried: Carried::default() };
    let filled = |folder: &Path| begin(folder, there, (&manifest, &tokenizer), &snapshot);
    let dropped_stop = whole_folder(&args.to, filled)?;
    Ok(Forked { to: args.to.clone(), run, of: of.to_string(), at: last, tokens_merged, dropped_stop })
}

/// Fills `folder` with the run of `manifest`, which begins with `snapshot` and copies the permanent files of the run
/// `there`. Returns the dropped stop, in tokens, if the run had passed its stop.
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
    // A run from a folder keeps what it began with, and so does a fork of it.
    let theta = manifest.init.as_ref().map(|_| there.initial(manifest)).transpose()?;
    // So does one of adapters with the weights that they are for.
    if let Some(frozen) = there.frozen(spec)? {
        here.keep_frozen(spec, &frozen)?;
    }
    // It goes on with the same settings, if the run kept any.
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

/// Returns the stop in the TOML `settings` of a run, in tokens.
fn stop_of(settings: &str) -> Option<u64> {
    tokens(&key_of(settings, STOP)?).ok()
}
