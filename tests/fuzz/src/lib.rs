//! Whatever comes from outside, in every form that a fuzzer thinks of.
//!
//! Each target takes any bytes, hands them to one way into the programs, and panics if that does what it must not. The
//! program `fuzz` (feature `libfuzzer`, started by `cargo xtask fuzz`) searches for such bytes; the tests run what it
//! found worth keeping, and some thousand variations of that.

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

/// One way into the programs.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its corpus too.
    pub name: &'static str,
    /// What is fuzzed, for people.
    pub about: &'static str,
    /// Tries some bytes. Panics if something is wrong.
    pub run: fn(&[u8]),
}

/// All of them.
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

/// The target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
