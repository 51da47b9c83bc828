//! Conversion between text and tokens: bytes, or byte-level BPE from the `tokenizers` crate.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use archipelago_core::data::{BYTE_VOCAB, bytes_to_tokens, tokens_to_text};
use serde_json::json;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Model, Tokenizer};

use super::cutting::{PART_BYTES, Piece, join_position, parts};
use super::limits::{self, Growth};
use crate::config::ServeConfig;
use crate::errors::ServerError;
use crate::llama::check_json;

/// Conversion between text and tokens.
pub enum Vocabulary {
    /// Each byte is a token.
    Bytes,
    /// A Hugging Face tokenizer.
    Tokenizer {
        /// The tokenizer.
        tokenizer: Arc<Tokenizer>,
        /// Largest growth of a text in the tokenizer.
        growth: Growth,
    },
}

/// Largest input of a tokenizer in bytes, which bounds its memory.
const BATCH_BYTES: usize = 1 << 20;

/// Largest number of texts in one call of a tokenizer.
const BATCH_TEXTS: usize = 256;

/// Largest growth of a text for which a batch has the full [`BATCH_BYTES`].
const BATCH_GROWTH: u64 = 16;

/// Largest number of byte tokens that `take` gets in one call.
const BYTES_AT_ONCE: usize = 64 << 10;

/// Bytes of plain text that are tokenised as one text.
const PIECE_BYTES: usize = 1 << 20;

/// Time limit for a batch of texts, far more than the slowest machine needs.
const BATCH_WITHIN: Duration = Duration::from_secs(30);

/// Time limit for a short text from an untrusted client.
const SHORT_WITHIN: Duration = Duration::from_secs(10);

/// Time limit for loading a tokenizer from its file.
const LOAD_WITHIN: Duration = Duration::from_secs(120);

/// Runs `work` with the crate `tokenizers` on a thread of its own. The crate panics on some invalid files, and never
/// returns on others. In that case the thread is abandoned.
///
/// # Errors
/// - `Tokenizer`: the work panicked or exceeded its time.
/// - `System`: the thread cannot be started.
fn contained<T: Send + 'static>(
    within: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ServerError> {
    let (send, receive) = mpsc::channel();
    let named = thread::Builder::new().name("tokenizer".into());
    // If the caller has stopped waiting, the result is dropped.
    let started = named.spawn(move || drop(send.send(work())));
    started.map_err(|source| ServerError::System { what: "cannot start a thread".into(), source })?;
    receive.recv_timeout(within).map_err(|error| {
        let why = match error {
            mpsc::RecvTimeoutError::Timeout => {
                format!(
                    "the tokenizer takes more than {} s for a short text: give another one",
                    within.as_secs()
                )
            }
            mpsc::RecvTimeoutError::Disconnected => {
                "tokenizer.json is damaged, or of an unsupported kind: give one of Hugging Face's tokenizers"
                    .to_owned()
            }
        };
        ServerError::Tokenizer { why }
    })
}

/// Smallest size of a BPE vocabulary: every byte has a token.
const VOCAB_MIN: u32 = BYTE_VOCAB;

