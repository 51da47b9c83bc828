//! Shards: training tokens in files that are fetched, checked and read whole.
//!
//! A shard consists of its tokens, each little endian in 2 or 4 bytes. If the run has masks, one bit for each token
//! follows, lowest bit of a byte first: 1 if the token is masked, that is read and not predicted. Padding bits of the
//! last byte are 0. The run's description has the length and the SHA-256 of each shard.
//!
//! This file also has the encoding of held-out windows, for learners that measure the held-out loss.

use std::num::NonZeroU32;

use crate::token;
use crate::token::MASKED;
use crate::wire::{DataSpec, ShardSpec};
use sha2::{Digest, Sha256};

/// Default maximum number of tokens in a shard.
pub const SHARD_TOKENS_MAX: NonZeroU32 = NonZeroU32::new(1 << 20).expect("2^20 is above 0");

/// Reason why bytes are not the expected shard, or tokens cannot be encoded as a shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// The width of a token is neither 2 nor 4 bytes.
    #[error("tokens of {found} bytes: must be 2 or 4")]
    TokenBytes {
        /// Bytes of a token.
        found: u8,
    },
    /// The length is wrong.
    #[error("shard has {found} bytes, must have {expected}: fetch it again")]
    Length {
        /// Bytes found.
        found: u64,
        /// Bytes that the shard must have.
        expected: u64,
    },
    /// The SHA-256 does not match.
    #[error("shard does not match its SHA-256: fetch it again")]
    Checksum,
    /// A token is outside the vocabulary.
    #[error("token {index} of the shard is {token}, the vocabulary has {vocab}")]
    Token {
        /// Index in the shard.
        index: u64,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u64,
    },
    /// Padding bits in the last byte of the mask are not 0.
    #[error("the mask of the shard ends in {found:#010b}, and marks tokens that do not exist")]
    Mask {
        /// Last byte of the mask.
        found: u8,
    },
}

/// Encoding of the shards of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardForm {
    /// Bytes of a token: 2 or 4.
    pub token_bytes: u8,
    /// Whether a mask follows the tokens, with one bit for each token.
    pub masks: bool,
}

impl ShardForm {
    /// Returns the size in bytes of a shard with `tokens` tokens.
    #[must_use]
    pub fn bytes(self, tokens: u64) -> u64 {
        let mask = if self.masks { tokens.div_ceil(8) } else { 0 };
        tokens.saturating_mul(u64::from(self.token_bytes)).saturating_add(mask)
    }

    /// Returns the number of tokens in a shard of `bytes` bytes, rounded down.
    fn tokens(self, bytes: u64) -> u64 {
        let bits = 8 * u64::from(self.token_bytes) + u64::from(self.masks);
        (u128::from(bytes) * 8 / u128::from(bits)) as u64
    }
}

/// Encoding without masks, from the number of bytes of a token.
impl From<u8> for ShardForm {
    fn from(token_bytes: u8) -> Self {
        Self { token_bytes, masks: false }
    }
}

impl From<&DataSpec> for ShardForm {
    fn from(data: &DataSpec) -> Self {
        Self { token_bytes: data.token_bytes, masks: data.masks }
    }
}

/// Verified tokens of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardTokens {
    bytes: Vec<u8>,
    tokens: usize,
    form: ShardForm,
}

