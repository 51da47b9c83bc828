//! Products with weight matrices, trained or frozen.

use std::ops::Range;

use super::matmul::{Mat, MatMut, Store};
use super::network::Pass;

impl Pass<'_> {
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
            return self.multiply(MatMut::new(y, rows, outs), Store::Set, x, w.t());
        };
        frozen.blocks(w, ins, |first, block| {
            let block = Mat::new(block, block.len() / ins, ins);
            let y = MatMut::strided(&mut y[first..], rows, block.rows(), outs);
            self.multiply(y, Store::Set, x, block.t());
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
            return self.multiply(MatMut::new(dx, rows, ins), Store::Set, Mat::new(dy, rows, outs), w);
        };
        frozen.blocks(w, ins, |first, block| {
            let block = Mat::new(block, block.len() / ins, ins);
            let dy = Mat::strided(&dy[first..], rows, block.rows(), outs);
            let store = if first == 0 { Store::Set } else { Store::Add };
            self.multiply(MatMut::new(dx, rows, ins), store, dy, block);
        });
    }
}
