//! The four services on external servers (NATS, and storage for states), and the inspection of these servers.

use std::sync::Arc;

use archipelago_core::cluster::OF_THE_RUN;
use archipelago_core::wire::{FragmentId, RunId};

use crate::ids::ClusterId;
use crate::inspection::{Findings, Storage};
use crate::nats::{self, Nats, NatsSettings};
use crate::service::{ServiceError, Services};
use crate::store::{self, StateStore, StoreSettings};

/// Servers of a cluster, and the cluster's part of them.
#[derive(Clone, Debug)]
pub struct Servers {
    /// NATS servers: see [`NatsSettings::servers`].
    pub nats: Vec<String>,
    /// Number of NATS servers that hold each record: 1 or 3.
    pub replicas: usize,
    /// Storage for states.
    pub blobs: StoreSettings,
    /// Prefix of all names of this cluster: see [`NatsSettings::prefix`].
    pub prefix: String,
}

/// Connects to all servers as a process of `run`, which has these `fragments`. The first process creates streams and
/// marks.
///
/// # Errors
/// Those of [`Nats::open`] and [`StateStore::open`].
pub async fn open(
    servers: Servers,
    run: RunId,
    fragments: Vec<FragmentId>,
) -> Result<Services, ServiceError> {
    let Servers { nats, replicas, blobs, prefix } = servers;
    let mark = ClusterId { run, nonce: crate::random() };
    let settings =
        NatsSettings { servers: nats, prefix: prefix.clone(), replicas, fragments: tapes(&fragments) };
    let nats = Arc::new(Nats::open(settings, mark).await?);
    // The mark in the storage must be that of the streams.
    let blobs = Arc::new(StateStore::open(&blobs, &prefix, nats.mark()).await?);
    Ok(Services { tape: Arc::<Nats>::clone(&nats), blobs, roster: Arc::<Nats>::clone(&nats), bus: nats })
}

/// Returns the ids of all tapes: those of `fragments`, and that of the owner's commands.
pub(crate) fn tapes(fragments: &[FragmentId]) -> Vec<FragmentId> {
    fragments.iter().copied().chain([OF_THE_RUN]).collect()
}

/// Inspects all of `servers` and the data of a run with these `fragments`. It creates no streams and no marks. The
/// only change is a test object in the storage, which is removed if permitted.
///
/// Every error becomes part of the findings: those of [`super::Nats::open`] and [`super::StateStore::open`], and
/// [`super::ServiceError::Setting`] for a store that ignores the condition against overwriting.
pub async fn inspect(servers: &Servers, fragments: &[FragmentId]) -> Findings {
    let Servers { nats, blobs, prefix, .. } = servers;
    let storage = async {
        // Nothing is written under an invalid prefix.
        match nats::check_prefix(prefix) {
            Ok(()) => store::inspect(blobs, prefix).await,
            Err(error) => Storage { place: blobs.place.clone(), found: Err(error), ahead_ms: None },
        }
    };
    let tapes = tapes(fragments);
    let (found, storage) = tokio::join!(nats::inspect(nats, prefix, &tapes), storage);
    Findings { nodes: found.nodes, streams: found.streams, storage }
}
