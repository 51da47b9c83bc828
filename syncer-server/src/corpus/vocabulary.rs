//! Text ⇄ tokens: bytes, or byte-level BPE from the `tokenizers` crate.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use archipelago_core::data::{BYTE_VOCAB, bytes_to_tokens, tokens_to_text};
use serde_json::json;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Model, Tokenizer};

use crate::config::ServeConfig;
use crate::errors::ServerError;

/// How text becomes tokens and tokens text.
pub enum Vocabulary {
    /// A token is a byte.
    Bytes,
    /// A Hugging Face tokenizer.
    Tokenizer(Box<Tokenizer>),
}

/// Runs `work` of the crate `tokenizers`, which panics with some files that are no tokenizers.
///
/// # Errors
/// `Tokenizer`: it did.
fn contained<T>(work: impl FnOnce() -> T) -> Result<T, ServerError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| ServerError::Tokenizer {
        why: "tokenizer.json is damaged, or of a kind that cannot be used here: give one of Hugging Face's tokenizers"
            .into(),
    })
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which one.
    pub token: u32,
    /// Where in the text it is from, in bytes; blanks before and after may be left out.
    pub bytes: Range<usize>,
}

/// Texts handed to a tokenizer at once.
const TEXTS_AT_ONCE: usize = 256;

/// Text handed to a tokenizer in one piece, in bytes; it keeps memory bounded.
const PIECE_BYTES: usize = 1 << 20;

/// Tokens of a BPE vocabulary at least: every byte has one.
const VOCAB_MIN: u32 = BYTE_VOCAB;

impl Vocabulary {
    /// The vocabulary that `config` names, and its `tokenizer.json`: the `given` one, the `kept` one of an earlier
    /// start, one trained on `train`, or bytes.
    ///
    /// # Errors
    /// `Tokenizer`: the file is no tokenizer, or `--vocab` is out of range.
    pub fn load(
        config: &ServeConfig,
        train: &str,
        given: Option<&Path>,
        kept: Option<&Path>,
    ) -> Result<(Self, String), ServerError> {
        if let Some(path) = given.or(kept.filter(|_| config.vocab.is_some())) {
            let json = String::from_utf8(read_tokenizer(path)?).map_err(|error| unusable(error.into()))?;
            // That of a run on bytes comes back as what it was: faster, and pages need ask nobody what a token means.
            let vocabulary = match json == byte_tokenizer() {
                true => Self::Bytes,
                false => Self::from_json(json.as_bytes())?,
            };
            return Ok((vocabulary, json));
        }
        let vocabulary = Self::made(config, train)?;
        let json = vocabulary.to_json();
        Ok((vocabulary, json))
    }

    /// The vocabulary that `config` asks for where no file has one.
    fn made(config: &ServeConfig, train: &str) -> Result<Self, ServerError> {
        match config.vocab {
            None | Some(0) => Ok(Self::Bytes),
            Some(size) if size < VOCAB_MIN => {
                let why = format!(
                    "--vocab {size} is too small: give {VOCAB_MIN} or more, or leave it out for bytes"
                );
                Err(ServerError::Tokenizer { why })
            }
            Some(size) => train_bpe(train, size),
        }
    }

    /// The vocabulary of a `tokenizer.json`.
    ///
    /// # Errors
    /// `Tokenizer`: it is none.
    pub fn from_json(json: &[u8]) -> Result<Self, ServerError> {
        let mut tokenizer = contained(|| Tokenizer::from_bytes(json))?.map_err(unusable)?;
        // A text is tokenised whole, whatever the file says of the texts that it was made for.
        tokenizer.with_truncation(None).map_err(unusable)?;
        tokenizer.with_padding(None);
        Ok(Self::Tokenizer(Box::new(tokenizer)))
    }

