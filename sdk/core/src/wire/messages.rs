//! Everything that crosses the socket, made of the rows of `table.rs`.

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
        /// Everything that crosses the socket.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Message {
            $(
                $(#[$doc])*
                #[doc = concat!("\nSent by: ", stringify!($sender), ".")]
                $name $(($body))? $({ $($(#[$field_doc])* $field: $type),* })?,
            )*
        }

        impl Message {
            /// The number that names this kind of message on the wire.
            #[must_use]
            pub fn tag(&self) -> Tag {
                match self {
                    $(Self::$name { .. } => Tag::$name,)*
                }
            }

            /// The run that it belongs to; `None` for the two messages that stand outside of any.
            // A row names the one field that it needs here.
            #[allow(unused_variables)]
            #[must_use]
            pub(crate) fn run(&self) -> Option<RunId> {
                match self {
                    $(Self::$name $(($inner))? $({ $($field),* })? => $run,)*
                }
            }

            /// Appends the body. In MessagePack's compact form a struct is the array of its fields, so a tuple of
            /// the fields has the same bytes.
            pub(super) fn write_body(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Self::$name $(($inner))? $({ $($field),* })? => {
                        $(write(bytes, $inner))?
                        $(write(bytes, &($($field,)*)))?
                    })*
                }
            }

            /// The message that `body` is the body of.
            ///
            /// # Errors
            /// - `Shape`: the body does not hold the fields of `tag`.
            /// - `StrayChunk`: `tag` names a part of a message.
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

            /// The names of the body's fields, in their order.
            // A row is either a struct, whose fields know their names, or lists its fields.
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
    /// Whether it carries parameters: such messages give way to all others in a queue.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        self.tag().class() == Class::Bulk
    }

    /// Whether a learner may send it. A syncer refuses what only syncers say.
    #[must_use]
    pub fn is_for_syncers(&self) -> bool {
        self.tag().sender() != Sender::Syncer
    }
}
