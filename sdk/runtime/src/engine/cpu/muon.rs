//! Muon steps of matrices on the processor, one matrix per thread at a time.
//!
//! The polar factor of the update X, `[rows, cols]`, comes from products of k × k matrices, k = min(rows, cols). With
//! G = XXᵀ (XᵀX if X is tall), a step X ← (a + bG + cG²) X multiplies G by (a + bG + cG²)². So the polynomials are
//! collected in a matrix Q, and X is multiplied once, at the end. All factors are polynomials of G: they commute, and
//! their products are symmetric, so half of each is computed.

use std::sync::{Mutex, PoisonError};

use super::kernels;
use super::matmul::{Mat, MatMut, Products, WriteMode};
use crate::model::{MUON_STEPS, MuonAdjust, MuonMatrix, muon_unit};

/// Rows of a block of a symmetric product. Blocks below the diagonal are copied. Small blocks waste less of the
/// diagonal ones, large ones are multiplied faster.
const BLOCK_ROWS: usize = 32;

/// Parameters of one matrix with its gradient and momentum, `[rows, cols]` each.
pub struct MatrixStep<'a> {
    pub matrix: MuonMatrix,
    pub params: &'a mut [f32],
    pub grad: &'a [f32],
    pub momentum: &'a mut [f32],
}

/// Scratch of one thread. Vectors grow to the size of the largest matrix.
#[derive(Default)]
struct Scratch {
    /// The update X, `[rows, cols]`.
    update: Vec<f32>,
    /// Its polar factor, `[rows, cols]`.
    polar: Vec<f32>,
    /// G, `[k, k]`.
    gram: Vec<f32>,
    /// Q, `[k, k]`.
    collected: Vec<f32>,
    /// The polynomial of G, `[k, k]`.
    polynomial: Vec<f32>,
    /// A product before it replaces a factor, `[k, k]`.
    product: Vec<f32>,
}

/// Scratch of all threads that take steps. A thread borrows one for the time of a matrix.
#[derive(Default)]
pub struct MuonScratch(Mutex<Vec<Scratch>>);

impl MuonScratch {
    /// Updates a matrix by one step, see [`crate::model::Muon`].
    pub fn adjust(&self, products: Products, step: &mut MatrixStep<'_>, a: &MuonAdjust) {
        let free = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = free().pop().unwrap_or_default();
        let MatrixStep { matrix, params, grad, momentum } = step;
        scratch.update.resize(grad.len(), 0.0);
        let squares = kernels::nesterov(&mut scratch.update, grad, momentum, a);
        kernels::scale(&mut scratch.update, muon_unit(squares.sqrt()));
        scratch.orthogonalise(products, matrix.rows, matrix.cols);
        kernels::step_along(params, &scratch.polar, a.keep, a.rate * matrix.scale());
        free().push(scratch);
    }
}

impl Scratch {
    /// Writes the polar factor of `update`, `[rows, cols]` with a norm of at most 1, to `polar`.
    fn orthogonalise(&mut self, products: Products, rows: usize, cols: usize) {
        let Self { update, polar, gram, collected, polynomial, product } = self;
        let k = rows.min(cols);
        for square in [&mut *gram, &mut *collected, &mut *polynomial, &mut *product] {
            square.resize(k * k, 0.0);
        }
        polar.resize(update.len(), 0.0);
        let x = Mat::new(update, rows, cols);
        let wide = if rows > cols { x.t() } else { x };
        symmetric_product(products, gram, wide, wide.t());
        for (step, &[a, b, c]) in MUON_STEPS.iter().enumerate() {
            symmetric_product(products, polynomial, square(gram, k), square(gram, k));
            kernels::polynomial(polynomial, gram, b, c);
            polynomial.iter_mut().step_by(k + 1).for_each(|diagonal| *diagonal += a);
            if step == 0 {
                collected.copy_from_slice(polynomial);
            } else {
                symmetric_product(products, product, square(polynomial, k), square(collected, k));
                std::mem::swap(product, collected);
            }
            if step + 1 < MUON_STEPS.len() {
                symmetric_product(products, product, square(polynomial, k), square(gram, k));
                symmetric_product(products, gram, square(polynomial, k), square(product, k));
            }
        }
        let (out, collected) = (MatMut::new(polar, rows, cols), Mat::new(collected, k, k));
        if rows > cols {
            products.multiply(out, WriteMode::Set, 1.0, x, collected);
        } else {
            products.multiply(out, WriteMode::Set, 1.0, collected, x);
        }
    }
}

/// Returns a view `[k, k]`.
fn square(values: &[f32], k: usize) -> Mat<'_> {
    Mat::new(values, k, k)
}

