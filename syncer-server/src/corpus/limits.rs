//! Limits on tokenizer files, which are untrusted input. A file is refused before use if its stages could expand a
//! text too much, or could take much more than linear time.

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer, Tokenizer};

/// Largest size of a `tokenizer.json` in bytes. The largest in use have some 35 MB.
pub const FILE_BYTES_MAX: u64 = 128 << 20;

/// Largest growth of a text in all normalizers, in bytes per byte, computed from the file. Up to this limit, the
/// growth of texts is not measured.
const GROWTH_UNMEASURED_MAX: u64 = 16;

/// Largest growth of a text in one normalizer, in bytes per byte, computed from the file. Unicode normalization forms
/// reach 11, and tables of SentencePiece reach 33.
const STEP_GROWTH_MAX: u64 = 64;

/// Largest growth of a text in all normalizers, in bytes per byte, measured on the text.
const TEXT_GROWTH_MAX: usize = 16;

/// Bytes by which any text may grow in addition, since short texts may get a prefix.
const TEXT_GROWTH_BYTES: usize = 256;

/// Largest growth of a text in all pre-tokenizers, in bytes per byte, computed from the file.
const SPLIT_GROWTH_MAX: u64 = 8;

/// Largest growth of a token in all decoders, in bytes per byte, computed from the file.
const DECODE_GROWTH_MAX: u64 = 16;

/// Largest number of stages of one kind in a file.
const STEPS_MAX: usize = 64;

/// Largest size of one pattern in bytes.
const PATTERN_BYTES_MAX: usize = 8 << 10;

/// Largest product of all repetition counts in one pattern.
const REPEATS_MAX: u64 = 10_000;

/// Largest size of a token in bytes.
const TOKEN_BYTES_MAX: usize = 1 << 10;

/// Largest number of tokens that a template puts around a text.
const TEMPLATE_TOKENS_MAX: usize = 64;

/// Largest size of a prefix or suffix of a model's tokens, in bytes.
const AFFIX_BYTES_MAX: usize = 64;

/// Largest limit on the length of words that WordPiece splits, in characters. Its time grows with the cube of this
/// length.
const WORD_CHARS_MAX: u64 = 256;

/// Parts of a `tokenizer.json` that may expand a text or take long.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    #[serde(default)]
    content: String,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    max_input_chars_per_word: Option<u64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// Largest growth of a text in a tokenizer, computed from its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// True if the growth of each text has to be measured, because the file alone does not bound it.
    pub is_measured: bool,
    /// Largest number of bytes that one byte of a text may become.
    pub most: u64,
}

/// Checks the JSON of a tokenizer before it is used.
///
/// # Errors
/// A sentence that names the part that exceeds a limit or is malformed.
pub fn check(json: &[u8]) -> Result<Growth, String> {
    let file: File = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let normalized = growth("normalizer", &file.normalizer, STEP_GROWTH_MAX)?;
    let split = growth("pre_tokenizer", &file.pre_tokenizer, SPLIT_GROWTH_MAX)?;
    let decoded = growth("decoder", &file.decoder, DECODE_GROWTH_MAX)?;
    within("the growth in all steps of its pre_tokenizer", split, SPLIT_GROWTH_MAX)?;
    within("the growth in all steps of its decoder", decoded, DECODE_GROWTH_MAX)?;
    template(&file.post_processor)?;
    let is_measured = normalized > GROWTH_UNMEASURED_MAX;
    let longest = file.added_tokens.iter().map(|token| token.content.len()).max().unwrap_or(0);
    within("the length of an added token in bytes", longest as u64, TOKEN_BYTES_MAX as u64)?;
    if is_measured && !file.added_tokens.is_empty() {
        let steps: NormalizerWrapper =
            serde_json::from_value(file.normalizer).map_err(|error| error.to_string())?;
        file.added_tokens.iter().try_for_each(|token| grown(&steps, &token.content))?;
    }
    let affixes = [&file.model.continuing_subword_prefix, &file.model.end_of_word_suffix];
    let affix = affixes.into_iter().flatten().map(String::len).max().unwrap_or(0);
    within("the length of an affix of its model in bytes", affix as u64, AFFIX_BYTES_MAX as u64)?;
    let word = file.model.max_input_chars_per_word.unwrap_or(0);
    within("the max_input_chars_per_word of its model", word, WORD_CHARS_MAX)?;
    Ok(Growth { is_measured, most: normalized.min(TEXT_GROWTH_MAX as u64) * split })
}

