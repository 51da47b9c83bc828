//! Helpers shared by the suites that are wider than one file.

pub mod processes;
pub mod small_disk;
pub mod socket;
pub mod swarm;
pub mod toys;
pub mod witness;
