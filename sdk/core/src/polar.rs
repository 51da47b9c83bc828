//! Polar factor of a matrix: the same directions, all of the same length.
//!
//! The code uses only additions and multiplications in `f32`, in an order that depends on the shape alone. So the
//! result has the same bits on every machine.

/// Coefficients (a, b, c) of the steps σ ← aσ + bσ³ + cσ⁵ on the singular values.
///
/// Minimax polynomials for singular values from 0.001 to 1, composed greedily: Amsel, Persson, Musco and Gower, "The
/// Polar Express" (arXiv 2505.16932), section 4. After these six steps such a value differs from 1 by at most 0.0012.
/// Smaller values, which are mostly noise, come closer to 1 without reaching it: 0.0001 becomes 0.19.
pub(crate) const STEPS: [[f32; 3]; 6] = [
    [8.287_212, -23.595_887, 17.300_387],
    [4.107_059, -2.947_85, 0.544_843],
    [3.948_691, -2.908_902, 0.551_819],
    [3.318_42, -2.488_488, 0.510_049],
    [2.300_652, -1.668_904, 0.418_807],
    [1.891_301, -1.267_996, 0.376_804],
];

/// Norm of a matrix before the first step. Rounding may lengthen a matrix of norm 1 a little, and the first polynomial
/// is steep there, so the norm stays below 1.
const NORM_MAX: f64 = 0.99;

/// Rows that are computed at once.
const TILE_ROWS: usize = 4;
/// Columns that are computed at once: two or four vectors of a processor.
const TILE_COLS: usize = 16;

/// Replaces the singular values of a matrix by their mean, so that all of its directions count equally.
///
/// `matrix` is `[rows, cols]`, row-major, and `norm` its Frobenius norm. With the polar factor Q = UVᵀ of the matrix X
/// = UΣVᵀ, the result is its projection on Q, (⟨X, Q⟩ / ⟨Q, Q⟩) Q. For a matrix of full rank, that is mean(σ) UVᵀ, as
/// in IsoLoCo (arXiv 2607.03011). Directions that X lacks stay zero and do not count in the mean, so a matrix of rank
/// one is nearly unchanged. A matrix without a finite norm above 0 is returned unchanged.
pub(crate) fn flatten(matrix: &[f64], rows: usize, norm: f64) -> Vec<f64> {
    if !(norm.is_finite() && norm > 0.0) {
        return matrix.to_vec();
    }
    let unit: Vec<f32> = matrix.iter().map(|value| (value * (NORM_MAX / norm)) as f32).collect();
    let polar = factor(unit, rows, &STEPS);
    let (mut dot, mut square) = (0.0, 0.0);
    for (value, polar) in matrix.iter().zip(&polar) {
        let polar = f64::from(*polar);
        dot += value * polar;
        square += polar * polar;
    }
    let length = dot / square;
    polar.iter().map(|polar| f64::from(*polar) * length).collect()
}

/// Returns the polar factor of `x`, `[rows, cols]`, as far as `steps` bring its singular values to 1. They must suit
/// the first of the steps.
pub(crate) fn factor(x: Vec<f32>, rows: usize, steps: &[[f32; 3]]) -> Vec<f32> {
    let cols = x.len() / rows;
    if rows > cols {
        transpose(&wide_factor(transpose(&x, rows), cols, steps), cols)
    } else {
        wide_factor(x, rows, steps)
    }
}

/// Does the same for a matrix with at most as many rows as columns.
fn wide_factor(mut x: Vec<f32>, rows: usize, steps: &[[f32; 3]]) -> Vec<f32> {
    let mut next = vec![0.0; x.len()];
    let (mut gram, mut square) = (vec![0.0; rows * rows], vec![0.0; rows * rows]);
    for &[a, b, c] in steps {
        multiply_transposed(&x, rows, &mut gram);
        multiply_transposed(&gram, rows, &mut square);
        for (gram, square) in gram.iter_mut().zip(&square) {
            *gram = b * *gram + c * square;
        }
        gram.iter_mut().step_by(rows + 1).for_each(|diagonal| *diagonal += a);
        multiply(&gram, &x, rows, &mut next);
        std::mem::swap(&mut x, &mut next);
    }
    x
}