/// Checks the tokens of `tokenizer`.
///
/// # Errors
/// A sentence: a token is too long.
pub fn check_tokens(tokenizer: &Tokenizer) -> Result<(), String> {
    let longest = tokenizer.get_vocab(false).keys().map(String::len).max().unwrap_or(0);
    within("the length of a token in bytes", longest as u64, TOKEN_BYTES_MAX as u64)
}

/// Checks that `text` does not grow too much in the normalizers of `tokenizer`.
///
/// # Errors
/// A sentence: it grows too much.
pub fn check_text(tokenizer: &Tokenizer, text: &str) -> Result<(), String> {
    tokenizer.get_normalizer().map_or(Ok(()), |steps| grown(steps, text))
}

fn grown(steps: &NormalizerWrapper, text: &str) -> Result<(), String> {
    let bytes_max = text.len() * TEXT_GROWTH_MAX + TEXT_GROWTH_BYTES;
    let mut normalized = NormalizedString::from(text);
    each_step(steps, &mut |step| {
        step.normalize(&mut normalized).map_err(|error| error.to_string())?;
        match normalized.get().len() > bytes_max {
            true => Err(format!("its normalizer makes a text more than {TEXT_GROWTH_MAX} times as long")),
            false => Ok(()),
        }
    })
}

/// Calls `visit` with each normalizer that is not a sequence, in order.
fn each_step(
    steps: &NormalizerWrapper,
    visit: &mut dyn FnMut(&NormalizerWrapper) -> Result<(), String>,
) -> Result<(), String> {
    match steps {
        NormalizerWrapper::Sequence(steps) => {
            steps.as_ref().iter().try_for_each(|step| each_step(step, visit))
        }
        step => visit(step),
    }
}

/// Returns the product of the growth of all stages in `part`, which is the file's entry `name`. Each stage may grow a
/// text by a factor of at most `most`.
fn growth(name: &str, part: &Value, most: u64) -> Result<u64, String> {
    let mut steps = Vec::new();
    objects(part, &mut steps);
    within(&format!("the number of steps of its {name}"), steps.len() as u64, STEPS_MAX as u64)?;
    let mut product = 1_u64;
    for step in steps {
        patterns(step)?;
        let growth = step_growth(step)?;
        within(&format!("the growth in one step of its {name}"), growth, most)?;
        product = product.saturating_mul(growth);
    }
    Ok(product)
}

/// Collects all JSON objects in `part`, except those under `pattern`, which only give the kind of a pattern.
fn objects<'a>(part: &'a Value, found: &mut Vec<&'a Map<String, Value>>) {
    match part {
        Value::Object(object) => {
            found.push(object);
            object.iter().filter(|(key, _)| *key != "pattern").for_each(|(_, value)| objects(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| objects(value, found)),
        _ => {}
    }
}

/// Returns the growth of a text in one stage, in bytes per byte. A stage without a type has the type that its keys
/// imply.
fn step_growth(step: &Map<String, Value>) -> Result<u64, String> {
    let length = |key: &str| step.get(key).and_then(Value::as_str).map(|text| text.len() as u64);
    let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
    let by_kind = match kind {
        "NFKC" | "NFKD" => 11,
        "NFC" | "NFD" | "Bert" | "BertNormalizer" => 4,
        "Lowercase" | "ByteLevel" | "BPEDecoder" => 2,
        _ if step.contains_key("clean_text") => 4,
        _ => 1,
    };
    let replaced = length("content").filter(|_| step.contains_key("pattern")).map(|content| {
        let pattern = step["pattern"].get("String").and_then(Value::as_str).map_or(0, str::len) as u64;
        // A match of a regular expression may be empty.
        if pattern == 0 { content + 1 } else { content.div_ceil(pattern) }
    });
    let charsmap = match step.get("precompiled_charsmap") {
        Some(Value::String(map)) => Some(longest_replacement(map)?),
        _ => None,
    };
    let metaspace = length("replacement").map(|length| 2 * length);
    let prepended = length("prepend").map(|length| 1 + length);
    let found = [replaced, charsmap, metaspace, prepended].into_iter().flatten();
    Ok(found.fold(by_kind, u64::max).max(1))
}

/// Returns the length in bytes of the longest replacement in a table of SentencePiece. The table has the length of a
/// trie in 4 bytes, the trie, and texts that each end with a zero byte.
fn longest_replacement(map: &str) -> Result<u64, String> {
    let damaged = || "its precompiled_charsmap is damaged".to_owned();
    let bytes = base64(map).ok_or_else(damaged)?;
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
    // The library allocates as much memory as this number says.
    let trie = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| damaged())?;
    let texts = rest.get(trie..).ok_or_else(damaged)?;
    Ok(texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0) as u64)
}

