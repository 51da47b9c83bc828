//! The paper's tables, recomputed with closed-form models and measurements of simulated worlds.

pub mod bandwidth;
mod drift;
pub mod goodput;
pub mod regions;
pub mod scavenging;
mod trial;

pub use trial::TrialError;
