//! Training tokens: shards, the order in which an epoch visits their windows, and the built-in corpus.
//!
//! A *window* is `context + 1` successive tokens of a shard: `context` inputs and, shifted by one, their targets. The
//! syncer leases ranges of windows; a learner's [`Feed`] makes batches of them.

mod feed;
pub mod grammar;
mod order;
pub mod pictures;
mod shard;

pub(crate) use feed::LEASES_MAX;
pub use feed::{Feed, FeedError};
pub use order::{Window, window_start, windows};
pub use shard::{
    HELD_OUT_BYTES_MAX, HeldOutError, SHARD_TOKENS_MAX, ShardError, ShardForm, ShardTokens, Split,
    SplitError, encode_held_out, encode_shard, parse_held_out, shard_spec, split,
};

/// Size of the byte vocabulary.
pub const BYTE_VOCAB: u32 = 256;

/// Returns the tokens of a text, `[bytes]`.
#[must_use]
pub fn bytes_to_tokens(text: &[u8]) -> Vec<u32> {
    text.iter().map(|byte| u32::from(*byte)).collect()
}

/// Returns the text of byte tokens, with U+FFFD for invalid UTF-8 and for tokens above 255.
#[must_use]
pub fn tokens_to_text(tokens: &[u32]) -> String {
    // The byte 0xff never occurs in UTF-8.
    let bytes: Vec<u8> = tokens.iter().map(|token| u8::try_from(*token).unwrap_or(0xff)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the bytes of a token in a shard, 2 or 4: the fewest that can store every id below `vocab`.
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
