//! The peer of a socket, with the budgets of the listener.

use std::sync::{Arc, Mutex, PoisonError};

use archipelago_core::wire::{Bye, CloseCode};

use crate::listener::{ConnectionPermit, ConnectionShare, Place, Socket};

/// Time after which a learner that found no free connection may come again, in milliseconds.
const FULL_WAIT_MS: u32 = 10_000;

/// The peer of a socket: its place, and the budgets that its connection counts against.
pub struct Peer {
    place: Option<Arc<Place>>,
    socket: Option<Socket>,
    /// The run's share of the connections, on a server of several runs.
    share: Option<ConnectionShare>,
    permit: Mutex<Option<ConnectionPermit>>,
}

impl Peer {
    /// Returns a peer at `place` that belongs to no learner yet. Its run may hold `share` of the server's connections.
    pub fn new(place: Option<Arc<Place>>, share: Option<ConnectionShare>) -> Self {
        let socket = place.as_ref().map(|place| place.open_socket());
        Self { place, socket, share, permit: Mutex::new(None) }
    }

    /// Returns the place that the peer comes from.
    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_deref()
    }

    /// Counts the connection against the run's share, before the core receives its learner.
    ///
    /// # Errors
    /// The goodbye: other runs of the server need the connection.
    pub(super) fn take_share(&self) -> Result<(), Bye> {
        let Some(share) = &self.share else { return Ok(()) };
        let permit = share.take().ok_or_else(|| {
            let reason = format!(
                "the server has no connection left for this run: come back in {} s",
                FULL_WAIT_MS / 1_000
            );
            Bye { wait_ms: FULL_WAIT_MS, ..Bye::new(CloseCode::Full, reason) }
        })?;
        *self.permit() = Some(permit);
        Ok(())
    }

    /// Ends the socket's time as a pending one: the core has admitted the learner.
    pub(super) fn admit(&self) {
        if let Some(socket) = &self.socket {
            socket.admit();
        }
    }

    /// Makes the socket pending again until it is closed: the learner has left.
    pub(super) fn dismiss(&self) {
        self.permit().take();
        if let Some(socket) = &self.socket {
            socket.dismiss();
        }
    }

    /// Resolves once a newer socket displaces this one.
    pub(super) async fn displaced(&self) {
        match &self.socket {
            Some(socket) => socket.displaced().await,
            None => std::future::pending().await,
        }
    }

    fn permit(&self) -> std::sync::MutexGuard<'_, Option<ConnectionPermit>> {
        // A panic cannot leave the value half changed, so a poisoned lock is safe to use.
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
