//! Training without a syncer, to see whether and how fast a machine can.

use super::{Engine, EngineError};
use crate::data::BYTE_VOCAB;
use crate::model::{Preset, init};
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

/// The vocabulary that `base` is named by its size for.
const BASE_VOCAB: u32 = 50_257;

/// A made-up run.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// What a syncer would say of it, with the syncer's own exchange.
    pub spec: RunSpec,
    /// One batch, `[batch, context + 1]`.
    pub tokens: Vec<u32>,
}

impl Rehearsal {
    /// A run of `preset` over bytes, or for `base` over as many tokens as GPT-2's.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        let apply = ApplyPolicy::Keep { residue: true };
        let spec = RunSpec {
            model: preset.model(if preset == Preset::Base { BASE_VOCAB } else { BYTE_VOCAB }),
            inner: preset.inner(),
            exchange: ExchangeSpec { fragments: 8, sync_every: 24, block: 256, code: Code::Int4, apply },
            data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
            seed: 1,
        };
        Self { tokens: batch_like_any(&spec), spec }
    }

    /// Gives `engine` the first parameters, as a syncer would.
    ///
    /// # Errors
    /// Those of [`Engine::load`], and [`EngineError::Model`] if the engine is of another model.
    pub fn load(&self, engine: &mut impl Engine) -> Result<(), EngineError> {
        let params = init(&self.spec.model, self.spec.seed)?;
        let fragments = engine.fragments().clone();
        for fragment in fragments.ids() {
            engine.load(fragment, &fragments.gather(fragment, &params), false)?;
        }
        Ok(())
    }
}

/// One batch for `spec`, `[batch, context + 1]`, that looks like anything: what it says does not change the speed.
pub fn batch_like_any(spec: &RunSpec) -> Vec<u32> {
    let count = spec.inner.batch * (spec.model.context + 1);
    let token = |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) % spec.model.vocab;
    (0..count).map(token).collect()
}
