//! The byte vocabulary: a token is a byte, so every text has tokens and every token is one.

/// Size of the byte vocabulary.
pub const BYTE_VOCAB: u32 = 256;

/// The tokens of a text, `[bytes]`.
#[must_use]
pub fn bytes_to_tokens(text: &[u8]) -> Vec<u32> {
    text.iter().map(|byte| u32::from(*byte)).collect()
}

/// The text of byte tokens; what is not UTF-8, or no byte, becomes U+FFFD.
#[must_use]
pub fn tokens_to_text(tokens: &[u32]) -> String {
    // 0xff occurs nowhere in UTF-8.
    let bytes: Vec<u8> = tokens.iter().map(|token| u8::try_from(*token).unwrap_or(0xff)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Bytes of a token in a shard, 2 or 4: the fewest that hold every id below `vocab`.
#[must_use]
pub fn token_bytes(vocab: u32) -> u8 {
    if vocab <= 1 << 16 { 2 } else { 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back() {
        let text = "Zwölf Boxkämpfer — 🥊";
        assert_eq!(tokens_to_text(&bytes_to_tokens(text.as_bytes())), text);
        assert_eq!(tokens_to_text(&[104, 105, 256, 0xc3]), "hi\u{fffd}\u{fffd}");
    }

    #[test]
    fn two_bytes_hold_ids_up_to_65535() {
        assert_eq!([1, 256, 65_536, 65_537].map(token_bytes), [2, 2, 2, 4]);
    }
}
