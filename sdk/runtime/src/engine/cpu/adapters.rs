//! Contribution of adapters to products with frozen matrices: `y += α / r · (x Aᵀ) Bᵀ`, and the gradients of A, B and
//! x.

use super::by_tensor::{LayerBack, store};
use super::matmul::{Mat, MatMut, Store};
use super::network::Pass;
use crate::model::{AdapterSlots, LayerSlots, LoraTarget};

/// Returns the adapters of a layer that belong to `group`, with their indices.
fn of<'a>(slots: &'a LayerSlots, group: &'a [LoraTarget]) -> impl Iterator<Item = (usize, &'a AdapterSlots)> {
    slots.adapters.iter().enumerate().filter(|(_, adapter)| group.contains(&adapter.target))
}

impl Pass<'_> {
    fn lora_scale(&self) -> f32 {
        self.network.dims.lora_scale() as f32
    }

    /// Returns A of an adapter, `[r, ins]`, and B, `[outs, r]`.
    fn adapter(&self, adapter: &AdapterSlots) -> (Mat<'_>, Mat<'_>) {
        let (a, b, rank) = (self.weight(&adapter.a), self.weight(&adapter.b), self.network.dims.rank());
        (Mat::new(a, rank, adapter.ins), Mat::new(b, adapter.outs, rank))
    }

    /// Returns the range in `low` of `x Aᵀ`, or of its gradient, `[R, r]`, for adapter `index` of a layer.
    fn low(&self, index: usize) -> std::ops::Range<usize> {
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
            self.multiply(MatMut::new(low, rows, rank), Store::Set, x, a.t());
            let y = MatMut::strided(&mut y[adapter.column..], rows, adapter.outs, stride);
            let low = Mat::new(low, rows, rank);
            self.network.products.multiply(y, Store::Add, self.lora_scale(), low, b.t());
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
            self.network.products.multiply(out, Store::Set, self.lora_scale(), dy, b);
            let dx = MatMut::new(dx, rows, adapter.ins);
            self.multiply(dx, Store::Add, Mat::new(dlow, rows, rank), a);
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
