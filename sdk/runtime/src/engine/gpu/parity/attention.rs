//! Tests of the kernels of attention and its gradients.

use super::super::attention::{self, Attention, AttentionPass, Bands, agrees, is_faster};
use super::super::{Gpu, kernels, params};
use super::harness::{Gpus, close, exact, floats, noise_of, run, words};
use crate::model::ops::{self, Heads};

/// Factor on gradients before they are rounded to 16-bit floats.
const GAIN: f32 = 1024.0;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    windows: usize,
    context: usize,
    heads: Heads,
}

impl Sizes {
    fn new(windows: usize, context: usize, heads: usize, kv_heads: usize, head: usize) -> Self {
        Self { windows, context, heads: Heads { heads, kv_heads, head } }
    }

    fn rows(self) -> usize {
        self.windows * self.context
    }

    /// Returns the values in a row of y, C = H · D.
    fn width(self) -> usize {
        self.heads.heads * self.heads.head
    }

    /// Returns the values in a row of keys or values, K · D.
    fn kv_width(self) -> usize {
        self.heads.kv_heads * self.heads.head
    }

    fn sizes(self) -> attention::Sizes {
        let Heads { heads, kv_heads, head } = self.heads;
        attention::Sizes {
            windows: self.windows as u32,
            context: self.context as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head: head as u32,
        }
    }

    /// Returns queries, keys and values of one window of qkv.
    fn split(self, window: &[f64]) -> [Vec<f64>; 3] {
        let (c, kv) = (self.width(), self.kv_width());
        [0..c, c..c + kv, c + kv..c + 2 * kv]
            .map(|columns| window.chunks(c + 2 * kv).flat_map(|row| &row[columns.clone()]).copied().collect())
    }

    /// Returns y and the gradient of qkv as the scalar functions compute them.
    fn expected(self, qkv: &[f32], dy: &[f32]) -> [Vec<f64>; 2] {
        let (c, kv) = (self.width(), self.kv_width());
        let (mut y, mut dqkv) = (Vec::new(), Vec::new());
        let windows = exact(qkv);
        let windows = windows.chunks(self.context * (c + 2 * kv));
        for (window, dy) in windows.zip(exact(dy).chunks(self.context * c)) {
            let [q, k, v] = self.split(window);
            y.extend(ops::attention(&q, &k, &v, self.heads));
            let (dq, dk, dv) = ops::attention_backward(dy, &q, &k, &v, self.heads);
            for ((dq, dk), dv) in dq.chunks(c).zip(dk.chunks(kv)).zip(dv.chunks(kv)) {
                dqkv.extend([dq, dk, dv].concat());
            }
        }
        [y, dqkv]
    }
}

/// Division of the work into dispatches and workgroups.
#[derive(Clone, Copy)]
enum Division {
    /// One dispatch with the engine's workgroups.
    Whole,
    /// One dispatch with a single workgroup.
    OneGroup,
    /// As many dispatches as possible.
    Cut,
}

/// Returns y and the gradient of qkv as the kernels compute them.
async fn found(
    gpu: &Gpu,
    sizes: Sizes,
    attention: Attention,
    division: Division,
    qkv: &[f32],
    dy: &[f32],
) -> [Vec<f32>; 2] {
    let pass = async |pass, mut buffers: Vec<Vec<u32>>| {
        let cost_max = if matches!(division, Division::Cut) { 1 } else { u64::MAX };
        let dispatches: Vec<_> = attention.dispatches(pass, sizes.sizes(), GAIN, &[], cost_max).collect();
        assert!(dispatches.len() == 1 || matches!(division, Division::Cut));
        for dispatch in dispatches {
            let groups = if matches!(division, Division::OneGroup) { [1, 1, 1] } else { dispatch.groups };
            let written = run(gpu, dispatch.call, &dispatch.constants, &buffers, groups).await;
            let first = buffers.len() - written.len();
            buffers.splice(first.., written);
        }
        buffers
    };
    let none = |len| words(&vec![f32::NAN; len]);
    let per_head = sizes.rows() * sizes.heads.heads;

    let forward = pass(AttentionPass::Forward, vec![words(qkv), none(dy.len()), none(per_head)]).await;
    let (y, lse) = (&forward[1], &forward[2]);

    let buffers = [y.clone(), words(dy), none(per_head)];
    let dots = params::AttentionDots { rows: per_head as u32, quads: sizes.heads.head as u32 / 4 };
    let dots = run(gpu, kernels::ATTENTION_DOTS.with(dots), &[("WG", 64)], &buffers, [2, 1, 1]).await;

    let mut buffers = vec![words(qkv), words(dy), lse.clone(), dots[0].clone(), none(qkv.len())];
    for part in [AttentionPass::Queries, AttentionPass::Keys] {
        buffers = pass(part, buffers).await;
    }
    [floats(y), floats(&buffers[4])]
}

