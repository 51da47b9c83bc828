//! Vocabulary of a file: a byte-level BPE from a `tokenizer.json`.
//!
//! llama.cpp knows how to split texts only by name, so each known way of splitting has one here. Other tokenizers are
//! refused, since they would read the same text as other tokens than in training.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::Value;
use super::splitting::{Splitting, splitting};

/// Number of a token's type: a part of text.
const NORMAL: i32 = 1;
/// A token that llama.cpp shows only on request.
const CONTROL: i32 = 3;
/// An added token that is text.
const USER_DEFINED: i32 = 4;
/// A row of the embedding without a token.
const UNUSED: i32 = 5;

/// Character of the byte 0xff in byte-level tokenizers. No UTF-8 text has this byte.
const NEVER: &str = "ÿ";

/// Reason why llama.cpp cannot read texts as the run's tokenizer does.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("GGUF has no tokenizer like that of the run: {why}; export for transformers instead")]
pub struct VocabularyError {
    why: String,
}

impl VocabularyError {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}

/// Content of a `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pub(super) pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    pub(super) model: Bpe,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// Model of a tokenizer. Files of early versions omit its type.
#[derive(Deserialize)]
pub(super) struct Bpe {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    vocab: BTreeMap<String, u32>,
    pub(super) merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// Two tokens that are merged, as one text or a pair.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    Text(String),
    Pair(String, String),
}

/// Special tokens of a model.
#[derive(Clone, Debug, Default)]
pub struct GgufVocabulary<'a> {
    /// Content of the run's `tokenizer.json`.
    pub tokenizer: &'a str,
    /// Rows of the embedding.
    pub rows: u32,
    /// Token that begins a text, if any.
    pub bos: Option<u32>,
    /// Token that pads batches, if any.
    pub pad: Option<u32>,
    /// Tokens at which the model stops writing, the most important first. A file holds three.
    pub stops: &'a [u32],
    /// Chat template, if any.
    pub template: Option<&'a str>,
    /// Chat template for conversations with tools, if any.
    pub tool_template: Option<&'a str>,
}

impl GgufVocabulary<'_> {
    /// Returns the entries of a file.
    ///
    /// # Errors
    /// [`VocabularyError`]: the tokenizer is not a byte-level BPE that llama.cpp knows.
    pub fn entries(&self) -> Result<Vec<(String, Value)>, VocabularyError> {
        let tokenizer = parse(self.tokenizer)?;
        let Splitting { name, .. } = splitting(&tokenizer)?;
        check(&tokenizer)?;
        let (tokens, types) = self.tokens(&tokenizer)?;
        let around = around(&tokenizer.post_processor)?;
        let never = tokenizer.model.vocab.get(NEVER).copied();
        let stop = self.stops.first().copied();
        if let Some(last) = around.after.filter(|last| Some(*last) != stop) {
            let why = format!("it ends texts with token {last}, which is not the model's end of text");
            return Err(VocabularyError::new(why));
        }
        let mut entries = vec![
            ("tokenizer.ggml.model", Value::Text("gpt2".to_owned())),
            ("tokenizer.ggml.pre", Value::Text(name.to_owned())),
            ("tokenizer.ggml.tokens", Value::Texts(tokens)),
            ("tokenizer.ggml.token_type", Value::Numbers(types)),
            ("tokenizer.ggml.merges", Value::Texts(merges(&tokenizer.model)?)),
            ("tokenizer.ggml.add_bos_token", Value::Bool(around.before.is_some())),
            ("tokenizer.ggml.add_eos_token", Value::Bool(around.after.is_some())),
        ];
        // Without these entries, llama.cpp takes token 11 for both.
        let ids = [
            ("tokenizer.ggml.bos_token_id", around.before.or(self.bos).or(never)),
            ("tokenizer.ggml.eos_token_id", stop.or(never)),
            ("tokenizer.ggml.eot_token_id", self.stops.get(1).copied()),
            ("tokenizer.ggml.eom_token_id", self.stops.get(2).copied()),
            ("tokenizer.ggml.padding_token_id", self.pad),
        ];
        let ids = ids.into_iter().filter_map(|(key, id)| Some((key, id.filter(|id| *id < self.rows)?)));
        entries.extend(ids.map(|(key, id)| (key, Value::U32(id))));
        let templates = [
            ("tokenizer.chat_template", self.template.or(self.tool_template)),
            ("tokenizer.chat_template.tool_use", self.tool_template),
        ];
        let templates = templates.into_iter().filter_map(|(key, template)| Some((key, template?)));
        entries.extend(templates.map(|(key, template)| (key, Value::Text(template.to_owned()))));
        Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Returns the texts and types of the tokens, one for each row of the embedding.
    fn tokens(&self, tokenizer: &Tokenizer) -> Result<(Vec<String>, Vec<i32>), VocabularyError> {
        let rows = self.rows as usize;
        let mut tokens = vec![None; rows];
        for (text, &id) in &tokenizer.model.vocab {
            let place = tokens.get_mut(id as usize).filter(|place| place.is_none());
            let why =
                || VocabularyError::new(format!("token {id} is there twice, or has no row in the model"));
            *place.ok_or_else(why)? = Some((text.as_str(), NORMAL));
        }
        // Added tokens may lack a row, and may repeat tokens of the vocabulary.
        for added in &tokenizer.added_tokens {
            if let Some(place) = tokens.get_mut(added.id as usize) {
                let kind = if added.special { CONTROL } else { USER_DEFINED };
                *place = Some((&added.content, kind));
            }
        }
        let mut texts = Vec::with_capacity(rows);
        let mut types = Vec::with_capacity(rows);
        let mut known = BTreeSet::new();
        for (id, token) in tokens.iter().enumerate() {
            let (text, kind) = match token {
                Some((text, kind)) => ((*text).to_owned(), *kind),
                None => (format!("[PAD{id}]"), UNUSED),
            };
            if text.is_empty() || !known.insert(text.clone()) {
                return Err(VocabularyError::new(format!("token {id} has no text of its own")));
            }
            texts.push(text);
            types.push(kind);
        }
        Ok((texts, types))
    }
}

