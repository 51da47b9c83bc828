//! Helpers shared by the suites that are wider than one file.

mod children;
#[cfg(target_os = "linux")]
pub mod faulty_disk;
pub mod http;
mod launch;
mod learners;
pub mod processes;
pub mod programs;
#[cfg(target_os = "linux")]
pub mod small_disk;
pub mod socket;
pub mod swarm;
pub mod toys;
pub mod verbs;
pub mod witness;