/// Returns the kernels that the engine chooses on software and hardware GPUs, and sizes that it never chooses.
fn shapes(sizes: Sizes) -> [Attention; 3] {
    let odd = Bands { head: sizes.heads.head as u32 / 4, lanes: 3, keys: 20, bands: 2, heads: 3 };
    let of = |software| Attention::new(sizes.sizes(), software, false);
    [of(true), of(false), Attention::Bands(odd)]
}

/// Goal: errors are at most 5e-6, relative to the larger of 1 and the value, for up to 140 positions and 6 heads. One
/// workgroup and many dispatches give the same bits.
async fn attention_agrees(gpus: &Gpus) {
    for (sizes, shape) in [
        (Sizes::new(1, 1, 1, 1, 4), 0),
        (Sizes::new(2, 37, 6, 2, 12), 1),
        (Sizes::new(2, 9, 4, 2, 20), 2),
        (Sizes::new(3, 65, 3, 1, 16), 0),
        (Sizes::new(1, 130, 2, 1, 64), 1),
        (Sizes::new(1, 140, 2, 1, 256), 1),
    ] {
        let qkv = noise_of(1, sizes.rows() * (sizes.width() + 2 * sizes.kv_width()), 1.5);
        let dy = noise_of(2, sizes.rows() * sizes.width(), 1.0);
        let attention = shapes(sizes)[shape];
        let expected = sizes.expected(&qkv, &dy);
        gpus.each(async |gpu| {
            let found = |division| found(gpu, sizes, attention, division, &qkv, &dy);
            let [y, dqkv] = found(Division::Whole).await;
            close(&format!("y of {sizes:?}"), &y, &expected[0], 5e-6);
            close(&format!("dqkv of {sizes:?}"), &dqkv, &expected[1], 5e-6);
            assert_eq!(found(Division::OneGroup).await, [y.clone(), dqkv.clone()], "{sizes:?}");
            assert_eq!(found(Division::Cut).await, [y, dqkv], "{sizes:?}");
        })
        .await;
    }
}

/// Scores of some thousands, which differ widely within a row; as 32-bit floats their precision is about 1e-3.
async fn large_scores_stay_finite(gpus: &Gpus) {
    let sizes = Sizes::new(2, 40, 2, 2, 8);
    let qkv = noise_of(1, sizes.rows() * (sizes.width() + 2 * sizes.kv_width()), 60.0);
    let dy = noise_of(2, sizes.rows() * sizes.width(), 1e-2);
    let [y, dqkv] = sizes.expected(&qkv, &dy);
    gpus.each(async |gpu| {
        let found = found(gpu, sizes, shapes(sizes)[1], Division::Whole, &qkv, &dy).await;
        close("y", &found[0], &y, 2e-3);
        close("dqkv", &found[1], &dqkv, 2e-3);
    })
    .await;
}

