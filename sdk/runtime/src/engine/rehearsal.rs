//! Synthetic runs without a syncer, to test whether and how fast a machine can train.

use super::{Engine, EngineError};
use crate::data::BYTE_VOCAB;
use crate::model::{ModelSpec, Preset, flops_per_token, init, layout};
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

/// Returns the model of `preset` with the vocabulary size with which it has its nominal number of parameters.
fn model(preset: Preset) -> ModelSpec {
    preset.model(match preset {
        Preset::Tiny | Preset::Small | Preset::Medium => BYTE_VOCAB,
        Preset::Base => 50_257,
        Preset::Llama135m | Preset::Llama360m => 49_152,
    })
}

/// Synthetic run: a spec and one batch of tokens.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// Spec of the run, with the syncer's default exchange.
    pub spec: RunSpec,
    /// One batch, `[batch, context + 1]`.
    pub tokens: Vec<u32>,
}

impl Rehearsal {
    /// Creates a run of `preset` with the vocabulary size with which it has its nominal number of parameters.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        let apply = ApplyPolicy::Keep { residue: true };
        let spec = RunSpec {
            model: model(preset).into(),
            inner: preset.inner(),
            exchange: ExchangeSpec { fragments: 8, sync_every: 24, block: 256, code: Code::Int4, apply },
            data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
            seed: 1,
            frozen: None,
        };
        Self { tokens: batch_like_any(&spec), spec }
    }

    /// Loads the initial parameters into `engine`. In a real run, the learner fetches them from the syncer.
    ///
    /// # Errors
    /// Those of [`Engine::load`], and [`EngineError::Model`] if the engine has another model.
    pub fn load(&self, engine: &mut impl Engine) -> Result<(), EngineError> {
        let params = init(&ModelSpec::of(&self.spec.model)?, self.spec.seed)?;
        let fragments = engine.fragments().clone();
        for fragment in fragments.ids() {
            engine.load(fragment, &fragments.gather(fragment, &params), false)?;
        }
        Ok(())
    }
}

/// Estimated memory and speed of training one preset on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PresetEstimate {
    /// The preset.
    pub preset: Preset,
    /// Parameters of the model.
    pub params: u64,
    /// Size of parameters, gradient, moments and exchange state in bytes, without activations.
    pub state_bytes: u64,
    /// Trained tokens per second. It is measured for one preset and estimated from the number of operations for the
    /// others.
    pub tokens_per_s: f64,
}

impl PresetEstimate {
    /// Copies of the parameters during training: θ, gradient, two moments, Θ̂ and reported progress.
    const COPIES: u64 = 6;

    /// Returns an estimate for each preset, smallest first, if `measured` trains at `tokens_per_s`.
    ///
    /// # Errors
    /// [`EngineError::Model`], which no preset causes.
    pub fn of_all(measured: Preset, tokens_per_s: f64) -> Result<Vec<Self>, EngineError> {
        let flops = |preset: Preset| flops_per_token(&model(preset));
        let flops_per_s = tokens_per_s * flops(measured)? as f64;
        let estimate = |preset: Preset| {
            let params = layout(&model(preset))?.len() as u64;
            let tokens_per_s = flops_per_s / flops(preset)? as f64;
            Ok(Self { preset, params, state_bytes: Self::COPIES * 4 * params, tokens_per_s })
        };
        Preset::ALL.into_iter().map(estimate).collect()
    }
}

/// Returns a batch of pseudorandom tokens for `spec`, `[batch, context + 1]`. Their choice does not affect the speed.
pub fn batch_like_any(spec: &RunSpec) -> Vec<u32> {
    let count = spec.inner.batch * (spec.model.context + 1);
    let token = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) % spec.model.vocab;
    (0..count).map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_with_ten_times_the_operations_is_ten_times_as_slow() {
        let all = PresetEstimate::of_all(Preset::Small, 1_000.0).unwrap();
        assert_eq!(all.len(), Preset::ALL.len());
        let [small, large] = [Preset::Small, Preset::Llama135m]
            .map(|preset| *all.iter().find(|estimate| estimate.preset == preset).unwrap());
        assert_eq!((small.params, small.tokens_per_s), (824_448, 1_000.0));
        assert_eq!((large.params, large.state_bytes), (134_515_008, 24 * 134_515_008));
        // The larger model has 106 M weights in its layers and 28 M in its head; the smaller one has 0.8 M in total.
        assert!((5.0..7.0).contains(&large.tokens_per_s), "{large:?}");
    }
}
