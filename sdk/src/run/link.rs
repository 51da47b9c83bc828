//! The connection to the syncer: whole messages in and out, over one socket after another.

use archipelago_core::member::Input;
use archipelago_core::text::plain;
use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Bye, CHUNK_BYTES, CloseCode, Message, SUBPROTOCOL, encode, frames,
};
use archipelago_runtime::platform::{SendError, Socket, SocketBytes, SocketEvent, SocketLimits};

use super::Address;

/// Bytes that may wait to be sent: two of the largest messages.
const QUEUE_BYTES_MAX: usize = 2 * BODY_BYTES_MAX as usize;

/// One connection after another to the same syncer; when to make one and when to drop it is for its member to say.
#[derive(Debug)]
pub(super) struct Link {
    address: Address,
    line: Option<Line>,
    /// Number of the next message that is sent in chunks.
    number: u32,
    /// Bytes of the connections that are over.
    bytes: SocketBytes,
    /// What was said at the address, if no socket is there.
    absent: Option<String>,
}

#[derive(Debug)]
struct Line {
    socket: Socket,
    assembler: Assembler,
}

impl Link {
    /// A link without a connection.
    pub(super) fn new(address: Address) -> Self {
        Self { address, line: None, number: 0, bytes: SocketBytes::default(), absent: None }
    }

    /// Begins to connect; a connection of before is dropped.
    pub(super) fn connect(&mut self) {
        self.drop_connection();
        let limits = SocketLimits { frame_bytes_max: CHUNK_BYTES as usize, queue_bytes_max: QUEUE_BYTES_MAX };
        let socket = Socket::connect(&self.address.socket_url(), SUBPROTOCOL, limits);
        self.line = Some(Line { socket, assembler: Assembler::new(BODY_BYTES_MAX) });
    }

    /// What happened next, if anything did.
    pub(super) fn try_next(&mut self) -> Option<Input> {
        let line = self.line.as_mut()?;
        let event = line.socket.try_recv()?;
        Some(line.take(event, &mut self.absent))
    }

    /// Waits for what happens next; for ever without a connection. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Input {
        match &mut self.line {
            Some(line) => {
                let event = line.socket.recv().await;
                line.take(event, &mut self.absent)
            }
            None => std::future::pending().await,
        }
    }

    /// Queues a message; drops it if there is no connection. One that ended lately may have brought words that
    /// are not read yet, such as why it ended: its events say so, in order.
    ///
    /// # Errors
    /// [`SendError::QueueFull`]: the network is too slow for what is sent, and the connection must end.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), SendError> {
        let Some(line) = &mut self.line else { return Ok(()) };
        self.number = self.number.wrapping_add(1);
        let bulk = message.is_bulk();
        for frame in frames(encode(message), self.number) {
            match line.socket.send(frame, bulk) {
                Err(SendError::Closed) => return Ok(()),
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Says farewell; [`Input::Closed`] follows.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) {
        if let Some(line) = &mut self.line {
            line.socket.close(code.into(), reason);
        }
    }

    /// Ends the connection, if there is one; nothing of it comes in any more.
    pub(super) fn drop_connection(&mut self) {
        self.bytes = self.bytes();
        self.line = None;
    }

    /// What was said at the address, if something answers there and knows no socket; once.
    pub(super) fn take_absent(&mut self) -> Option<String> {
        self.absent.take()
    }

    /// Bytes that wait to be sent.
    pub(super) fn queued_bytes(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.socket.queued_bytes())
    }

    /// Bytes of all connections so far.
    pub(super) fn bytes(&self) -> SocketBytes {
        let live = self.line.as_ref().map_or(SocketBytes::default(), |line| line.socket.bytes());
        SocketBytes { sent: self.bytes.sent + live.sent, received: self.bytes.received + live.received }
    }
}

impl Line {
    /// What a raw event means to the member: a message, if it completes one. That no socket is there is noted too.
    fn take(&mut self, event: SocketEvent, absent: &mut Option<String>) -> Input {
        match event {
            SocketEvent::Opened => Input::Opened,
            SocketEvent::Alive => Input::Heard,
            SocketEvent::Absent { reason } => {
                let reason = plain(&reason);
                *absent = Some(reason.clone());
                Input::Closed { code: None, reason }
            }
            SocketEvent::Closed { code, reason } => Input::Closed { code, reason: plain(&reason) },
            SocketEvent::Frame(frame) => match self.assembler.push(&frame) {
                // Users will see the reason.
                Ok(Some(Message::Bye(bye))) => {
                    Input::Message(Message::Bye(Bye { reason: plain(&bye.reason), ..bye }))
                }
                Ok(Some(message)) => Input::Message(message),
                Ok(None) => Input::Heard,
                Err(error) => Input::Garbled(error),
            },
        }
    }
}
