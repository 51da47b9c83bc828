//! Tokenisation of documents, with a mask bit on each token that is not a target.

use std::ops::Range;

use archipelago_core::token::{self, MASKED};

use super::{Document, End};
use crate::corpus::cutting::Piece;
use crate::corpus::vocabulary::Vocabulary;
use crate::errors::ServerError;

/// Tokens at the beginning and the end of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Tokens that the tokenizer puts before a text.
    before: Vec<u32>,
    /// Tokens that end a text: the end-of-text token, or a line end if the model lacks one.
    after: Vec<u32>,
}

impl Ends {
    /// Returns the tokens at the ends of documents in `vocabulary`. `end` is its end-of-text token, if any.
    ///
    /// # Errors
    /// `Tokenizer`: the tokenizer rejects a text.
    pub fn new(vocabulary: &Vocabulary, end: Option<u32>) -> Result<Self, ServerError> {
        let after = match end {
            Some(end) => vec![end],
            None => vocabulary.encode("\n")?,
        };
        let mut before = vocabulary.added()?;
        // End tokens that the tokenizer adds itself must not appear twice.
        before.truncate(before.iter().position(|token| after.contains(token)).unwrap_or(before.len()));
        Ok(Self { before, after })
    }
}

/// Tokenises each of `documents` and masks the tokens that are not targets. `take` gets the index of a document and
/// its tokens, document by document.
///
/// # Errors
/// `Tokenizer`: the tokenizer rejects a text.
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

/// Masks the tokens of documents, one document at a time.
struct Marker<'a> {
    documents: &'a [Document],
    ends: &'a Ends,
    /// Index of the current document.
    at: usize,
    /// Tokens of the current document so far.
    tokens: Vec<u32>,
    /// Index of the document's first target range that may touch the next token.
    span: usize,
    take: &'a mut dyn FnMut(usize, &[u32]),
}

impl Marker<'_> {
    fn begin(&mut self) {
        self.tokens.clear();
        self.span = 0;
        if self.documents.get(self.at).is_some_and(|document| document.end == End::Target) {
            self.tokens.extend(self.ends.before.iter().map(|token| token | MASKED));
        }
    }

    fn mark(&mut self, pieces: &[Piece]) {
        let targets = &self.documents[self.at].targets;
        for Piece { token, bytes } in pieces {
            while targets.get(self.span).is_some_and(|span| span.end <= first(bytes)) {
                self.span += 1;
            }
            let is_target = targets.get(self.span).is_some_and(|span| touches(span, bytes));
            self.tokens.push(if is_target { *token } else { token | MASKED });
        }
    }

    /// Finishes each open document before the one at `index`: adds its end tokens and passes its tokens on.
    fn end_up_to(&mut self, index: usize) {
        while self.at < index {
            let after = &self.ends.after;
            match self.documents[self.at].end {
                End::Target => self.tokens.extend(after),
                End::Masked if ends_with(&self.tokens, after) => {}
                End::Masked => self.tokens.extend(after.iter().map(|token| token | MASKED)),
            }
            (self.take)(self.at, &self.tokens);
            self.at += 1;
            self.begin();
        }
    }
}

/// Returns true if `tokens` end with the token ids in `end`. Mask bits of `tokens` are ignored.
fn ends_with(tokens: &[u32], end: &[u32]) -> bool {
    let last = &tokens[tokens.len().saturating_sub(end.len())..];
    last.iter().map(|&token| token::id(token)).eq(end.iter().copied())
}

/// Returns the last byte of a token. Tokenizers may trim the blanks from a token's range until it is empty; the byte
/// before the range then stands for the token.
fn last(bytes: &Range<usize>) -> usize {
    bytes.end.saturating_sub(1)
}

/// Returns the first byte of a token.
fn first(bytes: &Range<usize>) -> usize {
    bytes.start.min(last(bytes))
}

/// Returns true if any byte of a token is in `span`. A token that is partly in a target range is a target.
fn touches(span: &Range<usize>, bytes: &Range<usize>) -> bool {
    first(bytes) < span.end && last(bytes) >= span.start
}