impl ShardTokens {
    /// Checks that `bytes` are the shard that `spec` describes, with token ids below `vocab`.
    ///
    /// # Errors
    /// - [`ShardError::TokenBytes`]: tokens of `form` have neither 2 nor 4 bytes.
    /// - [`ShardError::Length`], [`ShardError::Checksum`]: `bytes` are not that shard.
    /// - [`ShardError::Token`], [`ShardError::Mask`]: the bytes are that shard, but an id is not below `vocab`, or
    ///   the mask has a bit set after the last token.
    pub fn parse(
        bytes: Vec<u8>,
        spec: &ShardSpec,
        form: impl Into<ShardForm>,
        vocab: u32,
    ) -> Result<Self, ShardError> {
        let form = checked(form)?;
        let (found, expected) = (bytes.len() as u64, form.bytes(spec.tokens));
        if found != expected {
            return Err(ShardError::Length { found, expected });
        }
        if sha256(&bytes) != spec.sha256 {
            return Err(ShardError::Checksum);
        }
        // The cast is lossless, because there are at most as many tokens as bytes.
        let shard = Self { bytes, tokens: spec.tokens as usize, form };
        let alien = shard.ids(0).zip(0_u64..).find(|(token, _)| *token >= vocab);
        if let Some((token, index)) = alien {
            return Err(ShardError::Token { index, token, vocab: u64::from(vocab) });
        }
        match shard.bytes.last() {
            Some(&found)
                if form.masks && !spec.tokens.is_multiple_of(8) && found >> (spec.tokens % 8) != 0 =>
            {
                Err(ShardError::Mask { found })
            }
            _ => Ok(shard),
        }
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens
    }

    /// Returns true if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Returns the tokens from index `start` on, with masked ones marked as in [`crate::token`]; empty past the end.
    pub fn iter(&self, start: usize) -> impl Iterator<Item = u32> + '_ {
        marked(&self.bytes, self.tokens, self.form, start)
    }

    fn ids(&self, start: usize) -> impl Iterator<Item = u32> + '_ {
        ids(&self.bytes, self.tokens, self.form, start)
    }
}

/// Returns the tokens in a shard's `bytes` from index `start` on, with masked ones marked as in [`crate::token`];
/// empty past the end. The shard has `tokens` tokens.
pub(super) fn marked(
    bytes: &[u8],
    tokens: usize,
    form: ShardForm,
    start: usize,
) -> impl Iterator<Item = u32> + '_ {
    let mask = bytes.get(tokens.saturating_mul(usize::from(form.token_bytes))..).unwrap_or_default();
    ids(bytes, tokens, form, start).zip(start..).map(move |(id, at)| {
        let is_masked = mask.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        if is_masked { id | MASKED } else { id }
    })
}

fn ids(bytes: &[u8], tokens: usize, form: ShardForm, start: usize) -> impl Iterator<Item = u32> + '_ {
    let width = usize::from(form.token_bytes).max(1);
    let from = start.checked_mul(width);
    let rest = from.and_then(|from| bytes.get(from..tokens.saturating_mul(width))).unwrap_or_default();
    rest.chunks_exact(width).map(|bytes| match *bytes {
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("the width was checked to be 2 or 4"),
    })
}

/// Encodes `tokens` as a shard. If `form` has masks, the marks of masked tokens become the mask.
///
/// # Errors
/// - [`ShardError::TokenBytes`]: tokens of `form` have neither 2 nor 4 bytes.
/// - [`ShardError::Token`]: tokens have 2 bytes, and an id (without masks, also a marked token) needs more.
pub fn encode_shard(tokens: &[u32], form: impl Into<ShardForm>) -> Result<Vec<u8>, ShardError> {
    let form = checked(form)?;
    let id = |token| if form.masks { token::id(token) } else { token };
    let mut bytes = Vec::with_capacity(form.bytes(tokens.len() as u64) as usize);
    for (index, token) in (0_u64..).zip(tokens.iter().map(|&token| id(token))) {
        if form.token_bytes == 4 {
            bytes.extend(token.to_le_bytes());
            continue;
        }
        let small = u16::try_from(token).map_err(|_| ShardError::Token { index, token, vocab: 1 << 16 })?;
        bytes.extend(small.to_le_bytes());
    }
    if form.masks {
        let is_masked = |(bit, &token): (usize, &u32)| u8::from(!token::is_target(token)) << bit;
        bytes.extend(tokens.chunks(8).map(|eight| eight.iter().enumerate().map(is_masked).sum::<u8>()));
    }
    Ok(bytes)
}

