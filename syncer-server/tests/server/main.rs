//! The real server in this process, on a free port, with real sockets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crowd;
mod dashboard;
mod durability;
mod files;
mod owner;
mod socket;
mod support;
mod take_home;
