//! Rust half of the Python package `archipelago`: the learner's loop next to a program with its own training loop.
//!
//! The loop of the SDK drives an engine. Here that engine has no model: it queues operations on the parameters at a
//! [`bridge`], and the program takes them from there between two of its steps. Neither waits for the other, just as a
//! program with a GPU does not wait for it.
//!
//! | module | concept |
//! |---|---|
//! | [`tensors`] | the tensors of a program, and where the parameters of a run lie in them |
//! | [`fused`] | matrices of experts that lie in tensors of another shape |
//! | [`bridge`] | queues between loop and program |
//! | [`fault`] | what can go wrong |
//! | [`engine`] | the loop's side of it: codes fragments and takes changes in |
//! | [`learner`] | the loop on a thread of its own |
//! | [`mod@file`] | the file that a run of a model of one's own begins with |
//! | `face` | what Python sees, with the feature `extension` |

pub mod bridge;
pub mod engine;
#[cfg(feature = "extension")]
mod face;
pub mod file;
pub mod learner;
pub mod tensors;
