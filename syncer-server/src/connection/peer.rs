//! The peer of a socket, with the limits of the listener that apply to it.

use std::sync::{Arc, Mutex, PoisonError};

use archipelago_core::wire::{Bye, CloseCode};

use crate::listener::{ConnectionGuard, ConnectionPermit, ConnectionShare, Socket};

/// Wait after which a learner that found no free connection may come again, in milliseconds.
const FULL_WAIT_MS: u32 = 10_000;

/// The peer of a socket: its connection as counted by the listener, and the limits that apply to it.
pub struct Peer {
    guard: Option<Arc<ConnectionGuard>>,
    socket: Option<Socket>,
    /// Limit on the run's connections, on a server of several runs.
    share: Option<ConnectionShare>,
    permit: Mutex<Option<ConnectionPermit>>,
}

impl Peer {
    /// Creates a peer without a learner, whose connection is counted as `guard`. `share` limits the connections of its
    /// run.
    pub fn new(guard: Option<Arc<ConnectionGuard>>, share: Option<ConnectionShare>) -> Self {
        let socket = guard.as_ref().map(|guard| guard.open_socket());
        Self { guard, socket, share, permit: Mutex::new(None) }
    }

    /// Returns the peer's connection as counted by the listener.
    pub(super) fn guard(&self) -> Option<&ConnectionGuard> {
        self.guard.as_deref()
    }

    /// Takes one of the run's connections for the learner, before the core receives it.
    ///
    /// # Errors
    /// The goodbye: the run has no connection left.
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

    /// Marks the socket as no longer pending: the core has admitted its learner.
    pub(super) fn admit(&self) {
        if let Some(socket) = &self.socket {
            socket.admit();
        }
    }

    /// Marks the socket as pending again until it is closed: its learner has left.
    pub(super) fn mark_pending(&self) {
        self.permit().take();
        if let Some(socket) = &self.socket {
            socket.mark_pending();
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
