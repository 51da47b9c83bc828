//! Check that an engine received the frozen weights that its model needs.

use std::sync::Arc;

use super::EngineError;
use crate::model::{FrozenWeights, ModelSpec};

/// Returns the frozen weights under the adapters of `model`: `given`, or `None` if the whole model is trained.
///
/// # Errors
/// - [`EngineError::Frozen`]: the model has adapters, and no weights were given.
/// - [`EngineError::FrozenUnfit`]: the given weights belong to another model.
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
