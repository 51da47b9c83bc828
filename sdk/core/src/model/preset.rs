//! Named sizes of the model.

use std::fmt;
use std::str::FromStr;

use super::ModelSpec;
use crate::wire::InnerSpec;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layout;

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
}
