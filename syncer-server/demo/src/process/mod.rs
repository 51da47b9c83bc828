//! Child processes that never outlive this one, and communication with them.

pub mod guard;
pub mod http;
pub mod interrupt;
mod spawn;

pub use spawn::Process;
