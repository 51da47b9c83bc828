//! Processes that never outlive this one, and talking to them.

pub mod guard;
pub mod http;
pub mod interrupt;
mod spawn;

pub use spawn::Process;
