//! AdamW, an inner optimiser, in plain scalar Rust. The engines use the same coefficients for each step.

use super::{ModelError, adamw_ranges};
use crate::diloco::Layout;
use crate::wire::{InnerSpec, Optimiser};

/// AdamW with decoupled weight decay (Loshchilov and Hutter 2019), as PyTorch computes it.
#[derive(Clone, Debug)]
pub struct AdamW {
    /// First moment, `[len]`.
    pub m: Vec<f32>,
    /// Second moment, `[len]`.
    pub v: Vec<f32>,
    /// Steps taken.
    pub steps: u64,
}

/// Coefficients of one AdamW step, shared by all parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjust {
    /// Factor of the gradient that clips it.
    pub scale: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Learning rate over the bias correction of the first moment.
    pub rate: f32,
    /// `1 / √(1 − β2ᵗ)`, the bias correction of the second moment's root.
    pub root: f32,
    /// Term added to the root of the second moment.
    pub eps: f32,
    /// Factor of decayed parameters: `1 − lr · weight_decay`.
    pub keep: f32,
}

impl AdamW {
    /// Returns zero moments for `len` parameters.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { m: vec![0.0; len], v: vec![0.0; len], steps: 0 }
    }

    /// Counts one step and returns its coefficients for a gradient of norm `grad_norm`.
    pub(crate) fn begin(&mut self, inner: &InnerSpec, lr: f32, grad_norm: f32) -> Adjust {
        self.steps += 1;
        Adjust::new(inner, self.steps, lr, grad_norm)
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
        let numbers = self.begin(inner, lr, grad_norm);
        for (range, decayed) in adamw_ranges(layout, Optimiser::AdamW) {
            let numbers = Adjust { keep: if decayed { numbers.keep } else { 1.0 }, ..numbers };
            let (m, v) = (&mut self.m[range.clone()], &mut self.v[range.clone()]);
            adjust(&mut params[range.clone()], &grad[range], m, v, &numbers);
        }
        grad_norm
    }
}

impl Adjust {
    /// Coefficients of a step that takes full time but changes nothing: a finite gradient has no effect.
    pub const NOTHING: Self =
        Self { scale: 1.0, beta1: 1.0, beta2: 1.0, rate: 0.0, root: 1.0, eps: 1.0, keep: 1.0 };

    /// Returns the coefficients of step `steps`, counted from 1, for a gradient of norm `grad_norm`.
    #[must_use]
    pub fn new(inner: &InnerSpec, steps: u64, lr: f32, grad_norm: f32) -> Self {
        let clip = inner.clip_norm;
        let scale = if clip > 0.0 && grad_norm > clip { clip / grad_norm } else { 1.0 };
        let correction = |beta: f32| 1.0 - libm::pow(f64::from(beta), steps as f64);
        Self {
            scale,
            beta1: inner.beta1,
            beta2: inner.beta2,
            rate: (f64::from(lr) / correction(inner.beta1)) as f32,
            root: (1.0 / correction(inner.beta2).sqrt()) as f32,
            eps: inner.eps,
            keep: 1.0 - lr * inner.weight_decay,
        }
    }
}

/// Checks the settings, which come from outside.
///
/// # Errors
/// - [`ModelError::Inner`]: one of them is out of range.
pub fn check_inner(inner: &InnerSpec) -> Result<(), ModelError> {
    let check = |field, value: f32, valid: bool, range| {
        if valid { Ok(()) } else { Err(ModelError::Inner { field, value, range }) }
    };
    for (field, value) in
        [("lr_max", inner.lr_max), ("weight_decay", inner.weight_decay), ("clip_norm", inner.clip_norm)]
    {
        check(field, value, value.is_finite() && value >= 0.0, "0 or positive, and finite")?;
    }
    for (field, value) in [("beta1", inner.beta1), ("beta2", inner.beta2)] {
        check(field, value, (0.0..1.0).contains(&value), "at least 0 and below 1")?;
    }
    let ratio = inner.lr_min_ratio;
    check("lr_min_ratio", ratio, (0.0..=1.0).contains(&ratio), "between 0 and 1")?;
    check("eps", inner.eps, inner.eps.is_finite() && inner.eps > 0.0, "positive and finite")
}