impl Vocabulary {
    /// Returns the vocabulary of a run and the content of its `tokenizer.json`. It is read from the file `given`, or
    /// else from the file `kept` from an earlier start if `config` sets a vocabulary size. Otherwise it is trained on
    /// `train`, or consists of bytes if `config` sets no size.
    ///
    /// # Errors
    /// `Tokenizer`: the file is not a tokenizer or exceeds a limit of [`limits`], or `--vocab` is out of range.
    pub fn load<'a>(
        config: &ServeConfig,
        train: impl FnOnce() -> Cow<'a, str>,
        given: Option<&Path>,
        kept: Option<&Path>,
    ) -> Result<(Self, String), ServerError> {
        if let Some(path) = given.or(kept.filter(|_| config.identity.vocab.is_some())) {
            let json = String::from_utf8(read_tokenizer(path)?).map_err(|error| unusable(error.into()))?;
            // The file of a byte vocabulary is recognised: bytes are faster, and pages can show tokens without a
            // request.
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

    /// Returns the vocabulary that `config` requests if no file is given.
    fn made<'a>(config: &ServeConfig, train: impl FnOnce() -> Cow<'a, str>) -> Result<Self, ServerError> {
        match config.identity.vocab {
            None | Some(0) => Ok(Self::Bytes),
            Some(size) if size < VOCAB_MIN => {
                let why = format!(
                    "--vocab {size} is too small: give {VOCAB_MIN} or more, or leave it out for bytes"
                );
                Err(ServerError::Tokenizer { why })
            }
            Some(size) => train_bpe(&train(), size),
        }
    }

    /// Reads the vocabulary in the file at `path`.
    ///
    /// # Errors
    /// `Tokenizer`: the file cannot be read, is not a tokenizer, or exceeds a limit of [`limits`].
    pub fn read(path: &Path) -> Result<Self, ServerError> {
        Self::from_json(&read_tokenizer(path)?)
    }

    /// Parses the vocabulary of a `tokenizer.json`.
    ///
    /// # Errors
    /// `Tokenizer`: it is not a tokenizer, or exceeds a limit of [`limits`].
    pub fn from_json(json: &[u8]) -> Result<Self, ServerError> {
        let growth = limits::check(json).map_err(beyond)?;
        let json = json.to_vec();
        let mut tokenizer = contained(LOAD_WITHIN, move || Tokenizer::from_bytes(json))?.map_err(unusable)?;
        limits::check_tokens(&tokenizer).map_err(beyond)?;
        // Texts are tokenised whole, whatever truncation and padding the file sets.
        tokenizer.with_truncation(None).map_err(unusable)?;
        tokenizer.with_padding(None);
        Ok(Self::Tokenizer { tokenizer: Arc::new(tokenizer), growth })
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self {
            Self::Bytes => BYTE_VOCAB,
            // Ids may have gaps; the embedding has to include the highest id.
            Self::Tokenizer { tokenizer, .. } => {
                let highest =
                    tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id.saturating_add(1));
                highest.max(u32::try_from(tokenizer.get_vocab_size(true)).unwrap_or(u32::MAX))
            }
        }
    }

    /// Returns the tokens of `text` without added special tokens.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer rejects the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ServerError> {
        if matches!(self, Self::Bytes) {
            return Ok(bytes_to_tokens(text.as_bytes()));
        }
        let mut tokens = Vec::new();
        let pieces: Vec<&str> = pieces(text).collect();
        self.encode_each(&pieces, &mut |_, found| tokens.extend(found.iter().map(|piece| piece.token)))?;
        Ok(tokens)
    }

    /// Tokenises each of `texts` without adding special tokens, and finds the byte range of each token. `take` gets the
    /// index of a text and some of its tokens, in order. It is called at least once for each text that has tokens.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer rejects a text.
    pub fn encode_each(
        &self,
        texts: &[&str],
        take: &mut dyn FnMut(usize, &[Piece]),
    ) -> Result<(), ServerError> {
        self.encode_parts(texts, PART_BYTES, take)
    }

    fn encode_parts(
        &self,
        texts: &[&str],
        part_bytes: usize,
        take: &mut dyn FnMut(usize, &[Piece]),
    ) -> Result<(), ServerError> {
        let Self::Tokenizer { tokenizer, growth } = self else {
            for (text, index) in texts.iter().zip(0..) {
                for (bytes, part) in text.as_bytes().chunks(BYTES_AT_ONCE).zip(0..) {
                    let piece = |(at, &byte): (usize, &u8)| Piece { token: byte.into(), bytes: at..at + 1 };
                    let at = part * BYTES_AT_ONCE;
                    take(index, &(at..).zip(bytes).map(piece).collect::<Vec<_>>());
                }
            }
            return Ok(());
        };
        let bytes_max = BATCH_BYTES / usize::try_from(growth.most.div_ceil(BATCH_GROWTH)).unwrap_or(1).max(1);
        let mut joiner = Joiner { tokenizer, growth: *growth, texts, last: None, take };
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (text, index) in texts.iter().zip(0..) {
            for range in parts(text, part_bytes) {
                if !batch.is_empty() && (bytes + range.len() > bytes_max || batch.len() == BATCH_TEXTS) {
                    joiner.join(std::mem::take(&mut batch))?;
                    bytes = 0;
                }
                bytes += range.len();
                batch.push(Part { text: index, range });
            }
        }
        joiner.join(batch)?;
        joiner.flush();
        Ok(())
    }

    /// Returns the tokens that the tokenizer adds to every text.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer rejects a text.
    pub fn added(&self) -> Result<Vec<u32>, ServerError> {
        let Self::Tokenizer { tokenizer, .. } = self else { return Ok(Vec::new()) };
        let tokenizer = Arc::clone(tokenizer);
        let encoded = contained(SHORT_WITHIN, move || tokenizer.encode_fast("", true))?.map_err(unusable)?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Returns the token with the text `text` in `tokenizer.json`, if any.
    #[must_use]
    pub fn token(&self, text: &str) -> Option<u32> {
        match self {
            Self::Bytes => None,
            Self::Tokenizer { tokenizer, .. } => tokenizer.token_to_id(text),
        }
    }

    /// Returns the lowest token that has no embedding row and is not an added token, with its name. `rows` is the
    /// number of rows.
    #[must_use]
    pub fn without_row(&self, rows: u32) -> Option<(u32, String)> {
        let Self::Tokenizer { tokenizer, .. } = self else {
            return (rows < BYTE_VOCAB).then(|| (rows, self.name(rows)));
        };
        // An untrusted file may have ids of up to 2³² with gaps between them, so only existing ids are checked.
        let own = tokenizer.get_vocab(false).into_iter().map(|(name, token)| (token, name));
        own.filter(|(token, _)| *token >= rows && !self.is_added(*token)).min()
    }

    /// Returns true if `token` is an added token, as special tokens are.
    #[must_use]
    pub fn is_added(&self, token: u32) -> bool {
        match self {
            Self::Bytes => false,
            Self::Tokenizer { tokenizer, .. } => {
                tokenizer.get_added_vocabulary().get_added_tokens_decoder().contains_key(&token)
            }
        }
    }

    /// Returns the text of `token` in `tokenizer.json`, or its number.
    #[must_use]
    pub fn name(&self, token: u32) -> String {
        let name = match self {
            Self::Bytes => None,
            Self::Tokenizer { tokenizer, .. } => tokenizer.id_to_token(token),
        };
        name.unwrap_or_else(|| token.to_string())
    }

    /// Like [`Self::encode`], for a short text from an untrusted client. The tokenizer's cache lives only as long as
    /// the thread that this call starts, so that clients cannot fill this program's memory.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer rejects the text.
    pub fn encode_short(&self, text: &str) -> Result<Vec<u32>, ServerError> {
        let Self::Tokenizer { tokenizer, growth } = self else { return Ok(bytes_to_tokens(text.as_bytes())) };
        let (tokenizer, growth, text) = (Arc::clone(tokenizer), *growth, text.to_owned());
        let encoded = contained(SHORT_WITHIN, move || {
            let is_short = if growth.is_measured { limits::check_text(&tokenizer, &text) } else { Ok(()) };
            is_short.map(|()| tokenizer.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()))
        })?;
        encoded.map_err(beyond)?.map_err(unusable)
    }

    /// Returns the text of `tokens`. Invalid text shows as U+FFFD.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::Bytes => tokens_to_text(tokens),
            Self::Tokenizer { tokenizer, .. } => tokenizer.decode(tokens, false).unwrap_or_default(),
        }
    }

    /// Like [`Self::decode`], without special tokens.
    #[must_use]
    pub fn decode_plain(&self, tokens: &[u32]) -> String {
        match self {
            Self::Bytes => tokens_to_text(tokens),
            Self::Tokenizer { tokenizer, .. } => tokenizer.decode(tokens, true).unwrap_or_default(),
        }
    }

    /// Returns the content of the vocabulary's `tokenizer.json`. For a byte vocabulary, each id is the value of its
    /// byte.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Self::Bytes => byte_tokenizer(),
            Self::Tokenizer { tokenizer, .. } => {
                tokenizer.to_string(true).expect("a tokenizer that was read can be written")
            }
        }
    }
}

