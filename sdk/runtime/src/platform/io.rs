//! What sockets and fetches take and give, on every target.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a [`super::Socket`] reports, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// The connection stands; frames may be sent from now on.
    Opened,
    /// One binary frame came in.
    Frame(Vec<u8>),
    /// The peer showed that it is there, by a ping or the answer to one; browsers do not tell.
    Alive,
    /// Something answers at the address, and knows no socket there (HTTP status 404); browsers do not tell. The last
    /// event of a socket.
    Absent {
        /// What it said, for people.
        reason: String,
    },
    /// The connection is gone, or never came about. The last event of a socket.
    Closed {
        /// The close code that the peer gave, if it gave one.
        code: Option<u16>,
        /// Why, for people.
        reason: String,
    },
}

/// What a [`super::Socket`] holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLimits {
    /// Longest frame taken in, in bytes; a longer one closes the connection.
    pub frame_bytes_max: usize,
    /// Bytes that may wait to be sent.
    pub queue_bytes_max: usize,
}

/// Payload bytes that crossed a [`super::Socket`], framing not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketBytes {
    /// Sent, that is handed to the operating system.
    pub sent: u64,
    /// Received.
    pub received: u64,
}

/// Why a frame was not taken for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no connection.
    #[error("there is no connection")]
    Closed,
    /// The peer or the network takes bytes too slowly.
    #[error(
        "{queued_bytes} bytes wait to be sent, and {frame_bytes} more exceed the limit of {queue_bytes_max}"
    )]
    QueueFull {
        /// Bytes that wait.
        queued_bytes: usize,
        /// Bytes of the frame that was not taken.
        frame_bytes: usize,
        /// [`SocketLimits::queue_bytes_max`].
        queue_bytes_max: usize,
    },
}

/// Bytes that several transfers took in together, as they come: of those too that nobody waits for any more.
#[derive(Clone, Debug, Default)]
pub struct ByteCount(Arc<AtomicU64>);

impl ByteCount {
    /// So many more came.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }

    /// All that came so far.
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
    /// First byte wanted; above 0 it is asked for with `Range`.
    pub start_byte: u64,
    /// Longest body taken, in bytes; a longer one is an error, and no more than this is ever held.
    pub body_bytes_max: u64,
    /// What goes along in the head of the request.
    pub headers: Vec<RequestHeader>,
    /// Name of the one response header to report.
    pub header: &'static str,
    /// Counts the bytes of the body, unless the status is one of failure.
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
    /// Value of the header asked for, if it came.
    pub header: Option<String>,
    /// What `Retry-After` says, in seconds, if it came as a number.
    pub retry_after_s: Option<u32>,
    /// The body; from `start_byte` on if the status is 206, whole otherwise.
    pub body: Vec<u8>,
}

/// Why a fetch brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// No answer came, or it ended early; `partial` holds what came of the body.
    #[error("{url} did not answer fully ({} bytes came): {reason}", partial.len())]
    Network {
        /// The address.
        url: String,
        /// What failed.
        reason: String,
        /// HTTP status, if one came.
        status: Option<u16>,
        /// Value of the header asked for, if it came.
        header: Option<String>,
        /// Start of the body, as far as it came.
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

/// The operating system or browser gave no random bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random bytes to be had: {reason}")]
pub struct RandomError {
    /// What failed.
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
