//! Products with weight matrices, trained or frozen. Frozen weights are widened on demand: matrices block by block,
//! vectors once. Adapters add `y += α / r · (x Aᵀ) Bᵀ` to products with frozen matrices.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use super::gradient::{LayerBack, store};
use super::matmul::{Mat, MatMut, WriteMode};
use super::network::MicrobatchPass;
use crate::model::{AdapterSlots, FrozenWeights, LayerSlots, LoraTarget, Slots};

impl MicrobatchPass<'_> {
    /// Returns a vector of weights.
    pub(super) fn vector(&self, range: &Range<usize>) -> &[f32] {
        match &self.network.frozen {
            Some(frozen) => frozen.vector(range),
            None => self.weight(range),
        }
    }

    /// Copies row `token` of the embedding to `x`, `[C]`.
    pub(super) fn embed(&self, token: u32, x: &mut [f32]) {
        let start = self.network.slots.embed.start + token as usize * x.len();
        match &self.network.frozen {
            Some(frozen) => frozen.read(start..start + x.len(), x),
            None => x.copy_from_slice(&self.params[start..start + x.len()]),
        }
    }

    /// Computes `y = x wᵀ`; x `[rows, ins]`, w `[outs, ins]`.
    pub(super) fn linear(&self, x: &[f32], w: &Range<usize>, ins: usize, y: &mut [f32]) {
        self.linear_of(self.rows, x, w, ins, y);
    }

    /// Computes `dx = dy w`.
    pub(super) fn linear_back(&self, dy: &[f32], w: &Range<usize>, ins: usize, dx: &mut [f32]) {
        self.linear_back_of(self.rows, dy, w, ins, dx);
    }

    /// Does the same as [`Self::linear`], with another number of rows.
    pub(super) fn linear_of(&self, rows: usize, x: &[f32], w: &Range<usize>, ins: usize, y: &mut [f32]) {
        let (outs, x) = (w.len() / ins, Mat::new(x, rows, ins));
        let Some(frozen) = &self.network.frozen else {
            let w = Mat::new(self.weight(w), outs, ins);
            return self.multiply(MatMut::new(y, rows, outs), WriteMode::Set, x, w.t());
        };
        frozen.blocks(w, ins, |first, block| {
            let block = Mat::new(block, block.len() / ins, ins);
            let y = MatMut::strided(&mut y[first..], rows, block.rows(), outs);
            self.multiply(y, WriteMode::Set, x, block.t());
        });
    }

    /// Does the same as [`Self::linear_back`], with another number of rows.
    pub(super) fn linear_back_of(
        &self,
        rows: usize,
        dy: &[f32],
        w: &Range<usize>,
        ins: usize,
        dx: &mut [f32],
    ) {
        let outs = w.len() / ins;
        let Some(frozen) = &self.network.frozen else {
            let w = Mat::new(self.weight(w), outs, ins);
            return self.multiply(MatMut::new(dx, rows, ins), WriteMode::Set, Mat::new(dy, rows, outs), w);
        };
        frozen.blocks(w, ins, |first, block| {
            let block = Mat::new(block, block.len() / ins, ins);
            let dy = Mat::strided(&dy[first..], rows, block.rows(), outs);
            let store = if first == 0 { WriteMode::Set } else { WriteMode::Add };
            self.multiply(MatMut::new(dx, rows, ins), store, dy, block);
        });
    }
}

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

/// Returns the adapters of a layer that belong to `group`, with their indices.
fn of<'a>(slots: &'a LayerSlots, group: &'a [LoraTarget]) -> impl Iterator<Item = (usize, &'a AdapterSlots)> {
    slots.adapters.iter().enumerate().filter(|(_, adapter)| group.contains(&adapter.target))
}