/// Part of one of several texts.
struct Part {
    /// Index of the text.
    text: usize,
    /// Byte range of the part.
    range: Range<usize>,
}

/// Tokenizes parts of texts in order, and joins parts of the same text.
struct Joiner<'a> {
    tokenizer: &'a Arc<Tokenizer>,
    growth: Growth,
    texts: &'a [&'a str],
    /// Last part and its tokens, which are not passed on yet.
    last: Option<(Part, Vec<Piece>)>,
    take: &'a mut dyn FnMut(usize, &[Piece]),
}

impl Joiner<'_> {
    fn join(&mut self, parts: Vec<Part>) -> Result<(), ServerError> {
        let found = self.encode(&parts)?;
        for (mut part, mut pieces) in parts.into_iter().zip(found) {
            if let Some((before, kept)) = self.last.take_if(|(before, _)| before.text == part.text) {
                let overlap = part.range.start..before.range.end;
                if let Some((end, start)) = join_position(&kept, &pieces, &overlap) {
                    (self.take)(before.text, &kept[..end]);
                    pieces.drain(..start);
                } else {
                    // The parts do not agree on token boundaries, as in a long run of one letter.
                    (self.take)(before.text, &kept);
                    part.range.start = before.range.end;
                    let rest = Part { text: part.text, range: part.range.clone() };
                    pieces = self.encode(&[rest])?.remove(0);
                }
            }
            self.flush();
            self.last = Some((part, pieces));
        }
        Ok(())
    }

    /// Passes on the tokens of the last part.
    fn flush(&mut self) {
        if let Some((part, pieces)) = self.last.take() {
            (self.take)(part.text, &pieces);
        }
    }

    fn encode(&self, parts: &[Part]) -> Result<Vec<Vec<Piece>>, ServerError> {
        let texts = parts.iter().map(|part| self.texts[part.text][part.range.clone()].to_owned());
        let (texts, tokenizer, growth) = (texts.collect::<Vec<_>>(), Arc::clone(self.tokenizer), self.growth);
        let encoded = contained(BATCH_WITHIN, move || {
            if growth.is_measured {
                texts.iter().try_for_each(|text| limits::check_text(&tokenizer, text))?;
            }
            Ok(tokenizer.encode_batch(texts, false))
        })?;
        let encoded = encoded.map_err(beyond)?.map_err(unusable)?;
        let pieces = encoded.into_iter().zip(parts).map(|(encoding, part)| {
            let at = part.range.start;
            let pairs = encoding.get_ids().iter().zip(encoding.get_offsets());
            pairs.map(|(&token, &(start, end))| Piece { token, bytes: at + start..at + end }).collect()
        });
        Ok(pieces.collect())
    }
}

