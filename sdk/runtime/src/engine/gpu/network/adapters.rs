//! Contribution of adapters to products with frozen matrices, and their gradients, as dispatches.

use super::super::matmul::{Form, Product, Store, Values};
use super::super::program::{Builder, Slice};
use super::super::workspace::Layer;
use super::Network;
use crate::model::{AdapterSlots, LayerSlots, LoraTarget};

/// Matrices that lie side by side. Their results are columns of the same rows.
pub const QKV: &[LoraTarget] = &[LoraTarget::Q, LoraTarget::K, LoraTarget::V];
pub const OUT: &[LoraTarget] = &[LoraTarget::O];
pub const GATE_UP: &[LoraTarget] = &[LoraTarget::Gate, LoraTarget::Up];
pub const DOWN: &[LoraTarget] = &[LoraTarget::Down];

/// A matrix whose rows hold the rows of several results: its slice, and the length of a row.
pub type Wide<'a> = (&'a Slice, usize);

/// Returns the adapters of a layer that belong to `group`, with their indices.
fn of<'a>(slots: &'a LayerSlots, group: &'a [LoraTarget]) -> impl Iterator<Item = (usize, &'a AdapterSlots)> {
    slots.adapters.iter().enumerate().filter(|(_, adapter)| group.contains(&adapter.target))
}

/// Returns true if a layer has adapters that belong to `group`.
pub fn has(slots: &LayerSlots, group: &[LoraTarget]) -> bool {
    of(slots, group).next().is_some()
}

impl Network<'_> {
    /// Adds a product of A, `[_, a.1]` from column `first.0` on, and B, `[_, b.1]`, stored in C, `[_, c.1]` from column
    /// `first.1` on.
    fn low_rank(
        &self,
        (form, store): (Form, Store),
        [m, n, k]: [usize; 3],
        [a, b, c]: [Wide<'_>; 3],
        first: (usize, usize),
        scale: f32,
    ) -> Product {
        Product {
            form,
            m: m as u32,
            n: n as u32,
            k: k as u32,
            a: a.0.clone(),
            a_stride: a.1 as u32,
            b: b.0.clone(),
            b_stride: b.1 as u32,
            b_values: Values::Whole,
            c: c.0.clone(),
            c_stride: c.1 as u32,
            store,
            first: [first.0 as u32, first.1 as u32],
            scale,
        }
    }

    fn lora_scale(&self) -> f32 {
        self.dims.lora_scale() as f32
    }

    /// Adds `α / r · (x Aᵀ) Bᵀ` of each adapter in `group` to its columns of y; x `[R, ins]`.
    pub fn adapt(
        &self,
        builder: &mut Builder,
        (slots, layer): (&LayerSlots, &Layer),
        group: &[LoraTarget],
        x: &Slice,
        y: Wide<'_>,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        self.lower(builder, (slots, layer), group, x);
        for (index, adapter) in of(slots, group) {
            let (b, low) = (self.theta(&adapter.b), (&layer.low[index], rank));
            let (sides, first) = ([rows, adapter.outs, rank], (0, adapter.column));
            let add = (Form::Nt, Store::Add);
            self.matmul
                .add(builder, self.low_rank(add, sides, [low, (&b, rank), y], first, self.lora_scale()));
        }
    }

    /// Computes `x Aᵀ` of each adapter in `group` and keeps it; x `[R, ins]`.
    pub fn lower(
        &self,
        builder: &mut Builder,
        (slots, layer): (&LayerSlots, &Layer),
        group: &[LoraTarget],
        x: &Slice,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        for (index, adapter) in of(slots, group) {
            let (a, ins, low) = (self.theta(&adapter.a), adapter.ins, (&layer.low[index], rank));
            let set = (Form::Nt, Store::Set);
            let product = self.low_rank(set, [rows, rank, ins], [(x, ins), (&a, ins), low], (0, 0), 1.0);
            self.matmul.add(builder, product);
        }
    }

    /// Computes from dy, the gradient of y, the gradient of `x Aᵀ`, which is kept, and that of x, which is added to
    /// dx, `[R, ins]`.
    pub fn adapt_back(
        &self,
        builder: &mut Builder,
        slots: &LayerSlots,
        group: &[LoraTarget],
        dy: Wide<'_>,
        dx: &Slice,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        for (index, adapter) in of(slots, group) {
            let (a, b) = (self.theta(&adapter.a), self.theta(&adapter.b));
            let (ins, dlow) = (adapter.ins, (&self.work.dlow[index], rank));
            let (sides, first) = ([rows, rank, adapter.outs], (adapter.column, 0));
            let set = (Form::Nn, Store::Set);
            self.matmul
                .add(builder, self.low_rank(set, sides, [dy, (&b, rank), dlow], first, self.lora_scale()));
            let add = (Form::Nn, Store::Add);
            let product = self.low_rank(add, [rows, ins, rank], [dlow, (&a, ins), (dx, ins)], (0, 0), 1.0);
            self.matmul.add(builder, product);
        }
    }

    /// Sets or adds to the gradients of A and B, using the results of [`Self::adapt`] and [`Self::adapt_back`].
    pub fn adapters_back(
        &self,
        builder: &mut Builder,
        (slots, layer): (&LayerSlots, &Layer),
        group: &[LoraTarget],
        (dy, x): (Wide<'_>, &Slice),
        is_first: bool,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        let form = || (Form::Tn, if is_first { Store::Set } else { Store::Add });
        for (index, adapter) in of(slots, group) {
            let (da, db, ins) = (self.grad(&adapter.a), self.grad(&adapter.b), adapter.ins);
            let (low, dlow) = ((&layer.low[index], rank), (&self.work.dlow[index], rank));
            let (sides, first) = ([adapter.outs, rank, rows], (adapter.column, 0));
            self.matmul
                .add(builder, self.low_rank(form(), sides, [dy, low, (&db, rank)], first, self.lora_scale()));
            let product = self.low_rank(form(), [rank, ins, rows], [dlow, (x, ins), (&da, ins)], (0, 0), 1.0);
            self.matmul.add(builder, product);
        }
    }
}
