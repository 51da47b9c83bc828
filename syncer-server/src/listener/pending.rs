//! Limit on pending sockets, which belong to no learner: their peer is not admitted yet, or they are being closed.
//!
//! They have their own budget, so that they never displace a learner. If the budget is used up, a new socket displaces
//! the oldest one of its own address, or of the address with the most pending sockets. So a peer that sends `Hello`
//! promptly is admitted even during a flood of silent sockets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::connection_limits::Origin;

/// Maximum number of pending sockets of a server.
const PENDING_MAX: u32 = 256;
/// Fraction of all connections that pending sockets may take on a server with few connections, as a divisor.
const CONNECTIONS_PART: u32 = 4;
/// Fraction of the budget that one address may take, as a divisor.
const ADDRESS_PART: u32 = 8;
/// Minimum number of pending sockets that one address may have.
const ADDRESS_MIN: u32 = 4;

/// The pending sockets of one server.
pub(super) struct Pending {
    state: Mutex<State>,
    all_max: usize,
    address_max: usize,
}

#[derive(Default)]
struct State {
    /// Pending sockets by ticket, oldest first.
    sockets: BTreeMap<u64, (Origin, Arc<Notify>)>,
    next_ticket: u64,
}

impl Pending {
    /// Returns the budget of a server with at most `connections_max` connections.
    pub(super) fn new(connections_max: u32) -> Self {
        let all_max = (connections_max / CONNECTIONS_PART).clamp(1, PENDING_MAX);
        let address_max = (all_max / ADDRESS_PART).max(ADDRESS_MIN).min(all_max);
        Self { state: Mutex::default(), all_max: all_max as usize, address_max: address_max as usize }
    }

    /// Adds a pending socket of `who`, and displaces another one if the budget is used up.
    fn insert(&self, ticket: u64, who: Origin, displaced: Arc<Notify>) {
        let mut state = self.state();
        if let Some(oldest) = state.victim(who, self.all_max, self.address_max)
            && let Some((_, notify)) = state.sockets.remove(&oldest)
        {
            notify.notify_one();
        }
        state.sockets.insert(ticket, (who, displaced));
    }

    /// Locks the state. A panic cannot leave it half changed, so a poisoned lock is still valid.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the ticket of the socket to displace before one of `who` is added, if any.
    fn victim(&self, who: Origin, all_max: usize, address_max: usize) -> Option<u64> {
        let oldest_of =
            |who: Origin| self.sockets.iter().find(|(_, (owner, _))| *owner == who).map(|(&t, _)| t);
        let mut counts: BTreeMap<Origin, usize> = BTreeMap::new();
        self.sockets.values().for_each(|(who, _)| *counts.entry(*who).or_default() += 1);
        // Many peers share an origin without an address, such as a proxy on this machine.
        if who.address().is_some() && counts.get(&who).copied().unwrap_or(0) >= address_max {
            return oldest_of(who);
        }
        if self.sockets.len() < all_max {
            return None;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).and_then(|(who, _)| oldest_of(who))
    }
}

/// Registration of a learner's WebSocket. It is pending until [`Self::admit`], and again after [`Self::mark_pending`].
pub struct Socket {
    pending: Arc<Pending>,
    ticket: u64,
    who: Origin,
    displaced: Arc<Notify>,
}

impl Socket {
    /// Registers a new pending socket of `who`.
    pub(super) fn open(pending: &Arc<Pending>, who: Origin) -> Self {
        let ticket = {
            let mut state = pending.state();
            state.next_ticket += 1;
            state.next_ticket
        };
        let displaced = Arc::new(Notify::new());
        pending.insert(ticket, who, Arc::clone(&displaced));
        Self { pending: Arc::clone(pending), ticket, who, displaced }
    }

    /// Removes the socket from the budget, because it now belongs to a learner.
    pub fn admit(&self) {
        self.pending.state().sockets.remove(&self.ticket);
    }

    /// Makes the socket pending again, because its learner has left. Its old ticket makes it one of the first to be
    /// displaced.
    pub fn mark_pending(&self) {
        self.pending.insert(self.ticket, self.who, Arc::clone(&self.displaced));
    }

    /// Resolves once a newer socket displaces this one, which must then close without delay.
    pub async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.admit();
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(last: u8) -> Origin {
        Origin::Address(IpAddr::from([192, 0, 2, last]))
    }

    /// Returns the number of sockets that were displaced since the last call.
    fn displaced(sockets: &mut Vec<Socket>) -> usize {
        let before = sockets.len();
        sockets.retain(|socket| socket.pending.state().sockets.contains_key(&socket.ticket));
        before - sockets.len()
    }

    #[test]
    fn one_address_displaces_its_own_sockets() {
        let pending = Arc::new(Pending::new(8_192));
        let other = Socket::open(&pending, address(2));
        let mut flood: Vec<_> = (0..1_000).map(|_| Socket::open(&pending, address(1))).collect();
        assert_eq!((displaced(&mut flood), flood.len()), (968, 32));
        assert!(flood.iter().all(|socket| socket.ticket > 968), "the oldest are displaced");
        assert!(pending.state().sockets.contains_key(&other.ticket));
    }

    #[test]
    fn many_addresses_displace_the_one_with_most_sockets() {
        let pending = Arc::new(Pending::new(8_192));
        let newcomer = Socket::open(&pending, address(200));
        let mut flood: Vec<_> =
            (0..3_000).map(|i| Socket::open(&pending, address((i % 100) as u8))).collect();
        displaced(&mut flood);
        assert_eq!(flood.len(), PENDING_MAX as usize - 1);
        assert!(pending.state().sockets.contains_key(&newcomer.ticket), "it has only one");
    }

    #[test]
    fn learners_are_not_counted_until_they_are_closed() {
        let pending = Arc::new(Pending::new(16));
        let learner = Socket::open(&pending, Origin::Here);
        learner.admit();
        let mut flood: Vec<_> = (0..9).map(|_| Socket::open(&pending, Origin::Here)).collect();
        assert_eq!((displaced(&mut flood), pending.state().sockets.len()), (5, 4));
        assert!(futures::FutureExt::now_or_never(learner.displaced()).is_none());
        learner.mark_pending();
        assert_eq!(displaced(&mut flood), 1);
        flood.push(Socket::open(&pending, Origin::Here));
        assert!(futures::FutureExt::now_or_never(learner.displaced()).is_some(), "it goes first");
        drop((learner, flood));
        assert!(pending.state().sockets.is_empty());
    }
}
