//! Documents as tokens, and which of these are learnt.

use std::ops::Range;

use archipelago_core::token::{self, GIVEN};

use super::{Document, End};
use crate::corpus::cutting::Piece;
use crate::corpus::vocabulary::Vocabulary;
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

/// Tokenizes each of `documents` and marks the given tokens. `take` gets the tokens document by document, with the
/// index of the document.
///
/// # Errors
/// `Tokenizer`: the tokenizer does not take a text.
pub fn each(
    documents: &[Document],
    vocabulary: &Vocabulary,
    ends: &Ends,
    take: &mut dyn FnMut(usize, &[u32]),
) -> Result<(), ServerError> {
    let texts: Vec<&str> = documents.iter().map(|document| document.text.as_str()).collect();
    let mut marker = Marker { documents, ends, at: 0, tokens: Vec::new(), span: 0, take };
    marker.begin();
    vocabulary.encode_each(&texts, &mut |index, pieces| {
        marker.end_up_to(index);
        marker.mark(pieces);
    })?;
    marker.end_up_to(documents.len());
    Ok(())
}

/// Marks the tokens of one document after the other.
struct Marker<'a> {
    documents: &'a [Document],
    ends: &'a Ends,
    /// Index of the document.
    at: usize,
    /// Its tokens so far.
    tokens: Vec<u32>,
    /// Index of its first learnt part that may touch the next token.
    span: usize,
    take: &'a mut dyn FnMut(usize, &[u32]),
}

impl Marker<'_> {
    fn begin(&mut self) {
        self.tokens.clear();
        self.span = 0;
        if self.documents.get(self.at).is_some_and(|document| document.end == End::Learnt) {
            self.tokens.extend(self.ends.before.iter().map(|token| token | GIVEN));
        }
    }

    fn mark(&mut self, pieces: &[Piece]) {
        let learnt = &self.documents[self.at].learnt;
        for Piece { token, bytes } in pieces {
            while learnt.get(self.span).is_some_and(|span| span.end <= first(bytes)) {
                self.span += 1;
            }
            let is_learnt = learnt.get(self.span).is_some_and(|span| touches(span, bytes));
            self.tokens.push(if is_learnt { *token } else { token | GIVEN });
        }
    }

    /// Ends all documents before the one at `index`.
    fn end_up_to(&mut self, index: usize) {
        while self.at < index {
            let after = &self.ends.after;
            match self.documents[self.at].end {
                End::Learnt => self.tokens.extend(after),
                End::Given if ends_with(&self.tokens, after) => {}
                End::Given => self.tokens.extend(after.iter().map(|token| token | GIVEN)),
            }
            (self.take)(self.at, &self.tokens);
            self.at += 1;
            self.begin();
        }
    }
}

/// Returns true if `tokens`, marked or not, end with `end`.
fn ends_with(tokens: &[u32], end: &[u32]) -> bool {
    let last = &tokens[tokens.len().saturating_sub(end.len())..];
    last.iter().map(|&token| token::id(token)).eq(end.iter().copied())
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
