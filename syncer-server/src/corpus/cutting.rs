//! Tokenization of long texts in parts, which bounds memory and gives the same tokens as the whole text.
//!
//! A tokenizer takes about 100 bytes for each byte of a text. Parts overlap. Two parts are joined at a position where
//! several tokens in a row agree. A tokenizer decides by nearby text only, so from that position on the tokens of both
//! parts are those of the whole text.

use std::ops::Range;

/// Token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Token id.
    pub token: u32,
    /// Byte range of the token in the text; it may leave out blanks at its ends.
    pub bytes: Range<usize>,
}

/// Size of a part in bytes.
pub const PART_BYTES: usize = 128 << 10;

/// Ratio between the size of a part and its overlap with the next one.
const OVERLAP: usize = 32;

/// Number of tokens that have to agree on each side of the position where two parts are joined.
const AGREEMENT: usize = 8;

/// Returns the parts of `text`: one range for a short text, otherwise overlapping ranges of up to `part_bytes` bytes.
pub fn parts(text: &str, part_bytes: usize) -> Vec<Range<usize>> {
    let part_bytes = if text.len() <= 2 * part_bytes { text.len() } else { part_bytes };
    let (mut parts, mut start) = (Vec::new(), 0);
    loop {
        let end = text.floor_char_boundary(start + part_bytes);
        parts.push(start..end);
        if end == text.len() {
            return parts;
        }
        start = text.floor_char_boundary(end - part_bytes / OVERLAP);
    }
}

/// Returns where two neighbouring parts can be joined: the number of tokens of `before` to keep, and the number of
/// tokens of `after` to drop. `overlap` is the byte range that both parts contain. `None` if their tokens do not
/// agree.
pub fn join_position(before: &[Piece], after: &[Piece], overlap: &Range<usize>) -> Option<(usize, usize)> {
    let middle = overlap.start + overlap.len() / 2;
    let first = before.partition_point(|piece| piece.bytes.start < middle);
    (first..before.len().saturating_sub(AGREEMENT)).find_map(|at| {
        // Several tokens of one character have the same byte range.
        let is_boundary = at > 0 && before[at - 1].bytes.end <= before[at].bytes.start;
        let other = after.partition_point(|piece| piece.bytes.start < before[at].bytes.start);
        let around = |pieces: &[Piece], at: usize| {
            let range = at.checked_sub(AGREEMENT)?..at + AGREEMENT;
            pieces.get(range).map(<[Piece]>::to_vec)
        };
        let agrees = is_boundary && around(before, at).is_some_and(|it| Some(it) == around(after, other));
        agrees.then_some((at, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_overlap_and_cover_the_text() {
        assert!(parts("short", PART_BYTES).iter().eq([&(0..5)]) && parts("", PART_BYTES).len() == 1);
        let text = "aé".repeat(200_000);
        let found = parts(&text, PART_BYTES);
        assert!(found.len() > 3 && found[0].start == 0 && found.last().unwrap().end == text.len());
        for pair in found.windows(2) {
            assert!(pair[1].start < pair[0].end && pair[0].end - pair[1].start <= PART_BYTES / OVERLAP + 3);
            assert!(text.is_char_boundary(pair[1].start) && pair[0].len() <= PART_BYTES);
        }
    }

    #[test]
    fn parts_are_joined_where_they_agree() {
        let piece = |at: usize| Piece { token: at as u32 % 7, bytes: at..at + 1 };
        let before: Vec<Piece> = (0..100).map(piece).collect();
        let after: Vec<Piece> = (50..150).map(piece).collect();
        assert_eq!(join_position(&before, &after, &(50..100)), Some((75, 25)));
        let other: Vec<Piece> = (50..150).map(|at| Piece { token: 9, bytes: at..at + 1 }).collect();
        assert_eq!(join_position(&before, &other, &(50..100)), None);
        assert_eq!(join_position(&[], &[], &(0..0)), None);
    }
}
