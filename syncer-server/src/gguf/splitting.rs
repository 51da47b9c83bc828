//! Ways in which tokenizers split texts into words before they merge bytes, and their names in llama.cpp.

use super::VocabularyError;
use super::vocabulary::Tokenizer;

/// Way of splitting texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splitting {
    /// Name in llama.cpp.
    pub(super) name: &'static str,
    /// True if llama.cpp keeps a word whole that is a token, without merges.
    keeps_tokens: bool,
}

/// GPT-2's words.
const GPT_2: Splitting = Splitting { name: "gpt-2", keeps_tokens: false };
/// GPT-2's words, with each digit on its own.
const DIGITS: Splitting = Splitting { name: "smollm", keeps_tokens: false };

/// Patterns of words, and their names. Two names differ only in `keeps_tokens`.
const PATTERNS: [(&str, Splitting); 4] = [
    (LLAMA_3, Splitting { name: "llama-bpe", keeps_tokens: true }),
    (LLAMA_3, Splitting { name: "smaug-bpe", keeps_tokens: false }),
    (QWEN_2, Splitting { name: "qwen2", keeps_tokens: false }),
    (WORDS, GPT_2),
];

const LLAMA_3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN_2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Returns the way in which `tokenizer` splits texts.
///
/// # Errors
/// [`VocabularyError`]: llama.cpp has no such way.
pub(super) fn splitting(tokenizer: &Tokenizer) -> Result<Splitting, VocabularyError> {
    let outer = &tokenizer.pre_tokenizer;
    let steps = match outer["pretokenizers"].as_array() {
        Some(steps) if outer["type"] == "Sequence" => &steps[..],
        _ => std::slice::from_ref(outer),
    };
    let unknown = || {
        VocabularyError::new(
            "it splits texts in a way that is not known by name, such as that of GPT-2 or Llama 3",
        )
    };
    let (last, before) = steps.split_last().ok_or_else(unknown)?;
    if last["type"] != "ByteLevel" {
        return Err(VocabularyError::new("it is not byte-level"));
    }
    if last["add_prefix_space"] == true {
        return Err(VocabularyError::new("it adds a space before each text"));
    }
    let has_words = last["use_regex"] != false;
    let keeps_tokens = tokenizer.model.ignore_merges;
    let found = match before {
        [] if has_words => GPT_2,
        // Without merges each byte is a token, however a text is split.
        [] if tokenizer.model.merges.is_empty() => GPT_2,
        [digits] if has_words && digits["type"] == "Digits" && digits["individual_digits"] == true => DIGITS,
        [split] if !has_words && split["behavior"] == "Isolated" && split["invert"] != true => {
            let is_same = |(pattern, way): &&(&str, Splitting)| {
                split["pattern"]["Regex"] == *pattern && way.keeps_tokens == keeps_tokens
            };
            PATTERNS.iter().find(is_same).ok_or_else(unknown)?.1
        }
        _ => return Err(unknown()),
    };
    match found.keeps_tokens == keeps_tokens {
        true => Ok(found),
        false => Err(VocabularyError::new("it keeps words that are tokens whole, without merges")),
    }
}
