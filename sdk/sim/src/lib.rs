//! Whole runs in virtual time, on the state machines that ship.
//!
//! [`world`] drives the real syncer and the real learners through seeded links, clocks and faults. Your programs can
//! build on it: it follows [Semantic Versioning](https://semver.org/).
//!
//! The other modules serve this repository's own programs and may change in any version: [`lesson`] presents a run of a
//! few islands as pictures, [`scale`] models machines too large for a world, [`corpus`] splits texts, and [`cluster`]
//! runs owners and gateways of a run on several machines.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod corpus;
pub mod lesson;
pub mod scale;
pub mod world;
