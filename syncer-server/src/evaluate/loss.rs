//! The held-out loss of parameters.

use std::num::NonZeroUsize;
use std::sync::Arc;

use archipelago_core::model::{FrozenWeights, ModelSpec};
use archipelago_core::token;
use archipelago_runtime::engine::cpu::CpuModel;

use super::engine;
use crate::errors::ServerError;
use crate::store::HeldOut;

/// Windows measured at once, which bounds the memory of activations.
const WINDOWS_AT_ONCE: usize = 8;

/// Minimum number of held-out windows for attribution. Our own constant.
pub const JUDGED_WINDOWS_MIN: usize = 8;

/// Measures the held-out loss of one model's parameters.
pub struct LossMeter {
    model: CpuModel,
    held_out: HeldOut,
}

impl LossMeter {
    /// Creates a meter of models like `spec` that computes on `threads` threads. The windows in `held_out` must fit
    /// the model ([`HeldOut::fits`]). `frozen` are the frozen weights, if the run trains adapters.
    ///
    /// # Errors
    /// `Internal`: the engine cannot be built.
    pub fn new(
        spec: &ModelSpec,
        frozen: Option<Arc<FrozenWeights>>,
        held_out: HeldOut,
        threads: NonZeroUsize,
    ) -> Result<Self, ServerError> {
        Ok(Self { model: CpuModel::on(frozen, spec, threads).map_err(engine)?, held_out })
    }

    /// Returns true if there are enough windows to distinguish harm from memorised training text.
    #[must_use]
    pub fn can_detect_harm(&self) -> bool {
        self.held_out.tokens.len() / self.held_out.window >= JUDGED_WINDOWS_MIN
    }

    /// Returns the mean loss of `theta` over the unmasked held-out tokens, in nats per token.
    ///
    /// # Errors
    /// `Internal`: the parameters do not fit the model.
    pub fn loss(&mut self, theta: &[f32]) -> Result<f32, ServerError> {
        let HeldOut { window, tokens } = &self.held_out;
        let (mut sum, mut targets) = (0.0, 0.0);
        for batch in tokens.chunks(WINDOWS_AT_ONCE * window) {
            let count = token::target_count(batch, window - 1) as f64;
            sum += f64::from(self.model.loss(theta, batch).map_err(engine)?) * count;
            targets += count;
        }
        Ok((sum / targets) as f32)
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::Preset;

    use super::*;

    #[test]
    fn few_windows_cannot_detect_harm() {
        let detects = |windows: usize| {
            let (spec, window) = (Preset::Tiny.model(256), 65);
            let held_out = HeldOut { window, tokens: vec![7; windows * window] };
            LossMeter::new(&spec, None, held_out, NonZeroUsize::MIN).unwrap().can_detect_harm()
        };
        assert!(detects(JUDGED_WINDOWS_MIN) && !detects(JUDGED_WINDOWS_MIN - 1));
    }
}
