//! Comparison of a cluster's merges with those of a single process. The updates of synthetic learners are known here,
//! so each merge with a stored state is recomputed and compared with that state bit for bit.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use archipelago_cluster::{Servers, Services, StoreSettings, open};
use archipelago_core::cluster::{Record, state_of};
use archipelago_core::diloco::syncer::Rollback;
use archipelago_core::diloco::{Entry, FragmentState, checksum};
use archipelago_core::wire::{FragmentId, RunId, RunSpec, Version};
use serde_json::{Value, json};

use crate::pool::RunModel;

/// Addresses of the cluster.
#[derive(clap::Args)]
pub struct Args {
    /// File `run.json` of a gateway, with the id and the specification of the run.
    #[arg(long)]
    manifest: PathBuf,
    /// NATS servers.
    #[arg(long, value_delimiter = ',')]
    bus: Vec<String>,
    /// Storage of the states.
    #[arg(long)]
    blobs: String,
    /// Prefix of all names of the cluster.
    #[arg(long)]
    cluster: String,
}

/// Results of the comparison.
#[derive(Default)]
struct Counts {
    records: usize,
    merges: usize,
    updates: usize,
    /// Number of merges with a different result.
    other: usize,
}

/// Recomputes the merges whose states are still stored. The first such state of each fragment is the starting point.
///
/// # Errors
/// A message about missing or damaged data, or if there is nothing to compare.
pub async fn run(args: Args) -> Result<Value, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", args.manifest.display());
    let text = fs::read_to_string(&args.manifest).map_err(|error| failed(&error))?;
    let manifest: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    let run: RunId = serde_json::from_value(manifest["run"].clone()).map_err(|error| failed(&error))?;
    let spec: RunSpec = serde_json::from_value(manifest["spec"].clone()).map_err(|error| failed(&error))?;
    let model = RunModel::new(&spec)?;
    let ids: Vec<FragmentId> = model.fragments.ids().collect();
    let blobs = StoreSettings { place: args.blobs, variables: Vec::new() };
    let replicas = if args.bus.len() >= 3 { 3 } else { 1 };
    let servers = Servers { nats: args.bus, replicas, blobs, prefix: args.cluster };
    let services = open(servers, run, ids.clone()).await.map_err(|error| error.to_string())?;
    let mut counts = Counts::default();
    for fragment in ids {
        follow(&services, &model, fragment, &mut counts).await?;
    }
    let Counts { records, merges, updates, other } = counts;
    if merges == 0 {
        return Err(
            "no fragment has two stored states to compare; let the run continue for longer".to_owned()
        );
    }
    Ok(json!({ "records": records, "merges": merges, "updates": updates, "other": other }))
}

async fn follow(
    services: &Services,
    model: &RunModel,
    fragment: FragmentId,
    counts: &mut Counts,
) -> Result<(), String> {
    let tape = services.tape.read(fragment, 0).await.map_err(|error| error.to_string())?;
    counts.records += tape.len();
    let mut alone: Option<Rollback> = None;
    for (record, seq) in tape.into_iter().zip(1..) {
        let Record::Merged { merge, state } = record else { continue };
        let damaged = || format!("the state of record {seq} of fragment {fragment} is damaged");
        let stored = services.blobs.load(fragment, seq).await.map_err(|error| error.to_string())?;
        let theirs = match stored {
            Some(bytes) if checksum(&bytes) != state => return Err(damaged()),
            Some(bytes) => {
                Some(state_of(Version(seq), model.fragments.len(fragment), &bytes).ok_or_else(damaged)?)
            }
            // Owners keep only the newest states.
            None => None,
        };
        let Some(alone) = &mut alone else {
            alone = theirs.and_then(|theirs| from(model, fragment, theirs));
            continue;
        };
        let mut bodies = merge.parts.iter().map(|part| model.body(fragment, part.serial.0).to_vec());
        let next = |_| bodies.next().ok_or_else(|| "the merge has fewer updates".to_owned());
        let entry = Entry::Merged((*merge).clone());
        // A merge that cannot be recomputed has no result; later merges are compared with the stored states.
        let followed = alone.follow(&entry, next);
        let Some(theirs) = theirs else { continue };
        counts.merges += 1;
        counts.updates += merge.parts.len();
        if followed.is_err() || alone.theta().1 != &theirs.theta[..] {
            counts.other += 1;
        }
    }
    Ok(())
}

/// Creates a recomputation that continues from `state` of `fragment`.
fn from(model: &RunModel, fragment: FragmentId, state: FragmentState) -> Option<Rollback> {
    let count = model.fragments.ids().count();
    // The library only creates recomputations of all fragments; the states of the others are unused.
    let (states, until) = (vec![state; count], vec![Version(u64::MAX); count]);
    let codec = model.codec;
    let all = Rollback::all(&model.fragments, codec, &states, &BTreeSet::new(), &until);
    all.into_iter().find(|rollback| rollback.theta().0 == fragment)
}
