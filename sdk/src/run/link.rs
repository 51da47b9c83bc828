//! Link to the syncer: whole messages in both directions, over successive sockets.

use archipelago_core::driver::Input;
use archipelago_core::text::plain;
use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Bye, CHUNK_BYTES, CloseCode, Message, SUBPROTOCOL, encode, frames,
};
use archipelago_runtime::platform::{SendError, Socket, SocketBytes, SocketEvent, SocketLimits};

use super::Address;

/// Maximum number of queued bytes to send: two of the largest messages.
const QUEUE_BYTES_MAX: usize = 2 * BODY_BYTES_MAX as usize;

/// Successive connections to one syncer. The member decides when to open and when to drop one.
#[derive(Debug)]
pub(super) struct SyncerLink {
    address: Address,
    line: Option<OpenConnection>,
    /// Number of the next chunked message.
    number: u32,
    /// Bytes of past connections.
    bytes: SocketBytes,
    /// Answer at the address, if it has no socket.
    absent: Option<String>,
}

#[derive(Debug)]
struct OpenConnection {
    socket: Socket,
    assembler: Assembler,
}

impl SyncerLink {
    /// Returns a link without a connection.
    pub(super) fn new(address: Address) -> Self {
        Self { address, line: None, number: 0, bytes: SocketBytes::default(), absent: None }
    }

    /// Begins to connect, and drops the previous connection.
    pub(super) fn connect(&mut self) {
        self.drop_connection();
        let limits = SocketLimits { frame_bytes_max: CHUNK_BYTES as usize, queue_bytes_max: QUEUE_BYTES_MAX };
        let socket = Socket::connect(&self.address.socket_url(), SUBPROTOCOL, limits);
        self.line = Some(OpenConnection { socket, assembler: Assembler::new(BODY_BYTES_MAX) });
    }

    /// Returns the next input, if there is one.
    pub(super) fn try_next(&mut self) -> Option<Input> {
        let line = self.line.as_mut()?;
        let event = line.socket.try_recv()?;
        Some(line.take(event, &mut self.absent))
    }

    /// Waits for the next input; without a connection it waits for ever. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Input {
        match &mut self.line {
            Some(line) => {
                let event = line.socket.recv().await;
                line.take(event, &mut self.absent)
            }
            None => std::future::pending().await,
        }
    }

    /// Queues a message, or drops it if there is no connection. A connection that has just ended may hold unread input,
    /// such as the reason for its end; its events deliver that in order.
    ///
    /// # Errors
    /// [`SendError::QueueFull`]: the network is too slow, and the connection must end.
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

    /// Closes the connection with a code and reason; [`Input::Closed`] follows.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) {
        if let Some(line) = &mut self.line {
            line.socket.close(code.into(), reason);
        }
    }

    /// Drops the connection, if there is one. No further input comes from it.
    pub(super) fn drop_connection(&mut self) {
        self.bytes = self.bytes();
        self.line = None;
    }

    /// Returns the answer at the address, if a server without a socket answered there. Returns it only once.
    pub(super) fn take_absent(&mut self) -> Option<String> {
        self.absent.take()
    }

    /// Returns the queued bytes.
    pub(super) fn queued_bytes(&self) -> usize {
        self.line.as_ref().map_or(0, |line| line.socket.queued_bytes())
    }

    /// Returns the bytes of all connections so far.
    pub(super) fn bytes(&self) -> SocketBytes {
        let live = self.line.as_ref().map_or(SocketBytes::default(), |line| line.socket.bytes());
        SocketBytes { sent: self.bytes.sent + live.sent, received: self.bytes.received + live.received }
    }
}

impl OpenConnection {
    /// Converts a socket event to an input of the member: a message, if the event completes one. Also records a missing
    /// socket.
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
                // The reason is shown to users.
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
