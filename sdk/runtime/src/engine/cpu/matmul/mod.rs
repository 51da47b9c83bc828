//! Matrix products: `gemm-f32` with the feature `cpu`, otherwise our own vectorised product. Our own also serves where
//! every machine must compute the same bits.

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
pub enum Store {
    /// Overwritten.
    Set,
    /// Added to.
    Add,
}

/// Implementation of matrix products.
#[derive(Clone, Copy)]
pub struct Products(fn(MatMut<'_>, Store, f32, Mat<'_>, Mat<'_>));

impl Products {
    /// The fastest product available. Its rounding depends on the machine.
    pub const FASTEST: Self = Self(fastest);
    /// Sums in a fixed order, without fused multiply-adds: the same bits on every machine and in browsers, except in
    /// modules compiled for `relaxed-simd`.
    pub const FIXED: Self = Self(portable::product);

    /// Computes `out = scale · a b`, or `out += scale · a b`; out `[m, n]`, a `[m, k]`, b `[k, n]`.
    pub fn multiply(self, out: MatMut<'_>, store: Store, scale: f32, a: Mat<'_>, b: Mat<'_>) {
        assert!(out.rows == a.rows && out.cols == b.cols && a.cols == b.rows, "shapes agree");
        (self.0)(out, store, scale, a, b);
    }
}

/// Tiles of rows from which `gemm` packs operands with contiguous terms before it multiplies. Its default of 2 makes
/// steps 1 to 3 % longer than reading them in place.
#[cfg(feature = "cpu")]
const PACKED_FROM: usize = 256;

#[cfg(feature = "cpu")]
fn fastest(out: MatMut<'_>, store: Store, scale: f32, a: Mat<'_>, b: Mat<'_>) {
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
            store == Store::Add,
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

mod pack;
mod portable;
#[cfg(not(feature = "cpu"))]
use portable::product as fastest;

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0).collect()
    }

    /// Compares both products with a sum in `f64`. Operands are plain or transposed, and the result lies inside a wider
    /// matrix.
    fn check(m: usize, n: usize, k: usize, transposed: (bool, bool), store: Store) {
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
                    Store::Set => product(),
                    Store::Add => f64::from(before) + product(),
                };
                assert!((f64::from(found) - expected).abs() < 1e-4, "[{m}, {n}, {k}] at {r}, {c}");
            }
        }
    }

    #[test]
    fn multiplies_any_shape() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 2), (17, 33, 9), (4, 16, 8), (64, 31, 70), (101, 517, 259)] {
            for transposed in [(false, false), (true, false), (false, true), (true, true)] {
                check(m, n, k, transposed, Store::Set);
                check(m, n, k, transposed, Store::Add);
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
            Products::FIXED.multiply(MatMut::new(&mut out, m, n), Store::Add, 0.3, left, right);
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
}