/// Returns the transpose of `matrix`, `[rows, cols]`.
fn transpose(matrix: &[f32], rows: usize) -> Vec<f32> {
    let cols = matrix.len() / rows;
    let mut transposed = vec![0.0; matrix.len()];
    for (row, values) in matrix.chunks_exact(cols).enumerate() {
        for (col, value) in values.iter().enumerate() {
            transposed[col * rows + row] = *value;
        }
    }
    transposed
}

/// Computes `out = x xᵀ`, `[rows, rows]`, for `x`, `[rows, inner]`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn multiply_transposed(x: &[f32], rows: usize, out: &mut [f32]) {
    let inner = x.len() / rows;
    let mut panel = vec![[0.0; TILE_COLS]; inner];
    for first in (0..rows).step_by(TILE_COLS) {
        let width = TILE_COLS.min(rows - first);
        for (col, values) in x[first * inner..].chunks_exact(inner).take(width).enumerate() {
            for (line, value) in panel.iter_mut().zip(values) {
                line[col] = *value;
            }
        }
        // The result is symmetric: rows below the panel are copied.
        multiply_panel(&x[..(first + width) * inner], &panel, (first, width, rows), out);
    }
    for row in 1..rows {
        for col in 0..row {
            out[row * rows + col] = out[col * rows + row];
        }
    }
}

/// Computes `out = a x`, `[rows, cols]`, for `a`, `[rows, rows]`, and `x`, `[rows, cols]`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn multiply(a: &[f32], x: &[f32], rows: usize, out: &mut [f32]) {
    let cols = x.len() / rows;
    let mut panel = vec![[0.0; TILE_COLS]; rows];
    for first in (0..cols).step_by(TILE_COLS) {
        let width = TILE_COLS.min(cols - first);
        for (line, values) in panel.iter_mut().zip(x.chunks_exact(cols)) {
            line[..width].copy_from_slice(&values[first..first + width]);
        }
        multiply_panel(a, &panel, (first, width, cols), out);
    }
}

/// Multiplies the rows `a`, each as long as `panel`, by the panel. Writes `width` columns of `out` from `first` on,
/// where a row has `cols` columns. Each value is the sum of its products in order.
#[inline(always)]
fn multiply_panel(
    a: &[f32],
    panel: &[[f32; TILE_COLS]],
    (first, width, cols): (usize, usize, usize),
    out: &mut [f32],
) {
    let inner = panel.len();
    let tiles = a.chunks(TILE_ROWS * inner).zip(out.chunks_mut(TILE_ROWS * cols));
    for (a, out) in tiles {
        let sums = match a.len() / inner {
            TILE_ROWS => multiply_tile::<TILE_ROWS>(a, panel),
            count => {
                let mut sums = [[0.0; TILE_COLS]; TILE_ROWS];
                for (row, sums) in sums.iter_mut().take(count).enumerate() {
                    *sums = multiply_tile::<1>(&a[row * inner..][..inner], panel)[0];
                }
                sums
            }
        };
        for (sums, out) in sums.iter().zip(out.chunks_exact_mut(cols)).take(a.len() / inner) {
            out[first..first + width].copy_from_slice(&sums[..width]);
        }
    }
}

