//! All messages on the socket, generated from the rows of `table.rs`.

use super::codec::{read, write};
use super::table::each_message;
use super::{
    BODY_BYTES_MAX, Bye, CHUNK_BYTES, Challenge, DecodeError, Fate, FragmentId, HEADER_BYTES, Hello,
    LayoutHash, LeaseGrant, Merged, Progress, RunId, Serial, Share, Update, Version, Welcome,
};

macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($inner:ident: $body:ty))? $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })?
            = $number:literal { from: $sender:ident, class: $class:ident, bytes_max: $bytes_max:expr, run: $run:expr }
    )*) => {
        /// A message on the socket.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Message {
            $(
                $(#[$doc])*
                #[doc = concat!("\nSent by: ", stringify!($sender), ".")]
                $name $(($body))? $({ $($(#[$field_doc])* $field: $type),* })?,
            )*
        }

        impl Message {
            /// Returns the number of this kind of message on the wire.
            #[must_use]
            pub fn tag(&self) -> Tag {
                match self {
                    $(Self::$name { .. } => Tag::$name,)*
                }
            }

            /// Returns the run of the message, or `None` for `Hello` and `Bye`, which name no run.
            // The expression of a row uses only some of the row's fields.
            #[allow(unused_variables)]
            #[must_use]
            pub(crate) fn run(&self) -> Option<RunId> {
                match self {
                    $(Self::$name $(($inner))? $({ $($field),* })? => $run,)*
                }
            }

            /// Appends the body. MessagePack's compact form of a struct is the array of its fields, so a tuple of the
            /// fields has the same bytes.
            pub(super) fn write_body(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Self::$name $(($inner))? $({ $($field),* })? => {
                        $(write(bytes, $inner))?
                        $(write(bytes, &($($field,)*)))?
                    })*
                }
            }

            /// Decodes `body` as a message of kind `tag`.
            ///
            /// # Errors
            /// - `Shape`: the body does not hold the fields of `tag`.
            /// - `StrayChunk`: `tag` is that of a chunk.
            pub(super) fn read_body(tag: Tag, body: &[u8]) -> Result<Self, DecodeError> {
                match tag {
                    $(Tag::$name => {
                        $(
                            let $inner: $body = read(tag, body)?;
                            Ok(Self::$name($inner))
                        )?
                        $(
                            let ($($field,)*) = read(tag, body)?;
                            Ok(Self::$name { $($field),* })
                        )?
                    })*
                    Tag::Chunk => Err(DecodeError::StrayChunk),
                }
            }

            /// Returns the names of the body's fields in order.
            // A row has either a struct, which knows the names of its fields, or a list of fields.
            #[allow(unused_variables)]
            #[cfg(test)]
            pub(super) fn field_names(&self) -> Vec<String> {
                match self {
                    $(Self::$name $(($inner))? $({ $($field),* })? => {
                        $(super::tests::field_names($inner))?
                        $(vec![$(stringify!($field).to_owned()),*])?
                    })*
                }
            }
        }
    };
}

each_message!(messages);

impl Message {
    /// Returns true if the message carries parameters. Such messages have the lowest priority in a queue.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.tag().class() == Class::Bulk
    }

    /// Returns true if a learner may send the message. A syncer refuses all others.
    #[must_use]
    pub fn is_for_syncers(&self) -> bool {
        self.tag().sender() != Sender::Syncer
    }
}

/// Maximum size of a body with a few numbers, in bytes.
const SHORT: u32 = 64;
/// Maximum size of a body with names or a reason, in bytes.
const TEXT: u32 = 1 << 10;
/// Maximum size of a body with one version for each of 65,535 fragments, in bytes.
const VERSIONS: u32 = 640 << 10;
/// Maximum size of a body with [`crate::data::LEASES_MAX`] leases, in bytes.
const REPORT: u32 = 16 << 10;
/// Maximum size of a body with 70,000 shards, in bytes. In memory, the lists of a `Welcome` take up to 16 times as
/// much, unlike coded parameters.
const WELCOME: u32 = 4 << 20;
/// Maximum size of a chunk's body, in bytes: a frame without its header.
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

/// Queue of a kind of message, and the budget that its bytes are charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Greeting, charged once for each learner that joins.
    Greeting,
    /// Short message, which never waits behind parameters.
    Control,
    /// Message with parameters, which has the lowest priority in a queue.
    Bulk,
}

macro_rules! tags {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($inner:ident: $body:ty))? $({ $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })?
            = $number:literal { from: $sender:ident, class: $class:ident, bytes_max: $bytes_max:expr, run: $run:expr }
    )*) => {
        /// Kind of body. The numbers are on the wire: never change or reuse one.
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

            /// Returns the queue and the budget of this kind of message. Only bulk messages are sent in chunks.
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