    /// Number of tokens.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self {
            Self::Bytes => BYTE_VOCAB,
            // Ids may have holes; the embedding has to reach the highest.
            Self::Tokenizer(tokenizer) => {
                let highest =
                    tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id.saturating_add(1));
                highest.max(u32::try_from(tokenizer.get_vocab_size(true)).unwrap_or(u32::MAX))
            }
        }
    }

    /// The tokens of `text`, no special ones added.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer does not take the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ServerError> {
        let Self::Tokenizer(tokenizer) = self else { return Ok(bytes_to_tokens(text.as_bytes())) };
        let mut tokens = Vec::new();
        for batch in pieces(text).collect::<Vec<_>>().chunks(16) {
            let encoded = contained(|| tokenizer.encode_batch_fast(batch.to_vec(), false))?;
            for encoding in encoded.map_err(unusable)? {
                tokens.extend_from_slice(encoding.get_ids());
            }
        }
        Ok(tokens)
    }

    /// The tokens of each of `texts`, no special ones added, with the bytes that each token is of.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer does not take a text.
    pub fn encode_each<'a>(
        &self,
        texts: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Vec<Piece>>, ServerError> {
        let Self::Tokenizer(tokenizer) = self else {
            let piece = |(at, &byte): (usize, &u8)| Piece { token: byte.into(), bytes: at..at + 1 };
            return Ok(texts.map(|text| text.as_bytes().iter().enumerate().map(piece).collect()).collect());
        };
        let mut each = Vec::new();
        for batch in texts.collect::<Vec<_>>().chunks(TEXTS_AT_ONCE) {
            let encoded = contained(|| tokenizer.encode_batch(batch.to_vec(), false))?;
            each.extend(encoded.map_err(unusable)?.iter().map(|encoding| {
                let pairs = encoding.get_ids().iter().zip(encoding.get_offsets());
                pairs.map(|(&token, &(start, end))| Piece { token, bytes: start..end }).collect()
            }));
        }
        Ok(each)
    }

    /// What the tokenizer adds to every text.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer does not take a text.
    pub fn added(&self) -> Result<Vec<u32>, ServerError> {
        let Self::Tokenizer(tokenizer) = self else { return Ok(Vec::new()) };
        let encoded = contained(|| tokenizer.encode_fast("", true))?.map_err(unusable)?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The token that is written so, if there is one.
    #[must_use]
    pub fn token(&self, text: &str) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::Tokenizer(tokenizer) => tokenizer.token_to_id(text),
        }
    }

    /// As [`Self::encode`], for a short text of a stranger's. What the tokenizer remembers of it is forgotten with the
    /// thread that this starts, so that nobody fills this program's memory with words.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer does not take the text.
    pub fn encode_short(&self, text: &str) -> Result<Vec<u32>, ServerError> {
        let Self::Tokenizer(tokenizer) = self else { return Ok(bytes_to_tokens(text.as_bytes())) };
        let encode = || tokenizer.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec());
        let encoded = std::thread::scope(|scope| scope.spawn(encode).join());
        encoded
            .map_err(|_| ServerError::Tokenizer { why: "the tokenizer fails on this text".into() })?
            .map_err(unusable)
    }

    /// The text of `tokens`; what is no text shows as U+FFFD.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Bytes => tokens_to_text(tokens),
            Self::Tokenizer(tokenizer) => tokenizer.decode(tokens, false).unwrap_or_default(),
        }
    }

    /// The vocabulary as a `tokenizer.json`. That of bytes gives every byte its value as its id.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Self::Bytes => byte_tokenizer(),
            Self::Tokenizer(tokenizer) => {
                tokenizer.to_string(true).expect("a tokenizer that was read can be written")
            }
        }
    }
}

/// The bytes of a tokenizer file.
///
/// # Errors
/// `Tokenizer`: it cannot be read.
pub(super) fn read_tokenizer(path: &Path) -> Result<Vec<u8>, ServerError> {
    std::fs::read(path).map_err(|source| ServerError::Tokenizer {
        why: format!("cannot read {}: {source}; give --tokenizer a tokenizer.json", path.display()),
    })
}

/// Byte-level BPE of at most `size` tokens, trained on `text`.
fn train_bpe(text: &str, size: u32) -> Result<Vocabulary, ServerError> {
    let mut tokenizer = Tokenizer::new(BPE::default());
    let byte_level = ByteLevel::new(false, true, true);
    tokenizer.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    let trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(size as usize)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut trainer: TrainerWrapper = trainer.into();
    tokenizer.train(&mut trainer, pieces(text)).map_err(unusable)?;
    // Trained on text with fewer distinct pairs, it may stay smaller; the run's vocabulary is what came out.
    debug_assert!(tokenizer.get_model().get_vocab_size() >= BYTE_VOCAB as usize);
    Ok(Vocabulary::Tokenizer(Box::new(tokenizer)))
}

