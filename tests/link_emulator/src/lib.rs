//! Emulation of a link with a given rate and delay on loopback: a TCP proxy for any protocol, such as WebSockets and
//! HTTP.
//!
//! | file | concept |
//! |---|---|
//! | `shape` | rate and delay of a link, its temporary conditions, departure times of bytes, and bytes in flight |
//! | `link` | the proxy: its sockets and connections |
//!
//! All connections of one [`EmulatedLink`] share it: one rate limiter in each direction, in the order in which bytes
//! arrive. A new connection waits for one round trip before it carries anything, as a handshake would. Not modelled:
//! reordering, TCP's slow start, TCP's rate after a loss, and header bytes below the payload.

#![expect(clippy::disallowed_methods, reason = "a proxy lives in real time")]

mod link;
mod shape;

pub use link::{EmulatedLink, LinkBytes};
pub use shape::{LinkConditions, LinkProfile};
