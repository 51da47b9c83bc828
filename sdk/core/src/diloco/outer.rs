//! Outer optimiser: SGD with Nesterov momentum on one fragment.

use serde::{Deserialize, Serialize};

/// Learning rate and momentum of the outer step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OuterSpec {
    /// Learning rate, above 0.
    pub lr: f32,
    /// Momentum μ, from 0 to below 1.
    pub momentum: f32,
}

impl Default for OuterSpec {
    /// Returns the best measured values for a momentum with warm-up (`tests/evidence/DECISIONS.md`). The paper does not
    /// publish its values.
    fn default() -> Self {
        Self { lr: 0.5, momentum: 0.8 }
    }
}

impl OuterSpec {
    /// Returns the spec with the momentum multiplied by `share`, which is clamped to 0…1.
    ///
    /// Early updates are long and have similar directions, so a full momentum, which adds up several of them,
    /// overshoots. The warm-up of the momentum is our own choice, see `tests/evidence/DECISIONS.md`.
    #[must_use]
    pub fn with_momentum_share(self, share: f64) -> Self {
        Self { momentum: (f64::from(self.momentum) * share.clamp(0.0, 1.0)) as f32, ..self }
    }

    /// Returns the spec with the learning rate multiplied by `share`, above 0 and at most 1.
    #[must_use]
    pub(crate) fn with_step_share(self, share: f64) -> Self {
        Self { lr: (f64::from(self.lr) * share) as f32, ..self }
    }
}

/// Updates one parameter: `v = μ v + Δ`, then `Θ = Θ − lr (Δ + μ v)`. `v` is its momentum, 0 at first, and `delta` (Δ)
/// is the merged `Θ̂ − θ`. This equals SGD with `nesterov` in optax and PyTorch.
#[inline(always)]
pub(super) fn step(spec: &OuterSpec, theta: &mut f32, v: &mut f32, delta: f32) {
    let OuterSpec { lr, momentum: mu } = *spec;
    *v = mu * *v + delta;
    *theta -= lr * (delta + mu * *v);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_formula() {
        let spec = OuterSpec { lr: 0.5, momentum: 0.5 };
        let (mut theta, mut v) = (1.0, 0.0);
        step(&spec, &mut theta, &mut v, 1.0);
        assert_eq!((theta, v), (1.0 - 0.5 * 1.5, 1.0));
        let (mut theta, mut v) = (2.0, 4.0);
        step(&spec, &mut theta, &mut v, -1.0);
        assert_eq!((theta, v), (2.0 - 0.5 * (-1.0 + 0.5), 1.0));
    }

    #[test]
    fn momentum_rises_to_its_value_and_no_further() {
        let spec = OuterSpec { lr: 0.5, momentum: 0.5 };
        let momentum = |share| spec.with_momentum_share(share).momentum;
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 7.0].map(momentum), [0.0, 0.0, 0.25, 0.5, 0.5]);
        assert_eq!(spec.with_momentum_share(0.5).lr, 0.5);
    }

    #[test]
    fn step_share_leaves_momentum_unchanged() {
        let spec = OuterSpec { lr: 0.5, momentum: 0.8 };
        assert_eq!(spec.with_step_share(0.25), OuterSpec { lr: 0.125, momentum: 0.8 });
        assert_eq!(spec.with_step_share(1.0), spec);
    }

    #[test]
    fn full_step_without_momentum_reaches_the_learner() {
        let spec = OuterSpec { lr: 1.0, momentum: 0.0 };
        let (mut theta, mut v) = (3.0, 0.0);
        step(&spec, &mut theta, &mut v, 2.0);
        assert_eq!(theta, 1.0);
    }
}
