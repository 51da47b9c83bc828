//! Tokens that begin, end and pad texts, as far as a folder names them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Maximum number of tokens that end a text. Further ones are left out.
const ENDS_MAX: usize = 16;

/// Maximum size of a token's text, in bytes. Longer ones are left out.
const TEXT_BYTES_MAX: usize = 256;

/// Special tokens of a folder. Training does not need them, but exports repeat them, so that generated texts end as
/// before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecialTokens {
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Token that pads batches.
    pub pad: Option<u32>,
    /// Tokens that end a generated text, by `generation_config.json`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generation_eos: Vec<u32>,
}

impl SpecialTokens {
    /// Reads the special tokens in `config`, for a vocabulary of `vocab` tokens. Values outside the vocabulary are
    /// ignored, such as the -1 in old folders.
    pub(super) fn of(config: &Map<String, Value>, vocab: u32) -> Self {
        let one = |key: &str| config.get(key).and_then(|value| token(value, vocab));
        let (bos, pad) = (one("bos_token_id"), one("pad_token_id"));
        Self { bos, eos: ends(config, vocab), pad, generation_eos: Vec::new() }
    }

    /// Adds the tokens that end a text by `generation`, the content of a `generation_config.json`.
    pub(super) fn add_generation(&mut self, generation: &Map<String, Value>, vocab: u32) {
        self.generation_eos = ends(generation, vocab);
    }

    /// Returns the tokens at which generation stops: first those of `generation_config.json`, then those of
    /// `config.json`.
    #[must_use]
    pub fn stops(&self) -> Vec<u32> {
        let mut stops = self.generation_eos.clone();
        stops.extend(self.eos.iter().filter(|id| !self.generation_eos.contains(id)));
        stops
    }

    /// Returns the ids under their keys in Hugging Face configurations.
    pub(super) fn ids(&self) -> [(&'static str, Value); 3] {
        [
            ("bos_token_id", json!(self.bos)),
            ("eos_token_id", id_value(&self.eos)),
            ("pad_token_id", json!(self.pad)),
        ]
    }

    /// Returns the tokens' texts under their keys in `tokenizer_config.json`. `tokenizer` is the content of
    /// `tokenizer.json`.
    pub(super) fn texts(&self, tokenizer: &str) -> Vec<(&'static str, Value)> {
        if *self == Self::default() {
            return Vec::new();
        }
        let tokenizer: Value = serde_json::from_str(tokenizer).unwrap_or_default();
        let added = tokenizer["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |id: u32| {
            let token = added.iter().find(|token| token["id"] == id)?;
            token["content"].as_str().filter(|text| text.len() <= TEXT_BYTES_MAX).map(|text| json!(text))
        };
        let ids =
            [("bos_token", self.bos), ("eos_token", self.eos.first().copied()), ("pad_token", self.pad)];
        ids.into_iter().filter_map(|(key, id)| Some((key, text(id?)?))).collect()
    }
}

fn token(value: &Value, vocab: u32) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| id < vocab)
}

/// Returns the tokens that end a text by `config`, which has a single id or a list.
fn ends(config: &Map<String, Value>, vocab: u32) -> Vec<u32> {
    match config.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(|id| token(id, vocab)).take(ENDS_MAX).collect(),
        Some(id) => token(id, vocab).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Returns `ids` as in a configuration: null, a number or a list.
pub(super) fn id_value(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [one] => json!(one),
        several => json!(several),
    }
}
