//! Shards: the training tokens as files that are fetched, checked and read whole.
//!
//! A shard is its tokens and nothing else, each little endian in 2 or 4 bytes. Its length and SHA-256
//! stand in the run's description.

use std::num::NonZeroU32;

use sha2::{Digest, Sha256};

use crate::wire::ShardSpec;

/// Tokens of a shard at most, unless told otherwise.
pub const SHARD_TOKENS_MAX: NonZeroU32 = NonZeroU32::new(1 << 20).expect("2^20 is above 0");

/// Why bytes are not the shard that was asked for, or tokens no shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// Tokens of a width that shards do not have.
    #[error("tokens of {found} bytes: must be 2 or 4")]
    TokenBytes {
        /// Bytes of a token.
        found: u8,
    },
    /// The bytes have another length.
    #[error("shard has {found} bytes, must have {expected}: fetch it again")]
    Length {
        /// Bytes there.
        found: u64,
        /// Bytes of the shard asked for.
        expected: u64,
    },
    /// The bytes have another SHA-256.
    #[error("shard does not match its SHA-256: fetch it again")]
    Checksum,
    /// A token is outside the vocabulary.
    #[error("token {index} of the shard is {token}, the vocabulary has {vocab}")]
    Token {
        /// Place in the shard.
        index: u64,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u64,
    },
}

/// The checked tokens of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardTokens {
    bytes: Vec<u8>,
    token_bytes: u8,
}

impl ShardTokens {
    /// Checks that `bytes` are the shard `spec`, with ids below `vocab`.
    ///
    /// # Errors
    /// - [`ShardError::TokenBytes`]: `token_bytes` is neither 2 nor 4.
    /// - [`ShardError::Length`], [`ShardError::Checksum`]: `bytes` are not that shard.
    /// - [`ShardError::Token`]: they are, but an id is `vocab` or above.
    pub fn parse(bytes: Vec<u8>, spec: &ShardSpec, token_bytes: u8, vocab: u32) -> Result<Self, ShardError> {
        check_token_bytes(token_bytes)?;
        let found = bytes.len() as u64;
        let expected = spec.tokens.saturating_mul(u64::from(token_bytes));
        if found != expected {
            return Err(ShardError::Length { found, expected });
        }
        if sha256(&bytes) != spec.sha256 {
            return Err(ShardError::Checksum);
        }
        let shard = Self { bytes, token_bytes };
        let alien = shard.iter(0).zip(0_u64..).find(|(token, _)| *token >= vocab);
        if let Some((token, index)) = alien {
            return Err(ShardError::Token { index, token, vocab: u64::from(vocab) });
        }
        Ok(shard)
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / usize::from(self.token_bytes)
    }

    /// Whether it has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The tokens from `start` on; none if that is past the end.
    pub fn iter(&self, start: usize) -> impl Iterator<Item = u32> + '_ {
        tokens(&self.bytes, self.token_bytes, start)
    }
}

/// The tokens of a shard's `bytes` from `start` on, of `token_bytes` bytes each; none if that is past the end.
pub(super) fn tokens(bytes: &[u8], token_bytes: u8, start: usize) -> impl Iterator<Item = u32> + '_ {
    let width = usize::from(token_bytes).max(1);
    let rest = start.checked_mul(width).and_then(|at| bytes.get(at..)).unwrap_or_default();
    rest.chunks_exact(width).map(|bytes| match *bytes {
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("the width was checked to be 2 or 4"),
    })
}

/// The bytes of a shard of `tokens`, `[tokens · token_bytes]`.
///
/// # Errors
/// - [`ShardError::TokenBytes`]: `token_bytes` is neither 2 nor 4.
/// - [`ShardError::Token`]: an id does not fit in `token_bytes`.
pub fn encode_shard(tokens: &[u32], token_bytes: u8) -> Result<Vec<u8>, ShardError> {
    check_token_bytes(token_bytes)?;
    if token_bytes == 4 {
        return Ok(tokens.iter().flat_map(|token| token.to_le_bytes()).collect());
    }
    let mut bytes = Vec::with_capacity(tokens.len() * 2);
    for (index, &token) in (0_u64..).zip(tokens) {
        let small = u16::try_from(token).map_err(|_| ShardError::Token { index, token, vocab: 1 << 16 })?;
        bytes.extend(small.to_le_bytes());
    }
    Ok(bytes)
}

/// The description of a shard of these `bytes`.
///
/// # Errors
/// - [`ShardError::TokenBytes`]: `token_bytes` is neither 2 nor 4.
/// - [`ShardError::Length`]: `bytes` is no whole number of tokens.
pub fn shard_spec(bytes: &[u8], token_bytes: u8) -> Result<ShardSpec, ShardError> {
    check_token_bytes(token_bytes)?;
    let (found, width) = (bytes.len() as u64, u64::from(token_bytes));
    if found % width != 0 {
        return Err(ShardError::Length { found, expected: found.next_multiple_of(width) });
    }
    Ok(ShardSpec { tokens: found / width, sha256: sha256(bytes) })
}

/// A corpus in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split<'a> {
    /// The training tokens, one slice for each shard, in order.
    pub shards: Vec<&'a [u32]>,
    /// The tokens kept for measuring the loss; never trained on.
    pub held_out: &'a [u32],
}

/// Why a corpus cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// The share is not in `0..1`.
    #[error("held-out share is {ratio}: must be 0 or more and below 1")]
    Ratio {
        /// The share asked for.
        ratio: f64,
    },
    /// No tokens are left to train on.
    #[error("{tokens} tokens leave none to train on: give more text")]
    Empty {
        /// Tokens of the corpus.
        tokens: u64,
    },
}

