//! The connection to the syncer: messages in and out, when to give it up, and when to try again.

use std::ops::RangeInclusive;

use crate::platform::{SendError, Socket, SocketBytes, SocketEvent, SocketLimits};
use crate::wire::{
    Assembler, BODY_BYTES_MAX, Bye, CHUNK_BYTES, CloseCode, DecodeError, Message, SUBPROTOCOL,
};
use crate::wire::{encode, frames};

use super::silence::{PATIENCE_US, Silence};
use super::{Address, Backoff};

/// Bytes that may wait to be sent: two of the largest messages.
const QUEUE_BYTES_MAX: usize = 2 * BODY_BYTES_MAX as usize;
/// Time for a connection to open, in microseconds.
const OPEN_US_MAX: u64 = 10_000_000;
/// The part of the first patience that one in a [hurry](Link::hurry) has.
const HURRY: u64 = 6;

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

/// How a connection ended.
#[derive(Debug, Default)]
pub(super) struct End<'a> {
    /// In words.
    pub(super) reason: &'a str,
    /// As a number, if the peer gave one.
    pub(super) code: Option<CloseCode>,
    /// Time that the peer asks to be left alone for, in milliseconds; 0 if it does not.
    pub(super) wait_ms: u32,
}

/// One connection after another to the same syncer.
#[derive(Debug)]
pub(super) struct Link {
    address: Address,
    state: State,
    backoff: Backoff,
    /// Patience with a syncer that says nothing, and the longest, in microseconds.
    patience_us: RangeInclusive<u64>,
    /// Patience of one in a hurry, in microseconds.
    hurry_us: u64,
    /// No attempt is made before, in microseconds.
    not_before_us: u64,
    /// Number of the next message that is sent in chunks.
    number: u32,
    /// Bytes of the connections that are over.
    bytes: SocketBytes,
    reason: String,
    /// What the last connection ended with, if the peer said so.
    code: Option<CloseCode>,
}

#[derive(Debug)]
enum State {
    Down {
        retry_us: u64,
    },
    Up {
        socket: Socket,
        assembler: Assembler,
        opened_us: Option<u64>,
        /// A message came in.
        met: bool,
        silence: Silence,
    },
}

impl Link {
    /// A link that may connect at once; `seed` spreads the retries.
    pub(super) fn new(address: Address, seed: u64) -> Self {
        Self::within(PATIENCE_US, address, seed)
    }

    /// The first and the longest patience with a syncer that says nothing, in microseconds.
    pub(super) fn within(patience_us: RangeInclusive<u64>, address: Address, seed: u64) -> Self {
        Self {
            address,
            state: State::Down { retry_us: 0 },
            backoff: Backoff::new(seed),
            hurry_us: patience_us.start() / HURRY,
            patience_us,
            not_before_us: 0,
            number: 0,
            bytes: SocketBytes::default(),
            reason: String::new(),
            code: None,
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
                let silence = Silence::new(now_us);
                self.state = State::Up { socket, assembler, opened_us: None, met: false, silence };
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
        let State::Up { assembler, opened_us, met, silence, .. } = &mut self.state else { return None };
        silence.end(now_us);
        match event {
            SocketEvent::Opened => {
                *opened_us = Some(now_us);
                self.reason.clear();
                self.code = None;
                Some(LinkEvent::Opened)
            }
            SocketEvent::Frame(frame) => match assembler.push(&frame) {
                Ok(message) => {
                    *met |= message.is_some();
                    message.map(LinkEvent::Message)
                }
                Err(error) => Some(LinkEvent::Garbled(error)),
            },
            SocketEvent::Alive => None,
            SocketEvent::Closed { code, reason } => Some(LinkEvent::Closed { code, reason }),
        }
    }

    /// Why the connection is of no more use, if it has not opened or nothing has come for too long; to be called often,
    /// after what came was taken. An answer to the greeting is always awaited; after it, silence counts only if
    /// `awaited` says so.
    pub(super) fn given_up(&mut self, now_us: u64, awaited: bool) -> Option<String> {
        let State::Up { opened_us, met, silence, .. } = &mut self.state else { return None };
        if *met && !awaited {
            silence.forgive(now_us);
            return None;
        }
        let (patience_us, longest_us) = (*self.patience_us.start(), *self.patience_us.end());
        let silent_us = silence.look(now_us);
        if opened_us.is_none() {
            let late = silent_us >= OPEN_US_MAX;
            return late.then(|| format!("no connection within {} s", OPEN_US_MAX / 1_000_000));
        }
        if silent_us < patience_us {
            return None;
        }
        self.patience_us = (2 * patience_us).min(longest_us)..=longest_us;
        Some(format!("nothing was heard for {} s", patience_us / 1_000_000))
    }

    /// Whether nothing has come for so long that a user in a [hurry](Self::hurry) had better begin anew.
    pub(super) fn is_doubtful(&self, now_us: u64) -> bool {
        let State::Up { opened_us: Some(_), silence, .. } = &self.state else { return false };
        silence.lasts_us(now_us) > self.hurry_us
    }

    /// Queues a message; drops it if there is no connection. One that ended lately may have brought words that
    /// are not read yet, such as why it ended: its events say so, in order.
    ///
    /// # Errors
    /// [`SendError::QueueFull`]: the network is too slow for what is sent, and the connection must end.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), SendError> {
        let State::Up { socket, opened_us: Some(_), .. } = &mut self.state else { return Ok(()) };
        self.number = self.number.wrapping_add(1);
        let bulk = message.is_bulk();
        for frame in frames(encode(message), self.number) {
            match socket.send(frame, bulk) {
                Err(SendError::Closed) => return Ok(()),
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Says farewell; `Closed` follows.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) {
        if let State::Up { socket, .. } = &mut self.state {
            socket.close(code.into(), reason);
        }
    }

    /// Ends the connection, if there is one, and plans the next; says in how many milliseconds. What the peer asks for
    /// comes before our own plans, but a user in a [hurry](Self::hurry) may ask it again.
    pub(super) fn drop_connection(&mut self, now_us: u64, end: &End<'_>) -> u64 {
        let mut healthy_ms = 0;
        if let State::Up { socket, opened_us, .. } = &self.state {
            let bytes = socket.bytes();
            self.bytes.sent += bytes.sent;
            self.bytes.received += bytes.received;
            healthy_ms = opened_us.map_or(0, |opened_us| now_us.saturating_sub(opened_us) / 1_000);
        }
        let retry_ms = match self.not_before_us.saturating_sub(now_us).div_ceil(1_000) {
            0 if end.wait_ms > 0 => u64::from(end.wait_ms),
            0 => self.backoff.next_ms(healthy_ms),
            postponed_ms => postponed_ms.max(end.wait_ms.into()),
        };
        self.state = State::Down { retry_us: now_us + retry_ms * 1_000 };
        end.reason.clone_into(&mut self.reason);
        self.code = end.code;
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

    /// What the last connection ended with, if the peer said so; nothing while one stands.
    pub(super) fn code(&self) -> Option<CloseCode> {
        self.code
    }

    /// Why the last connection ended; empty while one stands.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }
}

/// A goodbye of this side.
pub(super) fn bye(code: CloseCode, reason: &str) -> Message {
    Message::Bye(Bye::new(code, crate::wire::clip(reason, crate::wire::REASON_BYTES_MAX)))
}
