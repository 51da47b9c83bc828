//! A link of a given rate and delay on loopback: a TCP proxy that anything goes through, WebSockets and HTTP alike.
//!
//! | file | concept |
//! |---|---|
//! | `shape` | what a link is like |
//! | `lane` | when bytes leave a sender of a given rate, as a function of given times |
//! | `flight` | bytes on their way, in order, bounded |
//! | `socket` | sockets whose own buffers hide nothing of the link |
//! | `connection` | one connection through the link |
//! | `weather` | what a link is like for a while: cut, farther, thinner, with loss |
//! | `link` | the proxy |
//!
//! All connections of one [`Link`] share it: one lane each way, in the order in which their bytes come. A new
//! connection waits for one round trip before it carries anything, as a handshake would. What a link does not have:
//! reordering, TCP's slow beginning, what TCP does to its rate after a loss, and the bytes of headers below its
//! payload.

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
