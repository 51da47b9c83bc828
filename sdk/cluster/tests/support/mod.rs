//! Small run for tests: its model, learners with random progress, doors for them, and invariants.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "it is part of tests alone")]

pub mod check;
pub mod door;
pub mod learner;
pub mod run;
#[cfg(feature = "nats-s3")]
pub mod servers;
