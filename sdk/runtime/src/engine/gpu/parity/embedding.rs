//! The kernels that look up rows of the embedding and sum their gradients.

use super::super::batch::BatchShape;
use super::super::kernels;
use super::super::params;
use super::harness::{Gpus, close, exact, floats, noise, run, words};
use crate::model::ops;
use crate::rng::Rng;

/// Returns `len` tokens below `vocab`.
fn tokens(len: usize, vocab: usize) -> Vec<u32> {
    let mut rng = Rng::new(len as u64);
    (0..len).map(|_| rng.below(vocab as u32)).collect()
}

/// Returns the slices of a table of `vocab` rows, at most `count_max` rows each, as first row and number of rows. The
/// last slice comes first, so that a slice that writes too far corrupts finished work.
fn slices(vocab: usize, count_max: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..vocab).step_by(count_max).rev().map(move |first| (first, count_max.min(vocab - first)))
}

fn slice_params(rows: usize, width: usize, first: usize, count: usize) -> params::Embed {
    params::Embed { rows: rows as u32, quads: width as u32 / 4, first: first as u32, count: count as u32 }
}

/// The results agree exactly, with the table in slices.
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

/// Adds each row of dx to the row of its token, in order and in 32 bits.
fn embed_grad(tokens: &[u32], dx: &[f32], dtable: &mut [f32], width: usize) {
    for (&token, dx) in tokens.iter().zip(dx.chunks(width)) {
        for (sum, dx) in dtable[token as usize * width..].iter_mut().zip(dx) {
            *sum += dx;
        }
    }
}

/// The result equals sums of 32 bits in row order exactly, and the twin within 1e-6 for each row.
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

parity!(embed_agrees, embed_grad_agrees);