/// Returns the product of `ROWS` rows and the panel.
#[inline(always)]
fn multiply_tile<const ROWS: usize>(a: &[f32], panel: &[[f32; TILE_COLS]]) -> [[f32; TILE_COLS]; ROWS] {
    let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &a[row * panel.len()..][..panel.len()]);
    let mut sums = [[0.0; TILE_COLS]; ROWS];
    for (at, line) in panel.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let value = row[at];
            for (sum, other) in sums.iter_mut().zip(line) {
                *sum += value * other;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Returns `count` orthonormal vectors of `len` values, by Gram-Schmidt.
    fn orthonormal(rng: &mut Rng, count: usize, len: usize) -> Vec<Vec<f64>> {
        let mut vectors: Vec<Vec<f64>> = Vec::new();
        for _ in 0..count {
            let mut vector: Vec<f64> = (0..len).map(|_| rng.unit() - 0.5).collect();
            // Once is not enough for orthogonality to the last digits.
            for _ in 0..2 {
                for other in &vectors {
                    let dot: f64 = vector.iter().zip(other).map(|(a, b)| a * b).sum();
                    vector.iter_mut().zip(other).for_each(|(a, b)| *a -= dot * b);
                }
            }
            let norm = vector.iter().map(|a| a * a).sum::<f64>().sqrt();
            vectors.push(vector.iter().map(|a| a / norm).collect());
        }
        vectors
    }

    /// Returns Σ σ_i u_i v_iᵀ, `[rows, cols]`, for each list of σ, with the same random vectors.
    fn with_values<const N: usize>(rows: usize, cols: usize, lists: [&[f64]; N]) -> [Vec<f64>; N] {
        let mut rng = Rng::new((rows * 1_000 + cols) as u64);
        let rank = lists.iter().map(|list| list.len()).max().unwrap();
        let (left, right) = (orthonormal(&mut rng, rank, rows), orthonormal(&mut rng, rank, cols));
        lists.map(|list| {
            let mut matrix = vec![0.0; rows * cols];
            for (i, sigma) in list.iter().enumerate() {
                for (row, values) in matrix.chunks_exact_mut(cols).enumerate() {
                    values
                        .iter_mut()
                        .zip(&right[i])
                        .for_each(|(value, v)| *value += sigma * left[i][row] * v);
                }
            }
            matrix
        })
    }

    fn norm(matrix: &[f64]) -> f64 {
        matrix.iter().map(|value| value * value).sum::<f64>().sqrt()
    }

    fn distance(a: &[f64], b: &[f64]) -> f64 {
        norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(b)
    }

    #[test]
    fn singular_values_become_their_mean() {
        for (rows, cols) in [(2, 2), (5, 7), (7, 5), (16, 16), (64, 64), (33, 17), (4, 100), (176, 64)] {
            let rank = rows.min(cols);
            for spread in [1.0, 10.0, 100.0] {
                let sigma = |i: usize| 1e-3 * f64::powf(spread, -(i as f64) / (rank - 1) as f64);
                let values: Vec<f64> = (0..rank).map(sigma).collect();
                let mean = values.iter().sum::<f64>() / rank as f64;
                let [matrix, expected] = with_values(rows, cols, [&values, &vec![mean; rank]]);
                let error = distance(&flatten(&matrix, rows, norm(&matrix)), &expected);
                assert!(error < 2e-3, "{rows} × {cols}, spread {spread}: {error}");
            }
        }
    }

    #[test]
    fn size_is_kept_for_large_and_small_matrices() {
        let [matrix] = with_values(12, 20, [&[3.0, 2.0, 1.0]]);
        let flat = flatten(&matrix, 12, norm(&matrix));
        for scale in [1e-40, 1e-12, 1e12, 1e40] {
            let scaled: Vec<f64> = matrix.iter().map(|value| value * scale).collect();
            let expected: Vec<f64> = flat.iter().map(|value| value * scale).collect();
            assert!(distance(&flatten(&scaled, 12, norm(&scaled)), &expected) < 1e-6, "{scale}");
        }
    }

    #[test]
    fn lacking_directions_stay_zero() {
        let [one] = with_values(9, 14, [&[0.7]]);
        assert!(distance(&flatten(&one, 9, norm(&one)), &one) < 1e-3);
        let [two, mean] = with_values(14, 9, [&[0.7, 0.1], &[0.4, 0.4]]);
        assert!(distance(&flatten(&two, 14, norm(&two)), &mean) < 2e-3);
    }

    #[test]
    fn noise_is_not_raised_to_full_length() {
        let [matrix, signal] = with_values(8, 8, [&[1.0, 1.0, 1.0, 1e-7], &[1.0, 1.0, 1.0]]);
        assert!(distance(&flatten(&matrix, 8, norm(&matrix)), &signal) < 1e-2);
    }

    #[test]
    fn a_matrix_without_direction_is_unchanged() {
        assert_eq!(flatten(&[0.0; 6], 2, 0.0), [0.0; 6]);
        assert_eq!(flatten(&[1.0; 6], 2, f64::INFINITY), [1.0; 6]);
    }

    /// Fails on a machine or with a compiler that rounds differently, as with fused products.
    #[test]
    fn bits_are_the_same_everywhere() {
        let mut rng = Rng::new(7);
        let matrix: Vec<f64> = (0..37 * 53).map(|_| rng.unit() - 0.5).collect();
        let flat = flatten(&matrix, 37, norm(&matrix));
        let bytes: Vec<u8> = flat.iter().flat_map(|value| value.to_bits().to_le_bytes()).collect();
        assert_eq!(crate::diloco::checksum(&bytes), 0x2114_a057_db72_5293);
    }
}
