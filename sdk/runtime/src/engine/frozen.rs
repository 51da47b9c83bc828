//! Whether an engine was given the weights that its model needs beside what it trains.

use std::sync::Arc;

use super::EngineError;
use crate::model::{FrozenWeights, ModelSpec};

/// The weights that stay as they are while adapters of `model` are trained: `given`, or none where all of `model` is
/// trained.
///
/// # Errors
/// - [`EngineError::Frozen`]: it has adapters, and nothing was given.
/// - [`EngineError::FrozenUnfit`]: what was given is another model's.
pub fn needed(
    model: &ModelSpec,
    given: Option<Arc<FrozenWeights>>,
) -> Result<Option<Arc<FrozenWeights>>, EngineError> {
    if model.lora.is_none() {
        return Ok(None);
    }
    let frozen = given.ok_or(EngineError::Frozen)?;
    if frozen.fits(model) { Ok(Some(frozen)) } else { Err(EngineError::FrozenUnfit) }
}
