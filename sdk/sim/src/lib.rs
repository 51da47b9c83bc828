//! Whole runs in virtual time, on the machines that ship.
//!
//! [`world`] drives the real syncer and the real learners through links, clocks and faults that obey a seed. It is what
//! your programs can build on, and it keeps the promise of [Semantic Versioning](https://semver.org/).
//!
//! The other modules are machinery of this repository's own programs and may change in any version: [`lab`] trains
//! small models for real in a world, [`lesson`] tells a run of a few islands as pictures, and [`paper`] recomputes the
//! tables of the paper; [`cluster`] runs owners and gateways of a run on several machines.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod lab;
pub mod lesson;
pub mod paper;
pub mod world;
