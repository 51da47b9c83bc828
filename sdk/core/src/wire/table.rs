//! What one row of the table of messages becomes: a variant of `Message`, a `Tag`, its limits, and its bytes both ways.
//!
//! The rows stand in `messages.rs`. A row is
//!
//! ```text
//! /// What it says, in the words of its sender.
//! Name { /// What the field is.
//!        field: Type, … }          or  Name(name: Type), where `Type` is a struct with these fields
//!     = number { from: Sender, class: Class, bytes_max: u32, run: Option<RunId> }
//! ```
//!
//! and its body on the wire is the MessagePack array of the fields in this order. `run` is an expression over the row's
//! own fields. Whoever adds a message writes its row there, its row in `WIRE.md`, and one sample in `tests`; the tests
//! name what is missing.

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

        /// What a body holds. The numbers are on the wire: never change one, never reuse one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Tag {
            $(
                #[doc = concat!("[`Message::", stringify!($name), "`].")]
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
            pub fn body_bytes_max(self) -> u32 {
                match self {
                    $(Self::$name => $bytes_max,)*
                    Self::Chunk => CHUNK_BODY_BYTES_MAX,
                }
            }

            /// Who sends this kind of message.
            #[must_use]
            pub fn sender(self) -> Sender {
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
            pub fn run(&self) -> Option<RunId> {
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

pub(super) use messages;