/// Reads a tokenizer file.
///
/// # Errors
/// `Tokenizer`: the file cannot be read, or is too large.
pub(super) fn read_tokenizer(path: &Path) -> Result<Vec<u8>, ServerError> {
    let unreadable = |source| ServerError::Tokenizer {
        why: format!("cannot read {}: {source}; give --tokenizer a tokenizer.json", path.display()),
    };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > limits::FILE_BYTES_MAX {
        let most = archipelago_cli::Bytes(limits::FILE_BYTES_MAX);
        let why = format!("{} is larger than {most}: give --tokenizer a tokenizer.json", path.display());
        return Err(ServerError::Tokenizer { why });
    }
    let json = std::fs::read(path).map_err(unreadable)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    check_json(&name, &json).map_err(|error| ServerError::Tokenizer { why: error.to_string() })?;
    Ok(json)
}

/// Trains a byte-level BPE of at most `size` tokens on `text`.
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
    let pieces = pieces(text).flat_map(|piece| limited(piece, 2 * PIECE_BYTES));
    tokenizer.train(&mut trainer, pieces).map_err(unusable)?;
    // The vocabulary may be smaller if the text has too few distinct pairs; the run then uses the smaller one.
    debug_assert!(tokenizer.get_model().get_vocab_size() >= BYTE_VOCAB as usize);
    // Each byte becomes one character, which takes up to two bytes.
    let growth = Growth { is_measured: false, most: 2 };
    Ok(Vocabulary::Tokenizer { tokenizer: Arc::new(tokenizer), growth })
}

