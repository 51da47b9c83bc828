//! Errors in bytes from a peer.

use super::{CHUNK_BYTES, CloseCode, Tag, VERSION};

/// Reason why bytes are not a message. The text names the invalid value, so that it can serve as the reason of a `Bye`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first four bytes are not the magic.
    #[error("starts with {found:02x?}, not with \"ARCH\": this is not an Archipelago peer")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Another version of the protocol.
    #[error("speaks version {found}, here it is {VERSION}: update the older side")]
    Version {
        /// The peer's version.
        found: u16,
    },
    /// A tag that this version does not define.
    #[error("message tag {found} is unknown")]
    Tag {
        /// The tag.
        found: u8,
    },
    /// The reserved byte is not zero.
    #[error("reserved byte is {found}, must be 0")]
    Reserved {
        /// The byte.
        found: u8,
    },
    /// The message ends before the length in its header.
    #[error("ends after {bytes} bytes of {expected}")]
    Truncated {
        /// Bytes there.
        bytes: u64,
        /// Bytes announced, header included.
        expected: u64,
    },
    /// The message is longer than its header announces.
    #[error("is {bytes} bytes long, its header says {expected}")]
    Trailing {
        /// Bytes there.
        bytes: u64,
        /// Bytes announced, header included.
        expected: u64,
    },
    /// The announced body is above the limit.
    #[error("{tag:?} announces a body of {bytes} bytes, at most {bytes_max} are taken")]
    BodyTooLarge {
        /// The kind of message.
        tag: Tag,
        /// Bytes announced.
        bytes: u32,
        /// The limit that applies now.
        bytes_max: u32,
    },
    /// A frame is above [`CHUNK_BYTES`].
    #[error("frame of {bytes} bytes, at most {CHUNK_BYTES} are taken")]
    FrameTooLarge {
        /// Bytes of the frame.
        bytes: u64,
    },
    /// The body is not well-formed MessagePack of the plain kind used here.
    #[error("{tag:?} body is malformed at byte {at}: {fault}")]
    Body {
        /// Tag of the message.
        tag: Tag,
        /// Offset in the body.
        at: u64,
        /// Fault at that offset.
        fault: BodyFault,
    },
    /// The body is MessagePack, but does not match this message.
    #[error("body is not a {tag:?}: {detail}")]
    Shape {
        /// The kind of message.
        tag: Tag,
        /// Message of the decoder.
        detail: String,
    },
    /// A text is above its limit.
    #[error("{field} is {bytes} bytes long, at most {bytes_max} are taken")]
    TextTooLong {
        /// Name of the field.
        field: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// Its limit in bytes.
        bytes_max: u32,
    },
    /// A chunk in place of a whole message.
    #[error("a chunk is not a message")]
    StrayChunk,
    /// A chunk is not the next one of its message.
    #[error("chunk {found} of message {number} where {expected} comes next")]
    ChunkOrder {
        /// The message's number.
        number: u32,
        /// Index of the chunk.
        found: u32,
        /// Expected index.
        expected: u32,
    },
    /// The size of a chunk does not match its position.
    #[error("chunk {index} of message {number} holds {bytes} bytes, must hold {expected}")]
    ChunkBytes {
        /// The message's number.
        number: u32,
        /// The chunk's index.
        index: u32,
        /// Bytes of the message in the chunk.
        bytes: u64,
        /// Expected bytes.
        expected: u64,
    },
    /// Total sizes contradict each other, or the message fits one frame.
    #[error("chunk of message {number} gives a total of {found} bytes, must be {expected}")]
    ChunkTotal {
        /// The message's number.
        number: u32,
        /// The total in this chunk.
        found: u32,
        /// The total in the message's header or the first chunk.
        expected: u64,
    },
    /// More messages are incomplete than may be in flight.
    #[error("more than {partials_max} unfinished messages")]
    TooManyPartials {
        /// The limit.
        partials_max: u32,
    },
}

/// Fault inside a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// A length or value runs over the end of the body.
    #[error("runs past the end")]
    Overrun,
    /// Bytes follow the value.
    #[error("extra bytes follow the value")]
    Trailing,
    /// The body is nested deeper than any valid message.
    #[error("nested too deep")]
    Depth,
    /// A MessagePack type that is never written here.
    #[error("type byte {0:#04x} is never used")]
    Marker(u8),
}

impl DecodeError {
    /// Returns the code to close the connection with.
    #[must_use]
    pub fn close_code(&self) -> CloseCode {
        match self {
            Self::Version { .. } => CloseCode::Version,
            Self::BodyTooLarge { .. }
            | Self::FrameTooLarge { .. }
            | Self::TextTooLong { .. }
            | Self::TooManyPartials { .. } => CloseCode::TooLarge,
            Self::Magic { .. }
            | Self::Tag { .. }
            | Self::Reserved { .. }
            | Self::Truncated { .. }
            | Self::Trailing { .. }
            | Self::Body { .. }
            | Self::Shape { .. }
            | Self::StrayChunk
            | Self::ChunkOrder { .. }
            | Self::ChunkBytes { .. }
            | Self::ChunkTotal { .. } => CloseCode::Malformed,
        }
    }
}
