//! A run on several machines, for real: the four services that its processes share, and who drives the machines.
//!
//! [`archipelago_core::cluster`] decides everything; its owners and gateways see no clock and no socket. Here are
//! - the four services between them, as traits with their promises: [`Tape`], [`Blobs`], [`Roster`] and [`Bus`];
//! - the four within one process, with nothing to install: [`Local`];
//! - the four on servers that others run, with the feature `nats-s3`: `Servers`;
//! - the two drivers: [`own`] leads fragments, and [`gateway`] stands before learners;
//! - [`watched`], which sees whether the services answer;
//! - [`Decrees`], what the owner of the run orders at any gateway;
//! - [`front`], which puts a gateway before a syncer with real learners, whose rounds are led elsewhere.

mod clock;
mod decrees;
mod ending;
mod error;
mod findings;
mod front;
mod gateway;
mod local;
#[cfg(feature = "nats-s3")]
mod look;
mod mark;
#[cfg(feature = "nats-s3")]
mod moment;
#[cfg(feature = "nats-s3")]
mod nats;
mod numbers;
mod owner;
mod patience;
mod persist;
#[cfg(feature = "nats-s3")]
mod pieces;
#[cfg(feature = "nats-s3")]
mod servers;
mod service;
pub mod shares;
#[cfg(feature = "nats-s3")]
mod store;
mod watched;

use archipelago_core::cluster::ProcessId;

pub use decrees::{Decrees, Reader};
pub use ending::finished;
pub use error::ServiceError;
pub use findings::{Findings, Kept, Node, Spread, Storage, Stored, Streams};
pub use front::{Facing, Front, front};
pub use gateway::{GatewaySettings, Learners, Running, gateway};
pub use local::Local;
#[cfg(feature = "nats-s3")]
pub use look::look;
pub use mark::Mark;
#[cfg(feature = "nats-s3")]
pub use nats::{Nats, NatsSettings};
pub use owner::{Beginnings, OwnerSettings, own};
#[cfg(feature = "nats-s3")]
pub use servers::{Servers, open};
pub use service::{Answer, Blobs, Bus, Cell, Entry, INBOX_MAX, Inbox, Roster, Services, Tape};
#[cfg(feature = "nats-s3")]
pub use store::{Store, StoreSettings};
pub use watched::{Health, Trouble, watched};

/// A number for a process that no other one has, as far as chance allows.
///
/// # Panics
/// The system has no random numbers.
#[must_use]
pub fn new_process() -> ProcessId {
    ProcessId(random())
}

fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}
