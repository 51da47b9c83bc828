//! The kernels of attention and of its gradients.

use super::super::attention::{Attention, Bands, Pass, agrees};
use super::super::{Gpu, kernels, params};
use super::harness::{Gpus, close, exact, floats, noise_of, run, words};
use crate::model::ops::{self, Heads};

/// What gradients are multiplied by where they are rounded to 16 bits.
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

    /// C.
    fn width(self) -> usize {
        self.heads.heads * self.heads.head
    }

    /// K · D.
    fn kv_width(self) -> usize {
        self.heads.kv_heads * self.heads.head
    }

    fn params(self) -> params::Attention {
        let Heads { heads, kv_heads, .. } = self.heads;
        params::Attention {
            windows: self.windows as u32,
            context: self.context as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
        }
    }

    /// Queries, keys and values of one window of qkv.
    fn split(self, window: &[f64]) -> [Vec<f64>; 3] {
        let (c, kv) = (self.width(), self.kv_width());
        [0..c, c..c + kv, c + kv..c + 2 * kv]
            .map(|columns| window.chunks(c + 2 * kv).flat_map(|row| &row[columns.clone()]).copied().collect())
    }

    /// What the twin gives: y, and the gradient of qkv.
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

/// What the kernels make of it: y and the gradient of qkv, with `groups` workgroups or as many as there is work
/// for.
async fn found(
    gpu: &Gpu,
    sizes: Sizes,
    attention: Attention,
    groups: Option<u32>,
    qkv: &[f32],
    dy: &[f32],
) -> [Vec<f32>; 2] {
    let pass = async |pass, buffers: &[Vec<u32>]| {
        let dispatch = attention.dispatch(pass, sizes.params(), GAIN, Vec::new(), 1);
        let groups = groups.map_or(dispatch.groups, |count| [count, 1, 1]);
        run(gpu, dispatch.call, &dispatch.constants, buffers, groups).await
    };
    let none = |len| words(&vec![f32::NAN; len]);
    let per_head = sizes.rows() * sizes.heads.heads;

    let forward = pass(Pass::Forward, &[words(qkv), none(dy.len()), none(per_head)]).await;
    let (y, lse) = (&forward[0], &forward[1]);

    let buffers = [y.clone(), words(dy), none(per_head)];
    let dots = params::AttentionDots { rows: per_head as u32, quads: sizes.heads.head as u32 / 4 };
    let dots = run(gpu, kernels::ATTENTION_DOTS.with(dots), &[("WG", 64)], &buffers, [2, 1, 1]).await;

    let mut buffers = [words(qkv), words(dy), lse.clone(), dots[0].clone(), none(qkv.len())];
    for part in [Pass::Queries, Pass::Keys] {
        buffers[4] = pass(part, &buffers).await.remove(0);
    }
    [floats(y), floats(&buffers[4])]
}

/// Shapes of work that the engine chooses for software and for hardware, and one that it does not.
fn shapes(sizes: Sizes) -> [Attention; 3] {
    let (head, context) = (sizes.heads.head as u32, sizes.context as u32);
    let odd = Bands { head: head / 4, lanes: 3, keys: 20, bands: 2, heads: 3 };
    let of = |software| Attention::new(head, context, software, false);
    [of(true), of(false), Attention::Bands(odd)]
}

