//! Tests of the kernels of the exchange; their results must be equal bit for bit.

use std::ops::Range;

use super::super::Gpu;
use super::super::exchange::kernel_code;
use super::super::kernels::{self, Call};
use super::super::params;
use super::super::program::Constant;
use super::harness::{Gpus, run, words};
use crate::diloco::{Codec, MergeClass, Segment, binary16};
use crate::rng::Rng;
use crate::wire::{ApplyPolicy, Code, ExchangeSpec};

/// Number of values in a fragment's only segment, and in a block.
const SIZES: [(usize, u32); 9] =
    [(1, 8), (7, 8), (8, 8), (9, 8), (255, 256), (256, 256), (257, 256), (3_001, 24), (20_001, 8)];

fn constants(code: Code, block: u32) -> [Constant; 3] {
    let code = kernel_code(code).unwrap();
    [("WG", 64), ("BLOCK", block), ("CODE", code)]
}

fn codec(code: Code, block: u32) -> Codec {
    let apply = ApplyPolicy::Overwrite;
    Codec::new(&ExchangeSpec { fragments: 1, sync_every: 1, block, code, apply }).unwrap()
}

fn segment(len: usize) -> [Segment; 1] {
    [Segment { start: 0, len: len as u32, merge: MergeClass::Mean, cols: 0, expert: None }]
}

/// Returns a random float with any significand and sign, and an exponent field from `low` to `high`.
fn float(rng: &mut Rng, low: u32, high: u32) -> f32 {
    let exponent = low + rng.below(high - low + 1);
    f32::from_bits(rng.next_u64() as u32 & 0x807f_ffff | exponent << 23)
}

/// Returns random values whose maximum varies widely between blocks. Some blocks are zeros, and some values are ties.
fn deltas(rng: &mut Rng, len: usize, block: u32) -> Vec<f32> {
    let mut values = Vec::new();
    while values.len() < len {
        // Maxima range from below the smallest scale to above the largest.
        let exponent = 20 + rng.below(175);
        for i in 0..block {
            let kind = rng.below(8);
            values.push(match kind {
                0 => 0.0,
                // If the block's maximum is a power of two, times 7 (int4) or 1 (e3m0), these values are ties in
                // rounding.
                1 if i > 0 => (values.len() as f32 % 14.0 - 6.5) * f32::from_bits((exponent - 2) << 23),
                2 if i > 0 => 0.75 * f32::from_bits((exponent - rng.below(8)) << 23),
                // These values are just below and above seven times a bfloat16, where the scale of int4 changes.
                3 if exponent.is_multiple_of(2) => {
                    let scale = f32::from_bits((exponent - 2) << 23 | rng.below(128) << 16);
                    f32::from_bits((7.0 * scale).to_bits() - 1 + rng.below(3))
                }
                _ if exponent.is_multiple_of(4) => f32::from_bits((exponent - rng.below(8)) << 23),
                _ => float(rng, exponent - 9, exponent),
            });
        }
    }
    values.truncate(len);
    values
}

