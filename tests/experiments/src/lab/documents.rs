//! Documents of a text, split into training, validation and test parts.

use archipelago_core::rng::Rng;
use archipelago_sim::corpus::{Corpus, CorpusError};

/// Smallest size of a piece of a text without files, in bytes. A piece ends at the first paragraph end after this size,
/// or else at the first line end.
const PIECE_BYTES: usize = 16 << 10;
/// Largest size of such a piece, in bytes; without a suitable end, a piece is cut here.
const PIECE_BYTES_MAX: usize = 32 << 10;
/// Number of parts of the bytes. One part is for validation, and another for the test.
const PARTS: usize = 10;

/// Documents by purpose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Documents {
    /// Training documents, in order.
    pub train: Vec<u8>,
    /// Documents for the choice of settings.
    pub validation: Vec<u8>,
    /// Documents for reporting the results of the choice.
    pub test: Vec<u8>,
}

impl Documents {
    /// Draws a tenth of the bytes of `documents` for validation and another for the test, in whole documents. The draw
    /// depends only on the sizes.
    #[must_use]
    pub fn part(documents: &[Vec<u8>]) -> Self {
        let mut order: Vec<usize> = (0..documents.len()).collect();
        let mut rng = Rng::new(documents.iter().fold(1, |sum, document| sum + document.len() as u64));
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at as u32 + 1) as usize);
        }
        let needed = documents.iter().map(Vec::len).sum::<usize>() / PARTS;
        let mut drawn = order.into_iter();
        let mut draw = || {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while bytes < needed {
                let Some(at) = drawn.next() else { break };
                bytes += documents[at].len();
                part.push(at);
            }
            part.sort_unstable();
            part
        };
        let join = |part: &[usize]| part.iter().flat_map(|&at| documents[at].iter().copied()).collect();
        let (validation, test) = (draw(), draw());
        let mut train: Vec<usize> = drawn.collect();
        train.sort_unstable();
        Self { train: join(&train), validation: join(&validation), test: join(&test) }
    }
}

impl TryFrom<&Documents> for Corpus {
    type Error = CorpusError;

    /// Creates a corpus whose validation and test parts serve no training.
    fn try_from(documents: &Documents) -> Result<Self, CorpusError> {
        Self::of_parts(&documents.train, &documents.validation, &documents.test)
    }
}

/// Splits a text without files into pieces of 16 to 32 KiB that end with a paragraph where possible.
#[must_use]
pub fn pieces(text: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > PIECE_BYTES {
        let reach = &rest[..rest.len().min(PIECE_BYTES_MAX)];
        let ends = |mark: &[u8]| {
            let found = reach[PIECE_BYTES..].windows(mark.len()).position(|bytes| bytes == mark);
            found.map(|at| PIECE_BYTES + at + mark.len())
        };
        let end = ends(b"\n\n").or_else(|| ends(b"\n")).unwrap_or(reach.len());
        let (piece, after) = rest.split_at(end);
        pieces.push(piece.to_vec());
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(rest.to_vec());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_paragraphs_and_are_the_text() {
        let paragraph = format!("{}\n{}\n\n", "word ".repeat(100), "more ".repeat(50));
        for text in [paragraph.repeat(200), "line\n".repeat(20_000), "x".repeat(100_000), "short".into()] {
            let pieces = pieces(text.as_bytes());
            assert_eq!(pieces.concat(), text.as_bytes());
            let (last, others) = pieces.split_last().unwrap();
            assert!(last.len() <= PIECE_BYTES_MAX);
            assert!(others.iter().all(|piece| (PIECE_BYTES..=PIECE_BYTES_MAX).contains(&piece.len())));
            if text.contains("\n\n") {
                assert!(others.len() > 5 && others.iter().all(|piece| piece.ends_with(b"\n\n")));
            }
        }
        assert_eq!(pieces(b""), [[0_u8; 0]; 0]);
    }

    #[test]
    fn each_document_is_in_one_part_and_whole() {
        let documents: Vec<Vec<u8>> = (0..100).map(|i| vec![i; 50 + usize::from(i)]).collect();
        let parts = Documents::part(&documents);
        let mut all = Vec::new();
        for (part, least) in [(&parts.train, 6_000), (&parts.validation, 995), (&parts.test, 995)] {
            let ids: std::collections::BTreeSet<u8> = part.iter().copied().collect();
            assert_eq!(part.len(), ids.iter().map(|&id| documents[usize::from(id)].len()).sum::<usize>());
            assert!((least..8_000).contains(&part.len()) && part.is_sorted(), "{}", part.len());
            all.extend(ids);
        }
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<u8>>());
        // They come from all over the text. Another draw would turn cached runs into runs of another text.
        let ids = |part: &[u8]| part.iter().copied().collect::<std::collections::BTreeSet<u8>>();
        let drawn = [ids(&parts.validation), ids(&parts.test)].map(Vec::from_iter);
        assert_eq!(
            drawn,
            [vec![2, 26, 30, 43, 50, 56, 62, 66, 77, 92], vec![6, 10, 13, 34, 42, 54, 57, 64, 75, 84, 86]]
        );
        assert_eq!(Documents::part(&[]), Documents::default());
    }
}