/// Splits a corpus: its last ⌊`held_out_ratio` · tokens⌋ tokens are held out, the ones before are cut in
/// order into the fewest shards of at most `shard_tokens_max`, equal in size to within one token.
///
/// # Errors
/// - [`SplitError::Ratio`]: `held_out_ratio` is not in `0..1`.
/// - [`SplitError::Empty`]: no token is left to train on.
pub fn split(
    tokens: &[u32],
    held_out_ratio: f64,
    shard_tokens_max: NonZeroU32,
) -> Result<Split<'_>, SplitError> {
    if !(0.0..1.0).contains(&held_out_ratio) {
        return Err(SplitError::Ratio { ratio: held_out_ratio });
    }
    let held_out = (tokens.len() as f64 * held_out_ratio) as usize;
    let (mut rest, held_out) = tokens.split_at(tokens.len() - held_out);
    if rest.is_empty() {
        return Err(SplitError::Empty { tokens: tokens.len() as u64 });
    }
    let count = rest.len().div_ceil(shard_tokens_max.get() as usize);
    let mut shards = Vec::with_capacity(count);
    for left in (1..=count).rev() {
        let (shard, after) = rest.split_at(rest.len().div_ceil(left));
        shards.push(shard);
        rest = after;
    }
    Ok(Split { shards, held_out })
}

fn check_token_bytes(found: u8) -> Result<(), ShardError> {
    if matches!(found, 2 | 4) { Ok(()) } else { Err(ShardError::TokenBytes { found }) }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_little_endian() {
        assert_eq!(encode_shard(&[1, 0x0203], 2), Ok(vec![1, 0, 3, 2]));
        assert_eq!(encode_shard(&[0x0102_0304], 4), Ok(vec![4, 3, 2, 1]));
        assert_eq!(encode_shard(&[1], 3), Err(ShardError::TokenBytes { found: 3 }));
        let wide = encode_shard(&[0, 65_536], 2);
        assert_eq!(wide, Err(ShardError::Token { index: 1, token: 65_536, vocab: 65_536 }));
    }

    #[test]
    fn refuses_what_was_not_asked_for() {
        let bytes = encode_shard(&[7, 255, 9], 2).unwrap();
        let spec = shard_spec(&bytes, 2).unwrap();
        let parse = |bytes: &[u8], width, vocab| ShardTokens::parse(bytes.to_vec(), &spec, width, vocab);

        assert_eq!(parse(&bytes, 2, 256).unwrap().iter(1).collect::<Vec<_>>(), [255, 9]);
        assert_eq!(parse(&bytes, 2, 256).unwrap().iter(3).count(), 0);
        assert_eq!(parse(&bytes, 0, 256), Err(ShardError::TokenBytes { found: 0 }));
        assert_eq!(parse(&bytes[..5], 2, 256), Err(ShardError::Length { found: 5, expected: 6 }));
        assert_eq!(parse(&bytes, 4, 256), Err(ShardError::Length { found: 6, expected: 12 }));
        assert_eq!(parse(&[7, 0, 255, 0, 8, 0], 2, 256), Err(ShardError::Checksum));
        assert_eq!(parse(&bytes, 2, 255), Err(ShardError::Token { index: 1, token: 255, vocab: 255 }));

        let endless = ShardSpec { tokens: u64::MAX, sha256: [0; 32] };
        let expected = Err(ShardError::Length { found: 0, expected: u64::MAX });
        assert_eq!(ShardTokens::parse(vec![], &endless, 4, 256), expected);
        assert_eq!(shard_spec(&[1, 2, 3], 2), Err(ShardError::Length { found: 3, expected: 4 }));
    }

    #[test]
    fn refuses_shares_that_are_none() {
        let max = SHARD_TOKENS_MAX;
        for ratio in [-0.1, 1.0, f64::NAN] {
            assert!(matches!(split(&[1, 2], ratio, max), Err(SplitError::Ratio { .. })), "{ratio}");
        }
        assert_eq!(split(&[], 0.1, max), Err(SplitError::Empty { tokens: 0 }));
    }

    proptest! {
        #[test]
        fn split_keeps_every_token_in_order(count in 1_u32..500, ratio in 0.0..0.99, max in 1_u32..200) {
            let tokens: Vec<u32> = (0..count).collect();
            let parts = split(&tokens, ratio, NonZeroU32::new(max).unwrap()).unwrap();
            prop_assert_eq!(parts.held_out.len(), (f64::from(count) * ratio) as usize);
            prop_assert_eq!(&[parts.shards.concat(), parts.held_out.to_vec()].concat(), &tokens);

            let sizes: Vec<usize> = parts.shards.iter().map(|shard| shard.len()).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            prop_assert!(*most <= max as usize && most - least <= 1, "{:?}", sizes);
            prop_assert_eq!(sizes.len(), sizes.iter().sum::<usize>().div_ceil(max as usize));
        }

        #[test]
        fn tokens_come_back(tokens in prop::collection::vec(0_u32..65_536, 0..100), wide: bool) {
            let width = if wide { 4 } else { 2 };
            let bytes = encode_shard(&tokens, width).unwrap();
            let spec = shard_spec(&bytes, width).unwrap();
            let shard = ShardTokens::parse(bytes, &spec, width, 65_536).unwrap();
            prop_assert_eq!(shard.len(), tokens.len());
            prop_assert_eq!(shard.iter(0).collect::<Vec<_>>(), tokens);
        }
    }
}