/// Within 5e-6 of the larger of 1 and the value, of sums over up to 130 positions and 3 heads; all workgroups in
/// one give the same bits.
async fn attention_agrees(gpus: &Gpus) {
    for (sizes, shape) in [
        (Sizes::new(1, 1, 1, 1, 4), 0),
        (Sizes::new(2, 37, 6, 2, 12), 1),
        (Sizes::new(2, 9, 4, 2, 20), 2),
        (Sizes::new(3, 65, 3, 1, 16), 0),
        (Sizes::new(1, 130, 2, 1, 64), 1),
        (Sizes::new(1, 11, 1, 1, 128), 1),
        (Sizes::new(1, 140, 2, 1, 160), 1),
        (Sizes::new(2, 9, 1, 1, 256), 1),
    ] {
        let qkv = noise_of(1, sizes.rows() * (sizes.width() + 2 * sizes.kv_width()), 1.5);
        let dy = noise_of(2, sizes.rows() * sizes.width(), 1.0);
        let attention = shapes(sizes)[shape];
        let expected = sizes.expected(&qkv, &dy);
        gpus.each(async |gpu| {
            let found = |groups| found(gpu, sizes, attention, groups, &qkv, &dy);
            let [y, dqkv] = found(None).await;
            close(&format!("y of {sizes:?}"), &y, &expected[0], 5e-6);
            close(&format!("dqkv of {sizes:?}"), &dqkv, &expected[1], 5e-6);
            assert_eq!(found(Some(1)).await, [y, dqkv], "{sizes:?}");
        })
        .await;
    }
}

/// Scores of some thousands: those of a row lie far apart, and what an f32 holds of them is worth 1e-3.
async fn large_scores_stay_finite(gpus: &Gpus) {
    let sizes = Sizes::new(2, 40, 2, 2, 8);
    let qkv = noise_of(1, sizes.rows() * (sizes.width() + 2 * sizes.kv_width()), 60.0);
    let dy = noise_of(2, sizes.rows() * sizes.width(), 1e-2);
    let [y, dqkv] = sizes.expected(&qkv, &dy);
    gpus.each(async |gpu| {
        let found = found(gpu, sizes, shapes(sizes)[1], None, &qkv, &dy).await;
        close("y", &found[0], &y, 2e-3);
        close("dqkv", &found[1], &dqkv, 2e-3);
    })
    .await;
}

/// On units for matrices: within what 16-bit floats keep of the terms, for each width of head that there are kernels
/// for, before, at and behind the edges of strips and blocks, with gradients that have no room in 16 bits. All
/// workgroups in one give the same bits.
async fn attention_on_matrices_agrees(gpus: &Gpus) {
    for sizes in [
        Sizes::new(1, 1, 1, 1, 16),
        Sizes::new(2, 37, 6, 2, 16),
        Sizes::new(3, 64, 3, 1, 32),
        Sizes::new(1, 65, 4, 2, 48),
        Sizes::new(2, 96, 2, 2, 64),
        Sizes::new(1, 130, 2, 1, 64),
    ] {
        let qkv = noise_of(1, sizes.rows() * (sizes.width() + 2 * sizes.kv_width()), 1.5);
        let dy = noise_of(2, sizes.rows() * sizes.width(), 1e-5);
        let [y, mut dqkv] = sizes.expected(&qkv, &dy);
        dqkv.iter_mut().for_each(|value| *value *= 1e5);
        gpus.each(async |gpu| {
            let attention = Attention::new(sizes.heads.head as u32, sizes.context as u32, false, true);
            assert!(matches!(attention, Attention::Strips { .. }));
            if !gpu.has_matrices() {
                return;
            }
            let [found_y, mut found_dqkv] = found(gpu, sizes, attention, None, &qkv, &dy).await;
            let once = found(gpu, sizes, attention, Some(1), &qkv, &dy).await;
            assert_eq!(once, [found_y.clone(), found_dqkv.clone()], "{sizes:?}");
            found_dqkv.iter_mut().for_each(|value| *value *= 1e5);
            close(&format!("y of {sizes:?}"), &found_y, &y, 3e-3);
            close(&format!("dqkv of {sizes:?}"), &found_dqkv, &dqkv, 5e-3);
        })
        .await;
    }
}

/// What is asked of it before it is used holds.
async fn attention_on_matrices_proves_right(gpus: &Gpus) {
    gpus.each(async |gpu| {
        if gpu.has_matrices() {
            assert_eq!(agrees(gpu).await, Ok(true));
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