fn parse(tokenizer: &str) -> Result<Tokenizer, VocabularyError> {
    let kind = serde_json::from_str::<Json>(tokenizer).ok().map(|json| json["model"]["type"].clone());
    let other = kind.filter(|kind| !kind.is_null() && *kind != json!("BPE"));
    if let Some(kind) = other {
        return Err(VocabularyError::new(format!(
            "its model is {kind}, but only byte-level BPE is exported"
        )));
    }
    serde_json::from_str(tokenizer)
        .map_err(|error| VocabularyError::new(format!("tokenizer.json cannot be read: {error}")))
}

/// Checks the parts of a tokenizer that GGUF cannot represent.
fn check(tokenizer: &Tokenizer) -> Result<(), VocabularyError> {
    let refused = |why: &str| Err(VocabularyError::new(why));
    let Bpe { kind, byte_fallback, continuing_subword_prefix, end_of_word_suffix, .. } = &tokenizer.model;
    if kind.as_deref().is_some_and(|kind| kind != "BPE") || *byte_fallback {
        return refused("only byte-level BPE is exported, not one with byte_fallback as in Llama 2");
    }
    let affixes = [continuing_subword_prefix, end_of_word_suffix];
    if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) {
        return refused("its tokens have a prefix or a suffix by their place in a word");
    }
    // llama.cpp omits NFC as well for the models that have it. Nearly all texts are in this form already.
    match &tokenizer.normalizer {
        Json::Null => Ok(()),
        normalizer if normalizer["type"] == "NFC" => Ok(()),
        normalizer => {
            Err(VocabularyError::new(format!("it changes texts with the normalizer {}", normalizer["type"])))
        }
    }
}

fn merges(bpe: &Bpe) -> Result<Vec<String>, VocabularyError> {
    let merge = |merge: &Merge| {
        let pair = match merge {
            Merge::Text(text) => text.split_once(' '),
            Merge::Pair(left, right) => Some((left.as_str(), right.as_str())),
        };
        let plain = |text: &str| !text.is_empty() && !text.contains(' ');
        let pair = pair.filter(|(left, right)| plain(left) && plain(right));
        let why = || VocabularyError::new("a merge in tokenizer.json is not two byte-level tokens");
        pair.map(|(left, right)| format!("{left} {right}")).ok_or_else(why)
    };
    bpe.merges.iter().map(merge).collect()
}

/// Tokens that a tokenizer adds around each text.
#[derive(Default)]
struct Around {
    before: Option<u32>,
    after: Option<u32>,
}

/// Returns the tokens that the post-processor adds to a text.
fn around(processor: &Json) -> Result<Around, VocabularyError> {
    let refused = || VocabularyError::new("it adds more than one token before or after each text");
    match processor["type"].as_str() {
        None | Some("ByteLevel") => Ok(Around::default()),
        Some("Sequence") => {
            let mut all = Around::default();
            for one in processor["processors"].as_array().into_iter().flatten() {
                let one = around(one)?;
                let is_twice = |old: Option<u32>, new: Option<u32>| old.is_some() && new.is_some();
                if is_twice(all.before, one.before) || is_twice(all.after, one.after) {
                    return Err(refused());
                }
                all = Around { before: all.before.or(one.before), after: all.after.or(one.after) };
            }
            Ok(all)
        }
        Some("TemplateProcessing") => {
            let pieces = processor["single"].as_array().map(Vec::as_slice).unwrap_or_default();
            let id = |piece: &Json| {
                let name = piece["SpecialToken"]["id"].as_str()?;
                let ids = processor["special_tokens"][name]["ids"].as_array()?;
                let [id] = &ids[..] else { return None };
                u32::try_from(id.as_u64()?).ok()
            };
            let is_text = |piece: &Json| piece.get("Sequence").is_some();
            match pieces {
                [text] if is_text(text) => Ok(Around::default()),
                [before, text] if is_text(text) => {
                    Ok(Around { before: Some(id(before).ok_or_else(refused)?), after: None })
                }
                [text, after] if is_text(text) => {
                    Ok(Around { before: None, after: Some(id(after).ok_or_else(refused)?) })
                }
                [before, text, after] if is_text(text) => Ok(Around {
                    before: Some(id(before).ok_or_else(refused)?),
                    after: Some(id(after).ok_or_else(refused)?),
                }),
                _ => Err(refused()),
            }
        }
        Some(other) => Err(VocabularyError::new(format!("it adds tokens to texts with {other}"))),
    }
}
