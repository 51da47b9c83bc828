//! Tests of matrix products in all variants.

use std::cell::Cell;

use archipelago_core::bytes::from_f32s;
use half::f16;
use wgpu::util::DeviceExt;

use super::super::matmul::{
    Best, Choice, ChoiceError, Form, Matmul, Product, Values, Variant, WriteMode, agrees,
};
use super::super::program::{Builder, Slice};
use super::super::{Gpu, kernels, params};
use super::harness::{Gpus, floats, noise, read, run, words};

/// Matrix with padding after each row and one more row, to detect accesses outside the matrix.
struct Matrix {
    rows: usize,
    columns: usize,
    stride: usize,
    /// Values, `[rows + 1, stride]`.
    values: Vec<f32>,
}

impl Matrix {
    /// Creates random values between −1 and 1. `pad` fills each row up to a multiple of 4 values, and NaN the rest.
    fn new(rows: usize, columns: usize, pad: f32) -> Self {
        let quads = columns.next_multiple_of(4);
        let stride = quads + 8;
        let mut values = vec![f32::NAN; (rows + 1) * stride];
        let noise = noise(rows * columns, 1.0);
        for (row, noise) in values.chunks_mut(stride).zip(noise.chunks(columns)) {
            row[..columns].copy_from_slice(noise);
            row[columns..quads].fill(pad);
        }
        Self { rows, columns, stride, values }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        f64::from(self.values[row * self.stride + column])
    }

    fn upload(&self, gpu: &Gpu) -> Slice {
        upload(gpu, from_f32s(&self.values))
    }

    /// Rounds the values to 16-bit floats and returns these.
    fn halve(&mut self) -> Vec<f16> {
        let halves: Vec<f16> = self.values.iter().map(|&value| f16::from_f32(value)).collect();
        self.values = halves.iter().map(|half| half.to_f32()).collect();
        halves
    }

    /// Rounds the values to 16-bit floats and uploads these.
    fn upload_half(&mut self, gpu: &Gpu) -> Slice {
        upload(gpu, self.halve().iter().flat_map(|half| half.to_le_bytes()).collect())
    }
}

impl Matrix {
    /// Rounds the values to 8-bit codes with one scale per 32 values of a row, and uploads codes and scales.
    fn upload_int8(&mut self, gpu: &Gpu) -> Slice {
        let (mut bytes, mut scales) = (Vec::new(), Vec::new());
        for row in self.values.chunks_mut(self.stride).take(self.rows) {
            for block in row.chunks_mut(32) {
                let scale = 0.01 + scales.len() as f32 / 1024.0;
                for value in block {
                    let code = (*value / scale).clamp(-127.0, 127.0) as i8;
                    *value = f32::from(code) * scale;
                    bytes.push(code.to_le_bytes()[0]);
                }
                scales.push(scale);
            }
        }
        bytes.extend(from_f32s(&scales));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        upload(gpu, bytes)
    }
}

fn upload(gpu: &Gpu, contents: Vec<u8>) -> Slice {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    let init = wgpu::util::BufferInitDescriptor { label: None, contents: &contents, usage };
    Slice::whole(&gpu.device.create_buffer_init(&init))
}

/// Returns A and B of a product. Values that must not affect the result are NaN.
fn operands(form: Form, m: usize, n: usize, k: usize) -> (Matrix, Matrix) {
    match form {
        Form::Nt => (Matrix::new(m, k, 0.0), Matrix::new(n, k, 0.0)),
        Form::Nn => (Matrix::new(m, k, 0.0), Matrix::new(k, n, f32::NAN)),
        Form::Tn => (Matrix::new(k, m, f32::NAN), Matrix::new(k, n, f32::NAN)),
    }
}

/// Calls [`check_kept`] with B in the number format that `matmul` reads.
async fn check(matmul: &Matmul, gpu: &Gpu, form: Form, size: [usize; 3], store: usize) -> Vec<u32> {
    let half = matmul.half && form != Form::Tn;
    let values = if half { Values::Half } else { Values::Whole };
    check_kept(values, matmul, gpu, form, size, store).await
}

