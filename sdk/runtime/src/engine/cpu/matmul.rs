//! Matrix products: `gemm-f32` with the feature `cpu`, otherwise our own vectorised product. Our own also serves where
//! every machine must compute the same bits: in browsers, which `gemm` does not support, and in simulations.
//!
//! Our own product packs blocks of both operands into panels that a tile reads from end to end, regardless of the
//! original strides. The sums of a tile stay in registers. Each value of the result is a sum in the order of its terms,
//! split as [`DEPTH_MAX`] determines, so the width of vectors and tiles changes no bit.

use std::cell::RefCell;
use std::num::NonZeroUsize;

use super::THREADS_MAX;
use super::pool::ThreadPool;
use super::workspace::Buffer;
use crate::engine::EngineError;
use crate::platform::lanes::{Lanes, Work, widest};

/// A matrix with arbitrary strides, to read.
#[derive(Clone, Copy)]
pub struct Mat<'a> {
    values: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// A matrix with contiguous rows, to write.
pub struct MatMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Mat<'a> {
    /// Creates a view `[rows, cols]`, row-major, without gaps.
    pub fn new(values: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::strided(values, rows, cols, cols)
    }

    /// Creates a view `[rows, cols]`, with one row every `stride` values.
    pub fn strided(values: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(values.len(), rows, cols, stride);
        Self { values, rows, cols, row_stride: stride, col_stride: 1 }
    }

    /// Returns the number of rows.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Returns the transpose, without moving data.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Returns `count` rows from `first` on, within its bounds.
    pub fn some_rows(self, first: usize, count: usize) -> Self {
        self.part((first, count), (0, self.cols))
    }

    /// Returns `count` columns from `first` on, within its bounds.
    pub fn some_cols(self, first: usize, count: usize) -> Self {
        self.part((0, self.rows), (first, count))
    }

    /// Returns some rows and columns, each given as start and count, within its bounds.
    fn part(self, (row, rows): (usize, usize), (col, cols): (usize, usize)) -> Self {
        Self { values: &self.values[row * self.row_stride + col * self.col_stride..], rows, cols, ..self }
    }
}

impl<'a> MatMut<'a> {
    /// Creates a view `[rows, cols]`, row-major, without gaps.
    pub fn new(values: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::strided(values, rows, cols, cols)
    }

    /// Creates a view `[rows, cols]`, with one row every `stride` values.
    pub fn strided(values: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(values.len(), rows, cols, stride);
        Self { values, rows, cols, stride }
    }
}

/// Checks the shape. The unsafe call below relies on this.
fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(rows > 0 && cols > 0 && cols <= stride, "[{rows}, {cols}] with stride {stride}");
    assert!((rows - 1) * stride + cols <= len, "[{rows}, {cols}] with stride {stride} in {len} values");
}

/// Treatment of existing values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Overwritten.
    Set,
    /// Added to.
    Add,
}

