//! Sum of the updates on a segment, block by block.

use crate::diloco::quant::{Block, Span};
use crate::diloco::{Codec, block};

/// Source of the sum on a segment.
#[derive(Clone, Debug)]
pub(super) enum Source<'a> {
    /// Bodies and their factors, to be summed in whole numbers.
    Whole(Vec<(f64, &'a [u8])>),
    /// A finished sum, `[fragment_len]`.
    Summed(&'a [f64]),
}

/// Sum of the updates on a segment; Δ is `factor` times that sum.
#[derive(Clone, Debug)]
pub(super) struct Added<'a> {
    pub(super) source: Source<'a>,
    pub(super) factor: f64,
    /// L2 norm of Δ.
    pub(super) norm: f64,
}

impl Default for Added<'_> {
    /// An empty sum.
    fn default() -> Self {
        Self { source: Source::Whole(Vec::new()), factor: 0.0, norm: 0.0 }
    }
}

impl Source<'_> {
    /// Returns the sum on `block`; `space` is a buffer.
    ///
    /// Summing the bodies twice, once for the norm and once for the step, is faster than writing and reading 8 bytes
    /// a value.
    #[inline(always)]
    pub(super) fn on<'s>(&'s self, codec: &Codec, block: &Block, space: &'s mut [f64]) -> &'s [f64] {
        let space = &mut space[..block.values.len()];
        match self {
            Self::Whole(bodies) => {
                space.fill(0.0);
                for (factor, body) in bodies {
                    codec.add_whole_block(block, body, *factor, space);
                }
            }
            Self::Summed(sums) => return &sums[block.values.clone()],
        }
        space
    }
}

/// Returns the squared norm of a sum on `span`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
pub(super) fn square(codec: &Codec, span: Span, source: &Source<'_>) -> f64 {
    let mut space = vec![0.0; codec.block_len()];
    let mut square = 0.0;
    for block in codec.blocks(span) {
        square += block::sum_squares(source.on(codec, &block, &mut space), |sum| *sum);
    }
    square
}

/// Adds `factor` times a body to the whole numbers `sums`, `[fragment_len]`, on `span`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
pub(super) fn add_whole(codec: &Codec, span: Span, body: &[u8], factor: f64, sums: &mut [f64]) {
    for block in codec.blocks(span) {
        codec.add_whole_block(&block, body, factor, &mut sums[block.values.clone()]);
    }
}
