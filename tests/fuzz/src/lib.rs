//! Fuzz targets for all external input.
//!
//! Each target passes arbitrary bytes to one entry point of the programs, and panics on wrong behaviour. The program
//! `fuzz` (feature `libfuzzer`, started by `cargo xtask fuzz`) searches for such bytes. The tests run its stored
//! findings, and some thousand variations of them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a panic is how a target says that something is wrong"
)]

mod corpus;
mod golden;
mod script;
mod targets;
mod vary;

pub use corpus::{read, write};
pub use vary::vary;

/// Fuzz target for one entry point.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its corpus.
    pub name: &'static str,
    /// Readable description of the fuzzed input.
    pub about: &'static str,
    /// Function that tries some bytes, and panics on wrong behaviour.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 10] = [
    Target { name: "wire", about: "frames of a peer, whole and in chunks", run: targets::wire::run },
    Target { name: "codec", about: "bodies of updates in every code", run: targets::codec::run },
    Target { name: "shard", about: "shards of training data", run: targets::shard::run },
    Target { name: "settings", about: "a settings file in TOML", run: targets::settings::run },
    Target { name: "model", about: "a folder of a model to begin with", run: targets::model::run },
    Target { name: "import", about: "tensors and a tokenizer to begin with", run: targets::import::run },
    Target { name: "tape", about: "the folder of a run, by whoever wrote it", run: targets::tape::run },
    Target { name: "learner", about: "a syncer that says anything to a learner", run: targets::learner::run },
    Target { name: "peer", about: "peers that say anything to a syncer", run: targets::peer::run },
    Target { name: "world", about: "faults of every kind, in any order", run: targets::world::run },
];

/// Returns the target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
