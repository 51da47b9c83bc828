//! Frozen weights, widened on demand: matrices block by block, vectors once.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use crate::model::{FrozenWeights, Slots};

/// Values of a matrix that are widened at a time. Together with the other operand they stay in the L2 cache.
const BLOCK_LEN: usize = 1 << 16;

thread_local! {
    /// A widened block, kept because a product may be too small to justify an allocation.
    static WIDE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The frozen weights of a network.
pub struct Frozen {
    weights: Arc<FrozenWeights>,
    /// Starts of the vectors in the flat vector, in order.
    starts: Vec<usize>,
    /// Values of the vectors, `[starts, C]`.
    vectors: Vec<f32>,
    width: usize,
}

impl Frozen {
    /// Creates the frozen weights of a model whose tensors lie at `slots`.
    pub fn new(weights: Arc<FrozenWeights>, slots: &Slots) -> Self {
        let norms = slots.layers.iter().flat_map(|layer| [&layer.norm1, &layer.norm2]).chain([&slots.norm]);
        let width = slots.norm.len();
        let (mut starts, mut vectors) = (Vec::new(), Vec::new());
        for norm in norms {
            starts.push(norm.start);
            vectors.resize(starts.len() * width, 0.0);
            weights.read(norm.clone(), &mut vectors[(starts.len() - 1) * width..]);
        }
        Self { weights, starts, vectors, width }
    }

    /// Returns the weight of a norm, `[C]`, which lies at `range`.
    pub fn vector(&self, range: &Range<usize>) -> &[f32] {
        let index = self.starts.partition_point(|&start| start < range.start);
        &self.vectors[index * self.width..][..range.len()]
    }

    /// Widens the values at `range` into `out`.
    pub fn read(&self, range: Range<usize>, out: &mut [f32]) {
        self.weights.read(range, out);
    }

    /// Calls `each` with successive blocks of rows of the matrix at `range`, `[range / ins, ins]`. Its arguments are
    /// the index of the block's first row and the values.
    pub fn blocks(&self, range: &Range<usize>, ins: usize, mut each: impl FnMut(usize, &[f32])) {
        let (rows, at_once) = (range.len() / ins, (BLOCK_LEN / ins).max(1));
        WIDE.with_borrow_mut(|wide| {
            for first in (0..rows).step_by(at_once) {
                let len = at_once.min(rows - first) * ins;
                if wide.len() < len {
                    wide.resize(len, 0.0);
                }
                let start = range.start + first * ins;
                self.weights.read(start..start + len, wide);
                each(first, &wide[..len]);
            }
        });
    }
}
