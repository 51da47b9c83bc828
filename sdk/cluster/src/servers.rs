//! The four services on external servers: NATS, and storage for states.

use std::sync::Arc;

use archipelago_core::cluster::OF_THE_RUN;
use archipelago_core::wire::{FragmentId, RunId};

use crate::cluster_id::ClusterId;
use crate::error::ServiceError;
use crate::nats::{Nats, NatsSettings};
use crate::service::Services;
use crate::store::{Store, StoreSettings};

/// Addresses of a cluster's servers.
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

/// Connects to all servers as a process of `run` with these `fragments`. The first process creates missing objects.
///
/// # Errors
/// Those of [`Nats::open`] and [`Store::open`].
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
    // The states must belong to this tape.
    let blobs = Arc::new(Store::open(&blobs, &prefix, nats.mark()).await?);
    Ok(Services { tape: Arc::<Nats>::clone(&nats), blobs, roster: Arc::<Nats>::clone(&nats), bus: nats })
}

/// Returns the ids of all tapes: these fragments, and the orders of the owner of the run.
pub(crate) fn tapes(fragments: &[FragmentId]) -> Vec<FragmentId> {
    fragments.iter().copied().chain([OF_THE_RUN]).collect()
}