/// Splits `text` into pieces of about [`PIECE_BYTES`] that end at a line end.
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

/// Splits `text` into pieces of at most `bytes_max` bytes, before a blank if there is one. A trainer takes about 100
/// bytes of memory for each byte of a piece.
fn limited(text: &str, bytes_max: usize) -> impl Iterator<Item = &str> + Send {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = rest.floor_char_boundary(bytes_max);
        let blank = rest[..end].rfind(char::is_whitespace).filter(|&at| at > 0 && end < rest.len());
        let (piece, after) = rest.split_at(blank.unwrap_or(end));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Returns a byte-level BPE without merges, whose ids are the bytes' values.
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

/// Returns the character that byte-level tokenizers write for a byte (GPT-2's table). Printable characters stand for
/// themselves, and the other bytes are numbered from U+0100.
fn byte_character(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).expect("at most 68 bytes are not printable")
}

fn beyond(why: String) -> ServerError {
    let why = format!("the tokenizer is refused: {why}; give --tokenizer another one");
    ServerError::Tokenizer { why }
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
    fn pieces_to_train_on_are_short_and_make_up_the_text() {
        for (text, first) in [("the lamp is lit", "the"), ("éééééé", "éé"), ("one two", "one")] {
            let found: Vec<_> = limited(text, 5).collect();
            assert!(found.concat() == text && found.iter().all(|piece| piece.len() <= 5), "{found:?}");
            assert_eq!(found[0], first);
        }
        assert_eq!(limited("lamp", 5).collect::<Vec<_>>(), ["lamp"]);
        assert_eq!(limited("", 5).count(), 0);
    }

    #[test]
    fn byte_tokenizer_numbers_bytes_by_value() {
        let Vocabulary::Tokenizer { tokenizer, .. } =
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
    fn bpe_learns_merges_and_survives_json() {
        let text = format!("{}{TEXT}", "the cat sat on the mat. ".repeat(50));
        let config = ServeConfig::default().with(|it| it.identity.vocab = Some(300));
        let (vocabulary, json) = Vocabulary::load(&config, || Cow::from(&text), None, None).unwrap();
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
                Vocabulary::load(&ServeConfig::default(), || Cow::from(""), Some(&path), None).unwrap();
            assert_eq!(kept, json);
            vocabulary
        };
        assert!(matches!(given(&byte_tokenizer()), Vocabulary::Bytes));
        let cut = r#"{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}"#;
        let cutting = byte_tokenizer().replace(r#""truncation": null"#, &format!(r#""truncation": {cut}"#));
        let vocabulary = given(&cutting);
        assert!(matches!(vocabulary, Vocabulary::Tokenizer { .. }));
        assert_eq!(vocabulary.encode(TEXT).unwrap(), bytes_to_tokens(TEXT.as_bytes()));
    }

    /// Returns one tokenizer of each kind in use: byte-level BPE, BPE of whole texts as in Llama 2, WordPiece and
    /// Unigram.
    fn kinds(text: &str) -> Vec<Vocabulary> {
        let byte_level = train_bpe(text, 600).unwrap();
        let mut llama: serde_json::Value = serde_json::from_str(&byte_level.to_json()).unwrap();
        llama["normalizer"] = json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "Ġ" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "Ġ" }] });
        (llama["pre_tokenizer"], llama["decoder"]) = (json!(null), json!(null));
        llama["model"]["unk_token"] = "!".into();
        let words: std::collections::BTreeSet<&str> =
            text.split(|c: char| !c.is_ascii_lowercase()).take(500).collect();
        let letters = ('a'..='z').flat_map(|c| [c.to_string(), format!("##{c}")]);
        let pieces =
            ["[UNK]".to_owned()].into_iter().chain(letters).chain(words.iter().map(|&word| word.to_owned()));
        let vocab: serde_json::Map<_, _> =
            pieces.zip(0..).map(|(piece, id): (_, u32)| (piece, json!(id))).collect();
        let word_piece = json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                "strip_accents": null, "lowercase": true },
            "pre_tokenizer": { "type": "BertPreTokenizer" }, "post_processor": null, "decoder": null,
            "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": vocab } });
        let letters = ('a'..='z').chain('A'..='Z').map(|c| json!([c.to_string(), -9.0]));
        let words =
            words.iter().filter(|word| !word.is_empty()).map(|word| json!([format!("▁{word}"), -5.0]));
        let vocab: Vec<_> =
            [json!(["<unk>", 0.0]), json!(["▁", -6.0])].into_iter().chain(letters).chain(words).collect();
        let unigram = json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": { "type": "NFKC" },
            "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true },
            "post_processor": null, "decoder": null,
            "model": { "type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false } });
        let others = [llama, word_piece, unigram];
        let others = others.map(|json| Vocabulary::from_json(json.to_string().as_bytes()).unwrap());
        [byte_level].into_iter().chain(others).collect()
    }

    fn in_parts(vocabulary: &Vocabulary, text: &str, part_bytes: usize) -> Vec<Piece> {
        let mut found = Vec::new();
        vocabulary
            .encode_parts(&[text], part_bytes, &mut |_, pieces| found.extend_from_slice(pieces))
            .unwrap();
        found
    }

    /// Goal: cutting a text into parts to save memory does not change the tokens that a model learns.
    #[test]
    fn parts_of_a_long_text_have_the_tokens_of_the_whole() {
        const AUSTEN: &str = include_str!("../../assets/austen.txt");
        let text = &AUSTEN[..40_000];
        let text = format!("{text}é — ﷺ 🥊 {}{text}", "z".repeat(100));
        for vocabulary in kinds(&text) {
            let whole = in_parts(&vocabulary, &text, text.len());
            assert!(whole.len() > 10_000);
            for part_bytes in [4_096, 9_000] {
                assert!(in_parts(&vocabulary, &text, part_bytes) == whole, "{}", vocabulary.size());
            }
        }
        assert_eq!(in_parts(&Vocabulary::Bytes, &text, 100).len(), text.len());
    }

    /// Goal: if two parts do not agree, each keeps its own tokens, and no text is lost.
    #[test]
    fn a_long_run_of_one_letter_is_cut_anyway() {
        let vocabulary = &kinds("a aa aaa aaaaaaaa aaaaaaaaaaaaaaaa ")[0];
        let text = "a".repeat(20_001);
        let found = in_parts(vocabulary, &text, 1_000);
        let ends = found.iter().map(|piece| piece.bytes.clone()).fold(0, |at, bytes| {
            assert_eq!(bytes.start, at);
            bytes.end
        });
        assert_eq!(ends, text.len());
    }

    #[test]
    fn endless_work_is_abandoned() {
        let (send, receive) = mpsc::channel::<()>();
        let late =
            contained(Duration::from_millis(1), move || receive.recv().is_ok()).unwrap_err().to_string();
        assert!(late.contains("takes more than"), "{late}");
        drop(send);
    }

    #[test]
    fn damaged_file_is_refused_with_a_message() {
        let json = byte_tokenizer();
        let damaged = (0..json.len())
            .step_by(7)
            .map(|at| [&json.as_bytes()[..at], &json.as_bytes()[at + 1..]].concat());
        let refused = damaged.filter_map(|json| Vocabulary::from_json(&json).err());
        let whys: Vec<String> = refused.map(|error| error.to_string()).collect();
        assert!(whys.len() > 100, "{}", whys.len());
        let panics = contained::<()>(SHORT_WITHIN, || panic!("as the library does")).unwrap_err().to_string();
        assert!(panics.contains("is damaged, or of an unsupported kind"), "{panics}");
    }

    #[test]
    fn pieces_end_at_lines_and_lose_nothing() {
        let text = format!("{}\n", "é".repeat(1000)).repeat(1500);
        let parts: Vec<&str> = pieces(&text).collect();
        assert!(parts.len() > 1 && parts.iter().all(|part| part.ends_with('\n')));
        assert_eq!(parts.concat(), text);
    }
}
