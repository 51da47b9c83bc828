//! Helpers shared by the suites that are wider than one file.

pub mod processes;
pub mod socket;
pub mod swarm;
pub mod toys;
