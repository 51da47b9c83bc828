//! Settings of the built-in decoder: its named sizes, its description in a run, and the matrices with adapters.

use std::fmt;
use std::str::FromStr;

use super::{ModelError, layout};
use crate::wire::{Architecture, InnerSpec, Mixture, Model, Optimiser, Tensor};
use serde::{Deserialize, Serialize};

/// A Llama-shaped decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention; with experts, Mixtral-shaped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Size of the vocabulary, in tokens.
    pub vocab: u32,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Query heads; divides `d_model` into an even head width.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of the feed-forward layer.
    pub d_ff: u32,
    /// Longest sequence, in tokens; also the length of a training window.
    pub context: u32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Term added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Whether the output head is a separate matrix; otherwise it is the embedding. Absent from the encoding if false,
    /// so that models with a tied head keep their old bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untied_head: bool,
    /// Experts of each feed-forward layer. `None`, and absent from the encoding, for a dense layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertSpec>,
    /// Trained adapters on frozen weights. `None`, and absent from the encoding, if the weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,
}

impl ModelSpec {
    /// Returns the model without adapters; [`crate::model::layout`] of it is the layout of the weights.
    #[must_use]
    pub fn base(&self) -> Self {
        Self { lora: None, ..*self }
    }
}

/// A mixture of experts in each feed-forward layer, as in Mixtral: a router sends each token to some of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertSpec {
    /// E, the experts of a layer, each of the width `d_ff`; at least 2.
    pub count: u32,
    /// Number of experts that each token passes through, at least 1 and at most `count`.
    pub per_token: u32,
    /// Factor of the load-balancing loss relative to the loss of the text, 0 or more.
    pub aux_loss: f32,
}

/// Low-rank adapters on frozen matrices (Hu and others 2021, arXiv 2106.09685): `y = x Wᵀ + α / r · (x Aᵀ) Bᵀ`, where
/// only A and B are trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSpec {
    /// r, the rank of an adapter; 1 to [`crate::model::RANK_MAX`].
    pub rank: u32,
    /// α, the weight of adapters; positive.
    pub alpha: f32,
    /// Matrices that have adapters.
    pub targets: LoraTargets,
}

impl LoraSpec {
    /// Returns α / r, the factor of an adapter's output.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// Answer of [`crate::wire::http::MODEL`]: properties of the model for a program that writes text with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ModelView {
    /// Shape of the model, for an engine; a page need not interpret it.
    #[cfg_attr(feature = "ts", ts(type = "unknown"))]
    pub model: ModelSpec,
    /// Number of fragments in which the parameters are fetched.
    pub fragments: u16,
    /// True if each token is a byte, so that a page can decode tokens without a request.
    pub token_is_byte: bool,
    /// Tokens at which the model stops writing; they are not part of the text.
    #[serde(default)]
    pub stops: Vec<u32>,
}

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

/// Converts the settings of the decoder to a run's description of its model. The description of an invalid model has no
/// tensors, and [`ModelSpec::of`] returns the error.
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

/// A named size of the model, with suitable settings of the inner optimiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// About 0.1 M parameters: 2 layers of 64, context 64. For tests and slow tabs.
    Tiny,
    /// About 0.8 M parameters: 4 layers of 128, context 128. Learns to spell in minutes on a CPU.
    Small,
    /// About 10 M parameters: 6 layers of 384, context 256.
    Medium,
    /// About 124 M parameters with a vocabulary of 50 k: 12 layers of 768, context 512.
    Base,
    /// The shape of SmolLM2-135M: 134.5 M parameters with its vocabulary of 49,152; 30 layers of 576, context 512.
    Llama135m,
    /// The shape of SmolLM2-360M: 361.8 M parameters with its vocabulary of 49,152; 32 layers of 960, context 512.
    Llama360m,
}

impl Preset {
    /// All presets, smallest first.
    pub const ALL: [Self; 6] =
        [Self::Tiny, Self::Small, Self::Medium, Self::Base, Self::Llama135m, Self::Llama360m];

