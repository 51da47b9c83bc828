//! Tests of the kernels outside matrix products and attention: SwiGLU, rotary positions, RMSNorm, embedding,
//! cross-entropy, and the optimiser. Errors are relative to the larger of 1 and the value's magnitude, as in [`close`].

use super::super::step::BatchShape;
use super::super::{Gpu, kernels, params};
use super::harness::{Gpus, close, exact, floats, noise, noise_of, run, words};
use crate::engine::cpu;
use crate::model::moments::{adjust_halves, pack};
use crate::model::{Adjust, InnerSpec, Preset, adjust, ops};
use crate::rng::Rng;
use crate::token;

/// Goal: errors are at most 1e-6, which allows for one exponential and one division.
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

/// Goal: errors are at most 1e-6.
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

/// Goal: errors are at most 1e-6, and values after the rotated heads keep their bits.
async fn rotary_agrees(gpus: &Gpus) {
    // Columns: windows, context, rotated heads, head width, values in a row, workgroups.
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

const EPS: f32 = 1e-5;

/// Number of rows, width of a row, number of workgroups, and override `WG`.
const SIZES: [(usize, usize, u32, u32); 5] =
    [(1, 4, 1, 1), (3, 20, 2, 8), (9, 132, 16, 64), (130, 64, 3, 8), (5, 1028, 1, 256)];
/// Overrides `WG` and `ACROSS` of the column-sum kernel, for each entry of [`SIZES`].
const SUMS: [(u32, u32); 5] = [(1, 1), (8, 2), (64, 8), (8, 4), (256, 256)];

/// Returns x, `[rows, width]`, with half of the values so small that eps matters.
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

/// Goal: errors are at most 1e-6, for sums of up to 1028 squares.
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

/// Runs `column_sum` on `partial` and returns the sums. They include `before` if `add`.
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

/// Goal: errors of dx are at most 1e-6, and errors of dw at most 1e-6 per summed row.
async fn norm_grad_agrees(gpus: &Gpus) {
    for (((rows, width, groups, wg), lanes), rows_per_group) in
        SIZES.into_iter().zip(SUMS).zip([1, 2, 4, 64, 7])
    {
        // All rows have a similar size, because the gradient of a small row would dominate the others.
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

/// Returns `len` random tokens below `vocab`.
fn tokens(len: usize, vocab: usize) -> Vec<u32> {
    let mut rng = Rng::new(len as u64);
    (0..len).map(|_| rng.below(vocab as u32)).collect()
}

/// Returns slices of an embedding of `vocab` rows, with at most `count_max` rows each, as first row and number of rows.
/// The last slice comes first, so that a kernel that writes beyond its slice corrupts finished work.
fn slices(vocab: usize, count_max: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vocab).step_by(count_max).rev().map(move |first| (first, count_max.min(vocab - first)))
}

fn slice_params(rows: usize, width: usize, first: usize, count: usize) -> params::Embed {
    params::Embed { rows: rows as u32, quads: width as u32 / 4, first: first as u32, count: count as u32 }
}

/// Goal: results agree exactly if the embedding is in slices.
async fn embed_agrees(gpus: &Gpus) {
    for (rows, width, vocab, count_max, groups) in
        [(1, 4, 2, 2, 1), (3, 20, 5, 2, 1), (64, 4, 7, 3, 2), (130, 36, 50, 49, 3)]
    {
        let (table, tokens) = (noise(vocab * width, 1.0), tokens(rows, vocab));
        let expected: Vec<f32> =
            tokens.iter().flat_map(|&token| &table[token as usize * width..][..width]).copied().collect();
        gpus.each(async |gpu| {
            let mut x = words(&vec![f32::NAN; rows * width]);
            for (first, count) in slices(vocab, count_max) {
                let params = slice_params(rows, width, first, count);
                let slice = words(&table[first * width..][..count * width]);
                let buffers = [tokens.clone(), slice.clone(), slice, x.clone()];
                x = run(gpu, kernels::EMBED.with(params), &[("WG", 64)], &buffers, [groups, 1, 1])
                    .await
                    .remove(0);
            }
            assert_eq!(floats(&x), expected);
        })
        .await;
    }
}

/// Adds each row of dx to the embedding row of its token, in row order and with 32-bit floats.
fn embed_grad(tokens: &[u32], dx: &[f32], dtable: &mut [f32], width: usize) {
    for (&token, dx) in tokens.iter().zip(dx.chunks(width)) {
        for (sum, dx) in dtable[token as usize * width..].iter_mut().zip(dx) {
            *sum += dx;
        }
    }
}

/// Goal: results equal 32-bit sums in row order exactly, and 64-bit sums within 1e-6 per row.
async fn embed_grad_agrees(gpus: &Gpus) {
    for (rows, width, vocab, count_max, groups) in
        [(1, 4, 2, 2, 1), (3, 20, 5, 2, 1), (64, 4, 7, 3, 2), (130, 300, 50, 49, 3)]
    {
        let shape = BatchShape { microbatches: 1, windows: 1, context: rows };
        let tokens = tokens(rows, vocab);
        let (dx, begun) = (noise(rows * width, 1.0), noise(vocab * width, 2.0));
        let mut expected = begun.clone();
        embed_grad(&tokens, &dx, &mut expected, width);
        let mut twin = exact(&begun);
        ops::embed_backward(&exact(&dx), &tokens, &mut twin, width);
        let padded = shape.rows_padded();
        let batch = shape.fill(&[&tokens[..], &[0]].concat());
        let (order, runs) = batch[2 * padded..].split_at(padded);
        gpus.each(async |gpu| {
            let mut found = begun.clone();
            for (first, count) in slices(vocab, count_max) {
                let params = slice_params(rows, width, first, count);
                let part = first * width..(first + count) * width;
                let buffers = [runs.to_vec(), order.to_vec(), words(&dx), words(&found[part.clone()])];
                let out =
                    run(gpu, kernels::EMBED_GRAD.with(params), &[("WG", 64)], &buffers, [groups, 1, 1]).await;
                found[part].copy_from_slice(&floats(&out[0]));
            }
            assert_eq!(found, expected);
            close("dtable", &found, &twin, 1e-6 * rows as f64);
        })
        .await;
    }
}

const SHARE: f32 = 0.25;

/// Runs the kernel and returns the gradient `[rows, 4 · quads]` and the losses `[rows]` of logits `[rows, vocab]`. The
/// padding after each row of logits is NaN.
async fn cross_entropy(
    gpu: &Gpu,
    logits: &[f32],
    targets: &[u32],
    quads: usize,
    groups: u32,
    wg: u32,
) -> [Vec<f32>; 2] {
    let vocab = logits.len() / targets.len();
    let padded = logits.chunks(vocab).flat_map(|row| {
        let padding = std::iter::repeat_n(&f32::NAN, 4 * quads - vocab);
        row.iter().chain(padding).copied()
    });
    let hyper = words(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, SHARE, 0.0]);
    let buffers = [targets.to_vec(), hyper, words(&padded.collect::<Vec<_>>()), vec![0; targets.len()]];
    let (rows, vocab, quads) = (targets.len() as u32, vocab as u32, quads as u32);
    let call = kernels::CROSS_ENTROPY.with(params::CrossEntropy { rows, vocab, quads });
    let found = run(gpu, call, &[("WG", wg)], &buffers, [groups, 1, 1]).await;
    [floats(&found[0]), floats(&found[1])]
}

/// Goal: errors are at most 1e-6 for target and masked tokens, and for logits that are close, far apart, all high, or
/// all low.
async fn cross_entropy_agrees(gpus: &Gpus) {
    for (rows, vocab, quads, groups, wg) in [
        (1, 2, 1, 1, 1),
        (3, 7, 2, 2, 8),
        (5, 256, 64, 3, 64),
        (9, 1001, 260, 16, 8),
        (2, 4099, 1025, 1, 256),
    ] {
        for (size, shift) in [(3.0, 0.0), (1e4, 0.0), (1.0, 1e4), (1.0, -1e4)] {
            let logits: Vec<f32> = noise(rows * vocab, size).iter().map(|x| x + shift).collect();
            // Every third token is masked, so its gradient must be 0.
            let given = |row: usize| if row % 3 == 1 { token::MASKED } else { 0 };
            let target = |row: usize| ((row * 5 + vocab - 1) as u32 % vocab as u32) | given(row);
            let targets: Vec<u32> = (0..rows).map(target).collect();
            let rows = || logits.chunks(vocab).zip(&targets);
            let each = rows().map(|(row, &target)| ops::cross_entropy(&exact(row), &[target], vocab));
            let (losses, gradients): (Vec<f64>, Vec<Vec<f64>>) = each.unzip();
            let padded: Vec<f64> = gradients
                .iter()
                .flat_map(|row| {
                    let row = row.iter().map(|value| value * f64::from(SHARE));
                    row.chain(std::iter::repeat_n(0.0, 4 * quads - vocab))
                })
                .collect();
            gpus.each(async |gpu| {
                let [gradient, found] = cross_entropy(gpu, &logits, &targets, quads, groups, wg).await;
                close("losses", &found, &losses, 1e-6);
                close("gradient", &gradient, &padded, 1e-6);
            })
            .await;
        }
    }
}

/// Goal: a logit that is not finite makes only the loss of its own row not finite.
async fn a_broken_logit_breaks_the_loss(gpus: &Gpus) {
    for broken in [f32::NAN, f32::INFINITY] {
        let mut logits = noise(3 * 9, 1.0);
        logits[9 + 4] = broken;
        gpus.each(async |gpu| {
            let [_, losses] = cross_entropy(gpu, &logits, &[0, 1, 8], 3, 3, 8).await;
            assert_eq!([0, 1, 2].map(|row| losses[row].is_finite()), [true, false, true], "{broken}");
        })
        .await;
    }
}

const CLIP: f32 = 0.5;

fn inner(clip_norm: f32) -> InnerSpec {
    InnerSpec { clip_norm, ..Preset::Tiny.inner() }
}

/// Goal: errors are at most 1e-6, and the kernel writes only its own sums.
async fn squares_agree(gpus: &Gpus) {
    for (len, groups, first) in [(4, 1, 0), (252, 3, 2), (256, 1, 1), (260, 2, 0), (40_004, 5, 3)] {
        let x = noise(len, 3.0);
        let exact = |group: usize| -> f64 {
            let quads = x.chunks(4).enumerate().filter(|(i, _)| i / 64 % groups == group);
            quads.flat_map(|(_, quad)| quad).map(|&x| f64::from(x) * f64::from(x)).sum()
        };
        let expected: Vec<f64> = (0..groups).map(exact).collect();
        gpus.each(async |gpu| {
            let buffers = [words(&x), words(&vec![-1.0; first + groups])];
            let call = kernels::SQUARES.with(params::Squares { quads: len as u32 / 4, first: first as u32 });
            let found = run(gpu, call, &[("WG", 64)], &buffers, [groups as u32, 1, 1]).await;
            let found = floats(&found[0]);
            assert!(found[..first].iter().all(|&value| value == -1.0));
            close("squares", &found[first..], &expected, 1e-6);
            let sum: f64 = found[first..].iter().map(|&square| f64::from(square)).sum();
            assert!((sum / cpu::kernels::squares(&x) - 1.0).abs() < 1e-6, "{sum}");
        })
        .await;
    }
}

/// Goal: errors of loss and norm are at most 1e-6, and the factor is that of [`Adjust::new`] for the computed norm.
async fn finish_agrees(gpus: &Gpus) {
    for (partials, losses, size, clip) in
        [(1, 1, 1.0, 0.0), (64, 255, 1e-3, CLIP), (257, 256, 2.0, CLIP), (300, 1000, 3.0, 0.0)]
    {
        let (squares, losses) = (noise(partials, size), noise(losses, 5.0));
        let squares: Vec<f32> = squares.into_iter().map(f32::abs).collect();
        let mean = losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64;
        let norm = squares.iter().map(|&square| f64::from(square)).sum::<f64>().sqrt();
        gpus.each(async |gpu| {
            let buffers = [words(&squares), words(&losses), vec![0; 4]];
            let params = params::Finish { partials: partials as u32, losses: losses.len() as u32, clip };
            let found = run(gpu, kernels::FINISH.with(params), &[("WG", 256)], &buffers, [1, 1, 1]).await;
            let found = floats(&found[0]);
            close("loss and norm", &found[..2], &[mean, norm], 1e-6);
            let scale = Adjust::new(&inner(clip), 1, 1e-3, found[1]).scale;
            close("factor", &found[2..3], &[f64::from(scale)], 1e-6);
            assert_eq!(found[3], 1.0);
        })
        .await;
    }
}

async fn finish_flags_non_finite_values(gpus: &Gpus) {
    for bad in [f32::NAN, f32::INFINITY, -f32::NAN] {
        for (squares, losses) in [([1.0, bad], [1.0, 1.0]), ([1.0, 1.0], [bad, 1.0])] {
            gpus.each(async |gpu| {
                let buffers = [words(&squares), words(&losses), vec![0; 4]];
                let call = kernels::FINISH.with(params::Finish { partials: 2, losses: 2, clip: CLIP });
                let found = run(gpu, call, &[("WG", 256)], &buffers, [1, 1, 1]).await;
                assert_eq!(floats(&found[0])[3], 0.0, "{squares:?} {losses:?}");
            })
            .await;
        }
    }
}

/// Goal: after one step, errors of parameters and moments are at most 1e-6.
async fn adamw_agrees(gpus: &Gpus) {
    let numbers = Adjust::new(&inner(CLIP), 3, 1e-2, 2.0);
    let Adjust { beta1, beta2, rate, root, eps, keep, scale } = numbers;
    let hyper = words(&[beta1, beta2, rate, root, eps, keep, 0.0, 0.0]);
    for (len, groups, decayed) in [(4, 1, true), (260, 1, false), (256, 3, true), (1028, 2, false)] {
        let (theta, grad, m) = (noise(len, 2.0), noise(len + 4, 1.0).split_off(4), noise(len, 0.1));
        let v: Vec<f32> = noise(len, 0.01).into_iter().map(f32::abs).collect();
        let mut expected = (theta.clone(), m.clone(), v.clone());
        let twin = Adjust { keep: if decayed { keep } else { 1.0 }, ..numbers };
        adjust(&mut expected.0, &grad, &mut expected.1, &mut expected.2, &twin);
        gpus.each(async |gpu| {
            let step = async |finite: f32| {
                let stats = words(&[1.0, 2.0, scale, finite]);
                let buffers = [stats, hyper.clone(), words(&theta), words(&grad), words(&m), words(&v)];
                let params = params::AdamW { quads: len as u32 / 4, decayed: u32::from(decayed) };
                run(gpu, kernels::ADAMW.with(params), &[("WG", 64)], &buffers, [groups, 1, 1]).await
            };
            let found = step(1.0).await;
            for (found, expected) in found.iter().zip([&expected.0, &expected.1, &expected.2]) {
                let expected: Vec<f64> = expected.iter().map(|&value| f64::from(value)).collect();
                close("adamw", &floats(found), &expected, 1e-6);
            }
            assert_eq!(step(0.0).await, [words(&theta), words(&m), words(&v)], "a step that is not finite");
        })
        .await;
    }
}

/// Goal: like [`adamw_agrees`] for bfloat16 moments. Each moment is at most one bfloat16 step from the CPU's, and at
/// most one in 200 differs, because a slightly different sum rarely rounds to another value.
async fn adamw_halves_agrees(gpus: &Gpus) {
    let numbers = Adjust::new(&inner(CLIP), 3, 1e-2, 2.0);
    let Adjust { beta1, beta2, rate, root, eps, keep, scale } = numbers;
    let mut hyper = words(&[beta1, beta2, rate, root, eps, keep, 0.0, 0.0]);
    hyper[7] = 77;
    for (len, groups, first, decayed) in [(4, 1, 0, true), (260, 1, 512, false), (4_096, 3, 1 << 20, true)] {
        let (theta, grad, m) = (noise(len, 2.0), noise(len + 4, 1.0).split_off(4), noise(len, 0.1));
        let v: Vec<f32> = noise(len, 0.01).into_iter().map(f32::abs).collect();
        let packed: Vec<u32> = m.iter().zip(&v).map(|(m, v)| pack(*m, *v)).collect();
        let mut expected = (theta.clone(), packed.clone());
        let twin = Adjust { keep: if decayed { keep } else { 1.0 }, ..numbers };
        adjust_halves(&mut expected.0, &grad, &mut expected.1, &twin, (first, 77));
        gpus.each(async |gpu| {
            let step = async |finite: f32| {
                let stats = words(&[1.0, 2.0, scale, finite]);
                let buffers = [stats, hyper.clone(), words(&theta), words(&grad), packed.clone()];
                let params =
                    params::AdamWHalves { quads: len as u32 / 4, decayed: u32::from(decayed), first };
                run(gpu, kernels::ADAMW_HALVES.with(params), &[("WG", 64)], &buffers, [groups, 1, 1]).await
            };
            let found = step(1.0).await;
            let exact: Vec<f64> = expected.0.iter().map(|&value| f64::from(value)).collect();
            close("adamw_halves", &floats(&found[0]), &exact, 1e-6);
            let apart = |(found, expected): (&u32, &u32)| {
                [0, 16].map(|shift| (found >> shift & 0xffff).abs_diff(expected >> shift & 0xffff))
            };
            let apart: Vec<u32> = found[1].iter().zip(&expected.1).flat_map(apart).collect();
            assert!(apart.iter().all(|steps| *steps <= 1), "{len}: {apart:?}");
            let other = apart.iter().filter(|steps| **steps > 0).count();
            assert!(other * 200 <= apart.len(), "{other} of {}", apart.len());
            assert_eq!(step(0.0).await, [words(&theta), packed.clone()], "a step that is not finite");
        })
        .await;
    }
}

parity!(
    swiglu_agrees,
    swiglu_grad_agrees,
    rotary_agrees,
    norm_agrees,
    norm_grad_agrees,
    embed_agrees,
    embed_grad_agrees,
    cross_entropy_agrees,
    a_broken_logit_breaks_the_loss,
    squares_agree,
    finish_agrees,
    finish_flags_non_finite_values,
    adamw_agrees,
    adamw_halves_agrees
);
