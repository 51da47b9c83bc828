//! Text of a run: reading, tokenisation, held-out part and shards.

mod cutting;
mod documents;
mod foreign;
mod limits;
mod memory;
mod parquet;
mod read;
mod records;
mod stops;
mod tables;
mod vocabulary;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;

use archipelago_core::bytes::hex;
use archipelago_core::data::{self, SHARD_TOKENS_MAX};
use archipelago_core::token;
use archipelago_core::wire::DataSpec;
use axum::body::Bytes;
use sha2::{Digest, Sha256};

use crate::config::ServeConfig;
use crate::errors::ServerError;
use crate::llama::Chat;

use documents::{End, Ends, Form, Lines, Read};
use memory::Budget;
use read::Text;

pub use documents::Template;
pub use read::{Source, read};
pub use stops::Stops;
pub use vocabulary::Vocabulary;

/// Number of steps of one learner per pass over the text. Below it, `validate` and `serve` warn that passes are short.
const STEPS_FEW: u64 = 100;
/// Size of a shard in bytes, unless that gives too many shards. At 1 Mbit/s a joiner has its first text after 2
/// seconds.
const SHARD_BYTES: u32 = 256 << 10;
/// Number of shards from which shards become larger. Each shard takes about 40 bytes of the greeting, which precedes
/// any text.
const SHARDS_FEW: u64 = 256;

/// Tokenised text of a run.
pub struct Corpus {
    /// Conversion between text and tokens.
    pub vocabulary: Vocabulary,
    /// Content of the vocabulary's `tokenizer.json`. A file that the owner gives is kept unchanged.
    pub tokenizer: String,
    /// Description of the shards for learners.
    pub spec: DataSpec,
    /// Bytes of the shards, in order; [`DataSpec`] describes them.
    pub shards: Vec<Bytes>,
    /// Tokens of the held-out text, which are never trained on.
    pub held_out: Vec<u32>,
    /// Average bytes of text per held-out token.
    pub bytes_per_token: f64,
    /// Lower bound of the loss in nats per byte, if the text's source is known.
    pub entropy_floor: Option<f64>,
    /// SHA-256 of the text and of its tokenisation, in hexadecimal.
    pub hash: String,
    /// Number of training tokens that are targets; the others are masked.
    pub targets: u64,
    /// Number of tokens in each document; empty for plain text.
    lengths: Vec<u32>,
    /// Readable description of how the files were read.
    pub read_as: String,
    /// Warnings for the owner about the files, one sentence each.
    file_warnings: Vec<String>,
    /// Highest token of the whole text, including the held-out part.
    pub token_max: u32,
    /// Tokens at which the model stops writing.
    pub stops: Stops,
    /// Warning that the conversations do not teach the model to stop, if that is so.
    never_stops: Option<String>,
}

impl Corpus {
    /// Prepares the text of `source`, which `config` names, according to `conventions`.
    ///
    /// # Errors
    /// - `DataLine`, `DataTooFew`: its records are not documents, or too few.
    /// - `Tokenizer`: the tokenizer cannot be read, trained or used.
    /// - `Config`: the held-out share is out of range.
    /// - `Memory`: the text is too large for this machine.
    pub fn load(
        config: &ServeConfig,
        source: Source,
        conventions: &TextConventions<'_>,
    ) -> Result<Self, ServerError> {
        check_share(config.identity.held_out)?;
        Budget::of_machine().check(source.bytes())?;
        match source {
            Source::Text(text) => Self::of_text(config, conventions, text),
            Source::Lines(files) => Self::of_lines(config, conventions, files),
        }
    }

    fn of_text(
        config: &ServeConfig,
        conventions: &TextConventions<'_>,
        text: Text,
    ) -> Result<Self, ServerError> {
        let hash = hash(config, &Sha256::digest(text.text.as_bytes()), conventions.given)?;
        let (train, held_out) = split_text(&text.text, config.identity.held_out);
        let (vocabulary, tokenizer) =
            Vocabulary::load(config, || train.into(), conventions.given, conventions.kept)?;

        let tokens = vocabulary.encode(train)?;
        let (spec, shards) = cut(&tokens, vocabulary.size())?;
        let held_out_bytes = held_out.len() as f64;
        let held_out = vocabulary.encode(held_out)?;
        let token_max = token_max(&tokens, &held_out);
        let bytes_per_token = held_out_bytes / (held_out.len() as f64).max(1.0);
        let read_as = format!("plain text{}", unpacked(text.packed_by));
        let stops = Stops::new(conventions.stops.to_vec(), conventions.chat, &vocabulary);
        Ok(Self {
            vocabulary,
            tokenizer,
            spec,
            shards,
            held_out,
            bytes_per_token,
            entropy_floor: text.entropy_floor,
            hash,
            targets: tokens.len() as u64,
            lengths: Vec::new(),
            read_as,
            file_warnings: text.warnings,
            token_max,
            stops,
            never_stops: None,
        })
    }

