//! The command `replay`: recomputes every merge of a run and compares it with the recorded one, bit for bit.

mod losses;
mod text;

use std::time::Instant;

use archipelago_core::diloco::RunId;
use serde::Serialize;

use crate::config::ReplayArgs;
use crate::errors::ServerError;
use crate::export::{Exported, Form, free, write};
use crate::store::write_file;
use crate::tape::{Recording, Replayed, ReplayedMerge, RolledBackFragment};

use text::Curves;

pub use losses::{Losses, Rise};

/// Result of a replay.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// Run id, as 16 hex digits.
    pub run: String,
    /// Number of the first replayed decision.
    pub first: u64,
    /// Number of the last replayed decision.
    pub last: u64,
    /// Number of recomputed merges, all equal to the recorded ones bit for bit.
    pub merges: u64,
    /// Rollbacks of fragments, all recomputed to the recorded bits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<RolledBackFragment>,
    /// Merged tokens of the run after the last replayed decision.
    pub tokens_merged: u64,
    /// Time from the first merge to the last, in seconds. Gaps of more than a day are left out: the run was down, or
    /// the machine's clock was changed.
    pub run_s: f64,
    /// Duration of the first pass over the tape in seconds, including its loss measurements.
    pub took_s: f64,
    /// Damaged snapshots, each with its file. The next start skips them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// Course of the held-out loss, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
    /// Facts about the exported final model, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exported: Option<Exported>,
}

/// Replays the tape of a run. As `args` requests, it measures the loss on the way and exports the final model. Calls
/// `on_merge` with each merge.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: the folder holds no run, or no intact snapshot.
/// - `OutTaken`: the folder for the exported model holds something else.
/// - `Disk`: a file cannot be read or written.
/// - `DirCorrupt`: a decision, an update or a snapshot is damaged or missing, or a result differs from the recorded
///   one; the error names it. Also if losses are requested and the folder has no held-out text.
/// - `Config`: losses are requested, and the model is not the built-in decoder.
#[expect(clippy::disallowed_methods, reason = "people are told how long it took")]
pub fn replayed(args: &ReplayArgs, mut on_merge: impl FnMut(&ReplayedMerge)) -> Result<Replay, ServerError> {
    let recording = Recording::open(args.folder.path())?;
    if let Some(out) = args.out.as_deref().filter(|_| !args.overwrite) {
        free(out, recording.manifest().run)?;
    }
    let began = Instant::now();
    let mut span = MergeTime::default();
    let mut curves = Curves::new(recording.merges(args.until)?);
    let mut observe = |merge: &ReplayedMerge| {
        span.add(merge.at_ms);
        curves.add(merge);
        on_merge(merge);
    };
    let (Replayed { first, last, merges, undone, recovery }, mut search) = match args.losses {
        false => {
            let replayed = recording.play(args.until, |merge, _| {
                observe(&merge);
                Ok(())
            })?;
            (replayed, None)
        }
        true => {
            let mut search = losses::Search::new(&recording, args.until, args.points)?;
            (search.overview(&mut observe)?, Some(search))
        }
    };
    let took_s = began.elapsed().as_secs_f64();
    let losses = search.as_mut().map(losses::Search::finish).transpose()?;
    let record = recovery.record();
    let val_loss = losses.as_ref().map(|losses| losses.last);
    let measured = [None, val_loss];
    let write = |out| write(record, recovery.states(), measured, recording.store(), out, Form::default());
    let exported = args.out.as_deref().map(write).transpose()?;
    let replay = Replay {
        run: RunId::to_string(&record.run),
        first,
        last,
        merges,
        undone,
        tokens_merged: record.ledger.clock_tokens(),
        run_s: span.total_ms as f64 / 1e3,
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

/// Maximum gap between two merges that counts as run time, in milliseconds.
const GAP_MS: u64 = 24 * 3_600 * 1_000;

/// Sum of the times between merges.
#[derive(Default)]
struct MergeTime {
    last_ms: Option<u64>,
    total_ms: u64,
}

impl MergeTime {
    /// Adds a merge at `at_ms`, in milliseconds since 1970. Times may go backwards if the clock was changed.
    fn add(&mut self, at_ms: u64) {
        let gap_ms = self.last_ms.replace(at_ms).map_or(0, |last_ms| at_ms.saturating_sub(last_ms));
        self.total_ms += if gap_ms > GAP_MS { 0 } else { gap_ms };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_clock_adds_no_run_time() {
        let mut span = MergeTime::default();
        for at_ms in [0, 500, 1_795_937_160_000, 1_795_937_161_000, 1_700_000_000_000, 1_700_000_000_250] {
            span.add(at_ms);
        }
        assert_eq!(span.total_ms, 500 + 1_000 + 250);
    }
}
