//! A run on several machines: the four services that its processes share, and the drivers of the state machines.
//!
//! [`archipelago_core::cluster`] makes all decisions; its owners and gateways see no clock and no socket. Contents:
//! - the four services as traits with their guarantees: [`Tape`], [`Blobs`], [`Roster`] and [`Bus`];
//! - the four within one process, without installation: [`Local`];
//! - the four on external servers, with the feature `nats-s3`: `Servers`;
//! - the two drivers: [`own`] leads fragments, and [`gateway`] serves learners;
//! - [`watched`], which monitors the services;
//! - [`Decrees`], the orders of the owner of the run at any gateway;
//! - [`front`], which connects a gateway with a syncer for real learners, so that owners lead its rounds.

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

/// Returns a random process number, unique with overwhelming probability.
///
/// # Panics
/// Panics if the system has no random numbers.
#[must_use]
pub fn new_process() -> ProcessId {
    ProcessId(random())
}

fn random() -> u64 {
    getrandom::u64().expect("the system has random numbers")
}
