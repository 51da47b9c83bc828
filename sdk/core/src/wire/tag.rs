//! The numbers of messages, and what follows from the number alone: limit, sender, queue.

use super::table::each_message;
use super::{BODY_BYTES_MAX, CHUNK_BYTES, HEADER_BYTES};

/// Body bytes of a message of a few numbers, at most.
const SHORT: u32 = 64;
/// Body bytes of a message with names or a reason in it, at most.
const TEXT: u32 = 1 << 10;
/// Room for the versions of 65,535 fragments.
const VERSIONS: u32 = 640 << 10;
/// Room for [`crate::data::LEASES_MAX`] leases.
const REPORT: u32 = 16 << 10;
/// Room for 70,000 shards. The lists of a `Welcome` take up to 16 times as much memory, unlike coded parameters.
const WELCOME: u32 = 4 << 20;
/// What a frame has room for after the header of a chunk.
const CHUNK_BODY_BYTES_MAX: u32 = CHUNK_BYTES - HEADER_BYTES as u32;

/// Who sends a kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Learners only.
    Learner,
    /// The syncer only.
    Syncer,
    /// Either side.
    Both,
}

/// How a kind of message is queued, and which account its bytes go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Each joiner pays for it once.
    Greeting,
    /// Short; never waits behind parameters.
    Control,
    /// Carries parameters; gives way to all others in a queue.
    Bulk,
}

macro_rules! tags {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($inner:ident: $body:ty))? $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })?
            = $number:literal { from: $sender:ident, class: $class:ident, bytes_max: $bytes_max:expr, run: $run:expr }
    )*) => {
        /// What a body holds. The numbers are on the wire: never change one, never reuse one.
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
            /// Every tag: those of the messages in the order of their table, then [`Tag::Chunk`].
            pub const ALL: &[Self] = &[$(Self::$name,)* Self::Chunk];

            /// Largest body of this kind, in bytes.
            #[must_use]
            pub(crate) fn body_bytes_max(self) -> u32 {
                match self {
                    $(Self::$name => $bytes_max,)*
                    Self::Chunk => CHUNK_BODY_BYTES_MAX,
                }
            }

            /// Who sends this kind of message.
            #[must_use]
            pub(crate) fn sender(self) -> Sender {
                match self {
                    $(Self::$name => Sender::$sender,)*
                    Self::Chunk => Sender::Both,
                }
            }

            /// How this kind of message is queued and accounted for; only large ones travel in chunks.
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
