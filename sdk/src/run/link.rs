//! Connection to the syncer: whole messages in both directions, over successive sockets.

use archipelago_core::driver::Input;
use archipelago_core::text::plain;
use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Bye, CHUNK_BYTES, CloseCode, Message, SUBPROTOCOL, encode, frames,
};
use archipelago_runtime::platform::{SendError, Socket, SocketBytes, SocketEvent, SocketLimits};

use super::Address;

/// Maximum number of bytes in the send queue: two of the largest messages.
const QUEUE_BYTES_MAX: usize = 2 * BODY_BYTES_MAX as usize;

/// Successive connections to one syncer. The driver decides when to open and when to drop one.
#[derive(Debug)]
pub(super) struct SyncerLink {
    address: Address,
    connection: Option<OpenConnection>,
    /// Number of the next chunked message.
    number: u32,
    /// Bytes sent and received on past connections.
    bytes: SocketBytes,
    /// Answer of a server at the address that has no run there.
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
        Self { address, connection: None, number: 0, bytes: SocketBytes::default(), absent: None }
    }

    /// Begins to connect. A previous connection is dropped.
    pub(super) fn connect(&mut self) {
        self.drop_connection();
        let limits = SocketLimits { frame_bytes_max: CHUNK_BYTES as usize, queue_bytes_max: QUEUE_BYTES_MAX };
        let socket = Socket::connect(&self.address.socket_url(), SUBPROTOCOL, limits);
        self.connection = Some(OpenConnection { socket, assembler: Assembler::new(BODY_BYTES_MAX) });
    }

    /// Returns the next input, if there is one.
    pub(super) fn try_next(&mut self) -> Option<Input> {
        let connection = self.connection.as_mut()?;
        let event = connection.socket.try_recv()?;
        Some(connection.take(event, &mut self.absent))
    }

    /// Waits for the next input; without a connection it waits forever. It is safe to drop the future.
    pub(super) async fn next(&mut self) -> Input {
        match &mut self.connection {
            Some(connection) => {
                let event = connection.socket.recv().await;
                connection.take(event, &mut self.absent)
            }
            None => std::future::pending().await,
        }
    }

    /// Queues a message, or drops it if there is no connection. If the connection has just ended, its remaining
    /// events, such as the goodbye, are still delivered in order.
    ///
    /// # Errors
    /// [`SendError::QueueFull`]: the network is too slow, and the connection must be closed.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), SendError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        self.number = self.number.wrapping_add(1);
        let bulk = message.is_bulk();
        for frame in frames(encode(message), self.number) {
            match connection.socket.send(frame, bulk) {
                Err(SendError::Closed) => return Ok(()),
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Closes the connection with a code and reason; [`Input::Closed`] follows.
    pub(super) fn close(&mut self, code: CloseCode, reason: &str) {
        if let Some(connection) = &mut self.connection {
            connection.socket.close(code.into(), reason);
        }
    }

    /// Drops the connection, if there is one. No further input comes from it.
    pub(super) fn drop_connection(&mut self) {
        self.bytes = self.bytes();
        self.connection = None;
    }

    /// Returns the answer of a server at the address without a run, once.
    pub(super) fn take_absent(&mut self) -> Option<String> {
        self.absent.take()
    }

    /// Returns the number of bytes in the send queue.
    pub(super) fn queued_bytes(&self) -> usize {
        self.connection.as_ref().map_or(0, |connection| connection.socket.queued_bytes())
    }

    /// Returns the bytes sent and received on all connections so far.
    pub(super) fn bytes(&self) -> SocketBytes {
        let live =
            self.connection.as_ref().map_or(SocketBytes::default(), |connection| connection.socket.bytes());
        SocketBytes { sent: self.bytes.sent + live.sent, received: self.bytes.received + live.received }
    }
}

impl OpenConnection {
    /// Converts a socket event to an input of the driver, which is a message if the event completes one. If the
    /// server has no run at the address, its answer is stored in `absent`.
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
                // Users see the reason.
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
