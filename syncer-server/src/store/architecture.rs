//! Built-in support for model architectures. No other module inspects an architecture.
//!
//! A run is a layout of tensors, and the syncer leads it without knowing their meaning. For the built-in decoder it can
//! also measure the held-out loss, generate text, and export in the form that Hugging Face Transformers reads. Other
//! models get none of that: a learner may measure them, and their tensors are exported by name.

use archipelago_core::model::{DECODER, ModelSpec};
use archipelago_core::wire::{Architecture, Model};
use serde_json::Value;

use crate::errors::ServerError;

/// Returns the built-in decoder that `model` describes, or `None` if it has another architecture.
///
/// # Errors
/// `Internal`: `model` is named after the built-in decoder but does not match it.
pub fn decoder(model: &Model) -> Result<Option<ModelSpec>, ServerError> {
    if model.architecture.name != DECODER {
        return Ok(None);
    }
    let none = |error| ServerError::Internal { what: format!("the run has no model: {error}") };
    ModelSpec::of(model).map(Some).map_err(none)
}

/// Returns the settings of `model` in readable form, without tensors. A decoder's sizes have names.
#[must_use]
pub fn readable(model: &Model) -> Value {
    // JSON text prints `f32` numbers in their shortest form, as people wrote them.
    let value = match decoder(model) {
        Ok(Some(spec)) => serde_json::to_string(&spec),
        _ => {
            let Model { context, vocab, architecture: Architecture { name, settings }, .. } = model;
            let settings = String::from_utf8_lossy(settings);
            let architecture = serde_json::json!({ "name": name, "settings": settings });
            let shown =
                serde_json::json!({ "context": context, "vocab": vocab, "architecture": architecture });
            serde_json::to_string(&shown)
        }
    };
    value.and_then(|text| serde_json::from_str(&text)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::Preset;

    use super::*;

    #[test]
    fn a_model_of_tensors_is_shown_by_its_name_and_sizes() {
        let spec = Preset::Llama135m.model(300);
        assert_eq!(decoder(&Model::from(spec)).unwrap(), Some(spec));
        let own = Model { architecture: Architecture::default(), ..Model::from(spec) };
        assert_eq!(decoder(&own).unwrap(), None);
        assert_eq!(readable(&own)["context"], 512);
    }

    #[test]
    fn who_is_called_the_decoder_has_to_be_it() {
        let mut model = Model::from(Preset::Tiny.model(300));
        assert_eq!(readable(&model)["d_model"], 64);
        model.tensors.pop();
        assert!(decoder(&model).unwrap_err().to_string().contains("do not match the model's sizes"));
    }
}
