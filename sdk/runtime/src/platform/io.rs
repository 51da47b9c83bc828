//! Types of sockets and HTTP requests that all targets share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Event of a [`super::Socket`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// The connection is open; frames may be sent from now on.
    Opened,
    /// One binary frame arrived.
    Frame(Vec<u8>),
    /// The peer is alive: it sent a ping or a pong. Never occurs in browsers.
    Alive,
    /// The server answered, but has no socket at the address (HTTP status 404 or a permanent redirect). Never occurs in
    /// browsers. This is the last event of a socket.
    Absent {
        /// Message for display, from the server if it sent one.
        reason: String,
    },
    /// The connection is closed, or could not be opened. This is the last event of a socket.
    Closed {
        /// The peer's close code, if it sent one.
        code: Option<u16>,
        /// Reason for display.
        reason: String,
    },
}

/// Limits of a [`super::Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimits {
    /// Maximum size of an incoming frame, in bytes. A larger frame closes the connection.
    pub frame_bytes_max: usize,
    /// Maximum number of bytes that may wait to be sent.
    pub queue_bytes_max: usize,
}

/// Bytes of frame payload that a [`super::Socket`] has transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBytes {
    /// Bytes handed to the operating system or browser for sending.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

/// Reason why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The connection is closed.
    #[error("there is no connection")]
    Closed,
    /// Too many bytes wait to be sent, because the peer or the network is slow.
    #[error(
        "{queued_bytes} bytes wait to be sent, and {frame_bytes} more exceed the limit of {queue_bytes_max}"
    )]
    QueueFull {
        /// Number of bytes that wait to be sent.
        queued_bytes: usize,
        /// Size of the rejected frame, in bytes.
        frame_bytes: usize,
        /// [`SocketLimits::queue_bytes_max`].
        queue_bytes_max: usize,
    },
}

/// Shared count of the bytes that several transfers have received. It includes transfers that were abandoned.
#[derive(Clone, Debug, Default)]
pub struct ByteCount(Arc<AtomicU64>);

impl ByteCount {
    /// Adds `bytes` to the count.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }

    /// Returns the total so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One HTTP GET request.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// Absolute `http` or `https` address.
    pub url: String,
    /// Offset of the first byte wanted. If it is above 0, it is sent in a `Range` header.
    pub start_byte: u64,
    /// Maximum size of the body, in bytes. A larger body is an error. Never more than this is held in memory.
    pub body_bytes_max: u64,
    /// Additional request headers.
    pub headers: Vec<RequestHeader>,
    /// Name of the response header whose value the reply should contain.
    pub header: &'static str,
    /// Counter of received body bytes. Bodies of error responses do not count.
    pub count: ByteCount,
}

/// Request header. `Debug` omits its value, which may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// Name, in lower case.
    pub name: &'static str,
    /// Value, in visible ASCII characters.
    pub value: String,
}

impl fmt::Debug for RequestHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestHeader({}: …)", self.name)
    }
}

/// Response to a [`FetchRequest`]. Redirects are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchReply {
    /// HTTP status.
    pub status: u16,
    /// Value of the requested header, if present.
    pub header: Option<String>,
    /// Value of `Retry-After`, in seconds, if present as a number.
    pub retry_after_s: Option<u32>,
    /// Body of the response. It begins at `start_byte` if the status is 206, otherwise at 0.
    pub body: Vec<u8>,
}

/// Reason why a fetch failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// There was no response, or it ended early.
    #[error("{url} did not answer completely ({} bytes came): {reason}", partial.len())]
    Network {
        /// Requested address.
        url: String,
        /// Cause of the failure.
        reason: String,
        /// HTTP status, if received.
        status: Option<u16>,
        /// Value of the requested header, if present.
        header: Option<String>,
        /// Part of the body that was received.
        partial: Vec<u8>,
    },
    /// The body is larger than allowed.
    #[error("{url} answered with more than {body_bytes_max} bytes")]
    TooLarge {
        /// Requested address.
        url: String,
        /// [`FetchRequest::body_bytes_max`].
        body_bytes_max: u64,
    },
}

/// The operating system or browser provided no random bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("random bytes are not available: {reason}")]
pub struct RandomError {
    /// Cause of the failure.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_headers_are_not_shown() {
        let header = RequestHeader { name: "x-secret", value: "open-sesame".to_owned() };
        let request = FetchRequest {
            url: "http://host/".to_owned(),
            start_byte: 0,
            body_bytes_max: 1,
            headers: vec![header],
            header: "etag",
            count: ByteCount::default(),
        };
        let shown = format!("{request:?}");
        assert!(shown.contains("x-secret") && !shown.contains("sesame"), "{shown}");
    }
}
