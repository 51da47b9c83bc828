//! The verb `replay`: every merge of a run computed again and compared, bit by bit.

mod curves;
mod losses;
mod words;

use std::time::Instant;

use archipelago_core::diloco::RunId;
use serde::Serialize;

use crate::config::ReplayArgs;
use crate::errors::ServerError;
use crate::export::{Exported, Form, free, write};
use crate::store::write_file;
use crate::tape::{Recording, Replayed, ReplayedMerge, Undone};

use curves::Curves;

pub use losses::{Losses, Rise};

/// What a replay found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// The run, as 16 hex digits.
    pub run: String,
    /// The first decision that was followed.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Merges that were computed again, each to the same bits.
    pub merges: u64,
    /// Fragments that were merged again without somebody whose updates did harm, each to the same bits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<Undone>,
    /// The run's merged tokens at the end.
    pub tokens_merged: u64,
    /// Time between the first merge and the last when they were made, in seconds.
    pub run_s: f64,
    /// Time that it took to compute them again once, in seconds, measurements of the loss included.
    pub took_s: f64,
    /// Snapshots that are damaged, each with its file: the next start does without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// How the loss went, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
    /// The model at the end, if it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exported: Option<Exported>,
}

/// Computes again what the tape of a run holds, measures the loss along the way and writes the model at the end, as
/// `args` says, and tells of each merge.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: there is no run, or none of its snapshots is whole.
/// - `OutTaken`: the folder for the model holds something else.
/// - `Disk`: something cannot be read or written.
/// - `DirCorrupt`: a decision, an update or a snapshot is damaged or missing, or leads elsewhere than it did; it is
///   named. Or the folder holds nothing to measure the loss on.
#[expect(clippy::disallowed_methods, reason = "people are told how long it took")]
pub fn replayed(args: &ReplayArgs, mut tell: impl FnMut(&ReplayedMerge)) -> Result<Replay, ServerError> {
    let recording = Recording::open(args.folder.path())?;
    if let Some(out) = args.out.as_deref().filter(|_| !args.overwrite) {
        free(out, recording.manifest().run)?;
    }
    let began = Instant::now();
    let mut span: Option<(u64, u64)> = None;
    let mut curves = Curves::new(recording.merges(args.until)?);
    let mut look = |merge: &ReplayedMerge| {
        span = Some((span.map_or(merge.at_ms, |(first, _)| first), merge.at_ms));
        curves.add(merge);
        tell(merge);
    };
    let (Replayed { first, last, merges, undone, recovery }, mut search) = match args.losses {
        false => {
            let replayed = recording.play(args.until, |merge, _| {
                look(&merge);
                Ok(())
            })?;
            (replayed, None)
        }
        true => {
            let mut search = losses::Search::new(&recording, args.until, args.points)?;
            (search.overview(&mut look)?, Some(search))
        }
    };
    let took_s = began.elapsed().as_secs_f64();
    let losses = search.as_mut().map(losses::Search::finish).transpose()?;
    let record = recovery.record();
    let val_loss = losses.as_ref().map(|losses| losses.last);
    let measured = [None, val_loss];
    let write = |out| write(record, recovery.states(), measured, recording.store(), out, Form::default());
    let exported = args.out.as_deref().map(write).transpose()?;
    let (from, to) = span.unwrap_or_default();
    let replay = Replay {
        run: RunId::to_string(&record.run),
        first,
        last,
        merges,
        undone,
        tokens_merged: record.ledger.clock_tokens(),
        run_s: to.saturating_sub(from) as f64 / 1e3,
        took_s,
        damaged: recording.store().damaged_snapshots(record.run)?,
        losses,
        exported,
    };
    if let Some(plot) = &args.plot {
        write_file(plot, curves.page(&replay).as_bytes())?;
    }
    Ok(replay)
}
