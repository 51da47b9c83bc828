//! Description of the built-in decoder in a run.

use super::{ExpertSpec, ModelError, ModelSpec, layout};
use crate::wire::{Architecture, Mixture, Model, Tensor};

/// Name of the built-in decoder in [`Architecture::name`].
pub const DECODER: &str = "llama";

impl ModelSpec {
    /// Returns the settings of the built-in decoder in `model`.
    ///
    /// # Errors
    /// - [`ModelError::Foreign`]: the architecture is another one.
    /// - [`ModelError::Settings`]: the settings cannot be read, or contradict the context, vocabulary or tensors of
    ///   `model`.
    /// - Those of [`layout`]: the decoder cannot be built.
    pub fn of(model: &Model) -> Result<Self, ModelError> {
        let Architecture { name, settings } = &model.architecture;
        if name != DECODER {
            return Err(ModelError::Foreign { name: name.clone() });
        }
        let wrong = |why: String| ModelError::Settings { why };
        let spec: Self = rmp_serde::from_slice(settings).map_err(|error| wrong(error.to_string()))?;
        let layout = layout(&spec)?;
        // Early runs merged adapters radially; the merge rule in the run's description is kept.
        let is_same = |(ours, theirs): (&Tensor, &Tensor)| {
            let merge = if spec.lora.is_some() { ours.merge } else { theirs.merge };
            *ours == Tensor { merge, ..theirs.clone() }
        };
        let tensors = layout.tensors();
        let are_same =
            tensors.len() == model.tensors.len() && tensors.iter().zip(&model.tensors).all(is_same);
        let says = (spec.context, spec.vocab, spec.mixture());
        if !are_same || says != (model.context, model.vocab, model.experts) {
            return Err(wrong(
                "context, vocabulary, tensors or experts do not match the model's sizes".into(),
            ));
        }
        Ok(spec)
    }

    fn mixture(&self) -> Option<Mixture> {
        self.experts.map(|ExpertSpec { count, per_token, .. }| Mixture { count, per_token })
    }
}

/// Converts to a run's description. An invalid model has no tensors, and [`ModelSpec::of`] returns the error.
impl From<ModelSpec> for Model {
    fn from(spec: ModelSpec) -> Self {
        let settings = rmp_serde::to_vec_named(&spec).expect("plain data");
        Self {
            context: spec.context,
            vocab: spec.vocab,
            tensors: layout(&spec).map(|layout| layout.tensors().to_vec()).unwrap_or_default(),
            architecture: Architecture { name: DECODER.into(), settings },
            experts: spec.mixture(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LoraSpec, Preset};
    use crate::wire::MergeClass;

    /// Goal: early adapter runs with radial merges are still accepted; other models with changed merge rules are not.
    #[test]
    fn adapters_of_before_are_read() {
        let radial = |spec: ModelSpec| {
            let mut model = Model::from(spec);
            model.tensors.iter_mut().for_each(|tensor| tensor.merge = MergeClass::Radial);
            model
        };
        let lora = Some(LoraSpec { rank: 2, alpha: 4.0, targets: "q,v".parse().unwrap() });
        let adapters = ModelSpec { lora, ..Preset::Tiny.model(300) };
        assert_eq!(ModelSpec::of(&radial(adapters)).unwrap(), adapters);
        assert!(matches!(ModelSpec::of(&radial(adapters.base())), Err(ModelError::Settings { .. })));
    }

    #[test]
    fn a_decoder_comes_back() {
        for untied_head in [false, true] {
            let dense = ModelSpec { untied_head, ..Preset::Tiny.model(300) };
            let experts = Some(ExpertSpec { count: 4, per_token: 2, aux_loss: 0.01 });
            for spec in [dense, ModelSpec { experts, ..dense }] {
                assert_eq!(ModelSpec::of(&spec.into()), Ok(spec));
            }
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
        check(|model| model.architecture.settings.truncate(9), "are invalid");
        check(|model| model.context += 1, "do not match the model's sizes");
        check(|model| model.vocab += 1, "do not match the model's sizes");
        check(|model| model.tensors[0].cols += 1, "do not match the model's sizes");
        check(
            |model| model.experts = Some(Mixture { count: 2, per_token: 1 }),
            "do not match the model's sizes",
        );
        let none = ModelSpec { layers: 0, ..Preset::Tiny.model(300) };
        assert!(matches!(ModelSpec::of(&none.into()), Err(ModelError::Size { field: "layers", .. })));
    }
}
