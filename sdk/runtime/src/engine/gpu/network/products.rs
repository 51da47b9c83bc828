//! Slices of weights and their gradients, and products with weights.

use std::ops::Range;

use super::super::matmul::{Form, Product, Store, Values};
use super::super::program::{Builder, Slice};
use super::Network;

/// A matrix of weights, `[outs, ins]`.
pub struct Weight {
    theta: Slice,
    values: Values,
    /// Gradient; `None` if the matrix is frozen.
    grad: Option<Slice>,
    outs: usize,
    ins: usize,
}

impl Network<'_> {
    pub fn theta(&self, range: &Range<usize>) -> Slice {
        self.arena.slice(self.theta, range)
    }

    /// Returns a vector of weights.
    pub fn vector(&self, range: &Range<usize>) -> Slice {
        self.frozen.map_or_else(|| self.theta(range), |frozen| frozen.slice(range))
    }

    /// Returns a matrix of weights in the form that a product takes.
    pub fn factor(&self, range: &Range<usize>) -> (Slice, Values) {
        match (self.frozen, self.half) {
            (Some(frozen), _) => (frozen.slice(range), frozen.values()),
            (None, Some(half)) => (self.arena.half_slice(half, range), Values::Half),
            (None, None) => (self.theta(range), Values::Whole),
        }
    }

    /// See [`super::super::arena::Arena::row_slices`].
    pub fn row_slices(&self, matrix: &Range<usize>) -> Vec<(usize, usize, Range<usize>)> {
        match self.frozen {
            Some(frozen) => frozen.plan().row_slices(self.dims, matrix),
            None => self.arena.row_slices(self.dims, matrix),
        }
    }

    pub fn grad(&self, range: &Range<usize>) -> Slice {
        self.arena.slice(self.grad, range)
    }

    pub fn weight(&self, range: &Range<usize>, ins: usize) -> Weight {
        let (theta, values) = self.factor(range);
        let grad = self.frozen.is_none().then(|| self.grad(range));
        Weight { theta, values, grad, outs: range.len() / ins, ins }
    }

    /// Adds `y = x wᵀ`.
    pub fn linear(&self, builder: &mut Builder, x: &Slice, w: &Weight, y: &Slice, store: Store) {
        self.matmul.add(
            builder,
            Product {
                form: Form::Nt,
                m: self.rows() as u32,
                n: w.outs as u32,
                k: w.ins as u32,
                a: x.clone(),
                a_stride: w.ins as u32,
                b: w.theta.clone(),
                b_stride: w.ins as u32,
                b_values: w.values,
                c: y.clone(),
                c_stride: w.outs as u32,
                store,
                first: [0, 0],
                scale: 1.0,
            },
        );
    }

    /// Adds `dx = dy w`.
    pub fn linear_back(&self, builder: &mut Builder, dy: &Slice, w: &Weight, dx: &Slice) {
        self.matmul.add(
            builder,
            Product {
                form: Form::Nn,
                m: self.rows() as u32,
                n: w.ins as u32,
                k: w.outs as u32,
                a: dy.clone(),
                a_stride: w.outs as u32,
                b: w.theta.clone(),
                b_stride: w.ins as u32,
                b_values: w.values,
                c: dx.clone(),
                c_stride: w.ins as u32,
                store: Store::Set,
                first: [0, 0],
                scale: 1.0,
            },
        );
    }

    /// Adds `dw = dyᵀ x`, or `dw += dyᵀ x` if not `first`. Does nothing if the matrix is frozen.
    pub fn weight_back(&self, builder: &mut Builder, dy: &Slice, x: &Slice, w: &Weight, first: bool) {
        let Some(grad) = &w.grad else { return };
        self.matmul.add(
            builder,
            Product {
                form: Form::Tn,
                m: w.outs as u32,
                n: w.ins as u32,
                k: self.rows() as u32,
                a: dy.clone(),
                a_stride: w.outs as u32,
                b: x.clone(),
                b_stride: w.ins as u32,
                b_values: Values::Whole,
                c: grad.clone(),
                c_stride: w.ins as u32,
                store: if first { Store::Set } else { Store::Add },
                first: [0, 0],
                scale: 1.0,
            },
        );
    }
}
