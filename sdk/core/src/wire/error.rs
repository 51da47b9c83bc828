//! What can be wrong with bytes from a peer.

use super::{CHUNK_BYTES, CloseCode, Tag, VERSION};

/// Why bytes are no message. Each says what was found, so that it can be the reason of a `Bye`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first four bytes are not ours.
    #[error("starts with {found:02x?}, not with \"ARCH\": this is no Archipelago peer")]
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
    /// A tag that this version does not have.
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
    /// Ends before its header says.
    #[error("ends after {bytes} bytes of {expected}")]
    Truncated {
        /// Bytes there.
        bytes: u64,
        /// Bytes announced, header included.
        expected: u64,
    },
    /// Goes on after its header says.
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
    /// The body is not well-formed MessagePack of the plain kind that we write.
    #[error("{tag:?} body is malformed at byte {at}: {fault}")]
    Body {
        /// The kind of message.
        tag: Tag,
        /// Offset in the body.
        at: u64,
        /// What is wrong there.
        fault: BodyFault,
    },
    /// The body is MessagePack, but not of this message.
    #[error("body is no {tag:?}: {detail}")]
    Shape {
        /// The kind of message.
        tag: Tag,
        /// The decoder's own words.
        detail: String,
    },
    /// A text is above its limit.
    #[error("{field} is {bytes} bytes long, at most {bytes_max} are taken")]
    TextTooLong {
        /// Which text.
        field: &'static str,
        /// Its length.
        bytes: u64,
        /// Its limit.
        bytes_max: u32,
    },
    /// A chunk where a whole message must be.
    #[error("a chunk is no message")]
    StrayChunk,
    /// A chunk is not the next one of its message.
    #[error("chunk {found} of message {number} where {expected} comes next")]
    ChunkOrder {
        /// The message's number.
        number: u32,
        /// The chunk's index.
        found: u32,
        /// The index that comes next.
        expected: u32,
    },
    /// A chunk has another size than its place asks for.
    #[error("chunk {index} of message {number} holds {bytes} bytes, must hold {expected}")]
    ChunkBytes {
        /// The message's number.
        number: u32,
        /// The chunk's index.
        index: u32,
        /// Bytes of the message in it.
        bytes: u64,
        /// Bytes that must be in it.
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
    /// More messages are begun than may be in flight.
    #[error("more than {partials_max} messages begun and not ended")]
    TooManyPartials {
        /// The limit.
        partials_max: u32,
    },
}

/// What is wrong inside a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// A length or value runs over the end of the body.
    #[error("runs over the end")]
    Overrun,
    /// Bytes follow the value.
    #[error("bytes follow the value")]
    Trailing,
    /// Nested deeper than any message of ours.
    #[error("nested too deep")]
    Depth,
    /// A MessagePack type that we never write.
    #[error("type byte {0:#04x} is never used")]
    Marker(u8),
}

impl DecodeError {
    /// The code to close the connection with.
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
