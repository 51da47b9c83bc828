//! What is measured on: a fixed part of the held-out text.

use archipelago_core::wire::ModelSpec;
use serde::{Deserialize, Serialize};

/// Tokens of held-out text that one measurement looks at, about.
const EVAL_TOKENS: usize = 8_192;

/// The part of the held-out text that is measured on, the same for a run's whole life. The run's folder keeps it, so
/// that earlier states of the run can be measured without its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// Tokens of a window, the model's context and one more.
    pub window: usize,
    /// The windows, `[n, window]`, `n` at least 1.
    pub tokens: Vec<u32>,
}

impl HeldOut {
    /// Windows of `context + 1` tokens, spread over `held_out`; `None` if that is shorter than one.
    #[must_use]
    pub fn of(held_out: &[u32], context: u32) -> Option<Self> {
        let window = context as usize + 1;
        let available = held_out.len() / window;
        let count = EVAL_TOKENS.div_ceil(window).min(available);
        if count == 0 {
            return None;
        }
        let stride = available / count * window;
        let tokens = (0..count).flat_map(|i| &held_out[i * stride..][..window]).copied().collect();
        Some(Self { window, tokens })
    }

    /// Whether a model like `spec` can be measured on it.
    #[must_use]
    pub fn fits(&self, spec: &ModelSpec) -> bool {
        self.window == spec.context as usize + 1
            && !self.tokens.is_empty()
            && self.tokens.len().is_multiple_of(self.window)
            && self.tokens.iter().all(|token| *token < spec.vocab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_spread_over_the_text_and_the_same_each_time() {
        let text: Vec<u32> = (0..100_000).map(|token| token % 251).collect();
        let held_out = HeldOut::of(&text, 64).unwrap();
        assert_eq!(held_out.tokens.len(), 127 * 65);
        assert_eq!(held_out.tokens[65..130], text[12 * 65..13 * 65], "every twelfth window");
        assert_eq!(HeldOut::of(&text, 64), Some(held_out));
        assert_eq!(HeldOut::of(&text[..64], 64), None);
        assert_eq!(HeldOut::of(&text[..65], 64).unwrap().tokens, text[..65]);
    }

    #[test]
    fn fits_only_the_model_that_it_was_cut_for() {
        let spec = archipelago_core::model::Preset::Tiny.model(256);
        let held_out = HeldOut::of(&[255; 1_000], spec.context).unwrap();
        assert!(held_out.fits(&spec));
        assert!(!held_out.fits(&ModelSpec { vocab: 255, ..spec }), "a token that it does not know");
        assert!(!held_out.fits(&ModelSpec { context: spec.context / 2, ..spec }));
        let HeldOut { window, mut tokens } = held_out;
        tokens.pop();
        assert!(!HeldOut { window, tokens }.fits(&spec));
    }
}
