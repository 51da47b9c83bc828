//! The connection to the syncer: messages in and out, and when to try again.

use crate::platform::{Socket, SocketBytes, SocketEvent, SocketLimits};
use crate::wire::{
    Assembler, BODY_BYTES_MAX, Bye, CHUNK_BYTES, CloseCode, DecodeError, Message, SUBPROTOCOL,
};
use crate::wire::{encode, frames};

use super::{Address, Backoff};

/// Bytes that may wait to be sent: two of the largest messages.
const QUEUE_BYTES_MAX: usize = 2 * BODY_BYTES_MAX as usize;

/// What happened on the link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// It stands.
    Opened,
    /// A message came in.
    Message(Message),
    /// It is gone, or never came about.
    Closed { code: Option<u16>, reason: String },
    /// The peer sent what is no message; the link is of no further use.
    Garbled(DecodeError),
}

/// One connection after another to the same syncer.
#[derive(Debug)]
pub(super) struct Link {
    address: Address,
    state: State,
    backoff: Backoff,
    /// No attempt is made before, in microseconds.
    not_before_us: u64,
    /// Number of the next message that is sent in chunks.
    number: u32,
    /// Bytes of the connections that are over.
    bytes: SocketBytes,
    reason: String,
}

#[derive(Debug)]
enum State {
    Down { retry_us: u64 },
    Up { socket: Socket, assembler: Assembler, opened_us: Option<u64> },
}

impl Link {
    /// A link that may connect at once; `seed` spreads the retries.
    pub(super) fn new(address: Address, seed: u64) -> Self {
        Self {
            address,
            state: State::Down { retry_us: 0 },
            backoff: Backoff::new(seed),
            not_before_us: 0,
            number: 0,
            bytes: SocketBytes::default(),
            reason: String::new(),
        }
    }

    /// Begins to connect if it is time; says whether it did.
    pub(super) fn connect(&mut self, now_us: u64) -> bool {
        match self.state {
            State::Down { retry_us } if retry_us <= now_us => {
                let limits =
                    SocketLimits { frame_bytes_max: CHUNK_BYTES as usize, queue_bytes_max: QUEUE_BYTES_MAX };
                let socket = Socket::connect(&self.address.socket_url(), SUBPROTOCOL, limits);
                let assembler = Assembler::new(BODY_BYTES_MAX);
                self.state = State::Up { socket, assembler, opened_us: None };
                true
            }
            _ => false,
        }
    }

    /// What happened next, if anything did.
    pub(super) fn try_event(&mut self, now_us: u64) -> Option<LinkEvent> {
        loop {
            let State::Up { socket, .. } = &mut self.state else { return None };
            let event = socket.try_recv()?;
            if let Some(event) = self.take(now_us, event) {
                return Some(event);
            }
        }
    }

    /// Waits until [`Self::try_event`] may have something; returns the raw event for [`Self::take`].
    pub(super) async fn recv(&mut self) -> SocketEvent {
        match &mut self.state {
            State::Up { socket, .. } => socket.recv().await,
            State::Down { .. } => std::future::pending().await,
        }
    }

    /// Makes a message of a raw event, if it completes one.
    pub(super) fn take(&mut self, now_us: u64, event: SocketEvent) -> Option<LinkEvent> {
        let State::Up { assembler, opened_us, .. } = &mut self.state else { return None };
        match event {
            SocketEvent::Opened => {
                *opened_us = Some(now_us);
                self.reason.clear();
                Some(LinkEvent::Opened)
            }
            SocketEvent::Frame(frame) => match assembler.push(&frame) {
                Ok(message) => message.map(LinkEvent::Message),
                Err(error) => Some(LinkEvent::Garbled(error)),
            },
            SocketEvent::Closed { code, reason } => Some(LinkEvent::Closed { code, reason }),
        }
    }

    /// Queues a message; drops it if there is no connection.
    ///
    /// # Errors
    /// The network is too slow for what is sent: the connection must end.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), crate::platform::SendError> {
        let State::Up { socket, opened_us: Some(_), .. } = &mut self.state else { return Ok(()) };
        self.number = self.number.wrapping_add(1);
        let bulk = message.is_bulk();
        for frame in frames(encode(message), self.number) {
            socket.send(frame, bulk)?;
        }
        Ok(())
    }

    /// Says farewell; `Closed` follows.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) {
        if let State::Up { socket, .. } = &mut self.state {
            socket.close(code.into(), reason);
        }
    }

    /// Ends the connection, if there is one, and plans the next; says in how many milliseconds.
    pub(super) fn drop_connection(&mut self, now_us: u64, reason: &str) -> u64 {
        let mut healthy_ms = 0;
        if let State::Up { socket, opened_us, .. } = &self.state {
            let bytes = socket.bytes();
            self.bytes.sent += bytes.sent;
            self.bytes.received += bytes.received;
            healthy_ms = opened_us.map_or(0, |opened_us| now_us.saturating_sub(opened_us) / 1_000);
        }
        let retry_ms = match self.not_before_us.saturating_sub(now_us).div_ceil(1_000) {
            0 => self.backoff.next_ms(healthy_ms),
            postponed_ms => postponed_ms,
        };
        self.state = State::Down { retry_us: now_us + retry_ms * 1_000 };
        reason.clone_into(&mut self.reason);
        retry_ms
    }

    /// The next attempt is not before `at_us`, for reasons that are none of the link's.
    pub(super) fn postpone(&mut self, at_us: u64) {
        self.not_before_us = at_us;
        if let State::Down { retry_us } = &mut self.state {
            *retry_us = at_us.max(*retry_us);
        }
    }

    /// The next attempt is as soon as nothing else forbids it.
    pub(super) fn hurry(&mut self, now_us: u64) {
        if let State::Down { retry_us } = &mut self.state {
            *retry_us = now_us.max(self.not_before_us).min(*retry_us);
        }
    }

    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Up { opened_us: Some(_), .. })
    }

    /// When the next attempt is, if none is under way, in microseconds.
    pub(super) fn retry_us(&self) -> Option<u64> {
        match self.state {
            State::Down { retry_us } => Some(retry_us),
            State::Up { .. } => None,
        }
    }

    /// Bytes that wait to be sent.
    pub(super) fn queued_bytes(&self) -> usize {
        match &self.state {
            State::Up { socket, .. } => socket.queued_bytes(),
            State::Down { .. } => 0,
        }
    }

    /// Bytes of all connections so far.
    pub(super) fn bytes(&self) -> SocketBytes {
        let live = match &self.state {
            State::Up { socket, .. } => socket.bytes(),
            State::Down { .. } => SocketBytes::default(),
        };
        SocketBytes { sent: self.bytes.sent + live.sent, received: self.bytes.received + live.received }
    }

    /// Why the last connection ended; empty while one stands.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }
}

/// A goodbye of this side.
pub(super) fn bye(code: CloseCode, reason: &str) -> Message {
    Message::Bye(Bye { code, reason: crate::wire::clip(reason, crate::wire::REASON_BYTES_MAX).to_owned() })
}