/// Runs a product and asserts that the error of each sum is at most 1e-6 per term, and that the rest of C is unchanged.
/// If the kernel rounds operands to 16-bit floats, they are rounded first; with 8-bit codes as well, the limit is 1e-3
/// per term, because each code is rounded once more. Returns the words of C with its padding.
async fn check_kept(
    b_values: Values,
    matmul: &Matmul,
    gpu: &Gpu,
    form: Form,
    [m, n, k]: [usize; 3],
    store: usize,
) -> Vec<u32> {
    let (mut a, mut b) = operands(form, m, n, k);
    let rounds = matmul.rounds(form, m as u32, n as u32);
    if rounds {
        for operand in [&mut a, &mut b] {
            operand.halve();
        }
    }
    let error_max = if rounds && b_values == Values::Int8 { 1e-3 } else { 1e-6 };
    let b_slice = match b_values {
        Values::Whole => b.upload(gpu),
        Values::Half => b.upload_half(gpu),
        Values::Int8 => b.upload_int8(gpu),
    };
    let (before, residual) = (Matrix::new(m, n, 2.0), Matrix::new(m, n, f32::NAN));
    let c = before.upload(gpu);
    let mut builder = Builder::default();
    let product = Product {
        form,
        m: m as u32,
        n: n as u32,
        k: k as u32,
        a: a.upload(gpu),
        a_stride: a.stride as u32,
        b: b_slice,
        b_stride: b.stride as u32,
        b_values,
        c: c.clone(),
        c_stride: before.stride as u32,
        store: [WriteMode::Set, WriteMode::Add, WriteMode::Plus(residual.upload(gpu))][store].clone(),
        first: [0, 0],
        scale: 1.0,
    };
    matmul.add(&mut builder, product);
    let program = builder.build(gpu);
    program.submit(gpu, u64::MAX);
    let bits = read(gpu, &c).await;
    let found = Matrix { values: floats(&bits), ..before };

    let what = format!("{matmul:?} {form:?} {b_values:?} {m} × {n} × {k}, store {store}");
    let before = Matrix::new(m, n, 2.0);
    for (i, (row, old)) in
        found.values.chunks(found.stride).zip(before.values.chunks(found.stride)).enumerate()
    {
        for (j, (&value, &old)) in row.iter().zip(old).enumerate() {
            if i >= found.rows || j >= found.columns.next_multiple_of(4) {
                assert!(value.is_nan() && old.is_nan(), "{what}: wrote to ({i}, {j})");
            } else if j < found.columns {
                let term = |l| match form {
                    Form::Nt => a.at(i, l) * b.at(j, l),
                    Form::Nn => a.at(i, l) * b.at(l, j),
                    Form::Tn => a.at(l, i) * b.at(l, j),
                };
                let base = [0.0, f64::from(old), residual.at(i, j)][store];
                let expected = base + (0..k).map(term).sum::<f64>();
                let error = (f64::from(value) - expected).abs();
                assert!(
                    error <= error_max * k.max(1) as f64,
                    "{what}: ({i}, {j}) is {value}, not {expected}"
                );
            }
        }
    }
    bits
}

/// Sizes m, n and k, many of them one below, at or one above a multiple of a tile's side.
const SIZES: [[usize; 3]; 14] = [
    [1, 1, 1],
    [3, 4, 5],
    [4, 3, 4],
    [5, 8, 3],
    [8, 5, 33],
    [1, 257, 70],
    [33, 33, 8],
    [64, 64, 64],
    [65, 129, 1],
    [129, 70, 129],
    [70, 37, 257],
    [257, 65, 4],
    [3, 1, 257],
    [257, 128, 65],
];

/// Returns each variant that `gpu` can run, with each form and a store mode. Each variant and each form occurs with all
/// three modes, but not in all combinations, because compiling a kernel takes long. In browsers it takes longest, and
/// the kernels are the same, so there each variant has one form and one mode.
fn kinds(gpu: &Gpu) -> impl Iterator<Item = (Variant, Form, usize)> {
    let matrices = gpu.has_matrices();
    let variants = Variant::ALL.into_iter().filter(move |variant| matrices || !variant.is_half()).enumerate();
    variants.flat_map(|(i, variant)| {
        let forms = Form::ALL.into_iter().enumerate();
        forms
            .filter(move |(j, _)| cfg!(not(target_arch = "wasm32")) || *j == i % Form::ALL.len())
            .map(move |(j, form)| (variant, form, (i + j) % 3))
    })
}

async fn products_agree(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (variant, form, store) in kinds(gpu) {
            for size in SIZES {
                check(&Matmul::fixed(variant), gpu, form, size, store).await;
            }
        }
    })
    .await;
}

/// Goal: sums with many terms agree when they are split into two or more parts. The last part may be shorter.
async fn split_sums_agree(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (variant, form, store) in kinds(gpu) {
            let size = [[5, 70, 513], [1, 1, 770], [129, 37, 1101]][form as usize];
            let matmul = Matmul::fixed(variant).with_scratch(gpu);
            let first = check(&matmul, gpu, form, size, store).await;
            let second = check(&matmul, gpu, form, size, store).await;
            assert_eq!(first, second, "{variant:?} {form:?}: other bits at the second run");
            let whole = check(&Matmul::fixed(variant), gpu, form, size, store).await;
            assert_ne!(first, whole, "{variant:?} {form:?}: was not split");
        }
    })
    .await;
}

