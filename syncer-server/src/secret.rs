//! Comparison of secrets.

/// Compares in constant time for inputs of equal length, so that the time does not reveal the number of correct bytes.
#[must_use]
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        assert!(is_same(b"secret", b"secret") && is_same(b"", b""));
        for other in ["", "secre", "secrets", "tecret", "secreT"] {
            assert!(!is_same(b"secret", other.as_bytes()), "{other}");
        }
    }
}
