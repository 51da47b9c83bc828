//! Simulation of whole runs in virtual time, with the same state machines as the programs.
//!
//! [`world`] drives the real syncer and learners through simulated links, clocks and faults. It follows [Semantic
//! Versioning](https://semver.org/), so other programs can build on it.
//!
//! The other modules serve this repository's own programs and may change in any version: [`lesson`] presents a run of a
//! few islands for display, [`scale`] models machines that are too large for a world, [`corpus`] divides texts, and
//! [`cluster`] simulates a run on several machines.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod corpus;
pub mod lesson;
pub mod world;

/// Models of large machines that a simulated world cannot hold: goodput while chips fail, and the links that data
/// centres need.
pub mod scale {
    pub mod bandwidth;
    pub mod goodput;
}
