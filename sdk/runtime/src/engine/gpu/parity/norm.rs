//! The kernels of RMSNorm and of its gradient.

use super::super::Gpu;
use super::super::{kernels, params};
use super::harness::{Gpus, close, exact, floats, noise_of, run, words};
use crate::model::ops;

const EPS: f32 = 1e-5;

/// Rows, width, workgroups, WG.
const SIZES: [(usize, usize, u32, u32); 5] =
    [(1, 4, 1, 1), (3, 20, 2, 8), (9, 132, 16, 64), (130, 64, 3, 8), (5, 1028, 1, 256)];
/// WG, and the quads of a workgroup that sums, for each size.
const SUMS: [(u32, u32); 5] = [(1, 1), (8, 2), (64, 8), (8, 4), (256, 256)];

/// Returns x, `[rows, width]`, whose first rows are small enough for eps to matter.
fn input(rows: usize, width: usize) -> Vec<f32> {
    let mut x = noise_of(1, rows * width, 2.0);
    x[..width * rows / 2].iter_mut().for_each(|x| *x *= 1e-3);
    x
}

/// Returns `1 / √(mean(x²) + eps)` of each row.
fn scales(x: &[f32], width: usize) -> Vec<f64> {
    let mean = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>() / width as f64;
    exact(x).chunks(width).map(|row| 1.0 / (mean(row) + f64::from(EPS)).sqrt()).collect()
}

/// Results are within 1e-6 of the larger of 1 and the value, for sums of up to 1028 squares.
async fn norm_agrees(gpus: &Gpus) {
    for (rows, width, groups, wg) in SIZES {
        let (x, w) = (input(rows, width), noise_of(2, width, 1.0));
        let expected = ops::norm(&exact(&x), &exact(&w), f64::from(EPS));
        gpus.each(async |gpu| {
            let buffers = [words(&x), words(&w), vec![0; rows * width], vec![0; rows]];
            let params = params::Norm { rows: rows as u32, quads: width as u32 / 4, eps: EPS };
            let found = run(gpu, kernels::NORM.with(params), &[("WG", wg)], &buffers, [groups, 1, 1]).await;
            close("y", &floats(&found[0]), &expected, 1e-6);
            close("scales", &floats(&found[1]), &scales(&x, width), 1e-6);
        })
        .await;
    }
}

/// Returns the `sum` that `column_sum` computes from `partial`, and from `before` if it is to `add`.
async fn column_sum(
    gpu: &Gpu,
    (partial, before): (&[f32], &[f32]),
    add: bool,
    (wg, across): (u32, u32),
) -> Vec<f32> {
    let (rows, quads) = (partial.len() / before.len(), before.len() / 4);
    let params = params::ColumnSum { rows: rows as u32, quads: quads as u32, add: u32::from(add) };
    let (buffers, constants) = ([words(partial), words(before)], [("WG", wg), ("ACROSS", across)]);
    floats(&run(gpu, kernels::COLUMN_SUM.with(params), &constants, &buffers, [2, 1, 1]).await[0])
}

/// dx is within 1e-6 of the larger of 1 and the value, and dw within 1e-6 for each row of its sum.
async fn norm_grad_agrees(gpus: &Gpus) {
    for (((rows, width, groups, wg), lanes), rows_per_group) in
        SIZES.into_iter().zip(SUMS).zip([1, 2, 4, 64, 7])
    {
        // Rows of similar size: the gradient of a small row would dominate the others.
        let (dy, x, w) =
            (noise_of(1, rows * width, 1.0), noise_of(2, rows * width, 2.0), noise_of(3, width, 1.0));
        let mut dw = vec![0.0; width];
        let dx = ops::norm_backward(&exact(&dy), &exact(&x), &exact(&w), &mut dw, f64::from(EPS));
        let scales: Vec<f32> = scales(&x, width).into_iter().map(|scale| scale as f32).collect();
        let before = noise_of(4, rows * width, 1.0);
        for add in [false, true] {
            let base = |before: f32| if add { f64::from(before) } else { 0.0 };
            let dx: Vec<f64> = dx.iter().zip(&before).map(|(dx, &before)| dx + base(before)).collect();
            let dw: Vec<f64> = dw.iter().zip(&before).map(|(dw, &before)| dw + base(before)).collect();
            gpus.each(async |gpu| {
                let parts = rows.div_ceil(rows_per_group);
                let read = [&dy, &x, &w, &scales, &before].map(|values| words(values));
                let buffers = [&read[..], &[words(&vec![f32::NAN; parts * width])]].concat();
                let call = kernels::NORM_GRAD.with(params::NormGrad {
                    rows: rows as u32,
                    quads: width as u32 / 4,
                    rows_per_group: rows_per_group as u32,
                    add: u32::from(add),
                });
                let found = run(gpu, call, &[("WG", wg)], &buffers, [groups, 1, 1]).await;
                close("dx", &floats(&found[0]), &dx, 1e-6);
                let sum = column_sum(gpu, (&floats(&found[1]), &before[..width]), add, lanes).await;
                close("dw", &sum, &dw, 1e-6 * rows as f64);
            })
            .await;
        }
    }
}

parity!(norm_agrees, norm_grad_agrees);
