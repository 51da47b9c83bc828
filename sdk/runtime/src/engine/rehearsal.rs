//! Training without a syncer, to see whether a machine can train and how fast.

use super::{Engine, EngineError};
use crate::data::BYTE_VOCAB;
use crate::model::{ModelSpec, Preset, flops_per_token, init, layout};
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

/// Returns the model of `preset` with the vocabulary that its nominal size assumes.
fn model(preset: Preset) -> ModelSpec {
    preset.model(match preset {
        Preset::Tiny | Preset::Small | Preset::Medium => BYTE_VOCAB,
        Preset::Base => 50_257,
        Preset::Llama135m | Preset::Llama360m => 49_152,
    })
}

/// Synthetic run.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// Description of the run, with the syncer's default exchange.
    pub spec: RunSpec,
    /// One batch, `[batch, context + 1]`.
    pub tokens: Vec<u32>,
}

impl Rehearsal {
    /// Creates a run of `preset` with the vocabulary that its nominal size assumes.
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

    /// Loads the initial parameters into `engine`, as a syncer would.
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

/// Requirements of a preset on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// The preset.
    pub preset: Preset,
    /// Parameters of the model.
    pub params: u64,
    /// Bytes of parameters, gradient, moments and exchange state, without activations.
    pub state_bytes: u64,
    /// Trained tokens per second at the measured rate of operations. An estimate, except for the measured preset.
    pub tokens_per_s: f64,
}

impl Outlook {
    /// Copies of the parameters during training: θ, gradient, two moments, Θ̂ and reported progress.
    const COPIES: u64 = 6;

    /// Returns the outlook for each preset, smallest first, if `measured` trains at `tokens_per_s`.
    ///
    /// # Errors
    /// [`EngineError::Model`], which no preset triggers.
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

/// Returns one arbitrary batch for `spec`, `[batch, context + 1]`. The choice of tokens does not change the speed.
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
        // 106 M values in the layers and 28 M in the head, compared with 0.8 M.
        assert!((5.0..7.0).contains(&large.tokens_per_s), "{large:?}");
    }
}
