//! Audits: what learners show, done again off the actor, in a tenth of one core's time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::audit::{AuditJob, Judged, Verdict};
use archipelago_core::data::{ShardTokens, window_start};
use archipelago_core::diloco::syncer::Input;
use archipelago_core::model::FrozenWeights;
use archipelago_core::wire::{LeaseGrant, RunSpec};
use archipelago_runtime::engine::redo_on;
use tokio::sync::mpsc;

use super::{DUTY, idle_ms};
use crate::actor::{ActorHandle, Command};
use crate::clock::Clock;
use crate::corpus::Corpus;

/// Answers that may wait to be looked at; no more audits are under way at once.
pub const AUDITS_MAX: usize = 8;

/// Does again what learners show, one after the other, until nobody is left who could bring more.
pub async fn audit(
    mut jobs: mpsc::Receiver<AuditJob>,
    spec: RunSpec,
    frozen: Option<Arc<FrozenWeights>>,
    corpus: Arc<Corpus>,
    actor: ActorHandle,
    clock: Clock,
) {
    let spec = Arc::new(spec);
    while let Some(job) = jobs.recv().await {
        let (learner, serial) = (job.learner, job.commitment.serial);
        let (steps, bytes, began) = (job.commitment.steps, job.evidence.len(), clock.now());
        let (spec, frozen, corpus) = (Arc::clone(&spec), frozen.clone(), Arc::clone(&corpus));
        let redoing = tokio::task::spawn_blocking(move || judge(&job, &spec, frozen, &corpus));
        // Who makes the verifier panic has shown nothing.
        let verdict = redoing.await.unwrap_or(Verdict::Undecided);
        let ended = clock.now();
        let took_ms = ended.since(began);
        tracing::info!(%learner, %serial, ?verdict, steps, bytes, took_ms, "audit");
        let judged = Judged { learner, serial, verdict };
        if !actor.tell(Command::Input(Input::Audited(judged))).await {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(idle_ms(DUTY, began, ended))) => {}
            () = actor.closed() => return,
        }
    }
}

/// The verdict on what a learner shows, by the text of `corpus`.
fn judge(job: &AuditJob, spec: &RunSpec, frozen: Option<Arc<FrozenWeights>>, corpus: &Corpus) -> Verdict {
    let mut shards: BTreeMap<u32, ShardTokens> = BTreeMap::new();
    redo_on(frozen, job, spec, &mut |grant: &LeaseGrant, index| {
        let start = usize::try_from(window_start(spec, grant, index)?).ok()?;
        let tokens = match shards.entry(grant.shard) {
            Entry::Occupied(parsed) => parsed.into_mut(),
            Entry::Vacant(free) => {
                let bytes = corpus.shards.get(grant.shard as usize)?.to_vec();
                let shard = spec.data.shards.get(grant.shard as usize)?;
                free.insert(ShardTokens::parse(bytes, shard, &spec.data, spec.model.vocab).ok()?)
            }
        };
        Some(tokens.iter(start).take(spec.model.context as usize + 1).collect())
    })
}
