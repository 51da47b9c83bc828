//! A run on several machines, for real: the four services that its processes share, and who drives the machines.
//!
//! [`archipelago_core::cluster`] decides everything; its owners and gateways see no clock and no socket. Here are
//! - the four services between them, as traits with their promises: [`Tape`], [`Blobs`], [`Roster`] and [`Bus`];
//! - the four within one process, with nothing to install: [`Local`];
//! - the four on servers that others run, with the feature `nats-s3`: `nats` and `store`;
//! - the two drivers: [`own`] leads fragments, and [`gateway`] stands before learners.

mod clock;
mod error;
mod gateway;
mod local;
mod owner;
mod patience;
mod service;
pub mod shares;

pub use error::ServiceError;
pub use gateway::{GatewaySettings, Learners, Running, gateway};
pub use local::Local;
pub use owner::{OwnerSettings, own};
pub use service::{Answer, Blobs, Bus, Cell, Entry, INBOX_MAX, Inbox, Roster, Services, Tape};
