//! Transfer slots: limits on simultaneous answers with parameters, in total and per peer.
//!
//! Half of the slots and half of the queue are reserved for members, which are admitted connections that show their
//! pass. Members and strangers share the other half.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::future::{Either, select};
use futures::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

/// Maximum number of answers sent at once. More would not arrive sooner, since they share one network link.
const ANSWERS_MAX: usize = 64;

/// Maximum number of requests that wait for a slot, and the maximum wait of each.
const WAITING_MAX: usize = 512;
const WAIT: Duration = Duration::from_secs(4);

/// Maximum number of answers sent to one peer at once, and of its waiting requests. A learner fetches four fragments at
/// once.
const PEER_MAX: usize = 4;

/// Maximum time for which an answer holds a slot.
const SLOT_MAX: Duration = Duration::from_secs(10);

/// Time without progress after which an answer releases its slot and continues without one.
const STALL_MAX: Duration = Duration::from_millis(250);

/// Bytes sent at once, and the time limit for a peer to take them.
const PIECE_BYTES: usize = 64 << 10;
const PIECE_WITHIN: Duration = Duration::from_secs(8);

/// Number of remembered peers at which those without transfers are removed.
const PEERS_MAX: usize = 1_024;

/// Settings of [`TransferSlots`].
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Maximum number of answers sent at once.
    pub answers_max: usize,
    /// Maximum number of waiting requests.
    pub waiting_max: usize,
    /// Maximum wait of a request for a slot before it is refused.
    pub wait: Duration,
    /// Maximum time for which an answer holds a slot, so that slow readers do not block other peers. The answer then
    /// continues without a slot. This takes no further memory, because all answers share their bytes.
    pub slot: Duration,
    /// Time without progress after which an answer releases its slot.
    pub stall: Duration,
    /// Time limit for a peer to take one piece. The transfer ends after it.
    pub piece: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            answers_max: ANSWERS_MAX,
            waiting_max: WAITING_MAX,
            wait: WAIT,
            slot: SLOT_MAX,
            stall: STALL_MAX,
            piece: PIECE_WITHIN,
        }
    }
}

/// A peer that fetches parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// An admitted connection, identified by its pass.
    Member(Box<[u8]>),
    /// The address of a peer without a pass.
    Address(IpAddr),
    /// Peers without a pass that cannot be distinguished: those on this machine, and those behind an undeclared proxy.
    Unknown,
}

/// Slots and queue positions, in total and per peer.
pub struct TransferSlots {
    terms: Terms,
    members: Pool,
    everyone: Pool,
    peers: Mutex<BTreeMap<Peer, Weak<Pool>>>,
}

/// A number of slots, and of queue positions to wait for one.
struct Pool {
    slots: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Pool {
    fn new(slots: usize, waiting: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slots)), waiting: Semaphore::new(waiting) }
    }

    fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.waiting.try_acquire().ok()
    }

    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }
}

/// The right to send one answer. Dropping it frees the slot.
pub struct TransferSlot {
    _of_all: OwnedSemaphorePermit,
    _of_peer: Option<(OwnedSemaphorePermit, Arc<Pool>)>,
}

impl TransferSlots {
    /// Returns the slots of a server that sends no answers yet.
    pub fn new(terms: Terms) -> Self {
        let half = |most: usize| [most / 2, most - most / 2];
        let ([slots, more_slots], [places, more_places]) = (half(terms.answers_max), half(terms.waiting_max));
        Self {
            terms,
            members: Pool::new(slots, places),
            everyone: Pool::new(more_slots, more_places),
            peers: Mutex::default(),
        }
    }

    /// Waits for a slot. Returns `None` if too many requests wait already, or if the wait takes longer than
    /// `terms.wait`.
    pub async fn slot(&self, peer: &Peer) -> Option<TransferSlot> {
        let is_member = matches!(peer, Peer::Member(_));
        let place = if is_member { self.members.place() } else { None };
        let _place = place.or_else(|| self.everyone.place())?;
        let own = self.own(peer);
        let _own_place = match &own {
            Some(own) => Some(own.place()?),
            None => None,
        };
        let taking = async {
            let of_peer = match &own {
                Some(own) => Some((own.slot().await?, Arc::clone(own))),
                None => None,
            };
            let _of_all = if is_member { self.first_slot().await? } else { self.everyone.slot().await? };
            Some(TransferSlot { _of_all, _of_peer: of_peer })
        };
        timeout(self.terms.wait, taking).await.ok()?
    }

    /// Waits for the first free slot, reserved for members or shared.
    async fn first_slot(&self) -> Option<OwnedSemaphorePermit> {
        match select(pin!(self.members.slot()), pin!(self.everyone.slot())).await {
            Either::Left((slot, _)) | Either::Right((slot, _)) => slot,
        }
    }