/// Decodes `text` from base64.
fn base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

/// Checks the tokens that a template adds to each text.
fn template(part: &Value) -> Result<(), String> {
    let mut steps = Vec::new();
    objects(part, &mut steps);
    let lists = steps.iter().flat_map(|step| ["single", "pair", "ids", "tokens"].map(|key| step.get(key)));
    let longest = lists.flatten().filter_map(Value::as_array).map(Vec::len).max().unwrap_or(0);
    within("the number of tokens that its post_processor adds", longest as u64, TEMPLATE_TOKENS_MAX as u64)?;
    let processors =
        steps.iter().filter_map(|step| step.get("processors")?.as_array()).map(Vec::len).sum::<usize>();
    within("the number of steps of its post_processor", processors as u64, STEPS_MAX as u64)
}

/// Checks the regular expressions of a step.
fn patterns(step: &Map<String, Value>) -> Result<(), String> {
    let Some(pattern) = step.get("pattern") else { return Ok(()) };
    let text =
        pattern.get("Regex").or_else(|| pattern.get("String")).and_then(Value::as_str).unwrap_or_default();
    within("the length of a pattern in bytes", text.len() as u64, PATTERN_BYTES_MAX as u64)?;
    match pattern.get("Regex") {
        Some(_) => check_pattern(text),
        None => Ok(()),
    }
}

/// Checks that a regular expression takes no more than polynomial time. An expression without lookaround, backreference
/// or atomic group always takes linear time.
fn check_pattern(pattern: &str) -> Result<(), String> {
    let found = Shape::of(pattern);
    within("the product of all counts of repetition in a pattern", found.repeats, REPEATS_MAX)?;
    match found.is_nested && found.is_backtracking {
        true => {
            Err("a pattern of it nests repetitions next to a look-around, which can take exponential time"
                .into())
        }
        false => Ok(()),
    }
}

/// Properties of a regular expression that bound its matching time.
struct Shape {
    /// Product of the repetition counts in braces.
    repeats: u64,
    /// True if a group with an unbounded repetition is itself repeated without a bound.
    is_nested: bool,
    /// True if it needs backtracking.
    is_backtracking: bool,
}

impl Shape {
    fn of(pattern: &str) -> Self {
        let mut shape = Self { repeats: 1, is_nested: false, is_backtracking: false };
        // For each open group, and for the last item: true if it contains an unbounded repetition.
        let (mut open, mut last) = (vec![false], false);
        let mut rest = pattern.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '\\' => {
                    let escaped = rest.next();
                    // The braces hold the name of a property or the number of a character.
                    if escaped.is_some_and(|c| "pPxu".contains(c)) && rest.peek() == Some(&'{') {
                        rest.by_ref().find(|&c| c == '}');
                    }
                    shape.is_backtracking |=
                        escaped.is_some_and(|c| c.is_ascii_digit() || "kGKgZ".contains(c));
                    last = false;
                }
                '[' => {
                    skip_class(&mut rest);
                    last = false;
                }
                '(' => {
                    if rest.next_if_eq(&'?').is_some() {
                        shape.is_backtracking |= rest.peek().is_some_and(|c| "=!><(".contains(*c));
                    }
                    open.push(false);
                    last = false;
                }
                ')' => {
                    last = if open.len() > 1 { open.pop().unwrap_or(false) } else { false };
                    // Content of a group is also content of the groups around it.
                    if let Some(outer) = open.last_mut() {
                        *outer |= last;
                    }
                }
                '*' | '+' | '{' => {
                    let count = if c == '{' { counts(&mut rest) } else { None };
                    if let Some(count) = count {
                        shape.repeats = shape.repeats.saturating_mul(count.max(1));
                        last = false;
                    } else {
                        shape.is_nested |= last;
                        // A sign for a lazy or possessive repetition is not a repetition itself.
                        shape.is_backtracking |= rest.next_if(|c| "?+".contains(*c)) == Some('+');
                        if let Some(inside) = open.last_mut() {
                            *inside = true;
                        }
                        last = false;
                    }
                }
                '?' => {}
                _ => last = false,
            }
        }
        shape
    }
}

