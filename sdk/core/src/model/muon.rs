//! Muon, the inner optimiser of matrices, in plain scalar Rust. The engines use the same coefficients for each step.
//!
//! Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon>) steps along the polar factor of the momentum:
//! all directions of the update have about the same length. Its only state is the momentum. The update is scaled as in
//! "Muon is Scalable for LLM Training" (Liu et al. 2025, arXiv 2502.16982), section 2.2, so that one learning rate
//! serves matrices and AdamW's tensors.

use std::ops::Range;

use super::{Adjust, adjust};
use crate::diloco::{Layout, MergeClass, is_table};
use crate::polar;
use crate::wire::{InnerSpec, Optimiser, Tensor};

/// µ, the decay of the momentum.
pub const MUON_MOMENTUM: f32 = 0.95;

/// Root mean square of an update with a learning rate of 1, as of a usual AdamW update.
pub const MUON_RMS: f32 = 0.2;

/// Smallest norm by which an update is divided. Matrices without a gradient, as of unused experts, come to rest.
pub const MUON_NORM_MIN: f64 = 1e-7;

/// Coefficients (a, b, c) of the steps σ ← aσ + bσ³ + cσ⁵ that bring singular values near 1: the second to the fifth of
/// Polar Express. Values above 0.42 % of the update's norm end between 0.87 and 1.13, which is as good as 1 here.
/// Smaller ones are mostly noise and end below: 0.1 % becomes 0.24.
pub const MUON_STEPS: &[[f32; 3]] = polar::STEPS.split_at(5).0.split_at(1).1;

/// Norm of the update before the steps. The omitted first step would make values of at most 1 as large as 1.991; as
/// rounding may lengthen a vector a little, values stay below.
pub const MUON_START_NORM: f64 = 1.97;

/// Place of a matrix in the flat vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MuonMatrix {
    /// Offset of its first value.
    pub start: usize,
    /// Rows, at least 2.
    pub rows: usize,
    /// Columns, at least 2.
    pub cols: usize,
}

impl MuonMatrix {
    /// Returns its range in the flat vector.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.rows * self.cols
    }

    /// Returns the factor of its polar factor at a learning rate of 1: `0.2 · √max(rows, cols)`.
    #[must_use]
    pub fn scale(&self) -> f32 {
        MUON_RMS * (self.rows.max(self.cols) as f32).sqrt()
    }
}

/// Coefficients of one Muon step, shared by all matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonAdjust {
    /// Factor of the gradient that clips it.
    pub scale: f32,
    /// µ, the decay of the momentum.
    pub momentum: f32,
    /// Learning rate.
    pub rate: f32,
    /// Factor of the parameters: `1 − lr · weight_decay`.
    pub keep: f32,
}

impl MuonAdjust {
    /// Coefficients of a step that takes full time but changes nothing: a finite gradient has no effect.
    pub const NOTHING: Self = Self { scale: 0.0, momentum: 1.0, rate: 0.0, keep: 1.0 };

    /// Returns the coefficients of a step at the learning rate `lr`, with clipping and decay as in `adamw`.
    #[must_use]
    pub fn new(adamw: &Adjust, lr: f32) -> Self {
        Self { scale: adamw.scale, momentum: MUON_MOMENTUM, rate: lr, keep: adamw.keep }
    }
}

/// Optimiser state of a run with [`Optimiser::Muon`].
#[derive(Clone, Debug)]
pub struct Muon {
    /// Momentum of matrices, and AdamW's first moment of the other tensors, `[len]`.
    pub m: Vec<f32>,
    /// AdamW's second moment of the other tensors, in the order of the flat vector.
    pub v: Vec<f32>,
    /// Steps taken.
    pub steps: u64,
}

impl Muon {
    /// Returns a state of zeros for the parameters of `layout`.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let v_len = second_moments(layout, Optimiser::Muon);
        Self { m: vec![0.0; layout.len()], v: vec![0.0; v_len], steps: 0 }
    }

    /// Takes one step: clips `grad`, `[len]`, and updates `params`, `[len]`. Returns the norm before clipping.
    pub fn step(
        &mut self,
        layout: &Layout,
        inner: &InnerSpec,
        lr: f32,
        params: &mut [f32],
        grad: &[f32],
    ) -> f32 {
        let squares: f64 = grad.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
        let grad_norm = squares.sqrt() as f32;
        self.steps += 1;
        let numbers = Adjust::new(inner, self.steps, lr, grad_norm);
        for matrix in muon_matrices(layout, Optimiser::Muon) {
            let (range, muon) = (matrix.range(), MuonAdjust::new(&numbers, lr));
            adjust_matrix(
                &mut params[range.clone()],
                &grad[range.clone()],
                &mut self.m[range],
                &matrix,
                &muon,
            );
        }
        let mut rest = &mut *self.v;
        for (range, decayed) in adamw_ranges(layout, Optimiser::Muon) {
            let numbers = Adjust { keep: if decayed { numbers.keep } else { 1.0 }, ..numbers };
            let (v, next) = rest.split_at_mut(range.len());
            adjust(&mut params[range.clone()], &grad[range.clone()], &mut self.m[range], v, &numbers);
            rest = next;
        }
        grad_norm
    }
}