/// The tolerance is that of 32-bit weights, because B is rounded before.
async fn products_with_half_weights_agree(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (variant, form, store) in kinds(gpu) {
            let matmul = Matmul::fixed(variant).with_half_weights();
            check(&matmul, gpu, form, [65, 37, 129], store).await;
        }
    })
    .await;
}

/// The size makes blocks of codes begin and end at various positions in a tile.
async fn products_with_codes_of_8_bits_agree(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (variant, form, store) in kinds(gpu).filter(|(_, form, _)| *form != Form::Tn) {
            let matmul = Matmul::fixed(variant);
            check_kept(Values::Int8, &matmul, gpu, form, [65, 37, 129], store).await;
        }
    })
    .await;
}

/// Goal: errors are at most 2⁻¹⁰ of the value, one unit in the last place of 16-bit floats, because WGSL does not
/// define the rounding direction.
async fn weights_halve(gpus: &Gpus) {
    for (len, groups) in [(4, 1), (260, 1), (1028, 3)] {
        let x = noise(len, 3.0);
        gpus.each(async |gpu| {
            let buffers = [words(&x), vec![0; len / 2]];
            let call = kernels::HALVE.with(params::Halve { quads: len as u32 / 4 });
            let found = run(gpu, call, &[("WG", 64)], &buffers, [groups, 1, 1]).await;
            let halves = found[0].iter().flat_map(|pair| [*pair as u16, (pair >> 16) as u16]);
            for (half, x) in halves.zip(&x) {
                let (found, expected) = (f16::from_bits(half).to_f32(), f16::from_f32(*x).to_f32());
                assert!((found - expected).abs() <= expected.abs() / 1024.0, "{x} became {found}");
            }
        })
        .await;
    }
}

/// Goal: products agree when each dispatch covers only the rows of one tile, 32 to 128.
async fn cut_products_agree(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (variant, form, store) in kinds(gpu) {
            let mut matmul = Matmul::fixed(variant);
            matmul.cost_max = 1;
            check(&matmul, gpu, form, [257, 37, 33], store).await;
        }
    })
    .await;
}

/// Goal: every variant passes the check that precedes the use of matrix units.
async fn variants_prove_right(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (variant, form, _) in kinds(gpu) {
            assert_eq!(agrees(gpu, variant, form).await, Ok(true), "{variant:?} {form:?}");
        }
    })
    .await;
}

/// Returns area and variant of the entries of `choice` for `form`.
fn best(choice: &Choice, form: Form) -> Vec<(u64, Variant)> {
    let all = [&choice.nt, &choice.nn, &choice.tn][form as usize];
    all.iter().map(|best| (best.area, best.variant)).collect()
}

/// Goal: with a clock on which all runs take equally long, all variants are measured, and the first one is chosen.
async fn a_trial_chooses(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let clock = Cell::new(0);
        let now_us = || {
            clock.set(clock.get() + 5_000);
            clock.get()
        };
        let shapes = [(Form::Nt, 33, 2_000_000_000, 4), (Form::Nt, 8, 8, 8), (Form::Tn, 5, 6, 7)];
        let choosing = Matmul::choose(gpu, &shapes, &now_us);
        let (matmul, trials) = choosing.await.unwrap();
        let tried = |form, n| trials.iter().filter(move |trial| trial.form == form && trial.n == n);
        let variants: Vec<Variant> = tried(Form::Tn, 6).map(|trial| trial.variant).collect();
        assert!(variants.iter().copied().eq(Variant::candidates(gpu)));
        assert!(!gpu.facts().software || variants == Variant::ALL[..3], "tiles are not tried on the CPU");
        assert_eq!(tried(Form::Nt, 8).count(), variants.len());
        assert_eq!(trials.len(), 3 * variants.len());
        assert!(trials.iter().all(|trial| trial.n < 32 << 20), "B cannot be bound");
        let gflops = 2.0 * 5.0 * 6.0 * 7.0 / 5e-3 / 1e9;
        assert!(tried(Form::Tn, 6).all(|trial| (trial.gflops / gflops - 1.0).abs() < 1e-9));
        let choice = matmul.choice(gpu);
        let first = Variant::ALL[0];
        assert_eq!(best(&choice, Form::Nt), [(66_000_000_000, first), (64, first)]);
        assert_eq!(best(&choice, Form::Nn), [(1, Variant::Register8)], "of which nothing was tried");
        assert_eq!(best(&choice, Form::Tn), [(30, first)]);
    })
    .await;
}

