//! A matrix product with the same bits on every machine: for browsers, which `gemm` does not support, and for
//! simulations.
//!
//! Blocks of both operands are packed into panels that a tile reads from end to end, regardless of the original
//! strides. The sums of a tile stay in registers. Each value of the result is a sum in the order of its terms, split as
//! [`DEPTH_MAX`] determines, so the width of vectors and tiles changes no bit.

use std::cell::RefCell;

use super::pack::pack;
use super::{Mat, MatMut, Store};
use crate::platform::lanes::{Lanes, Work, widest};

/// Rows of a tile, which has as many columns as [`Lanes`]. With eight columns, as in browsers, it fits 16 registers
/// even if a compiler loads all of a's values before the second vector of b. A tile of 6 × 8 does not fit, and is
/// slower.
const ROWS: usize = 4;
/// Terms, rows and columns of a block. A panel of b stays in the L1 cache, and the block of a in the L2 cache.
const DEPTH_MAX: usize = 256;
const ROWS_MAX: usize = 24 * ROWS;
const COLS_MAX: usize = 512;

thread_local! {
    /// Panels of a and of b. They are kept because a product may be too small to justify an allocation.
    static PANELS: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Implements [`super::Products::multiply`].
pub fn product(out: MatMut<'_>, store: Store, scale: f32, a: Mat<'_>, b: Mat<'_>) {
    PANELS.with_borrow_mut(|(lefts, rights)| widest(Product { out, store, scale, a, b, lefts, rights }));
}

struct Product<'a> {
    out: MatMut<'a>,
    store: Store,
    scale: f32,
    a: Mat<'a>,
    b: Mat<'a>,
    lefts: &'a mut Vec<f32>,
    rights: &'a mut Vec<f32>,
}

impl Work for Product<'_> {
    #[inline(always)]
    fn run<L: Lanes<N>, const N: usize>(mut self) {
        let (a, b) = (self.a, self.b);
        for (term, depth) in cuts(a.cols, DEPTH_MAX) {
            if term > 0 {
                self.store = Store::Add;
            }
            for (col, cols) in cuts(b.cols, COLS_MAX) {
                pack::<N>(b.t().part((col, cols), (term, depth)), self.rights);
                for (row, rows) in cuts(a.rows, ROWS_MAX) {
                    pack::<ROWS>(a.part((row, rows), (term, depth)), self.lefts);
                    self.block::<L, N>((row, rows), (col, cols), depth);
                }
            }
        }
    }
}

/// Returns start and length of even pieces of `len`, each at most `max` long.
fn cuts(len: usize, max: usize) -> impl Iterator<Item = (usize, usize)> {
    let piece = len.div_ceil(len.div_ceil(max));
    (0..len).step_by(piece).map(move |start| (start, piece.min(len - start)))
}

impl Product<'_> {
    #[inline(always)]
    fn block<L: Lanes<N>, const N: usize>(
        &mut self,
        (row, rows): (usize, usize),
        (col, cols): (usize, usize),
        depth: usize,
    ) {
        let (stride, lefts, rights) = (self.out.stride, self.lefts.as_chunks().0, self.rights.as_chunks().0);
        for (j, right) in rights.chunks_exact(depth).enumerate() {
            let (first_col, cols) = (col + j * N, N.min(cols - j * N));
            for (i, left) in lefts.chunks_exact(depth).enumerate() {
                let (first_row, rows) = (row + i * ROWS, ROWS.min(rows - i * ROWS));
                let sums = tile::<L, N>(left, right);
                let out = &mut self.out.values[first_row * stride + first_col..];
                for (r, sums) in sums[..rows].iter().enumerate() {
                    put(&mut out[r * stride..][..cols], *sums, self.store, self.scale);
                }
            }
        }
    }
}

#[inline(always)]
fn tile<L: Lanes<N>, const N: usize>(left: &[[f32; ROWS]], right: &[[f32; N]]) -> [L; ROWS] {
    let mut sums = [L::splat(0.0); ROWS];
    for (left, right) in left.iter().zip(right) {
        let right = L::load(right);
        for (sum, &left) in sums.iter_mut().zip(left) {
            *sum = sum.add_product(L::splat(left), right);
        }
    }
    sums
}

/// Stores the sums of a row. At the edge, only as many as `out` holds.
#[inline(always)]
fn put<L: Lanes<N>, const N: usize>(out: &mut [f32], sums: L, store: Store, scale: f32) {
    if let Ok(out) = <&mut [f32; N]>::try_from(&mut *out) {
        let before = if store == Store::Add { L::load(out) } else { L::splat(0.0) };
        return before.add_product(sums, L::splat(scale)).store(out);
    }
    let mut values = [0.0; N];
    sums.store(&mut values);
    for (out, value) in out.iter_mut().zip(values) {
        *out = scale * value + if store == Store::Add { *out } else { 0.0 };
    }
}