/// Returns the description of the shard `bytes`.
///
/// # Errors
/// - [`ShardError::TokenBytes`]: tokens of `form` have neither 2 nor 4 bytes.
/// - [`ShardError::Length`]: `bytes` is not a whole number of tokens with their masks.
pub fn shard_spec(bytes: &[u8], form: impl Into<ShardForm>) -> Result<ShardSpec, ShardError> {
    let form = checked(form)?;
    let found = bytes.len() as u64;
    let tokens = form.tokens(found);
    match form.bytes(tokens) == found {
        true => Ok(ShardSpec { tokens, sha256: sha256(bytes) }),
        false => Err(ShardError::Length { found, expected: form.bytes(tokens + 1) }),
    }
}

/// Corpus split into training and held-out tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split<'a> {
    /// Training tokens, one slice for each shard, in order.
    pub shards: Vec<&'a [u32]>,
    /// Held-out tokens, never trained on.
    pub held_out: &'a [u32],
}

/// Reason why a corpus cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// The held-out ratio is not at least 0 and below 1.
    #[error("held-out share is {ratio}: must be 0 or more and below 1")]
    Ratio {
        /// Requested ratio.
        ratio: f64,
    },
    /// No tokens are left for training.
    #[error("{tokens} tokens leave none to train on: give more text")]
    Empty {
        /// Tokens of the corpus.
        tokens: u64,
    },
}

/// Splits a corpus. The last ⌊`held_out_ratio` · tokens⌋ tokens are held out. The others are divided in order into
/// the fewest shards of at most `shard_tokens_max` tokens, equal in size to within one token.
///
/// # Errors
/// - [`SplitError::Ratio`]: `held_out_ratio` is not at least 0 and below 1.
/// - [`SplitError::Empty`]: no token is left for training.
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

fn checked(form: impl Into<ShardForm>) -> Result<ShardForm, ShardError> {
    let form = form.into();
    let found = form.token_bytes;
    if matches!(found, 2 | 4) { Ok(form) } else { Err(ShardError::TokenBytes { found }) }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Maximum size of encoded held-out windows, in bytes.
pub const HELD_OUT_BYTES_MAX: u64 = 1 << 20;

/// Reason why bytes are not held-out windows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeldOutError {
    /// The bytes are not one or more whole windows.
    #[error("{bytes} bytes are not a whole number of windows of {window} tokens of 4 bytes")]
    Windows {
        /// Number of bytes.
        bytes: usize,
        /// Tokens of a window, including the last target.
        window: usize,
    },
    /// A token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: u32,
    },
}

