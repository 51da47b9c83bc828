//! Helpers shared by the suites that are wider than one file.

mod children;
pub mod faulty_disk;
pub mod http;
mod launch;
mod learners;
pub mod pretrained;
pub mod processes;
pub mod programs;
pub mod small_disk;
pub mod socket;
pub mod swarm;
pub mod toys;
pub mod verbs;
pub mod witness;
