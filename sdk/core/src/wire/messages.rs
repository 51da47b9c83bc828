//! All messages on the socket, generated from the rows of `table.rs`.

use super::pack::{read, write};
use super::table::each_message;
use super::{
    Bye, Challenge, Class, DecodeError, Fate, FragmentId, Hello, LayoutHash, LeaseGrant, Merged, Progress,
    RunId, Sender, Serial, Share, Tag, Update, Version, Welcome,
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

            /// Returns the run of the message, or `None` for the two messages outside any run.
            // A row names only the field that it needs here.
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
            // A row is either a struct, which knows the names of its fields, or a list of fields.
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