/// Updates the matrix `params` by one step; all slices have its length.
///
/// `m ← µ m + g`, `p ← keep · p − rate · 0.2 · √max(rows, cols) · polar(g + µ m)`.
fn adjust_matrix(params: &mut [f32], grad: &[f32], m: &mut [f32], matrix: &MuonMatrix, a: &MuonAdjust) {
    let update: Vec<f32> = m
        .iter_mut()
        .zip(grad)
        .map(|(m, &g)| {
            let g = g * a.scale;
            *m = a.momentum * *m + g;
            g + a.momentum * *m
        })
        .collect();
    let norm = update.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
    let unit = muon_unit(norm);
    let update = update.iter().map(|value| value * unit).collect();
    let polar = polar::factor(update, matrix.rows, MUON_STEPS);
    let rate = a.rate * matrix.scale();
    for (p, polar) in params.iter_mut().zip(polar) {
        *p = a.keep * *p - rate * polar;
    }
}

/// Returns the factor that gives an update of the norm `norm` a length at which [`MUON_STEPS`] begin.
#[must_use]
pub fn muon_unit(norm: f64) -> f32 {
    (MUON_START_NORM / norm.max(MUON_NORM_MIN)) as f32
}

/// Returns the tensors that are trained with Muon, in order: linear maps that are merged radially. With
/// [`Optimiser::AdamW`], the list is empty.
#[must_use]
pub fn muon_matrices(layout: &Layout, optimiser: Optimiser) -> Vec<MuonMatrix> {
    let matrices = layout.offsets().filter(|(_, tensor)| is_matrix(tensor, optimiser));
    let place = |(start, tensor): (u32, &Tensor)| MuonMatrix {
        start: start as usize,
        rows: tensor.rows as usize,
        cols: tensor.cols as usize,
    };
    matrices.map(place).collect()
}

/// Returns the ranges of the flat vector that are trained with AdamW, in order, each with whether it is decayed.
#[must_use]
pub fn adamw_ranges(layout: &Layout, optimiser: Optimiser) -> Vec<(Range<usize>, bool)> {
    let mut ranges: Vec<(Range<usize>, bool)> = Vec::new();
    for (start, tensor) in layout.offsets().filter(|(_, tensor)| !is_matrix(tensor, optimiser)) {
        let (start, end) = (start as usize, start as usize + tensor.len() as usize);
        let decayed = tensor.rows > 1;
        match ranges.last_mut() {
            Some((range, same)) if *same == decayed && range.end == start => range.end = end,
            _ => ranges.push((start..end, decayed)),
        }
    }
    ranges
}

/// Returns the number of second moments that `optimiser` holds.
#[must_use]
pub fn second_moments(layout: &Layout, optimiser: Optimiser) -> usize {
    adamw_ranges(layout, optimiser).iter().map(|(range, _)| range.len()).sum()
}

