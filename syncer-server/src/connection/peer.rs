//! The other end of a socket, as the door knows it.

use std::sync::{Arc, Mutex, PoisonError};

use archipelago_core::wire::{Bye, CloseCode};

use crate::door::{Place, Share, Socket, Taken};

/// Time after which a learner that finds no room may come again, in milliseconds.
const FULL_WAIT_MS: u32 = 10_000;

/// The other end of a socket: where it comes from, and which budget its connection counts for.
pub struct Peer {
    place: Option<Arc<Place>>,
    socket: Option<Socket>,
    /// What the run may hold of the connections of a server of several runs.
    share: Option<Share>,
    taken: Mutex<Option<Taken>>,
}

impl Peer {
    /// A peer at `place` that belongs to no learner yet, of a run that may hold `share` of the server's connections.
    pub fn new(place: Option<Arc<Place>>, share: Option<Share>) -> Self {
        let socket = place.as_ref().map(|place| place.open_socket());
        Self { place, socket, share, taken: Mutex::new(None) }
    }

    /// Where it comes from.
    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_deref()
    }

    /// Counts its connection for the run, before the core hears of its learner.
    ///
    /// # Errors
    /// The goodbye: other runs of the server need the connection.
    pub(super) fn take_share(&self) -> Result<(), Bye> {
        let Some(share) = &self.share else { return Ok(()) };
        let taken = share.take().ok_or_else(|| {
            let reason = format!(
                "the server has no connection left for this run: come back in {} s",
                FULL_WAIT_MS / 1_000
            );
            Bye { wait_ms: FULL_WAIT_MS, ..Bye::new(CloseCode::Full, reason) }
        })?;
        *self.taken() = Some(taken);
        Ok(())
    }

    /// The core took its learner in: its socket is no longer pending.
    pub(super) fn admit(&self) {
        if let Some(socket) = &self.socket {
            socket.admit();
        }
    }

    /// Its learner is gone: its socket is pending until it is closed.
    pub(super) fn dismiss(&self) {
        self.taken().take();
        if let Some(socket) = &self.socket {
            socket.dismiss();
        }
    }

    /// Resolves once its socket has to make room for a newer one.
    pub(super) async fn displaced(&self) {
        match &self.socket {
            Some(socket) => socket.displaced().await,
            None => std::future::pending().await,
        }
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Option<Taken>> {
        // What is behind it is whole after each statement.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