    /// Returns its name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Base => "base",
            Self::Llama135m => "llama-135m",
            Self::Llama360m => "llama-360m",
        }
    }

    /// Returns the shape for a vocabulary of `vocab` tokens.
    #[must_use]
    pub fn model(self, vocab: u32) -> ModelSpec {
        let (layers, d_model, heads, kv_heads, context) = match self {
            Self::Tiny => (2, 64, 4, 4, 64),
            Self::Small => (4, 128, 4, 4, 128),
            Self::Medium => (6, 384, 6, 6, 256),
            Self::Base => (12, 768, 12, 12, 512),
            Self::Llama135m => (30, 576, 9, 3, 512),
            Self::Llama360m => (32, 960, 15, 5, 512),
        };
        let is_own = !matches!(self, Self::Llama135m | Self::Llama360m);
        ModelSpec {
            vocab,
            d_model,
            layers,
            heads,
            kv_heads,
            // SwiGLU has three matrices; 8/3 of the width gives the usual parameter count, and matches SmolLM2 exactly.
            d_ff: (8 * d_model / 3).next_multiple_of(8),
            context,
            rope_theta: if is_own { 10_000.0 } else { 100_000.0 },
            norm_eps: 1e-5,
            untied_head: false,
            experts: None,
            lora: None,
        }
    }

    /// Returns batch, learning rates and horizon. A run sets `warmup_tokens` and `total_tokens` to its own length.
    #[must_use]
    pub fn inner(self) -> InnerSpec {
        let (lr_max, total_tokens) = match self {
            Self::Tiny => (4e-3, 2_000_000),
            Self::Small => (3e-3, 10_000_000),
            Self::Medium => (1e-3, 200_000_000),
            Self::Base => (6e-4, 2_500_000_000),
            Self::Llama135m => (6e-4, 2_700_000_000),
            Self::Llama360m => (4e-4, 7_200_000_000),
        };
        InnerSpec {
            batch: 8,
            lr_max,
            lr_min_ratio: 0.1,
            warmup_tokens: total_tokens / 20,
            total_tokens,
            beta1: 0.9,
            // A small batch needs a long memory: 0.99 beat 0.95 by 0.4 % with four learners of 8 windows.
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
            optimiser: Optimiser::AdamW,
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == name);
        found.ok_or_else(|| UnknownPreset { name: name.into() })
    }
}

/// An unknown preset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no preset {name:?}; choose tiny, small, medium, base, llama-135m or llama-360m")]
pub struct UnknownPreset {
    /// Requested name.
    pub name: String,
}

/// A matrix of a layer that can have an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoraTarget {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output of attention.
    O,
    /// Gates of the feed-forward layer.
    Gate,
    /// Up-projection of the feed-forward layer, which the gates multiply.
    Up,
    /// Output of the feed-forward layer.
    Down,
}

impl LoraTarget {
    /// All targets, in the order of the layout.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// Returns its name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::O => "o",
            Self::Gate => "gate",
            Self::Up => "up",
            Self::Down => "down",
        }
    }

    /// Returns the name of the matrix within a layer, as in Hugging Face: "self_attn.q_proj".
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }
}

/// A non-empty set of targets, parsed from and displayed as "q,k,v,o,gate,up,down".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LoraTargets(u8);

impl LoraTargets {
    /// All seven matrices.
    pub const ALL: Self = Self(0x7f);

    /// Returns true if `target` is in the set.
    #[must_use]
    pub fn contains(self, target: LoraTarget) -> bool {
        self.0 >> target as u8 & 1 == 1
    }

    /// Returns the targets in the set, in the order of the layout.
    pub fn iter(self) -> impl Iterator<Item = LoraTarget> {
        LoraTarget::ALL.into_iter().filter(move |target| self.contains(*target))
    }
}

impl fmt::Display for LoraTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.iter().map(LoraTarget::name).collect::<Vec<_>>().join(","))
    }
}

/// PEFT's name for all matrices of the layers.
const PEFT_ALL: &str = "all-linear";

