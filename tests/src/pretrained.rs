//! Pretrained model for runs that begin with it.

use std::path::Path;

use crate::processes::{SyncerProcess, number};
use crate::verbs::export;

/// Trains a small model on the built-in grammar, and exports it to `folder`.
///
/// # Panics
/// If it does not learn in time, or cannot be exported.
pub fn pretrained(folder: &Path) {
    let small = ["--preset", "tiny", "--corpus-bytes", "512KiB", "--sync-every", "8", "--fragments", "4"];
    let mut syncer = SyncerProcess::start(&small);
    let mut learner = syncer.learner("first");
    syncer.wait_until("it has learnt something", |status| number(status, "tokensMerged") >= 50_000.0);
    assert!(learner.interrupt().0.success());
    syncer.interrupt();
    export(&syncer.folder(), folder, &[]);
}
