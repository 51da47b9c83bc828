//! A mixture of experts in place of the feed-forward layer. Tokens are gathered by expert, each expert multiplies its
//! tokens at once, and the results return to their rows.
//!
//! A *place* is one token in one expert. Places are sorted by expert, then by row.

use std::ops::Range;

use super::gradient::{Gradient, LayerBack, Turns, store};
use super::kernels::{self, Balance};
use super::matmul::{Mat, MatMut, WriteMode};
use super::network::MicrobatchPass;
use super::workspace::{Buffer, Layer, Workspace};
use crate::model::{Dims, EXPERTS_MAX, LayerSlots};

impl MicrobatchPass<'_> {
    /// Returns the same pass with another number of rows.
    fn of_rows(&self, rows: usize) -> MicrobatchPass<'_> {
        MicrobatchPass { rows, ..*self }
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

    /// Computes the gradients of the weights and of `normed` from `dx`, the gradient of the output of
    /// [`Self::mixture`]. Recomputes `normed`, and leaves its gradient in `branch`.
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
        self.multiply(MatMut::new(branch, self.rows, c), WriteMode::Add, rows, router);
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

/// Expert assignments of a microbatch's tokens in one layer, for the backward pass.
#[derive(Default)]
pub struct Routes {
    /// Softmax of the router's logits, `[R, E]`.
    pub probs: Buffer,
    /// The range of places of each expert, `[E]`.
    pub of: Vec<Range<usize>>,
    /// The row of each place, `[R A]`.
    pub rows: Vec<u32>,
    /// Weight of each place in its row, `[R A]`.
    pub weights: Vec<f32>,
    /// The places of each row, the likeliest expert's first, `[R, A]`.
    pub places: Vec<u32>,
    /// The expert of each of these places, `[R, A]`.
    pub chosen: Vec<u16>,
}

/// Scratch of a mixture.
#[derive(Default)]
pub struct Mixing {
    /// Inputs of the experts, `[R A, C]`.
    pub picked: Buffer,
    /// Outputs of the experts, or gradients of their outputs and inputs, `[R A, C]`.
    pub outs: Buffer,
    /// Recomputed inputs of the down matrices, `[R A, F]`; empty without training.
    pub gated: Buffer,
    /// Gradient of the weights of places, `[R A]`; empty without training.
    pub dweights: Vec<f32>,
    /// Gradient of the router's logits, `[R, E]`; empty without training.
    pub dlogits: Buffer,
    /// Tokens of each window in each expert, `[windows, E]`.
    pub windows: Vec<u32>,
    /// Weight of a layer's load-balancing loss in each window, `[windows]`.
    pub balance: Vec<f32>,
}

impl Routes {
    /// Allocates memory for up to `rows` rows; empty in a dense model.
    pub fn new(dims: &Dims, rows: usize) -> Self {
        let places = rows * dims.active;
        Self {
            probs: Buffer::zeros(rows * dims.experts),
            of: vec![0..0; dims.experts],
            rows: vec![0; places],
            weights: vec![0.0; places],
            places: vec![0; places],
            chosen: vec![0; places],
        }
    }

    /// Returns the number of tokens that went through each expert, `[E]`.
    pub fn seen(&self) -> impl Iterator<Item = u64> {
        self.of.iter().map(|places| places.len() as u64)
    }

    pub fn bytes(&self) -> usize {
        self.probs.bytes() + self.rows.len() * (3 * size_of::<u32>() + size_of::<u16>())
    }

    /// Chooses experts from the logits in `probs`, of `rows` rows.
    pub fn choose(&mut self, rows: usize, experts: usize, active: usize) {
        let Self { probs, of, rows: row_of, weights, places, chosen } = self;
        let probs = &mut probs[..rows * experts];
        kernels::route(probs, experts);
        let mut next = [0; EXPERTS_MAX as usize];
        // Weights are first ordered by row and slot, and finally by place.
        let mut shares = vec![0.0; rows * active];
        for (row, probs) in probs.chunks_exact(experts).enumerate() {
            kernels::likeliest(probs, active, |slot, expert, share| {
                chosen[row * active + slot] = expert as u16;
                shares[row * active + slot] = share;
                next[expert] += 1;
            });
        }
        let mut start = 0;
        for (of, next) in of.iter_mut().zip(&mut next) {
            *of = start..start + *next;
            *next = start;
            start = of.end;
        }
        for (at, share) in shares.into_iter().enumerate() {
            let next = &mut next[usize::from(chosen[at])];
            (row_of[*next], weights[*next], places[at]) = ((at / active) as u32, share, *next as u32);
            *next += 1;
        }
    }

    /// Copies the row of each place, `[R, width]` → `[R A, width]`.
    pub fn gather(&self, x: &[f32], width: usize, out: &mut [f32]) {
        for (&row, out) in self.rows.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&x[row as usize * width..][..width]);
        }
    }
}

impl Mixing {
    /// Allocates memory for up to `rows` rows; empty in a dense model.
    pub fn new(dims: &Dims, rows: usize, training: bool) -> Self {
        let places = rows * dims.active;
        let trained = if training { places } else { 0 };
        Self {
            picked: Buffer::zeros(places * dims.width),
            outs: Buffer::zeros(places * dims.width),
            gated: Buffer::zeros(trained * dims.ff),
            dweights: vec![0.0; trained],
            dlogits: Buffer::zeros(if training { rows * dims.experts } else { 0 }),
            windows: Vec::new(),
            balance: Vec::new(),
        }
    }

    pub fn bytes(&self) -> usize {
        let own = [&self.picked, &self.outs, &self.gated, &self.dlogits];
        own.into_iter().map(Buffer::bytes).sum::<usize>() + self.dweights.len() * size_of::<f32>()
    }
}

/// The gradient of one expert, to which threads add in turn.
pub struct ExpertGradient<'a> {
    pub gate_up: Turns<'a>,
    pub down: Turns<'a>,
}
