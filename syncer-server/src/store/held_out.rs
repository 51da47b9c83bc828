//! Held-out windows: the fixed part of the held-out text on which losses are measured.

use archipelago_core::token;
use archipelago_core::wire::Model;
use serde::{Deserialize, Serialize};

/// Approximate number of held-out tokens in a measurement.
const EVAL_TOKENS: usize = 8_192;

/// Held-out windows of a run, which never change. The run's folder stores them, so that losses of earlier states can be
/// measured without the run's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOut {
    /// Number of tokens in a window: the model's context plus one.
    pub window: usize,
    /// Tokens of the windows, `[n, window]`, with `n` at least 1.
    pub tokens: Vec<u32>,
}

impl HeldOut {
    /// Selects windows of `context + 1` tokens, spread evenly over those windows of `held_out` that have target tokens.
    /// Returns `None` if there is no such window.
    #[must_use]
    pub fn of(held_out: &[u32], context: u32) -> Option<Self> {
        let window = context as usize + 1;
        let teaches = |tokens: &&[u32]| token::target_count(tokens, window - 1) > 0;
        let windows: Vec<&[u32]> = held_out.chunks_exact(window).filter(teaches).collect();
        let count = EVAL_TOKENS.div_ceil(window).min(windows.len());
        let stride = windows.len().checked_div(count)?;
        let tokens = windows.iter().step_by(stride).take(count).copied().flatten().copied().collect();
        Some(Self { window, tokens })
    }

    /// Returns true if the loss of a model with the shape of `model` can be measured on these windows.
    #[must_use]
    pub fn fits(&self, model: &Model) -> bool {
        self.window == model.context as usize + 1
            && !self.tokens.is_empty()
            && self.tokens.len().is_multiple_of(self.window)
            && self.tokens.iter().all(|&token| token::id(token) < model.vocab)
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
    fn windows_of_which_nothing_is_learnt_are_left_out() {
        let given = |at: u32| if at / 65 % 3 == 1 { at | token::MASKED } else { at };
        let text: Vec<u32> = (0..65 * 9).map(given).collect();
        let held_out = HeldOut::of(&text, 64).unwrap();
        assert_eq!(held_out.tokens.len(), 6 * 65);
        assert!(held_out.tokens.iter().all(|&token| token::is_target(token)));
        let nothing: Vec<u32> = text.iter().map(|token| token | token::MASKED).collect();
        assert_eq!(HeldOut::of(&nothing, 64), None);
    }

    #[test]
    fn fits_only_the_model_that_it_was_cut_for() {
        let model = Model::from(archipelago_core::model::Preset::Tiny.model(256));
        let mut text = [255; 1_000];
        text[1] |= token::MASKED;
        let held_out = HeldOut::of(&text, model.context).unwrap();
        assert!(held_out.fits(&model));
        assert!(!held_out.fits(&Model { vocab: 255, ..model.clone() }), "a token that it does not know");
        assert!(!held_out.fits(&Model { context: model.context / 2, ..model.clone() }));
        let HeldOut { window, mut tokens } = held_out;
        tokens.pop();
        assert!(!HeldOut { window, tokens }.fits(&model));
    }
}
