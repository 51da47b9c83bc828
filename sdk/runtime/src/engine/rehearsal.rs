//! Training without a syncer, to see whether and how fast a machine can.

use super::{Engine, EngineError};
use crate::data::BYTE_VOCAB;
use crate::model::{ModelSpec, Preset, flops_per_token, init, layout};
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

/// `preset` with the vocabulary that its size is told by.
fn model(preset: Preset) -> ModelSpec {
    preset.model(match preset {
        Preset::Tiny | Preset::Small | Preset::Medium => BYTE_VOCAB,
        Preset::Base => 50_257,
        Preset::Llama135m | Preset::Llama360m => 49_152,
    })
}

/// A made-up run.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// What a syncer would say of it, with the syncer's own exchange.
    pub spec: RunSpec,
    /// One batch, `[batch, context + 1]`.
    pub tokens: Vec<u32>,
}

impl Rehearsal {
    /// A run of `preset` with the vocabulary that its size is told by.
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

    /// Gives `engine` the first parameters, as a syncer would.
    ///
    /// # Errors
    /// Those of [`Engine::load`], and [`EngineError::Model`] if the engine is of another model.
    pub fn load(&self, engine: &mut impl Engine) -> Result<(), EngineError> {
        let params = init(&ModelSpec::of(&self.spec.model)?, self.spec.seed)?;
        let fragments = engine.fragments().clone();
        for fragment in fragments.ids() {
            engine.load(fragment, &fragments.gather(fragment, &params), false)?;
        }
        Ok(())
    }
}

/// What a preset asks of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// The preset.
    pub preset: Preset,
    /// Parameters of the model.
    pub params: u64,
    /// Parameters, gradient, moments and what the exchange holds, in bytes; activations not included.
    pub state_bytes: u64,
    /// Tokens trained on per second at the rate of operations that was measured: an estimate but for the preset
    /// that was measured.
    pub tokens_per_s: f64,
}

impl Outlook {
    /// Copies of the parameters that training holds: θ, gradient, two moments, Θ̂ and what was reported.
    const COPIES: u64 = 6;

    /// What each preset would come to, smallest first, if `measured` does `tokens_per_s`.
    ///
    /// # Errors
    /// [`EngineError::Model`], which no preset meets.
    pub fn of_all(measured: Preset, tokens_per_s: f64) -> Result<Vec<Self>, EngineError> {
        let flops = |preset: Preset| flops_per_token(&model(preset));
        let flops_per_s = tokens_per_s * flops(measured)? as f64;
        let outlook = |preset: Preset| {
            let params = layout(&model(preset))?.len() as u64;
            let tokens_per_s = flops_per_s / flops(preset)? as f64;
            Ok(Self { preset, params, state_bytes: Self::COPIES * 4 * params, tokens_per_s })
        };
        Preset::ALL.into_iter().map(outlook).collect()
    }
}

/// One batch for `spec`, `[batch, context + 1]`, that looks like anything: what it says does not change the speed.
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
        let all = Outlook::of_all(Preset::Small, 1_000.0).unwrap();
        assert_eq!(all.len(), Preset::ALL.len());
        let [small, large] = [Preset::Small, Preset::Llama135m]
            .map(|preset| *all.iter().find(|outlook| outlook.preset == preset).unwrap());
        assert_eq!((small.params, small.tokens_per_s), (824_448, 1_000.0));
        assert_eq!((large.params, large.state_bytes), (134_515_008, 24 * 134_515_008));
        // 106 M values of the layers and 28 M of the head against 0.8 M.
        assert!((5.0..7.0).contains(&large.tokens_per_s), "{large:?}");
    }
}