/// Encodes `windows`, `[n, context + 1]`: each token little endian in 4 bytes, marked as in [`crate::token`].
#[must_use]
pub fn encode_held_out(windows: &[u32]) -> Vec<u8> {
    windows.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// Decodes the output of [`encode_held_out`]: windows, `[n, context + 1]`, with `n` at least 1.
///
/// # Errors
/// Each variant of [`HeldOutError`].
pub fn parse_held_out(bytes: &[u8], context: u32, vocab: u32) -> Result<Vec<u32>, HeldOutError> {
    let window = context as usize + 1;
    if bytes.is_empty() || !bytes.len().is_multiple_of(4 * window) {
        return Err(HeldOutError::Windows { bytes: bytes.len(), window });
    }
    let tokens: Vec<u32> = bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
    match tokens.iter().map(|&token| token::id(token)).find(|&token| token >= vocab) {
        Some(token) => Err(HeldOutError::Token { token, vocab }),
        None => Ok(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_little_endian() {
        assert_eq!(encode_shard(&[1, 0x0203], 2), Ok(vec![1, 0, 3, 2]));
        assert_eq!(encode_shard(&[0x0102_0304], 4), Ok(vec![4, 3, 2, 1]));
        assert_eq!(encode_shard(&[1], 3), Err(ShardError::TokenBytes { found: 3 }));
        let wide = encode_shard(&[0, 65_536], 2);
        assert_eq!(wide, Err(ShardError::Token { index: 1, token: 65_536, vocab: 65_536 }));
    }

    #[test]
    fn parse_refuses_bytes_of_another_shard() {
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

    const WITH_MASKS: ShardForm = ShardForm { token_bytes: 2, masks: true };

    #[test]
    fn a_mask_is_a_bit_for_each_token() {
        let tokens: Vec<u32> =
            (1..=9).map(|id| if [2, 8, 9].contains(&id) { id | MASKED } else { id }).collect();
        let bytes = encode_shard(&tokens, WITH_MASKS).unwrap();
        assert_eq!(bytes[..4], [1, 0, 2, 0]);
        assert_eq!(bytes[18..], [0b1000_0010, 0b1]);
        let spec = shard_spec(&bytes, WITH_MASKS).unwrap();
        assert_eq!(spec.tokens, 9);
        let parse = |bytes: &[u8]| {
            let spec = ShardSpec { tokens: 9, sha256: sha256(bytes) };
            ShardTokens::parse(bytes.to_vec(), &spec, WITH_MASKS, 10)
        };
        let shard = parse(&bytes).unwrap();
        assert_eq!(shard.len(), 9);
        assert_eq!(shard.iter(7).collect::<Vec<_>>(), [8 | MASKED, 9 | MASKED]);
        assert_eq!(shard.iter(9).count(), 0);

        // A reader without masks finds surplus bytes, and a reader with masks finds too few.
        let plain = ShardTokens::parse(bytes.clone(), &spec, 2, 10);
        assert_eq!(plain, Err(ShardError::Length { found: 20, expected: 18 }));
        assert_eq!(parse(&bytes[..18]), Err(ShardError::Length { found: 18, expected: 20 }));
        let mut long = bytes.clone();
        *long.last_mut().unwrap() |= 0b10;
        assert_eq!(parse(&long), Err(ShardError::Mask { found: 0b11 }));
        let mut alien = bytes;
        alien[1] = 0x80;
        assert_eq!(parse(&alien), Err(ShardError::Token { index: 0, token: 0x8001, vocab: 10 }));
        assert_eq!(shard_spec(&[0; 4], WITH_MASKS), Err(ShardError::Length { found: 4, expected: 5 }));
        assert_eq!(shard_spec(&[], WITH_MASKS).unwrap().tokens, 0);
    }

    #[test]
    fn split_refuses_invalid_ratios_and_empty_text() {
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
        fn tokens_come_back(
            tokens in prop::collection::vec((0_u32..65_536, any::<bool>()), 0..100),
            wide: bool,
            masks: bool,
        ) {
            let form = ShardForm { token_bytes: if wide { 4 } else { 2 }, masks };
            let marked = |(id, is_masked): (u32, bool)| if is_masked && masks { id | MASKED } else { id };
            let tokens: Vec<u32> = tokens.into_iter().map(marked).collect();
            let bytes = encode_shard(&tokens, form).unwrap();
            let spec = shard_spec(&bytes, form).unwrap();
            let shard = ShardTokens::parse(bytes, &spec, form, 65_536).unwrap();
            prop_assert_eq!(shard.len(), tokens.len());
            prop_assert_eq!(shard.iter(0).collect::<Vec<_>>(), tokens);
        }
    }

    #[test]
    fn windows_come_back_with_their_marks() {
        let windows = [1, 2 | MASKED, 3, 4, 5, 6];
        let bytes = encode_held_out(&windows);
        assert_eq!(parse_held_out(&bytes, 2, 7), Ok(windows.to_vec()));
        assert_eq!(parse_held_out(&bytes, 2, 6), Err(HeldOutError::Token { token: 6, vocab: 6 }));
        assert_eq!(parse_held_out(&bytes, 3, 7), Err(HeldOutError::Windows { bytes: 24, window: 4 }));
        assert_eq!(parse_held_out(&[], 3, 7), Err(HeldOutError::Windows { bytes: 0, window: 4 }));
    }
}
