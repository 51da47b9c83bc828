//! Archipelago's pure floor: everything that decides anything, without a socket, clock, thread or hash map.
//!
//! [`diloco`] holds the two machines of Decoupled DiLoCo, `Syncer` and `Learner`: events go in, effects come out, time
//! is an argument. [`wire`] is what they say to each other, [`data`] what is trained on, [`model`] the shape of the
//! model, its scalar reference pass and AdamW. The crate `archipelago` adds engines and the learner's loop around
//! it, `archipelago-sim` a whole world in virtual time.

pub mod bytes;
pub mod data;
pub mod diloco;
pub mod model;
pub mod rng;
#[cfg(test)]
mod testing;
pub mod text;
pub mod time;
pub mod wire;