/// Skips the rest of a character class after its opening bracket. It may contain other classes.
fn skip_class(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let mut depth = 1;
    rest.next_if_eq(&'^');
    // A closing bracket at the start of a class is an ordinary character.
    rest.next_if_eq(&']');
    while depth > 0 {
        match rest.next() {
            None => return,
            Some('\\') => drop(rest.next()),
            Some('[') => depth += 1,
            Some(']') => depth -= 1,
            Some(_) => {}
        }
    }
}

/// Parses a repetition count after `{` and returns its upper bound; `None` if it is unbounded, 1 if the brace is
/// literal.
fn counts(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<u64> {
    let mut text = String::new();
    while let Some(c) = rest.next_if(|c| c.is_ascii_digit() || *c == ',') {
        text.push(c);
    }
    rest.next_if_eq(&'}');
    match text.rsplit_once(',') {
        // The brace is an ordinary character.
        None if text.is_empty() => Some(1),
        Some((_, "")) => None,
        Some((_, most)) => Some(most.parse().unwrap_or(u64::MAX)),
        None => Some(text.parse().unwrap_or(u64::MAX)),
    }
}

fn within(what: &str, found: u64, most: u64) -> Result<(), String> {
    match found > most {
        true => Err(format!("{what} is {found}, at most {most} is allowed")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::corpus::Vocabulary;

    /// Returns a byte tokenizer with some parts replaced.
    fn file(parts: Value) -> String {
        let mut file: Value = serde_json::from_str(&Vocabulary::Bytes.to_json()).unwrap();
        for (key, value) in parts.as_object().unwrap() {
            match key.as_str() {
                "model" => value
                    .as_object()
                    .unwrap()
                    .iter()
                    .for_each(|(key, value)| file["model"][key] = value.clone()),
                _ => file[key] = value.clone(),
            }
        }
        file.to_string()
    }

    fn refused(parts: Value, why: &str) {
        let said = Vocabulary::from_json(file(parts).as_bytes()).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("the tokenizer is refused: ") && said.contains(why), "{said}");
    }

    fn replace(pattern: &str, content: &str) -> Value {
        json!({ "type": "Replace", "pattern": { "String": pattern }, "content": content })
    }

    fn sequence(steps: Vec<Value>) -> Value {
        json!({ "type": "Sequence", "normalizers": steps })
    }

    /// Goal: a text that each of five stages would expand sixtyfold, to gigabytes, is refused.
    #[test]
    fn a_text_that_grows_in_each_step_is_refused() {
        let sixty = replace("\u{1234}", &"\u{1234}".repeat(60));
        let normalizer = sequence(vec![sixty.clone(), sequence(vec![sixty; 4])]);
        let vocabulary = Vocabulary::from_json(file(json!({ "normalizer": normalizer })).as_bytes()).unwrap();
        assert_eq!(vocabulary.encode_short("lamp").unwrap().len(), 4);
        for why in [
            vocabulary.encode_short("\u{1234}").map(drop),
            vocabulary.encode(&"a\u{1234}".repeat(99)).map(drop),
        ] {
            let why = why.unwrap_err().to_string();
            assert!(why.contains("more than 16 times as long"), "{why}");
        }
        // This token is normalised when the file is read.
        let added = json!([{ "id": 256, "content": "\u{1234}".repeat(9), "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": true, "special": false }]);
        refused(json!({ "normalizer": normalizer, "added_tokens": added }), "more than 16 times as long");
    }

    #[test]
    fn parts_beyond_a_limit_are_refused() {
        let long = "x".repeat(100);
        refused(
            json!({ "normalizer": replace("a", &long) }),
            "the growth in one step of its normalizer is 100",
        );
        refused(json!({ "normalizer": { "pattern": { "Regex": "" }, "content": long } }), "is 101");
        refused(json!({ "normalizer": { "type": "Prepend", "prepend": long } }), "is 101");
        refused(json!({ "normalizer": sequence(vec![json!({ "type": "NFC" }); 65]) }), "the number of steps");
        let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true });
        let levels = json!({ "type": "Sequence", "pretokenizers": vec![level; 9] });
        refused(json!({ "pre_tokenizer": levels }), "all steps of its pre_tokenizer is 512");
        let doubled = json!({ "type": "Sequence", "decoders": vec![replace("a", "aa"); 9] });
        refused(json!({ "decoder": doubled }), "all steps of its decoder is 512");
        let template = json!({ "type": "TemplateProcessing", "pair": [], "special_tokens": {},
            "single": vec![json!({ "Sequence": { "id": "A", "type_id": 0 } }); 65] });
        refused(
            json!({ "post_processor": template }),
            "the number of tokens that its post_processor adds is 65",
        );
        refused(
            json!({ "model": { "max_input_chars_per_word": 100_000 } }),
            "max_input_chars_per_word of its model is",
        );
        refused(json!({ "model": { "end_of_word_suffix": long } }), "the length of an affix");
        refused(
            json!({ "model": { "vocab": { ("x".repeat(2_000)): 256 } } }),
            "the length of a token in bytes is 2000",
        );
        let split = |regex: &str| {
            let pattern = json!({ "Regex": regex });
            json!({ "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false })
        };
        refused(json!({ "pre_tokenizer": split("(?:a+)+(?!b)") }), "exponential time");
        refused(json!({ "pre_tokenizer": split("(?=(a{1000}){1000})") }), "counts of repetition");
        refused(json!({ "pre_tokenizer": split(&"a".repeat(9_000)) }), "the length of a pattern");
    }

    /// Goal: a table whose stated length exceeds its content is refused. The library would allocate memory for it.
    #[test]
    fn damaged_sentencepiece_tables_are_refused() {
        let charsmap =
            |map: &str| json!({ "normalizer": { "type": "Precompiled", "precompiled_charsmap": map } });
        refused(charsmap("/////w=="), "its precompiled_charsmap is damaged");
        refused(charsmap("!"), "its precompiled_charsmap is damaged");
        assert_eq!(longest_replacement("BAAAAAAAAABhYgBhYmMA"), Ok(3));
        assert_eq!(base64("QUI="), Some(b"AB".to_vec()));
    }

    /// Goal: patterns and stages of common tokenizers are within all limits.
    #[test]
    fn common_tokenizers_are_accepted() {
        let patterns = [
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
                r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\s+(?!\S)|\s+",
            r"(?=(\d{3})+(?!\d))",
            r"\d{1,3}(?=(?:\d{3})*\b)",
            r" ?[^(\s|[.,!?…。，、।۔،])]+",
        ];
        for pattern in patterns {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        let llama = sequence(vec![json!({ "type": "Prepend", "prepend": "▁" }), replace(" ", "▁")]);
        let decoder = json!({ "type": "Sequence", "decoders": [replace("▁", " "), { "type": "ByteFallback" },
            { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 }] });
        let growth = check(file(json!({ "normalizer": llama, "decoder": decoder })).as_bytes()).unwrap();
        assert_eq!(growth, Growth { is_measured: false, most: 24 });
        let albert = sequence(vec![
            replace("``", "\""),
            json!({ "type": "NFKD" }),
            json!({ "type": "StripAccents" }),
            json!({ "type": "Lowercase" }),
        ]);
        let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" });
        let growth =
            check(file(json!({ "normalizer": albert, "pre_tokenizer": metaspace })).as_bytes()).unwrap();
        assert_eq!(growth, Growth { is_measured: true, most: 96 });
    }
}