/// On this test's clock, the first variant takes 5 ms in each of three runs, the second 20 ms, the third 4 ms, and any
/// other 20 ms. For the larger product, the first takes 5 ms, the second 4 ms, and any other 20 ms.
async fn slow_variants_are_measured_once(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let (clock, calls) = (Cell::new(0), Cell::new(0));
        let candidates: Vec<Variant> = Variant::candidates(gpu).collect();
        // Each run reads the clock twice. A slow variant has one run; the others have three. On a hardware GPU, three
        // more runs measure the first product, which sets the size limit of later products.
        let before = if gpu.facts().software { 0 } else { 6 };
        let slow = 2 * (candidates.len() - 3);
        let (small, large) = (before + 14 + slow, before + 14 + slow + 6);
        let now_us = || {
            calls.set(calls.get() + 1);
            let call = calls.get();
            let us = match call {
                _ if call <= before + 6 => 5_000,
                _ if (before + 9..=before + 14).contains(&call) => 4_000,
                _ if (small + 1..=large).contains(&call) => 5_000,
                _ if (large + 1..=large + 6).contains(&call) => 4_000,
                _ => 20_000,
            };
            clock.set(clock.get() + us);
            clock.get()
        };
        let shapes = [(Form::Nn, 4, 4, 4), (Form::Nn, 8, 8, 8)];
        let (matmul, trials) = Matmul::choose(gpu, &shapes, &now_us).await.unwrap();
        let found: Vec<_> = trials.iter().map(|trial| (trial.variant, trial.n)).collect();
        let expected = [4, 8].map(|n| candidates.iter().map(move |&variant| (variant, n)));
        assert_eq!(found, expected.into_iter().flatten().collect::<Vec<_>>());
        let (second, third) = (candidates[1], candidates[2]);
        assert_eq!(best(&matmul.choice(gpu), Form::Nn), [(16, third), (64, second)]);
        assert_eq!(calls.get(), large + 6 + 2 + slow);

        let sizes = [(1, third), (31, third), (33, second), (9_000, second)];
        for (m, expected) in sizes {
            assert_eq!(matmul.variant(Form::Nn, m, 1), expected, "that of the size nearest to {m}");
        }
    })
    .await;
}

async fn stored_choice_applies_only_to_its_device(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let made = Matmul::fixed(Variant::Tile64).choice(gpu);
        let best = |area, variant| Best { area, variant };
        let nn = vec![best(16, Variant::Register4), best(64, Variant::Tile64)];
        let tn = vec![best(16, Variant::Register8)];
        let choice = Choice { nn, tn, gflops: 2_000, ..made };
        let bytes = rmp_serde::to_vec_named(&choice).unwrap();
        let kept: Choice = rmp_serde::from_slice(&bytes).unwrap();
        let matmul = Matmul::from_choice(gpu, &kept).unwrap();
        assert_eq!(matmul.choice(gpu), choice);
        assert_eq!(matmul.cost_max, 40_000_000_000, "what it does within 20 ms");
        let elsewhere = Choice { adapter: "Voodoo".to_owned(), ..choice.clone() };
        let error = Matmul::from_choice(gpu, &elsewhere).unwrap_err();
        assert!(matches!(error, ChoiceError::Adapter { .. }), "{error}");
        let others = Choice { matrices: !choice.matrices, ..choice.clone() };
        let error = Matmul::from_choice(gpu, &others).unwrap_err();
        assert!(matches!(error, ChoiceError::Matrices { .. }), "{error}");
        let nothing = Choice { tn: Vec::new(), ..choice.clone() };
        assert_eq!(Matmul::from_choice(gpu, &nothing).unwrap_err(), ChoiceError::Wrong);
        if !gpu.has_matrices() {
            let untried = Choice { strips: true, ..choice.clone() };
            assert_eq!(Matmul::from_choice(gpu, &untried).unwrap_err(), ChoiceError::Wrong);
            let untried = Choice { nt: vec![best(16, Variant::Matrix64)], ..choice.clone() };
            assert_eq!(Matmul::from_choice(gpu, &untried).unwrap_err(), ChoiceError::Wrong);
        }
        let before = Choice { driver: "1.0".to_owned(), ..choice };
        let error = Matmul::from_choice(gpu, &before).unwrap_err();
        assert!(matches!(error, ChoiceError::Driver { .. }), "{error}");
    })
    .await;
}

parity!(
    products_agree,
    split_sums_agree,
    products_with_half_weights_agree,
    products_with_codes_of_8_bits_agree,
    weights_halve,
    cut_products_agree,
    variants_prove_right,
    a_trial_chooses,
    slow_variants_are_measured_once,
    stored_choice_applies_only_to_its_device
);
