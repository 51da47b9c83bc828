//! Rust half of the Python package `archipelago-train`: the learner's loop for programs with their own training loop.
//!
//! The SDK's loop drives an engine. Here that engine has no model: it queues requests for the program's parameters at
//! a [`bridge`], and the program carries them out between two of its steps. Neither waits for the other, just as a
//! program with a GPU does not wait for the GPU.
//!
//! | module | concept |
//! |---|---|
//! | [`tensors`] | tensors of a program, their positions in the run's layout, and experts fused into one tensor |
//! | [`bridge`] | queues between the loop and the program |
//! | [`engine`] | engine of the loop: encodes fragments and forwards changes |
//! | [`learner`] | thread of the loop |
//! | [`mod@file`] | file with which a run of a custom model starts |
//! | `classes` | Python classes, with the feature `extension` |

pub mod bridge;
#[cfg(feature = "extension")]
mod classes;
pub mod engine;
pub mod file;
pub mod learner;
pub mod tensors;
