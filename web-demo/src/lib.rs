//! The browser's face of the learner: what a module Worker calls through `wasm-bindgen`.
//!
//! Everything here is called by the TypeScript package in `package/`; pages talk to that. Numbers of 64 bits
//! cross as JavaScript numbers: no count of a run comes near 2⁵³.

#![forbid(unsafe_code)]

mod convert;
mod failure;
mod helper;
mod hooks;
mod learner;
mod measure;
mod notice;
mod options;
#[cfg(feature = "parity")]
mod parity;
mod saving;
mod shelf;
mod signer;
#[cfg(test)]
mod types;
mod writer;

use wasm_bindgen::prelude::wasm_bindgen;

pub use failure::Failure;
pub use helper::Differentiator;
pub use learner::Learner;
pub use measure::measure;
pub use notice::Notice;
pub use options::{JoinOptions, MeasureOptions, Measured, PresetFacts};
#[cfg(feature = "parity")]
pub use parity::Parity;
pub use writer::Writer;

/// Called when the module is loaded: a panic, which is a fault of ours, ends the Worker with its message rather than
/// with a bare trap.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| wasm_bindgen::throw_str(&panic.to_string())));
}