/// Suffix of a matrix's name in PEFT.
const PEFT_SUFFIX: &str = "_proj";

impl FromStr for LoraTargets {
    type Err = TargetsError;

    /// Parses names separated by commas, in any order. Repeated names count once. PEFT's names, such as `q_proj` and
    /// `all-linear`, are accepted too.
    fn from_str(names: &str) -> Result<Self, TargetsError> {
        let mut set = 0;
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if name == PEFT_ALL {
                return Ok(Self::ALL);
            }
            let short = name.strip_suffix(PEFT_SUFFIX).unwrap_or(name);
            let found = LoraTarget::ALL.into_iter().find(|target| target.name() == short);
            let target = found.ok_or_else(|| TargetsError::Unknown { name: name.into() })?;
            set |= 1 << target as u8;
        }
        if set == 0 { Err(TargetsError::Empty) } else { Ok(Self(set)) }
    }
}

impl TryFrom<String> for LoraTargets {
    type Error = TargetsError;

    fn try_from(names: String) -> Result<Self, TargetsError> {
        names.parse()
    }
}

impl From<LoraTargets> for String {
    fn from(targets: LoraTargets) -> Self {
        targets.to_string()
    }
}

/// Reason why a text is not a set of targets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetsError {
    /// The set is empty.
    #[error("adapters need at least one target: choose from q,k,v,o,gate,up,down")]
    Empty,
    /// The name belongs to no matrix.
    #[error("there is no adapter target {name:?}; choose from q,k,v,o,gate,up,down")]
    Unknown {
        /// Name in the text.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LoraSpec, Preset, layout};
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

    #[test]
    fn has_the_promised_size() {
        let params = |preset: Preset, vocab| layout(&preset.model(vocab)).unwrap().len();
        assert_eq!(params(Preset::Tiny, 256), 117_056);
        assert_eq!(params(Preset::Small, 256), 824_448);
        assert_eq!(params(Preset::Medium, 256), 10_720_128);
        assert_eq!(params(Preset::Base, 50_257), 123_551_232);
        // As counted by their authors.
        assert_eq!(params(Preset::Llama135m, 49_152), 134_515_008);
        assert_eq!(params(Preset::Llama360m, 49_152), 361_821_120);
    }

    #[test]
    fn is_found_by_its_name_only() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(preset));
        }
        let error = "Tiny".parse::<Preset>().unwrap_err();
        for preset in Preset::ALL {
            assert!(error.to_string().contains(preset.name()), "{error}");
        }
    }

    #[test]
    fn a_set_is_shown_as_it_is_read() {
        let set = |names: &str| names.parse::<LoraTargets>();
        assert_eq!(set("q,k,v,o,gate,up,down"), Ok(LoraTargets::ALL));
        assert_eq!(LoraTargets::ALL.to_string(), "q,k,v,o,gate,up,down");
        assert_eq!(set(" down, q,q").unwrap().to_string(), "q,down");
        assert_eq!(set(","), Err(TargetsError::Empty));
        let error = set("q,head").unwrap_err().to_string();
        assert_eq!(error, "there is no adapter target \"head\"; choose from q,k,v,o,gate,up,down");
        assert_eq!(set("q_proj,v_proj, down"), set("q,v,down"));
        assert_eq!(set("all-linear"), Ok(LoraTargets::ALL));
        assert!(set("_proj").is_err() && set("q_proj_proj").is_err());
        for target in LoraTarget::ALL {
            assert_eq!(set(target.name()).unwrap().iter().collect::<Vec<_>>(), [target]);
        }
    }

    #[test]
    fn a_set_travels_as_its_names() {
        let set: LoraTargets = "v,q".parse().unwrap();
        assert_eq!(serde_json::to_string(&set).unwrap(), "\"q,v\"");
        assert_eq!(serde_json::from_str::<LoraTargets>("\"q,v\"").unwrap(), set);
        assert!(serde_json::from_str::<LoraTargets>("\"\"").is_err());
    }
}
