//! Integration tests of the server in this process, on a free port, with real sockets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;
mod dashboard;
mod durability;
mod gguf;
mod hosting;
mod identity;
mod init;
mod monitoring;
mod owner;
mod rollback;
mod socket;
mod support;
mod take_home;
mod tls;
