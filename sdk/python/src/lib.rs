//! Rust half of the Python package `archipelago-train`: the learner's loop next to a program with its own training loop.
//!
//! The loop of the SDK drives an engine. Here that engine has no model: it queues operations on the parameters at a
//! [`bridge`], and the program takes them from there between two of its steps. Neither waits for the other, just as a
//! program with a GPU does not wait for it.
//!
//! | module | concept |
//! |---|---|
//! | [`tensors`] | tensors of a program, their place among the run's parameters, and experts fused into one tensor |
//! | [`bridge`] | queues between loop and program |
//! | [`engine`] | engine of the loop: codes fragments and applies changes |
//! | [`learner`] | thread of the loop |
//! | [`mod@file`] | file that starts a run of a custom model |
//! | `classes` | Python classes, with the feature `extension` |

pub mod bridge;
#[cfg(feature = "extension")]
mod classes;
pub mod engine;
pub mod file;
pub mod learner;
pub mod tensors;
