//! Integration tests of the server in this process, on a free port, with real sockets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alerts;
mod away;
mod cluster;
mod crowd;
mod dashboard;
mod deployed;
mod door;
mod durability;
mod files;
mod finished;
mod flips;
mod history;
mod hosting;
mod identity;
mod init;
mod inspect;
mod log;
mod lora;
mod measured;
mod monitoring;
mod owner;
mod proxy;
mod replay;
mod settings;
mod socket;
mod steer;
mod stored_run;
mod strangers;
mod support;
mod take_home;
mod tls;
mod undo;
mod unproven;
mod words;