/// Implementation of matrix products.
#[derive(Clone, Copy)]
pub struct Products(fn(MatMut<'_>, WriteMode, f32, Mat<'_>, Mat<'_>));

impl Products {
    /// The fastest product available. Its rounding depends on the machine.
    pub const FASTEST: Self = Self(fastest);
    /// Sums in a fixed order, without fused multiply-adds: the same bits on every machine and in browsers, except in
    /// modules compiled for `relaxed-simd`.
    pub const FIXED: Self = Self(product);

    /// Computes `out = scale · a b`, or `out += scale · a b`; out `[m, n]`, a `[m, k]`, b `[k, n]`.
    pub fn multiply(self, out: MatMut<'_>, store: WriteMode, scale: f32, a: Mat<'_>, b: Mat<'_>) {
        assert!(out.rows == a.rows && out.cols == b.cols && a.cols == b.rows, "shapes agree");
        (self.0)(out, store, scale, a, b);
    }
}

/// Tiles of rows from which `gemm` packs operands with contiguous terms before it multiplies. Its default of 2 makes
/// steps 1 to 3 % longer than reading them in place.
#[cfg(feature = "cpu")]
const PACKED_FROM: usize = 256;

#[cfg(feature = "cpu")]
fn fastest(out: MatMut<'_>, store: WriteMode, scale: f32, a: Mat<'_>, b: Mat<'_>) {
    static SET_UP: std::sync::Once = std::sync::Once::new();
    SET_UP.call_once(|| gemm_common::gemm::set_rhs_packing_threshold(PACKED_FROM));
    // Strides are below the length of a slice, which fits.
    let signed = |stride: usize| stride as isize;
    // Transposed, `outᵀ = bᵀ aᵀ`: its kernels prefer contiguous columns.
    // SAFETY: `check` was called on each matrix when it was made, transposing keeps what it checked, and
    // the shapes agree, so all reads and writes are in bounds. `out` is borrowed mutably: no overlap.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            out.cols,
            out.rows,
            a.cols,
            out.values.as_mut_ptr(),
            signed(out.stride),
            1,
            store == WriteMode::Add,
            b.values.as_ptr(),
            signed(b.row_stride),
            signed(b.col_stride),
            a.values.as_ptr(),
            signed(a.row_stride),
            signed(a.col_stride),
            1.0,
            scale,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}

#[cfg(not(feature = "cpu"))]
use self::product as fastest;

/// Packs `lines`, `[n, depth]`, side by side in panels of W: `panels` becomes `[n / W, depth, W]`. Missing lines of the
/// last panel are zeros.
fn pack<const W: usize>(lines: Mat<'_>, panels: &mut Vec<f32>) {
    let depth = lines.cols;
    panels.resize(lines.rows.div_ceil(W) * depth * W, 0.0);
    for (i, panel) in panels.as_chunks_mut::<W>().0.chunks_exact_mut(depth).enumerate() {
        let (first, count) = (i * W, W.min(lines.rows - i * W));
        if count == W && lines.row_stride == 1 {
            for (p, values) in panel.iter_mut().enumerate() {
                let start = first + p * lines.col_stride;
                values.copy_from_slice(&lines.values[start..start + W]);
            }
        } else if count == W && lines.col_stride == 1 {
            let line = |r: usize| &lines.values[(first + r) * lines.row_stride..][..depth];
            let lines: [&[f32]; W] = std::array::from_fn(line);
            for (p, values) in panel.iter_mut().enumerate() {
                for (value, line) in values.iter_mut().zip(lines) {
                    *value = line[p];
                }
            }
        } else {
            for (p, values) in panel.iter_mut().enumerate() {
                let at = |r: usize| lines.values[(first + r) * lines.row_stride + p * lines.col_stride];
                *values = std::array::from_fn(|r| if r < count { at(r) } else { 0.0 });
            }
        }
    }
}

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

/// Implements [`Products::multiply`].
fn product(out: MatMut<'_>, store: WriteMode, scale: f32, a: Mat<'_>, b: Mat<'_>) {
    PANELS.with_borrow_mut(|(lefts, rights)| widest(Product { out, store, scale, a, b, lefts, rights }));
}

struct Product<'a> {
    out: MatMut<'a>,
    store: WriteMode,
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
                self.store = WriteMode::Add;
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
fn put<L: Lanes<N>, const N: usize>(out: &mut [f32], sums: L, store: WriteMode, scale: f32) {
    if let Ok(out) = <&mut [f32; N]>::try_from(&mut *out) {
        let before = if store == WriteMode::Add { L::load(out) } else { L::splat(0.0) };
        return before.add_product(sums, L::splat(scale)).store(out);
    }
    let mut values = [0.0; N];
    sums.store(&mut values);
    for (out, value) in out.iter_mut().zip(values) {
        *out = scale * value + if store == WriteMode::Add { *out } else { 0.0 };
    }
}

/// Rows and columns of the matrices. Three of them fit a core's L2 cache.
const SIDE: usize = 256;
/// Products per round on each thread, and number of rounds.
const PRODUCTS: usize = 16;
const ROUNDS: usize = 20;

/// Returns the floating-point operations per second of square matrix products, `[256, 256]`, on `threads` threads at
/// once: the best of several rounds. This is the rate that the engine would reach if a step consisted of nothing else.
/// `now_us` returns microseconds since an arbitrary time.
///
/// # Errors
/// - [`EngineError::Thread`]: the system provides no more threads.
pub fn matmul_flops_per_s(threads: NonZeroUsize, now_us: &dyn Fn() -> u64) -> Result<f64, EngineError> {
    let mut pool = ThreadPool::new(threads.min(THREADS_MAX))?;
    let matrix = || Buffer::zeros(SIDE * SIDE);
    let mut jobs: Vec<_> = (0..pool.threads()).map(|_| [matrix(), matrix(), matrix()]).collect();
    let mut best_us = u64::MAX;
    for _ in 0..ROUNDS {
        let start_us = now_us();
        pool.each(&mut jobs, |[a, b, c]| {
            for _ in 0..PRODUCTS {
                let (a, b) = (Mat::new(a, SIDE, SIDE), Mat::new(b, SIDE, SIDE));
                Products::FASTEST.multiply(MatMut::new(c, SIDE, SIDE), WriteMode::Set, 1.0, a, b);
            }
        });
        best_us = best_us.min((now_us() - start_us).max(1));
    }
    Ok(2e6 * (SIDE as f64).powi(3) * (PRODUCTS * jobs.len()) as f64 / best_us as f64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn noise(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0).collect()
    }

    /// Compares both products with a sum in `f64`. Operands are plain or transposed, and the result lies inside a wider
    /// matrix.
    fn check(m: usize, n: usize, k: usize, transposed: (bool, bool), store: WriteMode) {
        let (a, b) = (noise(m * k), noise(k * n));
        let view = |values, rows, cols, transposed: bool| {
            if transposed { Mat::new(values, cols, rows).t() } else { Mat::new(values, rows, cols) }
        };
        let (a, b) = (view(&a, m, k, transposed.0), view(&b, k, n, transposed.1));
        let at = |mat: Mat<'_>, r, c| f64::from(mat.values[r * mat.row_stride + c * mat.col_stride]);
        let stride = n + 3;
        for products in [Products::FASTEST, Products::FIXED] {
            let mut out = noise(m * stride);
            let before = out.clone();
            products.multiply(MatMut::strided(&mut out, m, n, stride), store, 0.5, a, b);
            for (i, (&found, &before)) in out.iter().zip(&before).enumerate() {
                let (r, c) = (i / stride, i % stride);
                let product = || 0.5 * (0..k).map(|p| at(a, r, p) * at(b, p, c)).sum::<f64>();
                let expected = match store {
                    _ if c >= n => f64::from(before),
                    WriteMode::Set => product(),
                    WriteMode::Add => f64::from(before) + product(),
                };
                assert!((f64::from(found) - expected).abs() < 1e-4, "[{m}, {n}, {k}] at {r}, {c}");
            }
        }
    }

    #[test]
    fn multiplies_any_shape() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 2), (17, 33, 9), (4, 16, 8), (64, 31, 70), (101, 517, 259)] {
            for transposed in [(false, false), (true, false), (false, true), (true, true)] {
                check(m, n, k, transposed, WriteMode::Set);
                check(m, n, k, transposed, WriteMode::Add);
            }
        }
    }

    #[test]
    #[should_panic(expected = "stride 4 in 10 values")]
    fn refuses_a_matrix_that_sticks_out() {
        let _ = Mat::strided(&[0.0; 10], 3, 3, 4);
    }

    /// The fixed product equals this bit for bit: sums in the order of the terms, split evenly so that none has more
    /// than 256.
    #[test]
    fn fixed_products_are_plain_sums_in_order() {
        for (m, n, k) in [(5, 33, 7), (4, 64, 256), (9, 70, 300), (1, 1, 513)] {
            let (a, b) = (noise(m * k), noise(k * n));
            let mut out = noise(m * n);
            let before = out.clone();
            let (left, right) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
            Products::FIXED.multiply(MatMut::new(&mut out, m, n), WriteMode::Add, 0.3, left, right);
            let cut = k.div_ceil(k.div_ceil(256));
            for (i, (found, before)) in out.iter().zip(before).enumerate() {
                let (r, c) = (i / n, i % n);
                let sum = |from: usize| {
                    (from..k.min(from + cut)).fold(0.0, |sum, p| sum + a[r * k + p] * b[p * n + c])
                };
                let expected = (0..k).step_by(cut).fold(before, |out: f32, from| out + sum(from) * 0.3);
                assert_eq!(found.to_bits(), expected.to_bits(), "{m} {n} {k}: {i}");
            }
        }
    }

    #[test]
    fn counts_every_thread_and_takes_the_best_round() {
        // Each reading of the clock advances by half a second more: the first round takes one second.
        let (now_us, step_us) = (Cell::new(0), Cell::new(0));
        let clock = || {
            step_us.set(step_us.get() + 500_000);
            now_us.set(now_us.get() + step_us.get());
            now_us.get()
        };
        let flops_per_s = matmul_flops_per_s(NonZeroUsize::new(3).unwrap(), &clock).unwrap();
        assert_eq!(flops_per_s, 3.0 * 16.0 * 2.0 * 256_f64.powi(3));
    }
}
