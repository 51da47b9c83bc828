//! Bounded send queues of one connection, with short messages ahead of parameters.

use std::sync::Arc;

use archipelago_core::diloco::Fragments;
use archipelago_core::wire::{Bye, Message, encode, frames};
use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::meters::Phase;

/// Maximum number of short messages queued for one connection.
const CONTROL_MAX: usize = 1_024;

/// Limit of the parameters queued for one connection, as a multiple of the model's size. A learner that lags further
/// should fetch the parameters again.
const BULK_TURNS_MAX: usize = 2;

/// Number of messages with parameters that may be queued for a model of any size. The core limits the bytes in flight
/// to a learner, and small fragments fit many messages into that limit: a distant learner gets all changes that it
/// missed at once.
const BULK_MIN: usize = 2_048;

/// Bytes of messages with parameters that may be queued for a model of any size.
const BULK_BYTES_MIN: usize = 32 << 20;

/// An encoded message, shared by all its connections.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Frames of the message, in order.
    pub frames: Arc<[Bytes]>,
    /// Counter group for its bytes.
    pub phase: Phase,
    /// Number of parameters in the message.
    pub values: u64,
    /// True for `Welcome`, which says that the core has admitted the learner.
    pub is_welcome: bool,
    bulk: bool,
}

/// Encodes each message once for all its connections.
#[derive(Debug)]
pub struct Encoder {
    fragments: Arc<Fragments>,
    /// Number of the newest message. It distinguishes the chunked messages of one connection, which the writer sends
    /// one at a time.
    number: u32,
}

impl Encoder {
    /// Creates an encoder for a run with these fragments.
    #[must_use]
    pub fn new(fragments: Arc<Fragments>) -> Self {
        Self { fragments, number: 0 }
    }

    /// Encodes `message`.
    #[must_use]
    pub fn encode(&mut self, message: &Message) -> Outgoing {
        let values = match message {
            Message::Merged(merged) => self.fragments.len(merged.fragment) as u64,
            _ => 0,
        };
        self.number = self.number.wrapping_add(1);
        Outgoing {
            frames: frames(encode(message), self.number).map(Bytes::from).collect(),
            phase: Phase::of(message),
            values,
            is_welcome: matches!(message, Message::Welcome(_)),
            bulk: message.is_bulk(),
        }
    }
}

/// The sending end, held by the actor.
#[derive(Debug)]
pub struct Outbox {
    control: mpsc::Sender<Outgoing>,
    bulk: mpsc::Sender<Bulk>,
    /// Byte budget of queued messages with parameters. The core trusts a peer's report of the versions that it holds,
    /// so a lying peer that reads nothing must not fill the memory.
    room: Arc<Semaphore>,
    probes: mpsc::Sender<u64>,
    bye: mpsc::Sender<Bye>,
}

/// A message with parameters, and its part of the byte budget until it is sent.
#[derive(Debug)]
pub struct Bulk {
    /// The message.
    pub outgoing: Outgoing,
    _room: OwnedSemaphorePermit,
}

/// The receiving end, held by the connection's writer.
#[derive(Debug)]
pub struct Queues {
    /// Short messages.
    pub control: mpsc::Receiver<Outgoing>,
    /// Messages with parameters.
    pub bulk: mpsc::Receiver<Bulk>,
    /// Numbers to send as pings, which the peer should send back.
    pub probes: mpsc::Receiver<u64>,
    /// The goodbye. It overtakes parameters, and messages that wait for the socket.
    pub bye: mpsc::Receiver<Bye>,
}

