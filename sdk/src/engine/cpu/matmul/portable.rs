//! A matrix product in vectors of four, for targets that `gemm` does not serve: browsers above all.
//!
//! Blocks of both operands are packed into panels that a tile reads from end to end, whatever the strides
//! were; sums of a tile stay in registers.

use std::cell::RefCell;

use super::pack::pack;
use super::{Mat, MatMut, Store};
use crate::platform::lanes::F4;

/// Rows and columns of a tile. It fits 16 registers even where a compiler loads all of a's values before the
/// second vector of b; 6 × 8 does not, and took a third longer.
const ROWS: usize = 4;
const COLS: usize = 8;
/// Terms, rows and columns of a block: a panel of b stays in the first cache, the block of a in the second.
const DEPTH_MAX: usize = 256;
const ROWS_MAX: usize = 24 * ROWS;
const COLS_MAX: usize = 512;

type Panels = (Vec<[f32; ROWS]>, Vec<[f32; COLS]>);

thread_local! {
    /// Kept, as a product may be too small to pay for new memory.
    static PANELS: RefCell<Panels> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// As [`super::matmul`].
pub fn product(mut out: MatMut<'_>, store: Store, scale: f32, a: Mat<'_>, b: Mat<'_>) {
    PANELS.with_borrow_mut(|(lefts, rights)| {
        for (term, depth) in cuts(a.cols, DEPTH_MAX) {
            let store = if term == 0 { store } else { Store::Add };
            for (col, cols) in cuts(b.cols, COLS_MAX) {
                pack(b.t().part((col, cols), (term, depth)), rights);
                for (row, rows) in cuts(a.rows, ROWS_MAX) {
                    pack(a.part((row, rows), (term, depth)), lefts);
                    block(&mut out, (row, rows), (col, cols), depth, store, scale, lefts, rights);
                }
            }
        }
    });
}

/// Start and length of even pieces of `len`, none above `max`.
fn cuts(len: usize, max: usize) -> impl Iterator<Item = (usize, usize)> {
    let piece = len.div_ceil(len.div_ceil(max));
    (0..len).step_by(piece).map(move |start| (start, piece.min(len - start)))
}

#[expect(clippy::too_many_arguments, reason = "the inside of three loops")]
fn block(
    out: &mut MatMut<'_>,
    (row, rows): (usize, usize),
    (col, cols): (usize, usize),
    depth: usize,
    store: Store,
    scale: f32,
    lefts: &[[f32; ROWS]],
    rights: &[[f32; COLS]],
) {
    let stride = out.stride;
    for (j, right) in rights.chunks_exact(depth).enumerate() {
        let (first_col, cols) = (col + j * COLS, COLS.min(cols - j * COLS));
        for (i, left) in lefts.chunks_exact(depth).enumerate() {
            let (first_row, rows) = (row + i * ROWS, ROWS.min(rows - i * ROWS));
            let sums = tile(left, right);
            let out = &mut out.values[first_row * stride + first_col..];
            if (rows, cols) == (ROWS, COLS) {
                put_whole(out, stride, &sums, store, scale);
            } else {
                for (r, sums) in sums[..rows].iter().enumerate() {
                    put(&mut out[r * stride..][..cols], sums, store, scale);
                }
            }
        }
    }
}

/// Stores all sums of a tile; rows lie `stride` apart.
#[inline(always)]
fn put_whole(out: &mut [f32], stride: usize, sums: &[[F4; COLS / 4]; ROWS], store: Store, scale: f32) {
    let out = &mut out[..(ROWS - 1) * stride + COLS];
    let scale = F4::splat(scale);
    for (r, sums) in sums.iter().enumerate() {
        let row = &mut out[r * stride..r * stride + COLS];
        for (out, &sum) in row.as_chunks_mut().0.iter_mut().zip(sums) {
            let before = if store == Store::Add { F4::load(out) } else { F4::splat(0.0) };
            before.add_product(sum, scale).store(out);
        }
    }
}

#[inline(always)]
fn tile(left: &[[f32; ROWS]], right: &[[f32; COLS]]) -> [[F4; COLS / 4]; ROWS] {
    let mut sums = [[F4::splat(0.0); COLS / 4]; ROWS];
    for (left, right) in left.iter().zip(right) {
        let right: [F4; COLS / 4] = std::array::from_fn(|c| F4::load(&right.as_chunks().0[c]));
        for (sums, &left) in sums.iter_mut().zip(left) {
            let left = F4::splat(left);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = sum.add_product(left, right);
            }
        }
    }
    sums
}

/// Stores as many sums of a row as `out` is long: at the edges.
#[inline(always)]
fn put(out: &mut [f32], sums: &[F4; COLS / 4], store: Store, scale: f32) {
    let mut values = [0.0; COLS];
    for (values, sum) in values.as_chunks_mut().0.iter_mut().zip(sums) {
        sum.store(values);
    }
    for (out, value) in out.iter_mut().zip(values) {
        *out = scale * value + if store == Store::Add { *out } else { 0.0 };
    }
}
