//! A look at the servers of a cluster, for whoever sets one up.

use archipelago_core::wire::FragmentId;

use crate::findings::{Findings, Storage};
use crate::servers::{Servers, tapes};
use crate::{nats, store};

/// Looks at all of `servers`, and at what there is of a run with these `fragments`. It makes neither streams nor marks,
/// and changes nothing but an object of its own in storage, which it removes, if it may.
///
/// Every error is part of what is found: those of [`crate::Nats::open`] and [`crate::Store::open`], and
/// [`crate::ServiceError::Setting`] of a store that writes over what is there although it is asked not to.
pub async fn look(servers: &Servers, fragments: &[FragmentId]) -> Findings {
    let Servers { nats, blobs, prefix, .. } = servers;
    let storage = async {
        // Nothing is written under a name that no run may have.
        match nats::check_prefix(prefix) {
            Ok(()) => store::look(blobs, prefix).await,
            Err(error) => Storage { place: blobs.place.clone(), found: Err(error), ahead_ms: None },
        }
    };
    let tapes = tapes(fragments);
    let (looked, storage) = tokio::join!(nats::look(nats, prefix, &tapes), storage);
    Findings { nodes: looked.nodes, streams: looked.streams, storage }
}
