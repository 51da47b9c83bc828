//! The learner's loop: platform → [`crate::diloco`] → engine.

mod address;
mod backoff;
mod control;

pub use address::{Address, AddressError};
pub use backoff::Backoff;
pub use control::{Control, DutyError};