/// Error for a full queue: the peer reads too slowly.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Outbox {
    /// Creates an empty outbox for a run with this many fragments and bodies of at most `body_bytes_max` bytes. The
    /// third value is a second sender of the goodbye.
    #[must_use]
    pub fn new(fragments: u16, body_bytes_max: u32) -> (Self, Queues, mpsc::Sender<Bye>) {
        let turns_bytes = BULK_TURNS_MAX * usize::from(fragments) * body_bytes_max as usize;
        let room = Arc::new(Semaphore::new(turns_bytes.clamp(BULK_BYTES_MIN, Semaphore::MAX_PERMITS)));
        let (control, control_queue) = mpsc::channel(CONTROL_MAX);
        let (bulk, bulk_queue) = mpsc::channel((BULK_TURNS_MAX * usize::from(fragments)).max(BULK_MIN));
        let (probes, probes_queue) = mpsc::channel(CONTROL_MAX);
        let (bye, bye_queue) = mpsc::channel(1);
        let queues =
            Queues { control: control_queue, bulk: bulk_queue, probes: probes_queue, bye: bye_queue };
        (Self { control, bulk, room, probes, bye: bye.clone() }, queues, bye)
    }

    /// Queues `outgoing`; a closed connection drops it silently.
    ///
    /// # Errors
    /// [`Full`].
    pub fn send(&self, outgoing: Outgoing) -> Result<(), Full> {
        if !outgoing.bulk {
            return queue(&self.control, outgoing);
        }
        let bytes = outgoing.frames.iter().map(Bytes::len).sum::<usize>();
        let room = u32::try_from(bytes)
            .ok()
            .and_then(|bytes| Arc::clone(&self.room).try_acquire_many_owned(bytes).ok());
        queue(&self.bulk, Bulk { outgoing, _room: room.ok_or(Full)? })
    }

    /// Asks the peer to send `number` back. If the queue is full, the probe is lost, as if the peer had not answered.
    pub fn probe(&self, number: u64) {
        let _ = self.probes.try_send(number);
    }

    /// Sends the goodbye and ends the connection.
    pub fn close(self, bye: Bye) {
        // A full queue means that a goodbye was already sent.
        let _ = self.bye.try_send(bye);
    }
}

fn queue<T>(queue: &mpsc::Sender<T>, message: T) -> Result<(), Full> {
    match queue.try_send(message) {
        Err(mpsc::error::TrySendError::Full(_)) => Err(Full),
        Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::diloco::{FragmentId, Layout, MergeClass, RunId, Tensor, Version};
    use archipelago_core::wire::Merged;

    use super::*;

    #[test]
    fn a_slow_reader_is_noticed_by_kind() {
        let tensor = Tensor { name: "a".into(), rows: 64, cols: 1, merge: MergeClass::Radial };
        let fragments = Fragments::plan(&Layout::new(vec![tensor]).unwrap(), 2.try_into().unwrap());
        let change = Merged {
            run: RunId(1),
            fragment: FragmentId(1),
            base: Version(0),
            version: Version(1),
            clock_tokens: 1,
            body: vec![0; 100_000],
            checksum: 0,
            digest: 0,
        };
        let count = fragments.count();
        let mut encoder = Encoder::new(Arc::new(fragments));
        let merged = encoder.encode(&Message::Merged(change.clone()));
        assert_eq!((merged.frames.len(), merged.values), (2, 32));

        let (outbox, mut queues, _bye) = Outbox::new(count, 100_000);
        // Changes of a small model that a learner with a latency of one second has missed.
        let bytes = merged.frames.iter().map(Bytes::len).sum::<usize>();
        for _ in 0..BULK_BYTES_MIN / bytes {
            assert_eq!(outbox.send(merged.clone()), Ok(()));
        }
        assert_eq!(outbox.send(merged.clone()), Err(Full), "so many bytes");
        let sent = queues.bulk.try_recv().unwrap();
        assert_eq!(outbox.send(merged.clone()), Err(Full), "what is being sent still takes room");
        drop(sent);
        assert_eq!(outbox.send(merged.clone()), Ok(()));
        let small = encoder.encode(&Message::Merged(Merged { body: vec![0; 100], ..change }));
        while queues.bulk.try_recv().is_ok() {}
        for _ in 0..BULK_MIN {
            assert_eq!(outbox.send(small.clone()), Ok(()));
        }
        assert_eq!(outbox.send(small), Err(Full), "so many messages");
        let pass = Message::NoUpdate { run: RunId(1), fragment: FragmentId(0) };
        assert_eq!(outbox.send(encoder.encode(&pass)), Ok(()));
        drop(queues);
        assert_eq!(outbox.send(merged), Ok(()));
    }
}
