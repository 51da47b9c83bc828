//! What decides the rounds of an owner.

use super::ProcessId;
use crate::diloco::{FragmentState, OuterSpec, RoundTerms, Timing};

/// What an owner knows of its fragment.
#[derive(Clone, Debug)]
pub struct OwnerTerms {
    /// This process.
    pub process: ProcessId,
    /// What decides its rounds.
    pub rounds: RoundTerms,
    /// The outer step.
    pub outer: OuterSpec,
    /// The state with which the run begins, version 0.
    pub initial: FragmentState,
    /// Measured times, by which rounds end.
    pub timing: Timing,
    /// Time from the end of a round to the next one, in milliseconds.
    pub rest_ms: u64,
    /// What is not answered is said or asked again after so many milliseconds.
    pub again_ms: u64,
    /// A round whose sums do not come is given up after so many milliseconds.
    pub sums_ms: u64,
}
