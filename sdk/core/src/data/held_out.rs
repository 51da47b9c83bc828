//! Held-out windows, as transferred to learners that measure the held-out loss.

use crate::token;

/// Maximum size in bytes.
pub const HELD_OUT_BYTES_MAX: u64 = 1 << 20;

/// Reason why bytes are not held-out windows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeldOutError {
    /// The bytes are not a positive whole number of windows.
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

/// Parses windows, `[n, context + 1]`, with `n` at least 1.
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

    #[test]
    fn windows_come_back_with_their_marks() {
        let windows = [1, 2 | token::GIVEN, 3, 4, 5, 6];
        let bytes = encode_held_out(&windows);
        assert_eq!(parse_held_out(&bytes, 2, 7), Ok(windows.to_vec()));
        assert_eq!(parse_held_out(&bytes, 2, 6), Err(HeldOutError::Token { token: 6, vocab: 6 }));
        assert_eq!(parse_held_out(&bytes, 3, 7), Err(HeldOutError::Windows { bytes: 24, window: 4 }));
        assert_eq!(parse_held_out(&[], 3, 7), Err(HeldOutError::Windows { bytes: 0, window: 4 }));
    }
}