fn body_words(body: &[u8]) -> Vec<u32> {
    body.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Divides `len` values into two runs that meet within a code word.
fn runs(len: usize) -> [Range<usize>; 2] {
    let cut = (len / 2) | 1;
    [0..cut, cut..len]
}

/// Returns the kernel parameters of `run` in the fragment's only segment. Three values precede the run in its buffer.
fn piece(run: &Range<usize>) -> params::Piece {
    let (len, offset) = (run.len() as u32, run.start as u32);
    params::Piece { start: 3, len, offset, value: 0, code: 0, block: 0, is_hat: 0 }
}

/// Returns `values` between other values that the kernel must not access.
fn among_others(values: &[f32], other: f32) -> Vec<u32> {
    let others = [other; 3];
    words(&[&others, values, &others].concat())
}

/// Returns the words of the body of Θ̂ − θ that the device codes, after its flag word.
async fn coded(gpu: &Gpu, code: Code, block: u32, theta: &[f32], hat: &[f32]) -> Vec<u32> {
    let (codec, segments) = (codec(code, block), segment(hat.len()));
    let constants = constants(code, block);
    let mut head = vec![0; 1 + codec.head_bytes(&segments) / 4];
    let mut codes = vec![0; codec.body_bytes(&segments) / 4 + 1 - head.len()];
    let mut largest = vec![0; codec.block_count(&segments)];
    for run in runs(hat.len()) {
        let [theta, hat] =
            [(theta, 0.0), (hat, f32::MAX)].map(|(vector, other)| among_others(&vector[run.clone()], other));
        let buffers = [theta, hat, largest, head];
        let found = run_kernel(gpu, kernels::DELTA_MAX.with(piece(&run)), &constants, &buffers).await;
        [largest, head] = found.try_into().unwrap();
    }
    for run in runs(hat.len()) {
        let [theta, hat] =
            [(theta, 0.0), (hat, f32::MAX)].map(|(vector, other)| among_others(&vector[run.clone()], other));
        let buffers = [theta, hat, largest.clone(), head, codes];
        let found = run_kernel(gpu, kernels::DELTA_CODE.with(piece(&run)), &constants, &buffers).await;
        [head, codes] = found.try_into().unwrap();
    }
    [head, codes].concat()
}

async fn run_kernel(gpu: &Gpu, call: Call, constants: &[Constant], buffers: &[Vec<u32>]) -> Vec<Vec<u32>> {
    run(gpu, call, constants, buffers, [3, 1, 1]).await
}

/// Goal: the bytes equal those of the codec on the CPU, for all sizes of scales, at ties, and above the largest value.
async fn codes_agree(gpus: &Gpus) {
    let mut rng = Rng::new(1);
    for code in [Code::Int4, Code::E3m0, Code::F32] {
        for (len, block) in SIZES {
            let hat = deltas(&mut rng, len, block);
            let expected = codec(code, block).encode(&segment(len), &hat);
            gpus.each(async |gpu| {
                let found = coded(gpu, code, block, &vec![0.0; len], &hat).await;
                assert_eq!(found[0], 0);
                assert_eq!(found[1..], body_words(&expected), "{code:?} {len} {block}");
            })
            .await;
        }
    }
}

async fn first_non_finite_value_is_reported(gpus: &Gpus) {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (mut theta, mut hat) = (vec![0.5; 300], vec![1.0; 300]);
        theta[130] = bad;
        theta[290] = f32::NAN;
        gpus.each(async |gpu| assert_eq!(coded(gpu, Code::Int4, 8, &theta, &hat).await[0], !130)).await;
        (theta[17], hat[17]) = (f32::MIN, f32::MAX);
        gpus.each(async |gpu| assert_eq!(coded(gpu, Code::F32, 8, &theta, &hat).await[0], !17)).await;
    }
}