    /// Returns the pool of `peer`; `None` for [`Peer::Unknown`].
    fn own(&self, peer: &Peer) -> Option<Arc<Pool>> {
        if *peer == Peer::Unknown {
            return None;
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = peers.get(peer).and_then(Weak::upgrade) {
            return Some(own);
        }
        if peers.len() >= PEERS_MAX {
            peers.retain(|_, own| own.strong_count() > 0);
        }
        let own = Arc::new(Pool::new(PEER_MAX, PEER_MAX));
        peers.insert(peer.clone(), Arc::downgrade(&own));
        Some(own)
    }

    /// Returns a body that sends `bytes` and holds `slot`. The transfer ends early if the peer takes too long for a
    /// piece.
    pub fn send(&self, bytes: Bytes, slot: TransferSlot) -> Body {
        let (terms, ends) = (self.terms, Instant::now() + self.terms.slot);
        // No piece is prepared ahead: the channel holds only the piece that the peer takes next.
        let (sender, receiver) = mpsc::channel::<std::io::Result<Bytes>>(1);
        tokio::spawn(async move {
            let mut slot = Some(slot);
            let pieces = (0..bytes.len()).step_by(PIECE_BYTES);
            let pieces = pieces.map(|start| bytes.slice(start..bytes.len().min(start + PIECE_BYTES)));
            // The slot lasts until the last piece is taken.
            for piece in pieces.map(Some).chain([None]) {
                let begun = Instant::now();
                let mut place = timeout_at(ends.min(begun + terms.stall), sender.reserve()).await;
                if place.is_err() {
                    drop(slot.take());
                    place = timeout_at(begun + terms.piece, sender.reserve()).await;
                }
                match (place, piece) {
                    (Ok(Ok(place)), Some(piece)) => place.send(Ok(piece)),
                    _ => return,
                }
            }
        });
        Body::from_stream(stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        }))
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    fn terms(wait: Duration) -> Terms {
        Terms { answers_max: 4, waiting_max: 4, wait, slot: LONG, stall: LONG, piece: LONG }
    }

    fn member(pass: u8) -> Peer {
        Peer::Member([pass].into())
    }

    fn address(last: u8) -> Peer {
        Peer::Address([192, 0, 2, last].into())
    }

    /// Goal: half of the slots and queue positions stay free for members, regardless of the number of strangers.
    #[tokio::test]
    async fn strangers_leave_half_of_the_slots_to_members() {
        let slots = TransferSlots::new(terms(Duration::ZERO));
        let _strangers = (slots.slot(&Peer::Unknown).await.unwrap(), slots.slot(&address(1)).await.unwrap());
        assert!(slots.slot(&Peer::Unknown).await.is_none() && slots.slot(&address(2)).await.is_none());
        let _members = (slots.slot(&member(1)).await.unwrap(), slots.slot(&member(2)).await.unwrap());
        assert!(slots.slot(&member(3)).await.is_none());

        let slots = TransferSlots::new(terms(LONG));
        let _strangers =
            (slots.slot(&Peer::Unknown).await.unwrap(), slots.slot(&Peer::Unknown).await.unwrap());
        let mut waiting: Vec<_> = (0..2).map(|_| Box::pin(slots.slot(&Peer::Unknown))).collect();
        assert!(waiting.iter_mut().all(|slot| slot.now_or_never().is_none()));
        assert!(slots.slot(&Peer::Unknown).await.is_none(), "two strangers wait, and no more");
        let held = (slots.slot(&member(1)).await.unwrap(), slots.slot(&member(2)).await.unwrap());
        let peer = member(3);
        let mut third = Box::pin(slots.slot(&peer));
        assert!((&mut third).now_or_never().is_none(), "a member waits beside them");
        drop(held);
        assert!(third.await.is_some());
    }

    #[tokio::test]
    async fn one_peer_has_few_slots() {
        let many = Terms { answers_max: 64, waiting_max: 64, ..terms(Duration::ZERO) };
        for peer in [member(1), address(1)] {
            let slots = TransferSlots::new(many);
            let mut held = Vec::new();
            for _ in 0..PEER_MAX {
                held.push(slots.slot(&peer).await.unwrap());
            }
            assert!(slots.slot(&peer).await.is_none());
            assert!(slots.slot(&member(2)).await.is_some() && slots.slot(&address(2)).await.is_some());
            held.pop();
            assert!(slots.slot(&peer).await.is_some());
        }
        let slots = TransferSlots::new(many);
        for last in 0..=255 {
            (0..8).for_each(|third| drop(slots.own(&Peer::Address([10, 0, third, last].into()))));
        }
        assert!(slots.peers.lock().unwrap().len() <= PEERS_MAX, "peers that fetch nothing are forgotten");
    }

    /// Goal: a stalled reader loses its slot, a reader without progress loses its transfer, and all others get every
    /// byte.
    #[tokio::test]
    async fn slow_readers_hold_no_slots() {
        let bytes = Bytes::from((0..3 * PIECE_BYTES + 5).map(|at| at as u8).collect::<Vec<_>>());
        let stalling = Terms { stall: Duration::ZERO, ..terms(LONG) };
        let slots = TransferSlots::new(stalling);
        let mut bodies = Vec::new();
        for _ in 0..10 {
            bodies.push(slots.send(bytes.clone(), slots.slot(&Peer::Unknown).await.unwrap()));
        }
        for body in bodies {
            assert!(axum::body::to_bytes(body, usize::MAX).await.unwrap() == bytes);
        }

        let slots = TransferSlots::new(Terms { piece: Duration::ZERO, ..stalling });
        let body = slots.send(bytes.clone(), slots.slot(&Peer::Unknown).await.unwrap());
        let mut body = body.into_data_stream();
        // Meanwhile the channel has no room for the second piece.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut came = 0;
        while let Some(piece) = body.next().await {
            came += piece.unwrap().len();
        }
        assert_eq!(came, PIECE_BYTES);

        let slots = TransferSlots::new(Terms { answers_max: 2, ..terms(LONG) });
        let body = slots.send(bytes.clone(), slots.slot(&Peer::Unknown).await.unwrap());
        let mut waits = Box::pin(slots.slot(&Peer::Unknown));
        assert!((&mut waits).now_or_never().is_none(), "nothing was read yet");
        assert_eq!(axum::body::to_bytes(body, usize::MAX).await.unwrap().len(), bytes.len());
        assert!(waits.await.is_some(), "an answer that was sent makes room");
    }
}
