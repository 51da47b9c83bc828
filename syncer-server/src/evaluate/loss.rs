//! The held-out loss of parameters.

use std::num::NonZeroUsize;
use std::sync::Arc;

use archipelago_core::model::{FrozenWeights, ModelSpec};
use archipelago_core::token;
use archipelago_runtime::engine::cpu::CpuModel;

use super::engine;
use crate::errors::ServerError;
use crate::store::HeldOut;

/// Windows measured at once; bounds the memory of activations.
const WINDOWS_AT_ONCE: usize = 8;

/// Measures the loss of parameters of one model.
pub struct LossMeter {
    model: CpuModel,
    held_out: HeldOut,
}

impl LossMeter {
    /// A meter of models like `spec`, which [`HeldOut::fits`], that computes on `threads` threads; `frozen` are the
    /// weights that it does not train, if it is adapters.
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

    /// Mean loss of `theta` over what is learnt of the held-out text, in nats per token.
    ///
    /// # Errors
    /// `Internal`: the parameters do not fit the model.
    pub fn loss(&mut self, theta: &[f32]) -> Result<f32, ServerError> {
        let HeldOut { window, tokens } = &self.held_out;
        let (mut sum, mut learnt) = (0.0, 0.0);
        for batch in tokens.chunks(WINDOWS_AT_ONCE * window) {
            let count = token::learnt(batch, window - 1) as f64;
            sum += f64::from(self.model.loss(theta, batch).map_err(engine)?) * count;
            learnt += count;
        }
        Ok((sum / learnt) as f32)
    }
}
