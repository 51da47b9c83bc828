//! What this program can do with a run's model by itself: the one place that looks at an architecture.
//!
//! A run is a layout, and the syncer leads it whatever its tensors mean. Of the built-in decoder it also knows how to
//! measure the held-out loss, how to let it write, and what the Transformers of Hugging Face want of an export. Of
//! any other model it does none of that: a learner may measure it, and its tensors are exported by their names.

use archipelago_core::model::{DECODER, ModelSpec};
use archipelago_core::wire::{Architecture, Model};
use serde_json::Value;

use crate::errors::ServerError;

/// The built-in decoder that `model` is; `None` if it is of another architecture.
///
/// # Errors
/// `Internal`: it is called the built-in decoder, and is none.
pub fn decoder(model: &Model) -> Result<Option<ModelSpec>, ServerError> {
    if model.architecture.name != DECODER {
        return Ok(None);
    }
    let none = |error| ServerError::Internal { what: format!("the run has no model: {error}") };
    ModelSpec::of(model).map(Some).map_err(none)
}

/// The settings of `model` for people, tensors left out: a decoder's sizes by their names.
#[must_use]
pub fn readable(model: &Model) -> Value {
    // By way of the text, in which numbers of 32 bits are as short as people wrote them.
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
        assert!(decoder(&model).unwrap_err().to_string().contains("not those that follow"));
    }
}