    fn of_lines(
        config: &ServeConfig,
        conventions: &TextConventions<'_>,
        files: Vec<Lines>,
    ) -> Result<Self, ServerError> {
        let chat = conventions.chat;
        let column = config.identity.column.as_deref();
        let hash = hash(config, &documents::hash(&files, chat, column), conventions.given)?;
        let packed_by = files.iter().find_map(|file| file.packed_by);
        let Read { documents, forms } = documents::read(files, chat, column)?;
        let read_as = described(&forms) + &unpacked(packed_by);
        let file_warnings = forms.get(&Form::AlpacaCompletion).map(|count| {
            format!(
                "{count} documents with \"instruction\" and \"output\" are learnt with Alpaca's prompt as plain text, \
                 since the model has no chat template: give --chat-template to write them as conversations"
            )
        });
        let plain = || documents::plain(&documents).into();
        let (vocabulary, tokenizer) = Vocabulary::load(config, plain, conventions.given, conventions.kept)?;
        let end = chat.tokens.get("eos_token").and_then(|text| vocabulary.token(text)).or(conventions.end);
        let ends = Ends::new(&vocabulary, end)?;
        let has_turns = documents.iter().any(|document| document.end == End::Masked);
        let documents =
            documents::cut(&documents, &vocabulary, &ends, config.identity.held_out, config.identity.seed)?;
        let stops = Stops::new(conventions.stops.to_vec(), chat, &vocabulary);
        let never_stops = has_turns.then(|| stops.warning(&documents.train, &vocabulary)).flatten();
        let (spec, shards) = cut(&documents.train, vocabulary.size())?;
        let targets = documents.train.iter().filter(|&&token| token::is_target(token)).count() as u64;
        let token_max = token_max(&documents.train, &documents.held_out);
        let (held_out, bytes_per_token) = (documents.held_out, documents.bytes_per_token);
        Ok(Self {
            vocabulary,
            tokenizer,
            spec,
            shards,
            held_out,
            bytes_per_token,
            entropy_floor: None,
            hash,
            targets,
            lengths: documents.lengths,
            read_as,
            file_warnings: file_warnings.into_iter().collect(),
            token_max,
            stops,
            never_stops,
        })
    }

    /// Returns the number of training tokens.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.spec.shards.iter().map(|shard| shard.tokens).sum()
    }

    /// Returns the number of documents, or `None` for plain text.
    #[must_use]
    pub fn documents(&self) -> Option<u64> {
        (!self.lengths.is_empty()).then_some(self.lengths.len() as u64)
    }

    /// Returns the number of documents that are longer than a window of `context` tokens, which are trained on in
    /// pieces.
    #[must_use]
    pub fn documents_longer(&self, context: u32) -> u64 {
        self.lengths.iter().filter(|&&length| length > context).count() as u64
    }

    /// Returns the number of steps of one learner in one pass, with batches of `batch` windows of `context` tokens.
    #[must_use]
    pub fn steps(&self, context: u32, batch: u32) -> u64 {
        self.windows(context) / u64::from(batch).max(1)
    }

    /// Returns the number of windows of `context` tokens in one pass.
    #[must_use]
    pub fn windows(&self, context: u32) -> u64 {
        self.spec.shards.iter().map(|shard| u64::from(data::windows(shard.tokens, context))).sum()
    }

    /// Returns warnings for the owner, a sentence each, about a run with windows of `context` tokens and batches of
    /// `batch` windows.
    #[must_use]
    pub fn warnings(&self, context: u32, batch: u32) -> Vec<String> {
        let steps = self.steps(context, batch);
        let few = (steps < STEPS_FEW).then(|| {
            format!(
                "{} windows are few for batches of {batch}: a pass over the text is {} of one learner. Learners see \
                 the same text often, and new learners may have to wait for text at the end of a pass; use a smaller \
                 --batch, a shorter --context, or more text",
                self.windows(context),
                if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") },
            )
        });
        self.file_warnings.iter().chain(&self.never_stops).cloned().chain(few).collect()
    }

    /// Checks that the text is long enough for windows of `context` tokens, batches of `batch` windows and one held-out
    /// window.
    ///
    /// # Errors
    /// `DataTooSmall`.
    pub fn check_size(&self, context: u32, batch: u32) -> Result<(), ServerError> {
        let windows = self.windows(context);
        let (tokens, held_out) = (self.tokens(), self.held_out.len() as u64);
        if windows < u64::from(batch) || held_out <= u64::from(context) {
            // One window is lost to the epoch's offset, and one makes up for rounding.
            let train_min = u64::from(context) * (u64::from(batch) + 2);
            let share = held_out as f64 / (tokens + held_out).max(1) as f64;
            let by_held_out = (f64::from(context + 2) / share.max(1e-3)) as u64;
            let tokens_min = (train_min + u64::from(context) + 2).max(by_held_out);
            let read_as = self.read_as.clone();
            return Err(ServerError::DataTooSmall { read_as, tokens: tokens + held_out, tokens_min });
        }
        Ok(())
    }
}

/// Returns the end of a text's description that names its compression; empty for an uncompressed text.
fn unpacked(packed_by: Option<&str>) -> String {
    packed_by.map_or_else(String::new, |by| format!(", unpacked from {by}"))
}

