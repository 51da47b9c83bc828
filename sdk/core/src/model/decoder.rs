//! How a run says that its model is the built-in decoder.

use super::{ModelError, ModelSpec, layout};
use crate::wire::{Architecture, Model};

/// The name of the built-in decoder in [`Architecture::name`].
pub const DECODER: &str = "llama";

impl ModelSpec {
    /// The settings of the built-in decoder that `model` is.
    ///
    /// # Errors
    /// - [`ModelError::Foreign`]: it is of another architecture.
    /// - [`ModelError::Settings`]: its settings cannot be read, or say anything else of context, vocabulary or tensors.
    /// - Those of [`layout`]: no such decoder can be built.
    pub fn of(model: &Model) -> Result<Self, ModelError> {
        let Architecture { name, settings } = &model.architecture;
        if name != DECODER {
            return Err(ModelError::Foreign { name: name.clone() });
        }
        let wrong = |why: String| ModelError::Settings { why };
        let spec: Self = rmp_serde::from_slice(settings).map_err(|error| wrong(error.to_string()))?;
        let layout = layout(&spec)?;
        let says = (spec.context, spec.vocab, layout.tensors());
        if says != (model.context, model.vocab, &model.tensors) {
            return Err(wrong("context, vocabulary or tensors are not those that follow from them".into()));
        }
        Ok(spec)
    }
}

/// As a run describes it. One that cannot be built has no tensors, and [`ModelSpec::of`] says why.
impl From<ModelSpec> for Model {
    fn from(spec: ModelSpec) -> Self {
        let settings = rmp_serde::to_vec_named(&spec).expect("plain data");
        Self {
            context: spec.context,
            vocab: spec.vocab,
            tensors: layout(&spec).map(|layout| layout.tensors().to_vec()).unwrap_or_default(),
            architecture: Architecture { name: DECODER.into(), settings },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Preset;

    #[test]
    fn a_decoder_comes_back() {
        for untied_head in [false, true] {
            let spec = ModelSpec { untied_head, ..Preset::Tiny.model(300) };
            assert_eq!(ModelSpec::of(&spec.into()), Ok(spec));
        }
    }

    #[test]
    fn what_is_no_decoder_is_refused_in_a_sentence() {
        let check = |change: fn(&mut Model), part: &str| {
            let mut model = Model::from(Preset::Tiny.model(300));
            change(&mut model);
            let error = ModelSpec::of(&model).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(|model| model.architecture.name = "bigrams".into(), "the architecture \"bigrams\"");
        check(|model| model.architecture.name.clear(), "an architecture without a name");
        check(|model| model.architecture.settings.truncate(9), "cannot be used");
        check(|model| model.context += 1, "not those that follow");
        check(|model| model.vocab += 1, "not those that follow");
        check(|model| model.tensors[0].cols += 1, "not those that follow");
        let none = ModelSpec { layers: 0, ..Preset::Tiny.model(300) };
        assert!(matches!(ModelSpec::of(&none.into()), Err(ModelError::Size { field: "layers", .. })));
    }
}
