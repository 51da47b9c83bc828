//! Creation of a new run's folder, and comparison of an existing folder with the run.

use archipelago_core::diloco::syncer::{Syncer, SyncerConfig};
use archipelago_core::diloco::{Layout, RunId};
use archipelago_core::wire::RunSpec;

use crate::corpus::Corpus;
use crate::errors::ServerError;
use crate::llama::Chat;
use crate::progress::{Cancellation, Progress, Unit};
use crate::status::RunStatistics;
use crate::store::{FORMAT, Initial, Manifest, Snapshot, Store, digest};

/// Creates a new run in the folder of `store`. If this fails or is cancelled, its files are removed.
pub(super) fn begin(
    store: &Store,
    corpus: &Corpus,
    manifest: &Manifest,
    layout: &Layout,
    config: SyncerConfig,
    theta: &[f32],
    cancellation: &Cancellation,
) -> Result<Syncer, ServerError> {
    let syncer = Syncer::new(manifest.run, manifest.spec.clone(), config, layout, theta);
    let syncer = syncer.map_err(|error| ServerError::Config { why: error.to_string() })?;
    let (record, states) = (syncer.record_amid(), syncer.states().cloned().collect());
    let snapshot = Snapshot { seq: 0, record, states, statistics: RunStatistics::default() };
    let total = snapshot.tensor_bytes();
    let progress = Progress::of(cancellation, "writing the first snapshot", total, Unit::Bytes);
    // If an interrupted start left a manifest, the folder may hold the only copy of its initial parameters, and is
    // kept.
    let is_first = store.manifest()?.is_none();
    cancellation.writing(|| {
        let written = store
            .begin(manifest, &corpus.tokenizer, Some(theta))
            .and_then(|()| store.save_with(&snapshot, &progress));
        if written.is_err() && is_first {
            store.withdraw();
        }
        written
    })?;
    Ok(syncer)
}

/// Returns the manifest of a new run.
pub(super) fn manifest(
    corpus: &Corpus,
    spec: &RunSpec,
    run: RunId,
    init: Option<Initial>,
    (chat, text): (Chat, String),
) -> Manifest {
    let (corpus, tokenizer) = (corpus.hash.clone(), digest(corpus.tokenizer.as_bytes()));
    Manifest { format: FORMAT, run, corpus, spec: spec.clone(), init, chat, text, tokenizer, forked: None }
}

/// Returns the snapshot to resume from. Refuses if `there`, the manifest in the folder, is that of another run.
pub(super) fn find(
    store: &Store,
    there: &Manifest,
    init: Option<Initial>,
    spec: &RunSpec,
    corpus: &Corpus,
) -> Result<Option<Snapshot>, ServerError> {
    let (corpus, spec, text) = (corpus.hash.clone(), spec.clone(), there.text.clone());
    let (forked, tokenizer, chat) = (there.forked, there.tokenizer.clone(), there.chat.clone());
    let here = Manifest { format: FORMAT, run: there.run, corpus, spec, init, chat, text, tokenizer, forked };
    if let Some(difference) = there.difference(&here) {
        return Err(ServerError::OtherRun { dir: store.dir().to_owned(), difference });
    }
    store.latest(there.run)
}
