//! Message numbers and the properties that follow from them: limit, sender, queue.

use super::table::each_message;
use super::{BODY_BYTES_MAX, CHUNK_BYTES, HEADER_BYTES};

/// Maximum body of a message with a few numbers, in bytes.
const SHORT: u32 = 64;
/// Maximum body of a message with names or a reason, in bytes.
const TEXT: u32 = 1 << 10;
/// Maximum body with the versions of 65,535 fragments, in bytes.
const VERSIONS: u32 = 640 << 10;
/// Maximum body with [`crate::data::LEASES_MAX`] leases, in bytes.
const REPORT: u32 = 16 << 10;
/// Maximum body with 70,000 shards, in bytes. In memory the lists of a `Welcome` take up to 16 times as much, unlike
/// coded parameters.
const WELCOME: u32 = 4 << 20;
/// Bytes of a frame after the header of a chunk.
const CHUNK_BODY_BYTES_MAX: u32 = CHUNK_BYTES - HEADER_BYTES as u32;

/// Sender of a kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Learners only.
    Learner,
    /// The syncer only.
    Syncer,
    /// Either side.
    Both,
}

/// Queue of a kind of message, and the account that its bytes count towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Counted once for each joining learner.
    Greeting,
    /// Short; never waits behind parameters.
    Control,
    /// Carries parameters; has the lowest priority in a queue.
    Bulk,
}

macro_rules! tags {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($inner:ident: $body:ty))? $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })?
            = $number:literal { from: $sender:ident, class: $class:ident, bytes_max: $bytes_max:expr, run: $run:expr }
    )*) => {
        /// Kind of body. The numbers are on the wire: never change one, never reuse one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Tag {
            $(
                #[doc = concat!("[`crate::wire::Message::", stringify!($name), "`].")]
                $name = $number,
            )*
            /// A part of a larger message; not a message itself.
            Chunk = 12,
        }

        impl Tag {
            /// Every tag: the messages in the order of their table, then [`Tag::Chunk`].
            pub const ALL: &[Self] = &[$(Self::$name,)* Self::Chunk];

            /// Returns the maximum body of this kind, in bytes.
            #[must_use]
            pub(crate) fn body_bytes_max(self) -> u32 {
                match self {
                    $(Self::$name => $bytes_max,)*
                    Self::Chunk => CHUNK_BODY_BYTES_MAX,
                }
            }

            /// Returns the sender of this kind of message.
            #[must_use]
            pub(crate) fn sender(self) -> Sender {
                match self {
                    $(Self::$name => Sender::$sender,)*
                    Self::Chunk => Sender::Both,
                }
            }

            /// Returns the queue and account of this kind of message. Only bulk messages travel in chunks.
            #[must_use]
            pub fn class(self) -> Class {
                match self {
                    $(Self::$name => Class::$class,)*
                    Self::Chunk => Class::Bulk,
                }
            }
        }
    };
}

each_message!(tags);
