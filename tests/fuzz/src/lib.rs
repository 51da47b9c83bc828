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

mod script;
mod targets;

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

pub use script::vary;

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
    Target { name: "wire", about: "frames of a peer, whole and in chunks", run: targets::wire },
    Target { name: "codec", about: "bodies of updates in every code", run: targets::codec },
    Target { name: "shard", about: "shards of training data", run: targets::shard },
    Target { name: "settings", about: "a settings file in TOML", run: targets::settings },
    Target { name: "model", about: "a folder of a model to begin with", run: targets::model },
    Target { name: "import", about: "tensors and a tokenizer to begin with", run: targets::import },
    Target { name: "tape", about: "the folder of a run, by whoever wrote it", run: targets::tape },
    Target { name: "learner", about: "a syncer that says anything to a learner", run: targets::learner::run },
    Target { name: "peer", about: "peers that say anything to a syncer", run: targets::peer::run },
    Target { name: "world", about: "faults of every kind, in any order", run: targets::world },
];

/// Returns the target called `name`.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// Returns the stored inputs of the target `name`.
///
/// # Errors
/// The file is missing or cannot be read.
///
/// # Panics
/// If a line is not hexadecimal.
pub fn read(name: &str) -> Result<Vec<Vec<u8>>> {
    let text = fs::read_to_string(file(name))?;
    Ok(text.lines().map(|line| from_hex(line).unwrap_or_else(|| panic!("{name}: {line:?}"))).collect())
}

/// Stores `inputs` for the target `name`, sorted by length, in place of the earlier ones.
///
/// # Errors
/// The file cannot be written.
pub fn write(name: &str, mut inputs: Vec<Vec<u8>>) -> Result<()> {
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    inputs.dedup();
    let hex = |input: &Vec<u8>| input.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    fs::write(file(name), inputs.iter().map(hex).collect::<String>())
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name).with_extension("hex")
}

fn from_hex(line: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = line.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}
