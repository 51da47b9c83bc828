//! Fuzz targets, one file for each entry point.

pub mod codec;
pub mod import;
pub mod learner;
pub mod model;
pub mod peer;
pub mod settings;
pub mod shard;
pub mod tape;
pub mod wire;
pub mod world;
