//! Inputs and outputs of sockets and fetches on every target.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Event of a [`super::Socket`], in chronological order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// The connection is open; frames may be sent from now on.
    Opened,
    /// One binary frame arrived.
    Frame(Vec<u8>),
    /// The peer is alive: it sent a ping or a pong. Browsers do not report this.
    Alive,
    /// The address answers but has no socket there (HTTP status 404). Browsers do not report this. The last event of a
    /// socket.
    Absent {
        /// The server's message, for people.
        reason: String,
    },
    /// The connection is gone, or was never established. The last event of a socket.
    Closed {
        /// The peer's close code, if it sent one.
        code: Option<u16>,
        /// Reason, for people.
        reason: String,
    },
}

/// Limits of a [`super::Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimits {
    /// Longest incoming frame, in bytes; a longer one closes the connection.
    pub frame_bytes_max: usize,
    /// Maximum number of bytes that may wait to be sent.
    pub queue_bytes_max: usize,
}

/// Payload bytes that crossed a [`super::Socket`], framing not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBytes {
    /// Bytes sent, that is, handed to the operating system.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

/// Reason why a frame was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no connection.
    #[error("there is no connection")]
    Closed,
    /// The peer or the network reads too slowly.
    #[error(
        "{queued_bytes} bytes wait to be sent, and {frame_bytes} more exceed the limit of {queue_bytes_max}"
    )]
    QueueFull {
        /// Bytes that wait.
        queued_bytes: usize,
        /// Bytes of the rejected frame.
        frame_bytes: usize,
        /// [`SocketLimits::queue_bytes_max`].
        queue_bytes_max: usize,
    },
}

/// Shared count of the bytes received by several transfers, updated as they arrive. It includes abandoned transfers.
#[derive(Clone, Debug, Default)]
pub struct ByteCount(Arc<AtomicU64>);

impl ByteCount {
    /// Adds to the count.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }

    /// Returns the total so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One HTTP GET.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// Absolute `http` or `https` address.
    pub url: String,
    /// First byte wanted; a value above 0 is requested with `Range`.
    pub start_byte: u64,
    /// Longest accepted body, in bytes. A longer one is an error, and memory never holds more than this.
    pub body_bytes_max: u64,
    /// Additional request headers.
    pub headers: Vec<RequestHeader>,
    /// Name of the response header to report.
    pub header: &'static str,
    /// Counter of the body's bytes; bodies with an error status do not count.
    pub count: ByteCount,
}

/// A header of a request. `Debug` leaves out its value, which may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Its value, visible ASCII.
    pub value: String,
}

impl fmt::Debug for RequestHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestHeader({}: …)", self.name)
    }
}

/// The answer to a [`FetchRequest`]. Redirects are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchReply {
    /// HTTP status.
    pub status: u16,
    /// Value of the requested header, if present.
    pub header: Option<String>,
    /// Value of `Retry-After`, in seconds, if present as a number.
    pub retry_after_s: Option<u32>,
    /// The body; from `start_byte` on if the status is 206, otherwise whole.
    pub body: Vec<u8>,
}

/// Reason why a fetch failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// No answer came, or it ended early; `partial` holds the received part of the body.
    #[error("{url} did not answer completely ({} bytes came): {reason}", partial.len())]
    Network {
        /// The address.
        url: String,
        /// Cause of the failure.
        reason: String,
        /// HTTP status, if received.
        status: Option<u16>,
        /// Value of the requested header, if present.
        header: Option<String>,
        /// Received part of the body.
        partial: Vec<u8>,
    },
    /// The body is longer than allowed.
    #[error("{url} answered with more than {body_bytes_max} bytes")]
    TooLarge {
        /// The address.
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
