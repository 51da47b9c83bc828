//! Byte encoding of a fragment's state in a blob.

use std::sync::Arc;

use crate::diloco::{FragmentState, KEPT_BYTES, Version, halves, kept, unkept};

/// Encodes Θ and momentum as `f32`, then Θ̂ in 16 bits: 10 bytes a value. A new owner continues from these bytes.
#[must_use]
pub fn state_bytes(state: &FragmentState) -> Vec<u8> {
    let mut bytes = kept(state);
    bytes.extend(halves::to_bytes(&state.hat));
    bytes
}

/// Decodes a fragment of `len` values at `version` that [`state_bytes`] wrote. Returns `None` if the length differs.
#[must_use]
pub fn state_of(version: Version, len: usize, bytes: &[u8]) -> Option<FragmentState> {
    let (masters, hat) = bytes.split_at_checked(KEPT_BYTES.checked_mul(len)?)?;
    if hat.len() != halves::BYTES * len {
        return None;
    }
    let [theta, momentum] = unkept(masters);
    Some(FragmentState { version, theta, hat: Arc::new(halves::from_bytes(hat)), momentum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_to_the_bit() {
        let mut state = FragmentState::new(vec![1.0 / 3.0, -2.5e-7, 0.0]);
        state.momentum = Arc::new(vec![0.1, -0.0, 3.0]);
        state.version = Version(7);
        let bytes = state_bytes(&state);
        assert_eq!(bytes.len(), 30);
        assert_eq!(state_of(Version(7), 3, &bytes), Some(state));
        assert_eq!(state_of(Version(7), 2, &bytes), None);
        assert_eq!(state_of(Version(7), 4, &bytes), None);
        assert_eq!(state_of(Version(7), usize::MAX, &bytes), None);
    }
}
