//! Archipelago: one language model trained on many unreliable islands of compute.
//!
//! The method is Decoupled DiLoCo. Everything that decides anything is a pure state machine
//! ([`diloco`]): events in, effects out, time as an argument. Sockets, clocks and engines are thin
//! shells around it, so the server, the learner and the simulator run the same code.

pub mod engine;
#[cfg(any(feature = "cpu-portable", feature = "learner"))]
pub mod platform;
#[cfg(feature = "learner")]
pub mod run;

pub use archipelago_core::{bytes, data, diloco, model, wire};

#[cfg(any(feature = "learner", feature = "parity", test))]
use archipelago_core::rng;
