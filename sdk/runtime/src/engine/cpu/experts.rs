//! A mixture of experts in place of the feed-forward layer. Tokens are gathered by expert, each expert multiplies its
//! tokens at once, and the results return to their rows. See `routes.rs` for the meaning of a place.

use std::ops::Range;

use super::by_tensor::{Gradient, LayerBack, store};
use super::kernels::{self, Balance};
use super::matmul::{Mat, MatMut, Store};
use super::network::Pass;
use super::routes::{ExpertGradient, Mixing, Routes};
use super::turns::Turns;
use super::workspace::{Layer, Workspace};
use crate::model::{Dims, LayerSlots};

impl Pass<'_> {
    /// Returns the same pass with another number of rows.
    fn of_rows(&self, rows: usize) -> Pass<'_> {
        Pass { rows, ..*self }
    }

    /// Computes the mixture from `normed`, and leaves in `branch` the value to be added to the residual stream.
    pub(super) fn mixture(&self, slots: &LayerSlots, index: usize, work: &mut Workspace) {
        let &Dims { width: c, ff: f, experts, active, .. } = &self.network.dims;
        let (values, places) = (self.rows * c, self.rows * active);
        let Workspace { layers, normed, branch, gated, mixing, .. } = work;
        let Layer { routes, gate_up, .. } = &mut layers[index];
        self.linear(&normed[..values], &slots.router, c, &mut routes.probs[..self.rows * experts]);
        routes.choose(self.rows, experts, active);
        routes.gather(&normed[..values], c, &mut mixing.picked[..places * c]);
        for (expert, of) in slots.experts.iter().zip(&routes.of).filter(|(_, of)| !of.is_empty()) {
            let x = &mixing.picked[of.start * c..of.end * c];
            let y = &mut gate_up[of.start * 2 * f..of.end * 2 * f];
            self.of_rows(of.len()).linear(x, &expert.gate_up, c, y);
        }
        kernels::swiglu(&gate_up[..places * 2 * f], &mut gated[..places * f], f);
        for (expert, of) in slots.experts.iter().zip(&routes.of).filter(|(_, of)| !of.is_empty()) {
            let y = &mut mixing.outs[of.start * c..of.end * c];
            self.of_rows(of.len()).linear(&gated[of.start * f..of.end * f], &expert.down, f, y);
        }
        kernels::scale_rows(&mut mixing.outs[..places * c], c, c, &routes.weights);
        self.scatter(routes, &mixing.outs, branch);
    }

    /// Sets each row of `out`, `[R, C]`, to the sum of its places, `[R A, C]`.
    fn scatter(&self, routes: &Routes, places: &[f32], out: &mut [f32]) {
        let (c, active) = (self.network.dims.width, self.network.dims.active);
        let rows = out[..self.rows * c].chunks_exact_mut(c).zip(routes.places.chunks_exact(active));
        for (out, of_row) in rows {
            let place = |at: u32| &places[at as usize * c..][..c];
            out.copy_from_slice(place(of_row[0]));
            of_row[1..].iter().for_each(|&at| kernels::add(out, place(at)));
        }
    }

    /// Goes from `dx`, the gradient of the output of [`Self::mixture`], to the gradients of the weights and of
    /// `normed`, in `branch`. Recomputes `normed` on the way.
    pub(super) fn mixture_back(
        &self,
        at: &LayerBack<'_, '_>,
        dx: &[f32],
        layer: &mut Layer,
        work: &mut Workspace,
    ) {
        let &LayerBack { slots, gradient, turn } = at;
        let &Dims { width: c, ff: f, active, .. } = &self.network.dims;
        let (values, places) = (self.rows * c, self.rows * active);
        let Workspace { normed, branch, gated, mixing, .. } = work;
        let Layer { routes, gate_up, middle, scales2, .. } = layer;
        let Mixing { picked, outs, gated: again, dweights, .. } = mixing;
        let (gate_up, gated) = (&mut gate_up[..places * 2 * f], &mut gated[..places * f]);
        let (dweights, again) = (&mut dweights[..places], &mut again[..places * f]);

        routes.gather(dx, c, &mut outs[..places * c]);
        for (expert, of) in slots.experts.iter().zip(&routes.of).filter(|(_, of)| !of.is_empty()) {
            let dy = &outs[of.start * c..of.end * c];
            self.of_rows(of.len()).linear_back(dy, &expert.down, f, &mut gated[of.start * f..of.end * f]);
        }
        kernels::swiglu(gate_up, again, f);
        kernels::dots(gated, again, f, f, dweights);
        kernels::scale_rows(gated, f, f, &routes.weights);
        kernels::scale_rows(&mut outs[..places * c], c, c, &routes.weights);
        kernels::swiglu_backward(gate_up, gated, f);
        for (expert, of) in gradient.experts.iter().zip(&routes.of) {
            let (dy, x) = (&outs[of.start * c..of.end * c], &gated[of.start * f..of.end * f]);
            self.add_places(&expert.down, turn, (dy, c), (x, f), of.len());
        }
        let normed = &mut normed[..values];
        let (weight, scales) = (self.weight(&slots.norm2), &scales2[..self.rows]);
        kernels::norm_again(&middle[..values], weight, scales, normed);
        routes.gather(normed, c, &mut picked[..places * c]);
        for ((expert, slots), of) in gradient.experts.iter().zip(&slots.experts).zip(&routes.of) {
            let dy = &gate_up[of.start * 2 * f..of.end * 2 * f];
            let x = &picked[of.start * c..of.end * c];
            self.add_places(&expert.gate_up, turn, (dy, 2 * f), (x, c), of.len());
            if !of.is_empty() {
                let dx = &mut outs[of.start * c..of.end * c];
                self.of_rows(of.len()).linear_back(dy, &slots.gate_up, c, dx);
            }
        }
        self.scatter(routes, outs, branch);
        self.router_back(at, routes, normed, branch, mixing);
    }

    /// Adds the gradient through the router to `branch`, the gradient of `normed`.
    fn router_back(
        &self,
        at: &LayerBack<'_, '_>,
        routes: &Routes,
        normed: &[f32],
        branch: &mut [f32],
        mixing: &mut Mixing,
    ) {
        let &Dims { width: c, experts, active, .. } = &self.network.dims;
        let Mixing { dlogits, dweights, windows, balance, .. } = mixing;
        let dlogits = &mut dlogits[..self.rows * experts];
        dlogits.copy_from_slice(&routes.probs[..self.rows * experts]);
        windows.clear();
        windows.resize(self.rows / self.len * experts, 0);
        for (at, &expert) in routes.chosen[..self.rows * active].iter().enumerate() {
            windows[at / active / self.len * experts + usize::from(expert)] += 1;
        }
        kernels::balance_back(dlogits, experts, windows, &Balance { len: self.len, counts: balance });
        let rows = routes.chosen.chunks_exact(active).zip(routes.places.chunks_exact(active));
        for (dlogits, (chosen, places)) in dlogits.chunks_exact_mut(experts).zip(rows) {
            let passes = chosen.iter().zip(places).map(|(&expert, &place)| {
                (usize::from(expert), routes.weights[place as usize], dweights[place as usize])
            });
            kernels::weights_back(dlogits, passes);
        }
        let rows = Mat::new(dlogits, self.rows, experts);
        self.add_product(&at.gradient.router, at.turn, rows, Mat::new(normed, self.rows, c), (experts, c));
        let router = Mat::new(self.weight(&at.slots.router), experts, c);
        self.multiply(MatMut::new(branch, self.rows, c), Store::Add, rows, router);
    }

    /// Adds `dyᵀ x` of some places, possibly of no place, to the gradient of a matrix; turn 0 overwrites.
    fn add_places(
        &self,
        turns: &Turns<'_>,
        turn: usize,
        (dy, outs): (&[f32], usize),
        (x, ins): (&[f32], usize),
        count: usize,
    ) {
        turns.take(turn, |dw| match count {
            0 if turn == 0 => dw.fill(0.0),
            0 => {}
            _ => {
                let (dy, x) = (Mat::new(dy, count, outs), Mat::new(x, count, ins));
                self.multiply(MatMut::new(dw, outs, ins), store(turn), dy.t(), x);
            }
        });
    }
}

impl<'a> Gradient<'a> {
    /// Collects the gradients of a layer's experts from the slices that `take` cuts off.
    pub(super) fn experts(
        slots: &LayerSlots,
        mut take: impl FnMut(&Range<usize>) -> Turns<'a>,
    ) -> Vec<ExpertGradient<'a>> {
        let each = slots.experts.iter();
        each.map(|expert| ExpertGradient { gate_up: take(&expert.gate_up), down: take(&expert.down) })
            .collect()
    }
}