/// Describes documents by their number and forms.
fn described(forms: &BTreeMap<Form, usize>) -> String {
    let documents: usize = forms.values().sum();
    let titles: Vec<String> = match forms.len() {
        1 => forms.keys().map(|form| form.title().to_owned()).collect(),
        _ => forms.iter().map(|(form, count)| format!("{count} with {}", form.title())).collect(),
    };
    format!("{documents} documents ({})", titles.join(", "))
}

/// Text conventions of the model that a run begins with.
#[derive(Clone, Copy, Debug)]
pub struct TextConventions<'a> {
    /// Path of the `tokenizer.json` to use, if any.
    pub given: Option<&'a Path>,
    /// Path of the tokenizer from an earlier start of the same run, used instead of training a new one.
    pub kept: Option<&'a Path>,
    /// Chat format of the model.
    pub chat: &'a Chat,
    /// End-of-text token, used if [`Self::chat`] names none.
    pub end: Option<u32>,
    /// Stop tokens of the model, according to its folder.
    pub stops: &'a [u32],
}

/// Returns the highest token id in `train` and `held_out`, including masked tokens.
fn token_max(train: &[u32], held_out: &[u32]) -> u32 {
    train.iter().chain(held_out).map(|&token| token::id(token)).max().unwrap_or_default()
}

/// Cuts `tokens`, of a vocabulary with `vocab` entries, into shards. Some tokens may be masked.
fn cut(tokens: &[u32], vocab: u32) -> Result<(DataSpec, Vec<Bytes>), ServerError> {
    let (token_bytes, masks) =
        (data::token_bytes(vocab), !tokens.iter().all(|&token| token::is_target(token)));
    let split = data::split(tokens, 0.0, shard_tokens(tokens.len() as u64, token_bytes));
    let too_small =
        |_| ServerError::DataTooSmall { read_as: "nothing to train on".to_owned(), tokens: 0, tokens_min: 1 };
    let split = split.map_err(too_small)?;
    let mut spec = DataSpec { token_bytes, masks, shards: Vec::new() };
    let mut shards = Vec::new();
    for shard in split.shards {
        let bytes = data::encode_shard(shard, &spec).map_err(internal)?;
        let described = data::shard_spec(&bytes, &spec).map_err(internal)?;
        spec.shards.push(described);
        shards.push(Bytes::from(bytes));
    }
    Ok((spec, shards))
}

/// Returns the number of tokens per shard for a text of `tokens` tokens. It is doubled up to [`SHARD_TOKENS_MAX`]
/// while there would be too many shards.
fn shard_tokens(tokens: u64, token_bytes: u8) -> NonZeroU32 {
    let mut each = SHARD_BYTES / u32::from(token_bytes).max(1);
    while tokens / u64::from(each) >= SHARDS_FEW && each < SHARD_TOKENS_MAX.get() {
        each *= 2;
    }
    NonZeroU32::new(each).unwrap_or(SHARD_TOKENS_MAX)
}

/// Checks the held-out share.
///
/// # Errors
/// `Config`: the share holds out nothing, or everything.
fn check_share(held_out_ratio: f64) -> Result<(), ServerError> {
    if held_out_ratio > 0.0 && held_out_ratio < 1.0 {
        return Ok(());
    }
    let why = format!(
        "--held-out {held_out_ratio} is out of range: give a share above 0 and below 1, since the loss is measured on \
         that part of the text"
    );
    Err(ServerError::Config { why })
}

/// Splits a text into its training part and its held-out part.
fn split_text(text: &str, held_out_ratio: f64) -> (&str, &str) {
    let at = text.len() - (text.len() as f64 * held_out_ratio) as usize;
    text.split_at(text.floor_char_boundary(at))
}

fn hash(config: &ServeConfig, text: &[u8], tokenizer: Option<&Path>) -> Result<String, ServerError> {
    let mut sha = Sha256::new();
    sha.update(text);
    sha.update(format!("held-out {} vocab {:?}\n", config.identity.held_out, config.identity.vocab));
    if let Some(path) = tokenizer {
        sha.update(vocabulary::read_tokenizer(path)?);
    }
    Ok(hex(&sha.finalize()))
}

fn internal(error: impl std::fmt::Display) -> ServerError {
    ServerError::Internal { what: format!("the corpus could not be cut into shards: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_small_or_few() {
        let shard = |tokens, token_bytes| shard_tokens(tokens, token_bytes).get();
        assert_eq!((shard(1_000, 2), shard(1_000, 4)), (1 << 17, 1 << 16));
        assert_eq!(
            (shard(255 << 17, 2), shard(256 << 17, 2), shard(600 << 17, 2)),
            (1 << 17, 1 << 18, 1 << 19)
        );
        assert_eq!(shard(u64::MAX, 2), SHARD_TOKENS_MAX.get());
    }

    #[test]
    fn splits_between_characters() {
        assert!(check_share(0.0).unwrap_err().to_string().contains("--held-out 0 is out of range"));
        assert_eq!(split_text("aéé", 0.2), ("aé", "é"));
        assert!(check_share(1.0).is_err());
        assert!(check_share(f64::NAN).is_err());
    }
}