fn is_matrix(tensor: &Tensor, optimiser: Optimiser) -> bool {
    let is_map = tensor.merge == MergeClass::Radial && !is_table(&tensor.name);
    optimiser == Optimiser::Muon && is_map && tensor.rows > 1 && tensor.cols > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ExpertSpec, LoraSpec, LoraTargets, ModelSpec, Preset, layout};

    fn tensors() -> Layout {
        let tensor =
            |name: &str, rows, cols| Tensor { name: name.into(), rows, cols, merge: MergeClass::Radial };
        let tensors =
            [tensor("wide", 3, 5), tensor("tall", 4, 2), tensor("embed_tokens", 3, 2), tensor("norm", 1, 4)];
        Layout::new(tensors.to_vec()).unwrap()
    }

    /// Returns values `first..first + 33` of a formula, from −0.5 to 0.5: Knuth's multiplicative hash.
    fn values(first: u64) -> Vec<f32> {
        let value = |i: u64| ((i * 2_654_435_761 % (1 << 32)) >> 8) as f32 / (1 << 24) as f32 - 0.5;
        (first..first + 33).map(value).collect()
    }

    /// Numbers of `tests/golden/muon_fixture.py`.
    #[test]
    fn three_steps_as_by_singular_values() {
        let expected = [
            -0.490313, 0.115881, -0.258768, 0.344804, -0.027222, -0.402343, 0.205202, -0.170281, 0.443964,
            0.06178, -0.316727, 0.289451, -0.085188, -0.457921, 0.146352, -0.227746, 0.377706, 0.007323,
            -0.366824, 0.23532, -0.138938, 0.487437, 0.096022, -0.254578, 0.301839, -0.046804, -0.39994,
            0.156404, -0.164925, 0.400366, 0.011329, -0.311077, 0.247083,
        ];
        let inner = InnerSpec {
            beta2: 0.95,
            weight_decay: 0.1,
            clip_norm: 1.0,
            optimiser: Optimiser::Muon,
            ..Preset::Tiny.inner()
        };
        let (layout, mut params) = (tensors(), values(0));
        let mut muon = Muon::new(&layout);
        for step in 1..=3 {
            muon.step(&layout, &inner, 0.01, &mut params, &values(1_000 * step));
        }
        for (index, (found, expected)) in params.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() < 3e-6, "{index}: {found} instead of {expected}");
        }
        assert_eq!((muon.m.len(), muon.v.len(), muon.steps), (33, 10, 3));
    }

    /// Goal: matrices have a momentum only, all other tensors train as with AdamW, and each value is trained once.
    #[test]
    fn each_value_has_one_optimiser() {
        let dense = Preset::Tiny.model(256);
        let experts = Some(ExpertSpec { count: 4, per_token: 2, aux_loss: 0.0 });
        let lora = Some(LoraSpec { rank: 4, alpha: 8.0, targets: LoraTargets::ALL });
        for (spec, expected) in [
            (dense, 2 * 7),
            (ModelSpec { untied_head: true, ..dense }, 2 * 7),
            (ModelSpec { experts, ..dense }, 2 * (4 + 4 * 3)),
            (ModelSpec { lora, ..dense }, 0),
        ] {
            let layout = layout(&spec).unwrap();
            let matrices = muon_matrices(&layout, Optimiser::Muon);
            assert_eq!(matrices.len(), expected);
            let mut seen = vec![0; layout.len()];
            let adamw = adamw_ranges(&layout, Optimiser::Muon).into_iter().map(|(range, _)| range);
            for range in matrices.iter().map(MuonMatrix::range).chain(adamw) {
                seen[range].iter_mut().for_each(|seen| *seen += 1);
            }
            assert!(seen.iter().all(|&seen| seen == 1));
            assert!(muon_matrices(&layout, Optimiser::AdamW).is_empty());
            assert_eq!(second_moments(&layout, Optimiser::AdamW), layout.len());
        }
    }

    /// An update is as long as one of AdamW whose values have a root mean square of 0.2, whatever the gradient's size.
    #[test]
    fn updates_have_a_usual_length() {
        let layout = tensors();
        let moved = |factor: f32| {
            let (mut params, inner) = (vec![0.0; 33], Preset::Tiny.inner());
            let grad: Vec<f32> = values(7).iter().map(|value| value * factor).collect();
            Muon::new(&layout).step(&layout, &InnerSpec { clip_norm: 0.0, ..inner }, 1.0, &mut params, &grad);
            params[..15].iter().map(|p| p * p).sum::<f32>().sqrt() / 15_f32.sqrt()
        };
        for factor in [1e-6, 1.0, 1e15] {
            assert!((moved(factor) / MUON_RMS - 1.0).abs() < 0.13, "{factor}: {}", moved(factor));
        }
        assert_eq!(moved(0.0), 0.0, "no gradient, no step");
        assert!(moved(1e-15) < 1e-2 * MUON_RMS, "noise is not raised to full length");
    }

    #[test]
    fn nothing_changes_nothing() {
        let matrix = MuonMatrix { start: 0, rows: 3, cols: 5 };
        let (mut params, mut m) = (values(0)[..15].to_vec(), values(50)[..15].to_vec());
        adjust_matrix(&mut params, &values(9)[..15], &mut m, &matrix, &MuonAdjust::NOTHING);
        assert_eq!((params, m), (values(0)[..15].to_vec(), values(50)[..15].to_vec()));
    }
}
