//! Layout of the operands of a matrix product in the order in which the innermost loop reads them.

use super::Mat;

/// Packs `lines`, `[n, depth]`, side by side in panels of W: `panels` becomes `[n / W, depth, W]`. Missing lines of the
/// last panel are zeros.
pub fn pack<const W: usize>(lines: Mat<'_>, panels: &mut Vec<f32>) {
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