/// Computes `out = a b`, `[k, k]`, for `a`, `[k, n]`, and `b`, `[n, k]`, whose product is symmetric.
fn symmetric_product(products: Products, out: &mut [f32], a: Mat<'_>, b: Mat<'_>) {
    let k = a.rows();
    for first in (0..k).step_by(BLOCK_ROWS) {
        let rows = BLOCK_ROWS.min(k - first);
        let target = MatMut::strided(&mut out[first * k + first..], rows, k - first, k);
        products.multiply(
            target,
            WriteMode::Set,
            1.0,
            a.some_rows(first, rows),
            b.some_cols(first, k - first),
        );
        mirror(out, k, first, rows);
    }
}

/// Rows and columns of a tile that is transposed at once.
const TILE: usize = 16;

/// Copies the `rows` rows from `first` on, right of the diagonal, to the columns below it. In `out`, `[k, k]`.
fn mirror(out: &mut [f32], k: usize, first: usize, rows: usize) {
    let mut tile = [[0.0; TILE]; TILE];
    for row in (first..first + rows).step_by(TILE) {
        let height = TILE.min(first + rows - row);
        for col in (row..k).step_by(TILE) {
            let width = TILE.min(k - col);
            for (r, line) in tile.iter_mut().enumerate().take(height) {
                line[..width].copy_from_slice(&out[(row + r) * k + col..][..width]);
            }
            for c in 0..width {
                // On the diagonal, the values right of it stay.
                let count = if row == col { c.min(height) } else { height };
                let target = &mut out[(col + c) * k + row..][..count];
                target.iter_mut().zip(&tile).for_each(|(value, line)| *value = line[c]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::{Layout, MergeClass, Tensor};
    use crate::model::{InnerSpec, Muon, Optimiser, Preset, muon_matrices};
    use crate::rng::Rng;

    /// Goal: both products follow the core's optimiser for square, wide and tall matrices, at sizes on both sides of a
    /// block, of full rank and of rank 2.
    #[test]
    fn steps_follow_the_reference() {
        let shapes = [(2, 2), (5, 7), (7, 5), (64, 64), (65, 63), (16, 176), (130, 70), (128, 344)];
        let shapes: Vec<(u32, u32)> =
            if cfg!(debug_assertions) { shapes[..7].to_vec() } else { shapes.to_vec() };
        let inner = InnerSpec { optimiser: Optimiser::Muon, clip_norm: 0.0, ..Preset::Tiny.inner() };
        for (rows, cols) in shapes {
            let tensor = Tensor { name: "a".into(), rows, cols, merge: MergeClass::Radial };
            let layout = Layout::new(vec![tensor]).unwrap();
            let matrix = muon_matrices(&layout, Optimiser::Muon)[0];
            for products in [Products::FASTEST, Products::FIXED] {
                for rank in [2, rows.min(cols)] {
                    let mut rng = Rng::new(u64::from(rows * 1_000 + cols + rank));
                    let mut draw =
                        |len: u32| -> Vec<f32> { (0..len).map(|_| (rng.unit() - 0.5) as f32).collect() };
                    let mut params = draw(rows * cols);
                    let (mut expected, mut momentum) = (params.clone(), vec![0.0; params.len()]);
                    let (mut muon, scratch) = (Muon::new(&layout), MuonScratch::default());
                    let begun = params.clone();
                    for _ in 0..3 {
                        let (left, right) = (draw(rows * rank), draw(rank * cols));
                        let mut grad = vec![0.0; params.len()];
                        let (left, right) = (
                            Mat::new(&left, rows as usize, rank as usize),
                            Mat::new(&right, rank as usize, cols as usize),
                        );
                        let out = MatMut::new(&mut grad, rows as usize, cols as usize);
                        Products::FIXED.multiply(out, WriteMode::Set, 1.0, left, right);
                        let norm = muon.step(&layout, &inner, 0.1, &mut expected, &grad);
                        let adamw = crate::model::Adjust::new(&inner, muon.steps, 0.1, norm);
                        let numbers = MuonAdjust::new(&adamw, 0.1);
                        let (params, momentum) = (&mut params[..], &mut momentum[..]);
                        let mut step = MatrixStep { matrix, params, grad: &grad, momentum };
                        scratch.adjust(products, &mut step, &numbers);
                    }
                    let distance = |a: &[f32], b: &[f32]| {
                        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
                    };
                    let error = distance(&params, &expected) / distance(&begun, &expected);
                    assert!(error < 5e-3, "{rows} × {cols} of rank {rank}: {error}");
                }
            }
        }
    }
}
