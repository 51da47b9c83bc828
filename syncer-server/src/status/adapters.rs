//! JSON view of a run of adapters.

use archipelago_core::model::{LoraSpec, LoraTargets, ModelSpec, layout};
use archipelago_core::wire::FrozenForm;
use serde::{Deserialize, Serialize};

/// Adapters on weights that are not trained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct AdapterFacts {
    /// Rank of each adapter.
    pub rank: u32,
    /// Scale: each adapter adds this divided by the rank, times its product.
    pub alpha: f32,
    /// The matrices of a layer that have an adapter, as "q,k,v,o,gate,up,down".
    #[cfg_attr(test, ts(type = "string"))]
    pub targets: LoraTargets,
    /// Weights that are not trained.
    pub frozen_params: u64,
    /// Size of the frozen weights that a learner fetches once, in bytes.
    pub frozen_bytes: u64,
    /// Format of the frozen weights on the wire.
    pub frozen_form: FrozenForm,
}

impl AdapterFacts {
    /// Returns the facts for the model `decoder` if it has adapters, on weights sent as `form` in `bytes`.
    #[must_use]
    pub fn of(decoder: &ModelSpec, form: FrozenForm, bytes: u64) -> Option<Self> {
        let LoraSpec { rank, alpha, targets } = decoder.lora?;
        let frozen_params = layout(&decoder.base()).ok()?.len() as u64;
        Some(Self { rank, alpha, targets, frozen_params, frozen_bytes: bytes, frozen_form: form })
    }

    /// Describes the adapters of a run that trains `params` parameters.
    #[must_use]
    pub fn describe(&self, params: u64) -> String {
        let Self { rank, targets, frozen_params, frozen_bytes, frozen_form, .. } = self;
        let share = 100.0 * params as f64 / (params + frozen_params) as f64;
        format!(
            "adapters of rank {rank} on {targets}: {params} parameters are trained, {share:.2} % of all; learners \
             fetch the other {frozen_params} once, {:.1} MB as {frozen_form}",
            *frozen_bytes as f64 / 1e6
        )
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::Preset;

    use super::*;

    #[test]
    fn the_share_that_is_trained_is_told() {
        let lora = Some(LoraSpec { rank: 8, alpha: 16.0, targets: "q,v".parse().unwrap() });
        let decoder = ModelSpec { lora, ..Preset::Tiny.model(256) };
        let facts = AdapterFacts::of(&decoder, FrozenForm::Int8, 2_500_000).unwrap();
        assert_eq!(facts.frozen_params, layout(&decoder.base()).unwrap().len() as u64);
        let words = facts.describe(facts.frozen_params);
        for part in ["rank 8 on q,v", "50.00 % of all", "2.5 MB as int8"] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(AdapterFacts::of(&decoder.base(), FrozenForm::F16, 1), None);
    }
}
