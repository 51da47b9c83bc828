//! Documents as tokens, and which of these are learnt.

use std::ops::Range;

use archipelago_core::token::GIVEN;

use super::{Document, End};
use crate::corpus::vocabulary::{Piece, Vocabulary};
use crate::errors::ServerError;

/// The tokens that documents begin and end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// What the tokenizer puts before a text, if anything.
    before: Vec<u32>,
    /// What ends a text: one token, or those of a line's end where the model has none.
    after: Vec<u32>,
}

impl Ends {
    /// Those of `vocabulary`, whose end of a text is `end` if it has one.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer does not take a text.
    pub fn new(vocabulary: &Vocabulary, end: Option<u32>) -> Result<Self, ServerError> {
        let after = match end {
            Some(end) => vec![end],
            None => vocabulary.encode("\n")?,
        };
        let mut before = vocabulary.added()?;
        // What some tokenizers put after a text, too, is not twice there.
        before.truncate(before.iter().position(|token| after.contains(token)).unwrap_or(before.len()));
        Ok(Self { before, after })
    }
}

/// The tokens of each of `documents`, given ones marked.
///
/// # Errors
/// `Tokenizer`: the tokenizer does not take a text.
pub fn all(
    documents: &[Document],
    vocabulary: &Vocabulary,
    ends: &Ends,
) -> Result<Vec<Vec<u32>>, ServerError> {
    let texts = documents.iter().map(|document| document.text.as_str());
    let pieces = vocabulary.encode_each(texts)?;
    Ok(documents.iter().zip(pieces).map(|(document, pieces)| marked(document, &pieces, ends)).collect())
}

fn marked(document: &Document, pieces: &[Piece], ends: &Ends) -> Vec<u32> {
    let given = |token: &u32| token | GIVEN;
    let before = if document.end == End::Learnt { &ends.before[..] } else { &[] };
    let mut tokens: Vec<u32> = before.iter().map(given).collect();
    let mut spans = document.learnt.iter().peekable();
    for Piece { token, bytes } in pieces {
        while spans.next_if(|span| span.end <= first(bytes)).is_some() {}
        let is_learnt = spans.peek().is_some_and(|span| touches(span, bytes));
        tokens.push(if is_learnt { *token } else { given(token) });
    }
    match document.end {
        End::Learnt => tokens.extend(&ends.after),
        End::Given if ends_with(pieces, &ends.after) => {}
        End::Given => tokens.extend(ends.after.iter().map(given)),
    }
    tokens
}

fn ends_with(pieces: &[Piece], tokens: &[u32]) -> bool {
    let last = &pieces[pieces.len().saturating_sub(tokens.len())..];
    last.iter().map(|piece| &piece.token).eq(tokens)
}

/// The last byte of a token. Tokenizers may cut blanks off what they say of a token, even all of it: then the byte
/// before counts.
fn last(bytes: &Range<usize>) -> usize {
    bytes.end.saturating_sub(1)
}

/// Its first byte.
fn first(bytes: &Range<usize>) -> usize {
    bytes.start.min(last(bytes))
}

/// Whether any byte of a token is in `span`: a token that is learnt in part is learnt.
fn touches(span: &Range<usize>, bytes: &Range<usize>) -> bool {
    first(bytes) < span.end && last(bytes) >= span.start
}
