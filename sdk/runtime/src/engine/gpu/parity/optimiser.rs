//! The kernels of gradient norm, clipping and AdamW.

use super::super::{kernels, params};
use super::harness::{Gpus, close, floats, noise, run, words};
use crate::engine::cpu;
use crate::model::moments::{adjust_halves, pack};
use crate::model::{Adjust, InnerSpec, Preset, adjust};

const CLIP: f32 = 0.5;

fn inner(clip_norm: f32) -> InnerSpec {
    InnerSpec { clip_norm, ..Preset::Tiny.inner() }
}

/// Each sum is within 1e-6 of its value, and the kernel writes nothing elsewhere.
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

/// Loss and norm are within 1e-6, and the factor is that of [`Adjust::new`] for the computed norm.
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

async fn finish_notices_what_is_not_finite(gpus: &Gpus) {
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

/// Parameters and moments after one step from awkward values are within 1e-6 of the larger of 1 and the value.
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

/// The same as [`adamw_agrees`], but with rounded moments. Each is at most one bfloat16 step from the twin's, and few
/// differ at all, because a slightly different sum seldom rounds to another value.
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

parity!(squares_agree, finish_agrees, finish_notices_what_is_not_finite, adamw_agrees, adamw_halves_agrees);