/// Asserts that the norm of the error is at most `share` of the norm of the expected values.
fn near(what: &str, found: &[f32], expected: &[f64], share: f64) {
    let squares =
        |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let error =
        squares(&mut found.iter().zip(expected).map(|(&found, expected)| f64::from(found) - expected));
    let size = squares(&mut expected.iter().copied());
    assert!(found.len() == expected.len() && error <= share * size, "{what}: {error} of {size}");
}

/// Goal: errors of attention on matrix units are within the precision of 16-bit floats. The test covers each supported
/// head width, sizes at and next to the edges of strips and blocks, long windows, large scores, and gradients too small
/// for 16-bit floats. One workgroup and many dispatches give the same bits.
async fn attention_on_matrices_agrees(gpus: &Gpus) {
    for (sizes, size) in [
        (Sizes::new(1, 1, 1, 1, 16), 1.5),
        (Sizes::new(2, 37, 6, 2, 16), 1.5),
        (Sizes::new(3, 64, 3, 1, 32), 1.5),
        (Sizes::new(1, 65, 4, 2, 48), 1.5),
        (Sizes::new(2, 96, 2, 2, 64), 6.0),
        (Sizes::new(1, 130, 2, 1, 64), 1.5),
        (Sizes::new(1, 2_048, 1, 1, 16), 0.5),
    ] {
        let qkv = noise_of(1, sizes.rows() * (sizes.width() + 2 * sizes.kv_width()), size);
        let dy = noise_of(2, sizes.rows() * sizes.width(), 1e-5);
        let [y, dqkv] = sizes.expected(&qkv, &dy);
        gpus.each(async |gpu| {
            let attention = Attention::new(sizes.sizes(), false, true);
            assert!(matches!(attention, Attention::Strips));
            if !gpu.has_matrices() {
                eprintln!("left out: {} has no units for matrices", gpu.facts().name);
                return;
            }
            let found = |division| found(gpu, sizes, attention, division, &qkv, &dy);
            let [found_y, found_dqkv] = found(Division::Whole).await;
            near(&format!("y of {sizes:?}"), &found_y, &y, 1e-3 * f64::from(size).max(1.0));
            let (c, kv) = (sizes.width(), sizes.kv_width());
            for (what, columns) in [("dq", 0..c), ("dk", c..c + kv), ("dv", c + kv..c + 2 * kv)] {
                let of = |row: usize| row * (c + 2 * kv) + columns.start..row * (c + 2 * kv) + columns.end;
                let found: Vec<f32> =
                    (0..sizes.rows()).flat_map(|row| &found_dqkv[of(row)]).copied().collect();
                let expected: Vec<f64> = (0..sizes.rows()).flat_map(|row| &dqkv[of(row)]).copied().collect();
                // In a window of one token, the gradients of query and key are zero.
                if sizes.context > 1 || what == "dv" {
                    near(&format!("{what} of {sizes:?}"), &found, &expected, 3e-3 * f64::from(size).max(1.0));
                }
            }
            for division in [Division::OneGroup, Division::Cut] {
                assert_eq!(found(division).await, [found_y.clone(), found_dqkv.clone()], "{sizes:?}");
            }
        })
        .await;
    }
}

/// Goal: the check before use passes for each supported head width. With a clock on which all runs take equally long,
/// attention on matrix units is chosen.
async fn attention_on_matrices_proves_right(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (heads, kv_heads, head) in [(4, 4, 16), (4, 2, 32), (3, 1, 48), (9, 3, 64), (2, 2, 80)] {
            let sizes = attention::Sizes { windows: 8, context: 77, heads, kv_heads, head };
            let expected = gpu.has_matrices() && head != 80;
            assert_eq!(agrees(gpu, sizes).await, Ok(expected), "{sizes:?}");
            assert_eq!(is_faster(gpu, sizes, &|| 0).await, Ok(expected), "{sizes:?}");
        }
    })
    .await;
}

parity!(
    attention_agrees,
    attention_on_matrices_agrees,
    attention_on_matrices_proves_right,
    large_scores_stay_finite
);