/// Goal: the bits equal those of the sums on the CPU, with subnormal numbers and zeros of both signs.
async fn sums_agree(gpus: &Gpus) {
    let mut rng = Rng::new(2);
    for code in [Code::Int4, Code::E3m0, Code::F32] {
        for (len, block) in SIZES {
            let (codec, segments) = (codec(code, block), segment(len));
            let body = codec.encode(&segments, &deltas(&mut rng, len, block));
            let mut decoded = codec.decode(&segments, &body).unwrap();
            let mut body = body_words(&body);
            if code == Code::F32 {
                for (value, word) in decoded.iter_mut().zip(&mut body) {
                    *value = float(&mut rng, 0, 60) * (rng.below(4) as f32 / 3.0).ceil();
                    *word = value.to_bits();
                }
            }
            // Values near the decoded ones cancel in the sum, which is sometimes subnormal. There are also values of a
            // Θ̂, values halfway between two of them, and values beyond their range.
            let values: Vec<f32> = decoded
                .iter()
                .map(|value| match rng.below(8) {
                    0 => 0.0,
                    1 => -0.0,
                    2 => -value,
                    3 => f32::from_bits(value.to_bits() ^ (1 << 31 | 1 << rng.below(24))),
                    4 => float(&mut rng, 0, 1),
                    5 => float(&mut rng, 0, 200),
                    6 => float(&mut rng, 98, 144),
                    _ => f32::from_bits(float(&mut rng, 98, 144).to_bits() & !0xfff),
                })
                .collect();
            let head_words = codec.head_bytes(&segments) / 4;
            let head = [&[7], &body[..head_words]].concat();
            for (is_hat, what) in [(1, "of a Θ̂"), (0, "of parameters")] {
                let expected = values.iter().zip(&decoded).map(|(value, decoded)| {
                    let sum = if is_hat == 1 { binary16::nearest(value + decoded) } else { value + decoded };
                    sum.to_bits()
                });
                let expected: Vec<u32> = expected.collect();
                gpus.each(async |gpu| {
                    let mut found = Vec::new();
                    for run in runs(len) {
                        let call = kernels::DECODE_ADD.with(params::Piece { is_hat, ..piece(&run) });
                        let values = among_others(&values[run.clone()], f32::MAX);
                        let buffers = [head.clone(), body[head_words..].to_vec(), values];
                        let all = run_kernel(gpu, call, &constants(code, block), &buffers).await;
                        let (others, mine) = all[0].split_at(3);
                        let (mine, more) = mine.split_at(run.len());
                        assert_eq!([others, more], [words(&[f32::MAX; 3]), words(&[f32::MAX; 3])]);
                        found.extend_from_slice(mine);
                    }
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let terms = (values[i], decoded[i]);
                        assert_eq!(found, expected, "{code:?} {what} {len} {block}: {terms:?}");
                    }
                })
                .await;
            }
        }
    }
}

/// Goal: digests agree over runs of any length at any position.
async fn digests_agree(gpus: &Gpus) {
    let mut rng = Rng::new(4);
    for len in [1, 63, 64, 65, 1_001, 20_001] {
        let mut hat: Vec<f32> = (0..len).map(|_| float(&mut rng, 98, 144)).collect();
        binary16::round(&mut hat);
        gpus.each(async |gpu| {
            let mut sums = vec![0; 2];
            for run in runs(len) {
                // The segment begins after the fragment's first value.
                let split = (run.start / 3) as u32;
                let call = kernels::DIGEST.with(params::Piece {
                    offset: run.start as u32 - split,
                    value: split,
                    ..piece(&run)
                });
                let buffers = [among_others(&hat[run.clone()], 7.0), sums];
                sums = run_kernel(gpu, call, &constants(Code::Int4, 8), &buffers).await.remove(0);
            }
            let digest = binary16::digest(&hat);
            assert_eq!(sums, [digest as u32, (digest >> 32) as u32], "{len}");
        })
        .await;
    }
}

/// Goal: results are exact with a share of 1. Otherwise the error is within `f32::EPSILON` times the sum of both terms'
/// magnitudes, because a device may fuse the two operations.
async fn rebase_agrees(gpus: &Gpus) {
    let mut rng = Rng::new(3);
    for (len, share) in [(1, 1.0), (63, 0.5), (64, 1.0), (65, 0.3), (1_001, 1.0), (1_003, 0.7)] {
        let mut vector = || -> Vec<f32> { (0..len).map(|_| float(&mut rng, 120, 130)).collect() };
        let (hat, reference, theta) = (vector(), vector(), vector());
        gpus.each(async |gpu| {
            let call = kernels::REBASE.with(params::Rebase { start: 0, len: len as u32, share });
            let buffers = [words(&hat), words(&reference), words(&theta)];
            let found = run_kernel(gpu, call, &[("WG", 64)], &buffers).await;
            for (i, &found) in found[0].iter().enumerate() {
                let kept = share * (theta[i] - reference[i]);
                let tolerance = if share == 1.0 { 0.0 } else { (kept.abs() + hat[i].abs()) * f32::EPSILON };
                assert!((f32::from_bits(found) - (hat[i] + kept)).abs() <= tolerance, "{len} {i}");
            }
        })
        .await;
    }
}

parity!(codes_agree, first_non_finite_value_is_reported, sums_agree, digests_agree, rebase_agrees);
