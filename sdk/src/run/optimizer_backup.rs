//! State salvaged from a lost device.

use archipelago_core::wire::{RunId, RunSpec};
use archipelago_runtime::engine::OptimiserState;

/// Moments of a run's inner optimiser.
pub(super) struct Salvaged {
    pub(super) run: RunId,
    pub(super) spec: RunSpec,
    pub(super) moments: OptimiserState,
}

/// Returns the salvaged moments if they belong to this same run, and drops any others.
pub(super) fn take_moments(
    held: &mut Option<Salvaged>,
    run: RunId,
    spec: &RunSpec,
) -> Option<OptimiserState> {
    let salvaged = held.take()?;
    (salvaged.run == run && salvaged.spec == *spec).then_some(salvaged.moments)
}

#[cfg(test)]
mod tests {
    use super::super::fake_run;
    use super::*;

    fn salvaged(run: u64) -> Option<Salvaged> {
        let shard = archipelago_core::data::encode_shard(&[0; 10], 2).unwrap();
        let moments = OptimiserState::of_adamw(9, vec![1.0], vec![2.0]);
        Some(Salvaged { run: RunId(run), spec: fake_run::spec(&shard), moments })
    }

    #[test]
    fn moments_go_to_the_run_they_came_from() {
        let Salvaged { run, spec, moments } = salvaged(7).unwrap();
        let other_spec = RunSpec { seed: spec.seed + 1, ..spec.clone() };
        let mut held = salvaged(7);
        assert_eq!(take_moments(&mut held, run, &spec), Some(moments));
        assert_eq!(take_moments(&mut held, run, &spec), None);
        for (run, spec) in [(run, &other_spec), (RunId(8), &spec)] {
            let mut held = salvaged(7);
            assert_eq!(take_moments(&mut held, run, spec), None);
            assert!(held.is_none());
        }
    }
}
