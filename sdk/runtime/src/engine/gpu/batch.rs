//! The tokens of a step in the layout that the kernels read.
//!
//! Each microbatch consists of words: inputs `[R]`, targets `[R]` with given ones marked as in [`crate::token`], rows
//! grouped by token `[R]`, and one group `(token, begin, end, 0)` for each of them `[R, 4]`. R is padded to the
//! alignment of bindings. The groups allow the gradient of the embedding to be summed in row order, without atomic
//! additions.

use super::program::{ALIGN_BYTES, Slice};
use crate::token;

/// Words of a microbatch per row.
const WORDS: usize = 7;

/// The shape of a step's tokens.
#[derive(Clone, Copy, Debug)]
pub struct BatchShape {
    /// Microbatches in a step.
    pub microbatches: usize,
    /// Windows in each.
    pub windows: usize,
    /// Tokens in a window.
    pub context: usize,
}

/// Slices of the parts of a microbatch on the device.
#[derive(Debug)]
pub struct Microbatch {
    /// Input tokens, `[R]`.
    pub inputs: Slice,
    /// Tokens to be predicted, `[R]`.
    pub targets: Slice,
    /// Rows grouped by token, `[R]`.
    pub order: Slice,
    /// `(token, begin, end, 0)`, `[R]`.
    pub runs: Slice,
}

impl BatchShape {
    /// Returns R.
    pub fn rows(&self) -> usize {
        self.windows * self.context
    }

    /// Returns R, padded.
    pub fn rows_padded(&self) -> usize {
        self.rows().next_multiple_of((ALIGN_BYTES / 4) as usize)
    }

    /// Returns the words of all microbatches.
    pub fn words(&self) -> usize {
        self.microbatches * self.rows_padded() * WORDS
    }

    /// Returns the slices of microbatch `index` in `buffer`.
    pub fn microbatch(&self, buffer: &wgpu::Buffer, index: usize) -> Microbatch {
        let bytes = self.rows_padded() as u64 * 4;
        let part = |first: u64, count: u64| Slice {
            buffer: buffer.clone(),
            start_byte: (index as u64 * WORDS as u64 + first) * bytes,
            bytes: count * bytes,
        };
        Microbatch { inputs: part(0, 1), targets: part(1, 1), order: part(2, 1), runs: part(3, 4) }
    }

    /// Returns the words for `tokens`, `[microbatches · windows, context + 1]`.
    pub fn fill(&self, tokens: &[u32]) -> Vec<u32> {
        let (rows, padded) = (self.rows(), self.rows_padded());
        let mut words = vec![0; self.words()];
        let parts = tokens.chunks_exact(self.windows * (self.context + 1));
        for (tokens, words) in parts.zip(words.chunks_exact_mut(padded * WORDS)) {
            let (inputs, words) = words.split_at_mut(padded);
            let (targets, words) = words.split_at_mut(padded);
            let (order, runs) = words.split_at_mut(padded);
            for (i, window) in tokens.chunks_exact(self.context + 1).enumerate() {
                let inputs = &mut inputs[i * self.context..][..self.context];
                inputs.iter_mut().zip(window).for_each(|(input, &token)| *input = token::id(token));
                targets[i * self.context..][..self.context].copy_from_slice(&window[1..]);
            }
            let (inputs, order) = (&inputs[..rows], &mut order[..rows]);
            order.iter_mut().zip(0..).for_each(|(row, index)| *row = index);
            // Stable: the rows of one token stay in order.
            order.sort_by_key(|&row| inputs[row as usize]);
            let mut begin = 0;
            for (same, run) in order
                .chunk_by(|&a, &b| inputs[a as usize] == inputs[b as usize])
                .zip(runs.as_chunks_mut::<4>().0)
            {
                let end = begin + same.len() as u32;
                *run = [inputs[same[0] as usize], begin, end, 0];
                begin = end;
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_rows_by_token() {
        let shape = BatchShape { microbatches: 2, windows: 1, context: 3 };
        let given = token::GIVEN;
        let words = shape.fill(&[5 | given, 1, 5 | given, 9, 2, 2, 2, 2]);
        let part = |index: usize, first: usize, len| &words[index * 448 + first * 64..][..len];
        assert_eq!(words.len(), 2 * 7 * 64);
        assert_eq!(part(0, 0, 4), [5, 1, 5, 0]);
        assert_eq!(part(0, 1, 4), [1, 5 | given, 9, 0]);
        assert_eq!(part(0, 2, 4), [1, 0, 2, 0]);
        assert_eq!(part(0, 3, 12), [1, 0, 1, 0, 5, 1, 3, 0, 0, 0, 0, 0]);
        assert_eq!(part(1, 2, 3), [0, 1, 2]);
        assert_eq!(part(1, 3, 8), [2, 0, 3, 0, 0, 0, 0, 0]);
    }
}