/// Updates `params` by one step; all slices have the same length. Engines inline it into their own loops.
///
/// `m ← β1 m + (1 − β1) g`, `v ← β2 v + (1 − β2) g²`, `p ← keep · p − rate · m / (root · √v + ε)`.
#[inline(always)]
pub fn adjust(params: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32], a: &Adjust) {
    for (((p, &g), m), v) in params.iter_mut().zip(grad).zip(m).zip(v) {
        let g = g * a.scale;
        *m = a.beta1 * *m + (1.0 - a.beta1) * g;
        *v = a.beta2 * *v + (1.0 - a.beta2) * g * g;
        *p = a.keep * *p - a.rate * *m / (v.sqrt() * a.root + a.eps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::{MergeClass, Tensor};
    use crate::model::Preset;

    fn layout() -> Layout {
        let tensor =
            |name: &str, rows, cols| Tensor { name: name.into(), rows, cols, merge: MergeClass::Radial };
        Layout::new(vec![tensor("matrix", 2, 1), tensor("vector", 1, 2)]).unwrap()
    }

    /// The first step moves each parameter by the learning rate for any gradient; only the matrix decays.
    #[test]
    fn first_step_is_the_sign() {
        let inner = InnerSpec { weight_decay: 0.5, clip_norm: 0.0, ..Preset::Tiny.inner() };
        let mut params = [2.0, 2.0, 2.0, 2.0];
        let norm = AdamW::new(4).step(&layout(), &inner, 0.1, &mut params, &[3.0, -3.0, 4.0, -4.0]);
        assert!((norm - 50_f32.sqrt()).abs() < 1e-5);
        for (found, expected) in params.into_iter().zip([1.8, 2.0, 1.9, 2.1]) {
            assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        }
    }

    #[test]
    fn refuses_numbers_out_of_range() {
        let check = |change: &dyn Fn(&mut InnerSpec), text: &str| {
            let mut inner = Preset::Tiny.inner();
            assert_eq!(check_inner(&inner), Ok(()));
            change(&mut inner);
            let error = check_inner(&inner).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        check(&|inner| inner.lr_max = f32::NAN, "lr_max is NaN");
        check(&|inner| inner.weight_decay = -1.0, "weight_decay is -1");
        check(&|inner| inner.clip_norm = f32::INFINITY, "clip_norm is inf");
        check(&|inner| inner.beta2 = 1.0, "beta2 is 1");
        check(&|inner| inner.eps = 0.0, "eps is 0");
        check(&|inner| inner.lr_min_ratio = 2.0, "lr_min_ratio is 2");
    }

    #[test]
    fn nothing_changes_nothing() {
        let values = || ([0.1_f32, -3.0e5, 0.0], [1.0e-30_f32, 7.0, 0.3], [2.0e-38_f32, 0.0, 5.0]);
        let (mut params, mut m, mut v) = values();
        adjust(&mut params, &[1.0e-3, -1.0e18, 0.7], &mut m, &mut v, &Adjust::NOTHING);
        assert_eq!((params, m, v), values());
    }

    #[test]
    fn clips_the_norm() {
        let moment = |clip_norm| {
            let inner = InnerSpec { clip_norm, ..Preset::Tiny.inner() };
            let mut adamw = AdamW::new(4);
            adamw.step(&layout(), &inner, 0.1, &mut [0.0; 4], &[3.0, 0.0, 0.0, -4.0]);
            adamw.m
        };
        let check = |clip_norm, expected: f32| {
            let found = moment(clip_norm)[3];
            assert!((found - expected).abs() < 1e-6, "{clip_norm}: {found} instead of {expected}");
        };
        check(0.0, -0.4);
        check(10.0, -0.4);
        check(1.0, -0.08);
    }
}
