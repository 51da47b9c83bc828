//! Text that must fit: names, and the reasons that peers give each other.

/// Longest reason in a WebSocket's close frame, in bytes: RFC 6455, section 5.5, allows 125, and the code takes two.
pub const CLOSE_REASON_BYTES_MAX: u32 = 123;

/// The longest start of `text` that has at most `bytes_max` bytes and ends between two characters.
#[must_use]
pub fn clip(text: &str, bytes_max: u32) -> &str {
    &text[..text.floor_char_boundary(bytes_max as usize)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_between_two_characters() {
        for (text, bytes_max, expected) in [("aé", 0, ""), ("aé", 2, "a"), ("aé", 3, "aé"), ("aé", 9, "aé")]
        {
            assert_eq!(clip(text, bytes_max), expected);
        }
    }
}
