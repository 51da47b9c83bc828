//! Tokens of windows: their ids, and whether they are targets or masked.
//!
//! In most texts, the model is trained to predict every token. If a model is to learn answers but not questions, the
//! tokens of questions are *masked*: the model reads them, but is not trained to predict them. In
//! windows, a masked token is its id with [`MASKED`] set. No vocabulary is that large, so windows without masked
//! tokens are unchanged.

/// Bit set in a masked token, which is read and not predicted.
pub const MASKED: u32 = 1 << 31;

/// Returns the id of a token, masked or not.
#[must_use]
pub const fn id(token: u32) -> u32 {
    token & !MASKED
}

/// Returns true if the token is a target, and not masked.
#[must_use]
pub const fn is_target(token: u32) -> bool {
    token & MASKED == 0
}

/// Returns the number of predicted tokens in `tokens`, windows of shape `[n, context + 1]`: all tokens that are not
/// masked, except the first of each window, which has no predecessor.
#[must_use]
pub fn target_count(tokens: &[u32], context: usize) -> u64 {
    let targets = tokens.chunks(context + 1).flat_map(|window| window.get(1..).unwrap_or_default());
    targets.filter(|&&token| is_target(token)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_of_a_window_is_no_target() {
        assert_eq!(target_count(&[1, 2, 3, 4, 5, 6], 2), 4);
        assert_eq!(target_count(&[1, 2 | MASKED, 3, 4 | MASKED, 5 | MASKED, 6 | MASKED], 2), 1);
        assert_eq!(target_count(&[], 2), 0);
        assert_eq!((id(7 | MASKED), id(7), is_target(7), is_target(7 | MASKED)), (7, 7, true, false));
    }
}
