//! Measurements of a world: duration and rate.

use crate::world::{Violation, World};
use archipelago_core::diloco::syncer::SyncerError;

/// The reason why a world could not be measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrialError {
    /// A number is out of its range.
    #[error("{what} is {value}: give {range}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The value.
        value: f64,
        /// The range.
        range: &'static str,
    },
    /// The syncer rejects the run.
    #[error("the run cannot be: {0}")]
    Syncer(#[from] SyncerError),
    /// A broken invariant, which is a bug.
    #[error("the simulated run broke a rule: {0}")]
    Broken(#[from] Violation),
    /// The trial did not finish.
    #[error("after {ms} ms of virtual time {what}: give shorter steps or faster links")]
    Unfinished {
        /// Progress of the trial.
        what: &'static str,
        /// Virtual time that was allowed, in milliseconds.
        ms: u64,
    },
}

/// Checks that `value` is in `low..=high`.
///
/// # Errors
/// [`TrialError::Range`].
pub(super) fn range(
    what: &'static str,
    value: f64,
    low: f64,
    high: f64,
    range: &'static str,
) -> Result<(), TrialError> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(TrialError::Range { what, value, range }),
    }
}

/// Returns the tokens merged so far.
pub(super) fn merged(world: &World) -> u64 {
    world.status().map_or(0, |status| status.tokens_merged)
}

/// Returns the time at which `tokens` tokens were merged, in milliseconds, checked every `every_ms`.
///
/// # Errors
/// - [`TrialError::Unfinished`]: the time exceeds `ms_max`.
/// - [`TrialError::Broken`]: an invariant was broken.
pub(super) fn merged_at_ms(
    world: &mut World,
    tokens: u64,
    every_ms: u64,
    ms_max: u64,
) -> Result<u64, TrialError> {
    let reached = world.run_until(ms_max, every_ms, |world| merged(world) >= tokens);
    world.check()?;
    let what = "the tokens were not merged yet";
    if reached { Ok(world.now().0) } else { Err(TrialError::Unfinished { what, ms: ms_max }) }
}
