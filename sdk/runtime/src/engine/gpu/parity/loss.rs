//! The kernel of cross-entropy and its gradient.

use super::super::{Gpu, kernels, params};
use super::harness::{Gpus, close, exact, floats, noise, run, words};
use crate::model::ops;
use crate::token;

const SHARE: f32 = 0.25;

/// Returns gradient `[rows, 4 · quads]` and losses `[rows]` of logits `[rows, vocab]`, with NaN as padding.
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

/// Results are within 1e-6 of the larger of 1 and the value, for learnt and given targets, and for logits near and far,
/// all high and all low.
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
            // Every third target is given, so that its row is 0.
            let given = |row: usize| if row % 3 == 1 { token::GIVEN } else { 0 };
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

/// A logit that is not finite makes the loss of its own row not finite, and no other loss.
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

parity!(cross_entropy_agrees, a_broken_logit_breaks_the_loss);
