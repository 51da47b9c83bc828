//! Long texts in parts, so that the memory of a tokenizer is bounded, with the tokens of the whole.
//!
//! A tokenizer takes about 100 bytes for each byte of a text. Parts overlap, and are joined where the tokens of both
//! agree for a while: a tokenizer decides by what is near, so that from there on both are those of the whole.

use std::ops::Range;

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its id.
    pub token: u32,
    /// The bytes of the text that it is from; blanks before and after may be left out.
    pub bytes: Range<usize>,
}

/// Bytes of a part.
pub const PART_BYTES: usize = 128 << 10;

/// Share of a part that it has in common with the next one.
const OVERLAP: usize = 32;

/// Tokens that have to be the same before and after the place where two parts are joined.
const AGREEMENT: usize = 8;

/// Returns the parts of `text`: itself if it is not long, or overlapping ranges of up to `part_bytes` bytes.
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
/// tokens of `after` to drop. `overlap` is the range of bytes that both have. `None` if they do not agree.
pub fn seam(before: &[Piece], after: &[Piece], overlap: &Range<usize>) -> Option<(usize, usize)> {
    let middle = overlap.start + overlap.len() / 2;
    let first = before.partition_point(|piece| piece.bytes.start < middle);
    (first..before.len().saturating_sub(AGREEMENT)).find_map(|at| {
        // Several tokens of one character have the same place.
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
        assert_eq!(seam(&before, &after, &(50..100)), Some((75, 25)));
        let other: Vec<Piece> = (50..150).map(|at| Piece { token: 9, bytes: at..at + 1 }).collect();
        assert_eq!(seam(&before, &other, &(50..100)), None);
        assert_eq!(seam(&[], &[], &(0..0)), None);
    }
}
