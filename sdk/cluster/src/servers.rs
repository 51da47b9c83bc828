//! The four services on servers that others run: NATS, and storage for states.

use std::sync::Arc;

use archipelago_core::cluster::OF_THE_RUN;
use archipelago_core::wire::{FragmentId, RunId};

use crate::error::ServiceError;
use crate::mark::Mark;
use crate::nats::{Nats, NatsSettings};
use crate::service::Services;
use crate::store::{Store, StoreSettings};

/// Where the servers of a cluster are.
#[derive(Clone, Debug)]
pub struct Servers {
    /// Those of NATS: see [`NatsSettings::servers`].
    pub nats: Vec<String>,
    /// On how many of them each record is: 1 or 3.
    pub replicas: usize,
    /// Where states are kept.
    pub blobs: StoreSettings,
    /// What all names of this cluster begin with: see [`NatsSettings::prefix`].
    pub prefix: String,
}

/// Connects to all of them, as a process of `run` with these `fragments`; the first process makes what is missing.
///
/// # Errors
/// Those of [`Nats::open`] and [`Store::open`].
pub async fn open(
    servers: Servers,
    run: RunId,
    fragments: Vec<FragmentId>,
) -> Result<Services, ServiceError> {
    let Servers { nats, replicas, blobs, prefix } = servers;
    let mark = Mark { run, nonce: crate::random() };
    let settings =
        NatsSettings { servers: nats, prefix: prefix.clone(), replicas, fragments: tapes(&fragments) };
    let nats = Arc::new(Nats::open(settings, mark).await?);
    // The states are those of this tape and no other.
    let blobs = Arc::new(Store::open(&blobs, &prefix, nats.mark()).await?);
    Ok(Services { tape: Arc::<Nats>::clone(&nats), blobs, roster: Arc::<Nats>::clone(&nats), bus: nats })
}

/// What has a tape of its own: each of these fragments, and what the owner of the run orders.
pub(crate) fn tapes(fragments: &[FragmentId]) -> Vec<FragmentId> {
    fragments.iter().copied().chain([OF_THE_RUN]).collect()
}
