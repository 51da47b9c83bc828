use super::{Mat, MatMut, Store};

/// Rows and columns of the tile that is summed in registers.
const ROWS: usize = 4;
const COLS: usize = 16;

/// As [`super::matmul`], in plain loops that a compiler turns into vectors.
pub fn product(out: MatMut<'_>, store: Store, scale: f32, a: Mat<'_>, b: Mat<'_>) {
    let mut panel = vec![[0.0; COLS]; b.rows];
    for first_col in (0..out.cols).step_by(COLS) {
        let cols = COLS.min(out.cols - first_col);
        for (p, packed) in panel.iter_mut().enumerate() {
            *packed = [0.0; COLS];
            for (c, value) in packed[..cols].iter_mut().enumerate() {
                *value = b.values[p * b.row_stride + (first_col + c) * b.col_stride];
            }
        }
        for first_row in (0..out.rows).step_by(ROWS) {
            let rows = ROWS.min(out.rows - first_row);
            let tile = tile(a, first_row, rows, &panel);
            for (r, sums) in tile[..rows].iter().enumerate() {
                let start = (first_row + r) * out.stride + first_col;
                for (value, sum) in out.values[start..start + cols].iter_mut().zip(sums) {
                    *value = scale * sum + if store == Store::Add { *value } else { 0.0 };
                }
            }
        }
    }
}

fn tile(a: Mat<'_>, first_row: usize, rows: usize, panel: &[[f32; COLS]]) -> [[f32; COLS]; ROWS] {
    let mut tile = [[0.0; COLS]; ROWS];
    // Rows past the last repeat it; their sums are not used.
    let starts: [usize; ROWS] = std::array::from_fn(|r| (first_row + r.min(rows - 1)) * a.row_stride);
    for (p, packed) in panel.iter().enumerate() {
        for (sums, start) in tile.iter_mut().zip(starts) {
            let factor = a.values[start + p * a.col_stride];
            for (sum, value) in sums.iter_mut().zip(packed) {
                *sum += factor * value;
            }
        }
    }
    tile
}
