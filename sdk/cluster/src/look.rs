//! Inspection of a cluster's servers, for operators.

use archipelago_core::wire::FragmentId;

use crate::inspection::{Findings, Storage};
use crate::servers::{Servers, tapes};
use crate::{nats, store};

/// Inspects all of `servers` and the data of a run with these `fragments`. It creates no streams and no marks. The only
/// change is a test object in storage, which it removes if it has the permission.
///
/// Every error becomes part of the findings: those of [`crate::Nats::open`] and [`crate::Store::open`], and
/// [`crate::ServiceError::Setting`] for a store that ignores the condition against overwriting.
pub async fn look(servers: &Servers, fragments: &[FragmentId]) -> Findings {
    let Servers { nats, blobs, prefix, .. } = servers;
    let storage = async {
        // An invalid prefix is never written to.
        match nats::check_prefix(prefix) {
            Ok(()) => store::look(blobs, prefix).await,
            Err(error) => Storage { place: blobs.place.clone(), found: Err(error), ahead_ms: None },
        }
    };
    let tapes = tapes(fragments);
    let (looked, storage) = tokio::join!(nats::look(nats, prefix, &tapes), storage);
    Findings { nodes: looked.nodes, streams: looked.streams, storage }
}
