//! The pointwise kernels: SwiGLU, its gradient, and rotary positions.

use super::super::{kernels, params};
use super::harness::{Gpus, close, exact, floats, noise, run, words};
use crate::model::ops;

/// Results are within 1e-6 of the larger of 1 and the value: one exponential and one division.
async fn swiglu_agrees(gpus: &Gpus) {
    for (rows, ff, groups) in [(1, 4, 1), (3, 20, 2), (64, 4, 1), (65, 4, 3), (129, 344, 7)] {
        let gate_up = noise(rows * 2 * ff, 3.0);
        let expected: Vec<f64> =
            exact(&gate_up).chunks(2 * ff).flat_map(|row| ops::swiglu(&row[..ff], &row[ff..])).collect();
        gpus.each(async |gpu| {
            let buffers = [words(&gate_up), vec![0; rows * ff]];
            let params = params::Swiglu { rows: rows as u32, quads: ff as u32 / 4 };
            let found = run(gpu, kernels::SWIGLU.with(params), &[("WG", 64)], &buffers, [groups, 1, 1]).await;
            close("swiglu", &floats(&found[0]), &expected, 1e-6);
        })
        .await;
    }
}

/// Results are within 1e-6 of the larger of 1 and the value.
async fn swiglu_grad_agrees(gpus: &Gpus) {
    for (rows, ff, groups) in [(1, 4, 1), (3, 20, 2), (64, 4, 1), (65, 4, 3), (129, 344, 7)] {
        let (gate_up, dy) = (noise(rows * 2 * ff, 3.0), noise(rows * ff, 1.0));
        let (mut gradient, mut y) = (Vec::new(), Vec::new());
        for (row, dy) in exact(&gate_up).chunks(2 * ff).zip(exact(&dy).chunks(ff)) {
            let (gate, up) = row.split_at(ff);
            let (dgate, dup) = ops::swiglu_backward(dy, gate, up);
            gradient.extend(dgate.into_iter().chain(dup));
            y.extend(ops::swiglu(gate, up));
        }
        gpus.each(async |gpu| {
            let buffers = [words(&gate_up), words(&dy)];
            let call = kernels::SWIGLU_GRAD.with(params::Swiglu { rows: rows as u32, quads: ff as u32 / 4 });
            let found = run(gpu, call, &[("WG", 64)], &buffers, [groups, 1, 1]).await;
            close("gradient", &floats(&found[0]), &gradient, 1e-6);
            close("y", &floats(&found[1]), &y, 1e-6);
        })
        .await;
    }
}

/// Results are within 1e-6; values behind the rotated heads keep their bits.
async fn rotary_agrees(gpus: &Gpus) {
    // Windows, context, rotated heads, head width, values in a row, workgroups.
    for (windows, context, heads, head, stride, groups) in
        [(1, 1, 1, 2, 4, 1), (2, 5, 3, 6, 20, 1), (3, 64, 4, 16, 96, 3), (1, 65, 5, 10, 52, 400)]
    {
        let (width, half) = (heads * head, head / 2);
        let x = noise(windows * context * stride, 1.0);
        let angle = |i: usize| (i / half) as f64 / 100_f64.powf((i % half) as f64 / half as f64);
        let table = |f: fn(f64) -> f64| -> Vec<u32> {
            (0..context * half).map(|i| (f(angle(i)) as f32).to_bits()).collect()
        };
        for sign in [1.0, -1.0_f32] {
            let mut expected = exact(&x);
            for window in expected.chunks_mut(context * stride) {
                let rows = window.chunks(stride).flat_map(|row| &row[..width]);
                let mut turned: Vec<f64> = rows.copied().collect();
                ops::rotate(&mut turned, width, head, 100.0, f64::from(sign));
                for (row, turned) in window.chunks_mut(stride).zip(turned.chunks(width)) {
                    row[..width].copy_from_slice(turned);
                }
            }
            gpus.each(async |gpu| {
                let call = kernels::ROTARY.with(params::Rotary {
                    rows: (windows * context) as u32,
                    context: context as u32,
                    stride: stride as u32,
                    heads: heads as u32,
                    half: half as u32,
                    sign,
                });
                let buffers = [table(f64::cos), table(f64::sin), words(&x)];
                let found = run(gpu, call, &[("WG", 64)], &buffers, [groups, 1, 1]).await;
                let found = floats(&found[0]);
                close("x", &found, &expected, 1e-6);
                for (found, x) in found.chunks(stride).zip(x.chunks(stride)) {
                    assert_eq!(found[width..], x[width..]);
                }
            })
            .await;
        }
    }
}

parity!(swiglu_agrees, swiglu_grad_agrees, rotary_agrees);