/// `text` in pieces of about [`PIECE_BYTES`] that end at a line.
fn pieces(text: &str) -> impl Iterator<Item = &str> + Send {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let around = rest.floor_char_boundary(PIECE_BYTES);
        let end = match rest[around..].find('\n') {
            Some(line) => around + line + 1,
            None => rest.len(),
        };
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

/// A byte-level BPE without merges, whose ids are the bytes' values.
fn byte_tokenizer() -> String {
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..=u8::MAX).map(|byte| (byte_character(byte).to_string(), json!(byte))).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    });
    serde_json::to_string_pretty(&tokenizer).expect("plain JSON values")
}

/// The character that byte-level tokenizers write for a byte (GPT-2's table): printable ones stand for
/// themselves, the rest are counted up from U+0100.
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).expect("at most 68 bytes are not printable")
}

fn unusable(error: tokenizers::Error) -> ServerError {
    ServerError::Tokenizer {
        why: format!("{error}; give --tokenizer a tokenizer.json of Hugging Face's tokenizers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Zwölf Boxkämpfer jagen\u{0} Viktor —\r\n\t 🥊 <s> ▁ĠĊ";

    #[test]
    fn byte_tokenizer_numbers_bytes_by_value() {
        let Vocabulary::Tokenizer(tokenizer) =
            Vocabulary::from_json(Vocabulary::Bytes.to_json().as_bytes()).unwrap()
        else {
            panic!("not a tokenizer");
        };
        let encoding = tokenizer.encode(TEXT, true).unwrap();
        assert_eq!(encoding.get_ids(), bytes_to_tokens(TEXT.as_bytes()));
        assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), TEXT);
        let alphabet: std::collections::BTreeSet<char> = ByteLevel::alphabet().into_iter().collect();
        assert_eq!(alphabet, (0..=u8::MAX).map(byte_character).collect());
    }

    #[test]
    fn bpe_learns_merges_and_comes_back() {
        let text = format!("{}{TEXT}", "the cat sat on the mat. ".repeat(50));
        let config = ServeConfig { vocab: Some(300), ..ServeConfig::default() };
        let (vocabulary, json) = Vocabulary::load(&config, &text, None, None).unwrap();
        let tokens = vocabulary.encode(&text).unwrap();
        assert!(tokens.len() < text.len() / 2, "{} tokens of {} bytes", tokens.len(), text.len());
        assert!(vocabulary.size() > 256 && vocabulary.size() <= 300);
        assert_eq!(vocabulary.decode(&tokens), text);

        let again = Vocabulary::from_json(json.as_bytes()).unwrap();
        assert_eq!(again.encode(&text).unwrap(), tokens);
        assert_eq!(again.size(), vocabulary.size());
    }

    #[test]
    fn a_given_file_stays_as_it_is_and_cuts_no_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let given = |json: &str| {
            std::fs::write(&path, json).unwrap();
            let (vocabulary, kept) =
                Vocabulary::load(&ServeConfig::default(), "", Some(&path), None).unwrap();
            assert_eq!(kept, json);
            vocabulary
        };
        assert!(matches!(given(&byte_tokenizer()), Vocabulary::Bytes));
        let cut = r#"{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}"#;
        let cutting = byte_tokenizer().replace(r#""truncation": null"#, &format!(r#""truncation": {cut}"#));
        let vocabulary = given(&cutting);
        assert!(matches!(vocabulary, Vocabulary::Tokenizer(_)));
        assert_eq!(vocabulary.encode(TEXT).unwrap(), bytes_to_tokens(TEXT.as_bytes()));
    }

    #[test]
    fn a_damaged_file_is_refused_in_words() {
        let json = byte_tokenizer();
        let damaged = (0..json.len()).map(|at| [&json.as_bytes()[..at], &json.as_bytes()[at + 1..]].concat());
        let refused = damaged.filter_map(|json| Vocabulary::from_json(&json).err());
        let whys: Vec<String> = refused.map(|error| error.to_string()).collect();
        assert!(whys.len() > 100, "{}", whys.len());
        assert!(whys.iter().any(|why| why.contains("is damaged, or of a kind")));
    }

    #[test]
    fn pieces_end_at_lines_and_lose_nothing() {
        let text = format!("{}\n", "é".repeat(1000)).repeat(1500);
        let parts: Vec<&str> = pieces(&text).collect();
        assert!(parts.len() > 1 && parts.iter().all(|part| part.ends_with('\n')));
        assert_eq!(parts.concat(), text);
    }
}
