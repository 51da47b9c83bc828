//! Tests of whole runs in virtual time. One program, so that they are built once and run side by side.

mod crashes;
mod disk;
mod hostile;
mod liveness;
mod proofs;
mod regressions;
mod rollback;
mod simulation;
mod storm;
mod swarm;
mod training;
mod week;
