//! RMSNorm and its gradient, as dispatches.

use std::ops::Range;

use super::super::kernels;
use super::super::matmul::Store;
use super::super::params;
use super::super::program::{Builder, Dispatch, Slice};
use super::super::workspace::{Layer, NORM_ROWS};
use super::Network;
use crate::model::LayerSlots;

/// Lanes of a workgroup that sums the gradient of a norm's weight, and quads of the weight.
const SUM_WG: u32 = 64;
const SUM_ACROSS: u32 = 8;

/// One RMSNorm: its input, `[R, C]`, the range of its weight in the flat vector, and its scales, `[R]`.
pub struct Norm<'a> {
    x: &'a Slice,
    weight: &'a Range<usize>,
    scales: &'a Slice,
}

impl<'a> Norm<'a> {
    /// Returns the norm before attention.
    pub fn first(slots: &'a LayerSlots, layer: &'a Layer) -> Self {
        Self { x: &layer.x, weight: &slots.norm1, scales: &layer.scales1 }
    }

    /// Returns the norm before the feed-forward layer.
    pub fn second(slots: &'a LayerSlots, layer: &'a Layer) -> Self {
        Self { x: &layer.middle, weight: &slots.norm2, scales: &layer.scales2 }
    }
}

impl Network<'_> {
    /// Returns the norm before the head.
    pub fn last_norm(&self) -> Norm<'_> {
        Norm { x: &self.work.x, weight: &self.slots.norm, scales: &self.work.scales }
    }

    /// Writes the output of a norm to `normed`, and its scales.
    pub fn norm(&self, builder: &mut Builder, norm: &Norm<'_>) {
        let (rows, c) = (self.rows(), self.dims.width);
        let call =
            kernels::NORM.with(params::Norm { rows: rows as u32, quads: c as u32 / 4, eps: self.dims.eps });
        let storage =
            vec![norm.x.clone(), self.vector(norm.weight), self.work.normed.clone(), norm.scales.clone()];
        self.by_row(builder, call, storage, rows, c);
    }

    /// Goes from the gradient of a norm's output in `branch` to the gradient of the residual stream, and of the weight
    /// unless it is frozen.
    pub fn norm_back(&self, builder: &mut Builder, norm: &Norm<'_>, to_dx: Store, first: bool) {
        let (rows, c, work) = (self.rows(), self.dims.width, self.work);
        let quads = c as u32 / 4;
        let groups = rows.div_ceil(NORM_ROWS);
        let call = kernels::NORM_GRAD.with(params::NormGrad {
            rows: rows as u32,
            quads,
            rows_per_group: NORM_ROWS as u32,
            add: u32::from(matches!(to_dx, Store::Add)),
        });
        let storage = vec![
            work.branch.clone(),
            norm.x.clone(),
            self.vector(norm.weight),
            norm.scales.clone(),
            work.dx.clone(),
            work.partial.clone(),
        ];
        self.by_row(builder, call, storage, groups, c * NORM_ROWS);
        if self.frozen.is_some() {
            return;
        }
        let params = params::ColumnSum { rows: groups as u32, quads, add: u32::from(!first) };
        let call = kernels::COLUMN_SUM.with(params);
        builder.add(Dispatch {
            call,
            constants: vec![("WG", SUM_WG), ("ACROSS", SUM_ACROSS)],
            storage: vec![work.partial.clone(), self.grad(norm.weight)],
            groups: [quads.div_ceil(SUM_ACROSS), 1, 1],
            cost: (groups * c) as u64,
        });
    }
}
