//! The text of a run: read, turned to tokens, cut into shards, a part of it held out.

mod read;
mod vocabulary;

use std::num::NonZeroU32;
use std::path::Path;

use archipelago_core::bytes::hex;
use archipelago_core::data::{self, SHARD_TOKENS_MAX};
use archipelago_core::wire::DataSpec;
use axum::body::Bytes;
use sha2::{Digest, Sha256};

use crate::config::ServeConfig;
use crate::errors::ServerError;

pub use read::{Text, read};
pub use vocabulary::Vocabulary;

/// Bytes of a shard, as long as these make few: at 1 Mbit/s a joiner has its first text after 2 seconds.
const SHARD_BYTES: u32 = 256 << 10;
/// How many shards are few. Each takes some 40 bytes of the greeting, which comes before any text.
const SHARDS_FEW: u64 = 256;

/// Everything a run needs of its text.
pub struct Corpus {
    /// Text ⇄ tokens.
    pub vocabulary: Vocabulary,
    /// The same as a `tokenizer.json`; one that was given is kept as it is.
    pub tokenizer: String,
    /// What learners are told of the shards.
    pub spec: DataSpec,
    /// The shards' bytes, in order; [`DataSpec`] describes them.
    pub shards: Vec<Bytes>,
    /// Tokens of the held-out text; nobody trains on them.
    pub held_out: Vec<u32>,
    /// Bytes of text behind one held-out token, on average.
    pub bytes_per_token: f64,
    /// Loss in nats per byte that no model can beat, where the text's source is known.
    pub entropy_floor: Option<f64>,
    /// SHA-256 of the text and of how it becomes tokens, in hexadecimal.
    pub hash: String,
}

impl Corpus {
    /// Reads and prepares the text that `config` names. `given` is the `tokenizer.json` to use, if there is one; `kept`
    /// is the tokenizer of an earlier start of the same run, taken instead of training one again.
    ///
    /// # Errors
    /// - `DataUnreadable`, `DataEmpty`, `DataBinary`: the text cannot be used.
    /// - `Tokenizer`: the tokenizer cannot be read, trained or used.
    /// - `Config`: the held-out share is out of range.
    pub fn load(
        config: &ServeConfig,
        given: Option<&Path>,
        kept: Option<&Path>,
    ) -> Result<Self, ServerError> {
        let text = read(config)?;
        let hash = hash(config, &text, given)?;
        let (train, held_out) = split_text(&text.text, config.held_out)?;
        let (vocabulary, tokenizer) = Vocabulary::load(config, train, given, kept)?;

        let tokens = vocabulary.encode(train)?;
        let token_bytes = data::token_bytes(vocabulary.size());
        let split = data::split(&tokens, 0.0, shard_tokens(tokens.len() as u64, token_bytes));
        let split = split.map_err(|_| ServerError::DataTooSmall { tokens: 0, tokens_min: 1 })?;
        let mut spec = DataSpec { token_bytes, shards: Vec::new() };
        let mut shards = Vec::new();
        for shard in split.shards {
            let bytes = data::encode_shard(shard, token_bytes).map_err(internal)?;
            spec.shards.push(data::shard_spec(&bytes, token_bytes).map_err(internal)?);
            shards.push(Bytes::from(bytes));
        }
        let held_out_bytes = held_out.len() as f64;
        let held_out = vocabulary.encode(held_out)?;
        let bytes_per_token = held_out_bytes / (held_out.len() as f64).max(1.0);
        Ok(Self {
            vocabulary,
            tokenizer,
            spec,
            shards,
            held_out,
            bytes_per_token,
            entropy_floor: text.entropy_floor,
            hash,
        })
    }

    /// Tokens to train on.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.spec.shards.iter().map(|shard| shard.tokens).sum()
    }

    /// Checks that there is text enough for windows of `context` tokens and batches of `batch` windows,
    /// and for one held-out window.
    ///
    /// # Errors
    /// `DataTooSmall`.
    pub fn check_size(&self, context: u32, batch: u32) -> Result<(), ServerError> {
        let windows: u64 =
            self.spec.shards.iter().map(|shard| u64::from(data::windows(shard.tokens, context))).sum();
        let (tokens, held_out) = (self.tokens(), self.held_out.len() as u64);
        if windows < u64::from(batch) || held_out <= u64::from(context) {
            // One window is lost to the epoch's offset, one makes up for rounding.
            let train_min = u64::from(context) * (u64::from(batch) + 2);
            let share = held_out as f64 / (tokens + held_out).max(1) as f64;
            let by_held_out = (f64::from(context + 2) / share.max(1e-3)) as u64;
            let tokens_min = (train_min + u64::from(context) + 2).max(by_held_out);
            return Err(ServerError::DataTooSmall { tokens: tokens + held_out, tokens_min });
        }
        Ok(())
    }
}

/// Tokens of a shard of a text of so many: small ones, or larger ones before there are too many, up to
/// [`SHARD_TOKENS_MAX`].
fn shard_tokens(tokens: u64, token_bytes: u8) -> NonZeroU32 {
    let mut each = SHARD_BYTES / u32::from(token_bytes).max(1);
    while tokens / u64::from(each) >= SHARDS_FEW && each < SHARD_TOKENS_MAX.get() {
        each *= 2;
    }
    NonZeroU32::new(each).unwrap_or(SHARD_TOKENS_MAX)
}

/// The text to train on and, after it, the text to hold out.
fn split_text(text: &str, held_out_ratio: f64) -> Result<(&str, &str), ServerError> {
    if !(held_out_ratio > 0.0 && held_out_ratio < 1.0) {
        let why = format!(
            "--held-out {held_out_ratio} is out of range: give a share above 0 and below 1, for the loss is measured \
             on that part of the text"
        );
        return Err(ServerError::Config { why });
    }
    let at = text.len() - (text.len() as f64 * held_out_ratio) as usize;
    Ok(text.split_at(text.floor_char_boundary(at)))
}

fn hash(config: &ServeConfig, text: &Text, tokenizer: Option<&Path>) -> Result<String, ServerError> {
    let mut sha = Sha256::new();
    sha.update(Sha256::digest(text.text.as_bytes()));
    sha.update(format!("held-out {} vocab {:?}\n", config.held_out, config.vocab));
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
        let text = "aéé";
        assert!(split_text(text, 0.0).unwrap_err().to_string().contains("--held-out 0 is out of range"));
        assert_eq!(split_text(text, 0.2).unwrap(), ("aé", "é"));
        assert!(split_text(text, 1.0).is_err());
        assert!(split_text(text, f64::NAN).is_err());
    }
}
