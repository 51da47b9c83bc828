//! Expert assignments of a microbatch's tokens in a mixture of experts, and their memory.
//!
//! A *place* is one token in one expert. Places are sorted by expert, then by row.

use std::ops::Range;

use super::buffer::Buffer;
use super::kernels;
use super::turns::Turns;
use crate::model::{Dims, EXPERTS_MAX};

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
