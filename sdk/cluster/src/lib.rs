//! A run on several machines: the four services that its processes share, and the drivers of the state machines.
//!
//! [`archipelago_core::cluster`] makes all decisions; its leaders and gateways access no clock and no socket. This
//! crate has:
//! - the four services as traits with their guarantees: [`Tape`], [`Blobs`], [`Roster`] and [`Bus`];
//! - an implementation within one process, without installation: [`Local`];
//! - an implementation on external servers, with the feature `nats-s3`: `Servers`;
//! - the two drivers: [`own`] leads fragments, and [`gateway`] serves learners;
//! - [`watched`], which monitors the services;
//! - [`AdminCommandLog`], for commands that the owner of the run gives at any gateway;
//! - [`front`], which connects a gateway with a syncer that serves real learners.

mod admin_commands;
pub mod assignment;
mod bridge;
mod gateway;
mod health;
mod ids;
mod inspection;
mod leader;
mod local;
#[cfg(feature = "nats-s3")]
mod nats;
mod retry;
#[cfg(feature = "nats-s3")]
mod servers;
mod service;
#[cfg(feature = "nats-s3")]
mod store;
#[cfg(feature = "nats-s3")]
mod timestamp;

use archipelago_core::cluster::ProcessId;

pub use admin_commands::{AdminCommandLog, Reader};
pub use bridge::{Bridge, BridgeHandle, front};
pub use gateway::{GatewayLoop, GatewaySettings, Learners, gateway};
pub use health::{Health, ServiceFault, watched};
pub use ids::ClusterId;
pub use inspection::{DataOwnership, Findings, Node, ReplicaComparison, Storage, StorageFindings, Streams};
pub use leader::{InitialStates, LeaderSettings, finished, own};
pub use local::Local;
#[cfg(feature = "nats-s3")]
pub use nats::{Nats, NatsSettings};
#[cfg(feature = "nats-s3")]
pub use servers::{Servers, inspect, open};
pub use service::{
    Blobs, Bus, Cell, Entry, INBOX_MAX, Inbox, Roster, ServiceError, ServiceFuture, Services, Tape,
};
#[cfg(feature = "nats-s3")]
pub use store::{StateStore, StoreSettings};

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
