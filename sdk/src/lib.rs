//! Archipelago: one language model trained on many unreliable islands of compute.
//!
//! The method is Decoupled DiLoCo. Everything that decides anything is a pure state machine
//! ([`diloco`]): events in, effects out, time as an argument. Sockets, clocks and engines are thin
//! shells around it, so the server, the learner and the simulator run the same code.

pub mod data;
pub mod diloco;
pub mod engine;
#[cfg(feature = "cpu-portable")]
pub mod lab;
#[cfg(feature = "cpu-portable")]
pub mod lesson;
pub mod model;
#[cfg(any(feature = "cpu-portable", feature = "learner"))]
pub mod platform;
mod rng;
#[cfg(feature = "learner")]
pub mod run;
pub mod sim;
pub mod wire;