impl MicrobatchPass<'_> {
    fn lora_scale(&self) -> f32 {
        self.network.dims.lora_scale() as f32
    }

    /// Returns A of an adapter, `[r, ins]`, and B, `[outs, r]`.
    fn adapter(&self, adapter: &AdapterSlots) -> (Mat<'_>, Mat<'_>) {
        let (a, b, rank) = (self.weight(&adapter.a), self.weight(&adapter.b), self.network.dims.rank());
        (Mat::new(a, rank, adapter.ins), Mat::new(b, adapter.outs, rank))
    }

    /// Returns the range in `low` of `x Aᵀ`, or of its gradient, `[R, r]`, for adapter `index` of a layer.
    fn low(&self, index: usize) -> Range<usize> {
        let len = self.rows * self.network.dims.rank();
        index * len..(index + 1) * len
    }

    /// Adds the adapters' products of x, `[R, ins]`, to the rows of y, `stride` apart. Each adapter leaves `x Aᵀ` in
    /// `low`.
    pub(super) fn adapt(
        &self,
        slots: &LayerSlots,
        group: &[LoraTarget],
        x: &[f32],
        y: &mut [f32],
        stride: usize,
        low: &mut [f32],
    ) {
        let (rows, rank) = (self.rows, self.network.dims.rank());
        for (index, adapter) in of(slots, group) {
            let ((a, b), low) = (self.adapter(adapter), &mut low[self.low(index)]);
            let x = Mat::new(x, rows, adapter.ins);
            self.multiply(MatMut::new(low, rows, rank), WriteMode::Set, x, a.t());
            let y = MatMut::strided(&mut y[adapter.column..], rows, adapter.outs, stride);
            let low = Mat::new(low, rows, rank);
            self.network.products.multiply(y, WriteMode::Add, self.lora_scale(), low, b.t());
        }
    }

    /// Computes from the gradient of y's rows the gradient of `x Aᵀ`, which stays in `dlow`, and that of x, which is
    /// added to dx.
    pub(super) fn adapt_back(
        &self,
        slots: &LayerSlots,
        group: &[LoraTarget],
        dy: &[f32],
        stride: usize,
        dx: &mut [f32],
        dlow: &mut [f32],
    ) {
        let (rows, rank) = (self.rows, self.network.dims.rank());
        for (index, adapter) in of(slots, group) {
            let ((a, b), dlow) = (self.adapter(adapter), &mut dlow[self.low(index)]);
            let dy = Mat::strided(&dy[adapter.column..], rows, adapter.outs, stride);
            let out = MatMut::new(dlow, rows, rank);
            self.network.products.multiply(out, WriteMode::Set, self.lora_scale(), dy, b);
            let dx = MatMut::new(dx, rows, adapter.ins);
            self.multiply(dx, WriteMode::Add, Mat::new(dlow, rows, rank), a);
        }
    }

    /// Adds to the gradients of A and B, using the results of [`Self::adapt`] and [`Self::adapt_back`].
    pub(super) fn adapters_back(
        &self,
        at: &LayerBack<'_, '_>,
        group: &[LoraTarget],
        dy: &[f32],
        stride: usize,
        x: &[f32],
        (low, dlow): (&[f32], &[f32]),
    ) {
        let (rows, rank) = (self.rows, self.network.dims.rank());
        for (index, adapter) in of(at.slots, group) {
            let gradient = &at.gradient.adapters[index];
            let low = Mat::new(&low[self.low(index)], rows, rank);
            let dlow = Mat::new(&dlow[self.low(index)], rows, rank);
            let dy = Mat::strided(&dy[adapter.column..], rows, adapter.outs, stride);
            gradient.b.take(at.turn, |db| {
                let db = MatMut::new(db, adapter.outs, rank);
                self.network.products.multiply(db, store(at.turn), self.lora_scale(), dy.t(), low);
            });
            let x = Mat::new(x, rows, adapter.ins);
            self.add_product(&gradient.a, at.turn, dlow, x, (rank, adapter.ins));
        }
    }
}
