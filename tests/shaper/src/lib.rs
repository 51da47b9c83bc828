//! Emulation of a link with a given rate and delay on loopback: a TCP proxy for any protocol, such as WebSockets and
//! HTTP.
//!
//! | file | concept |
//! |---|---|
//! | `shape` | rate and delay of a link |
//! | `lane` | departure times of bytes at a given rate, as a pure function of time |
//! | `flight` | bytes in flight, ordered and bounded |
//! | `socket` | sockets with buffers too small to hide the link |
//! | `connection` | one connection through the link |
//! | `weather` | temporary conditions of a link: cut, longer delay, lower rate, loss |
//! | `link` | the proxy |
//!
//! All connections of one [`Link`] share it: one lane in each direction, in the order in which bytes arrive. A new
//! connection waits for one round trip before it carries anything, as a handshake would. Not modelled: reordering,
//! TCP's slow start, TCP's rate after a loss, and header bytes below the payload.

#![expect(clippy::disallowed_methods, reason = "a proxy lives in real time")]

mod connection;
mod flight;
mod lane;
mod link;
mod shape;
mod socket;
mod weather;

pub use link::{Carried, Link};
pub use shape::Shape;
pub use weather::Weather;
