//! Helpers shared by the suites that are wider than one file.

mod children;
pub mod http;
mod learners;
pub mod processes;
pub mod programs;
pub mod socket;
pub mod swarm;
pub mod toys;
pub mod verbs;
