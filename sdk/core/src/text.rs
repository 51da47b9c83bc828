//! Text from other people and programs: clipping, neutralising terminal control characters, and cleaning copied
//! links.

/// Maximum length of the reason in a WebSocket close frame, in bytes. RFC 6455, section 5.5, allows 125, and the
/// close code takes two of them.
pub const CLOSE_REASON_BYTES_MAX: u32 = 123;

/// Returns the longest prefix of `text` that has at most `bytes_max` bytes and ends at a character boundary.
#[must_use]
pub fn clip(text: &str, bytes_max: u32) -> &str {
    &text[..text.floor_char_boundary(bytes_max as usize)]
}

/// Returns `text` on one line, with `·` in place of each character that could control a terminal or reorder text:
/// ASCII and Latin-1 control characters, line separators, and bidirectional formatting characters. Texts of peers
/// pass through this function before people see them.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '·' } else { c }).collect()
}

fn steers(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns a copied link or invite without surrounding blanks, quotes and brackets, and without punctuation at its
/// end.
#[must_use]
pub fn link_of(text: &str) -> &str {
    let around = |c: char| c.is_whitespace() || c.is_control() || "\"'`<>()“”„‘’«»".contains(c);
    text.trim_matches(around).trim_end_matches(|c: char| around(c) || ".,;!".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_a_terminal() {
        let evil = "a\u{1b}]0;x\u{7}\u{9b}2J\r\nb\u{202e}c\u{2066}\u{2069}\u{2028}d\u{200f}";
        assert_eq!(plain(evil), "a·]0;x··2J··b·c···d·");
        assert_eq!(plain("Ångström 東京 – «x»"), "Ångström 東京 – «x»");
    }

    #[test]
    fn links_are_freed_of_what_stands_around_them() {
        for text in [
            "http://a:1/#invite=x-y",
            " \"http://a:1/#invite=x-y\".\n",
            "<http://a:1/#invite=x-y>,",
            "“http://a:1/#invite=x-y”",
        ] {
            assert_eq!(link_of(text), "http://a:1/#invite=x-y");
        }
        assert_eq!(link_of("[::1]:80"), "[::1]:80");
        assert_eq!(link_of("lamp-keeper-7\r\n"), "lamp-keeper-7");
        assert_eq!(link_of("\"\""), "");
    }

    #[test]
    fn ends_between_two_characters() {
        for (text, bytes_max, expected) in [("aé", 0, ""), ("aé", 2, "a"), ("aé", 3, "aé"), ("aé", 9, "aé")]
        {
            assert_eq!(clip(text, bytes_max), expected);
        }
    }
}
