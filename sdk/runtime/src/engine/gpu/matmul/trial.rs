//! Measurement of the fastest variant on a device.

use serde::Serialize;

use super::{Best, Form, Matmul, Product, SCRATCH_BYTES, Store, Values, Variant, agrees};
use crate::engine::gpu::program::{Builder, Program, Slice, buffer};
use crate::engine::gpu::{Gpu, GpuError};

/// Maximum floating-point operations of a tried product; larger ones are cut down. A weak GPU takes some tens of
/// milliseconds, and so does a software GPU. A GPU that does the first product in less than [`TRIED_US`] gets larger
/// ones that take that long, because a cut product uses only a part of a large GPU.
const COST_MAX: f64 = 2e9;
const COST_SOFTWARE_MAX: f64 = 5e8;
const TRIED_US: f64 = 5_000.0;
/// Maximum rows or columns of a tried product: the number that workgroups of the smallest tiles cover.
const SIDE_MAX: u32 = 65_535 * 32;
/// Minimum duration of a run. A shorter one is imprecise, because clocks and completion notices are coarse.
const RUN_US_MIN: u64 = 4_000;
/// Maximum number of products in a run.
const REPEATS_MAX: u32 = 64;
/// Maximum number of timed runs of a variant, and their maximum time.
const RUNS: u32 = 3;
const RUNS_US: u64 = 30_000;
/// Variant for the first trial, and for forms without a trial.
const FIRST: Variant = Variant::Register8;
/// Factor by which a variant may be slower than another before its trial ends.
const BEHIND: f64 = 2.0;

/// Measured speed of one variant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The variant.
    pub variant: Variant,
    /// Form of the product.
    pub form: Form,
    /// Rows of C. Like n and k, a half, a quarter and so on of the requested size, if that was large.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// Terms of each sum.
    pub k: u32,
    /// Rate of the best run, in 10⁹ floating-point operations per second, with 2 m n k for a product.
    pub gflops: f64,
}

impl Matmul {
    /// Measures the variants on `gpu` for `shapes` (form, m, n, k) of the model to be trained, and takes the fastest of
    /// each. A variant on matrix units is tried only if it gives correct results. `now_us` returns microseconds since
    /// an arbitrary time.
    ///
    /// # Errors
    /// [`GpuError::Memory`], [`GpuError::Lost`] and [`GpuError::Refused`].
    pub async fn choose(
        gpu: &Gpu,
        shapes: &[(Form, u32, u32, u32)],
        now_us: &dyn Fn() -> u64,
    ) -> Result<(Self, Vec<Trial>), GpuError> {
        let mut trials = Vec::new();
        let mut matmul = gpu.allocate(SCRATCH_BYTES, || Self::fixed(FIRST).suited(gpu)).await?;
        let first_gflops = first_gflops(gpu, &matmul, shapes, now_us).await?;
        matmul = matmul.at(first_gflops as u32);
        let least = if gpu.facts().software { COST_SOFTWARE_MAX } else { COST_MAX };
        let cost_max = least.max(first_gflops * 1e3 * TRIED_US);
        let mut slowest = f64::INFINITY;
        for form in Form::ALL {
            let mut variants = Vec::new();
            for variant in Variant::suitable(gpu) {
                if !variant.is_half() || agrees(gpu, variant, form).await? {
                    variants.push(variant);
                }
            }
            let (mut found, mut flops, mut total_us) = (Vec::new(), 0.0, 0.0);
            for &(_, m, n, k) in shapes.iter().filter(|shape| shape.0 == form) {
                let bench = Bench::within(gpu, form, [m, n, k], cost_max).await?;
                let (mut best, mut best_us) = (FIRST, f64::INFINITY);
                for &variant in &variants {
                    let us = bench.time(gpu, &matmul.with_all(variant), now_us, best_us * BEHIND).await?;
                    trials.push(bench.trial(variant, us));
                    if us < best_us {
                        (best, best_us) = (variant, us);
                    }
                }
                found.push(Best { area: u64::from(m) * u64::from(n), variant: best });
                (flops, total_us) = (flops + bench.flops(), total_us + best_us);
            }
            if !found.is_empty() {
                matmul.best[form as usize] = found;
                slowest = slowest.min(flops / total_us);
            }
        }
        let gflops = if slowest.is_finite() { slowest / 1e3 } else { 0.0 };
        Ok((matmul.at(gflops as u32), trials))
    }
}

/// Returns the rate of `matmul` for the first of `shapes`, in 10⁹ floating-point operations per second. Returns 0 on a
/// software GPU, which has no parts that could be idle.
async fn first_gflops(
    gpu: &Gpu,
    matmul: &Matmul,
    shapes: &[(Form, u32, u32, u32)],
    now_us: &dyn Fn() -> u64,
) -> Result<f64, GpuError> {
    let Some(&(form, m, n, k)) = shapes.first().filter(|_| !gpu.facts().software) else { return Ok(0.0) };
    let bench = Bench::new(gpu, form, cut([m, n, k], COST_MAX, gpu)).await?;
    let us = bench.time(gpu, matmul, now_us, f64::INFINITY).await?;
    Ok(bench.flops() / us / 1e3)
}

/// Halves the largest side until a product is cheap enough, and each matrix can be bound and covered.
fn cut(mut sides: [u32; 3], cost_max: f64, gpu: &Gpu) -> [u32; 3] {
    loop {
        let [m, n, k] = sides.map(|side| u64::from(side.next_multiple_of(4)));
        let bytes = 4 * (m * k).max(n * k).max(m * n);
        let fits = bytes <= gpu.device.limits().max_storage_buffer_binding_size;
        let largest = sides.iter_mut().max().expect("there are three");
        if (2 * m * n * k) as f64 <= cost_max && fits && *largest <= SIDE_MAX {
            return sides;
        }
        *largest = largest.div_ceil(2);
    }
}

/// Operands of one shape.
struct Bench {
    form: Form,
    sides: [u32; 3],
    a: Slice,
    b: Slice,
    c: Slice,
}

impl Bench {
    async fn new(gpu: &Gpu, form: Form, sides: [u32; 3]) -> Result<Self, GpuError> {
        let [m, n, k] = sides.map(|side| u64::from(side.next_multiple_of(4)));
        let make = |words| Slice::whole(&buffer(gpu, "trial", words));
        let all = || Self { form, sides, a: make(m * k), b: make(n * k), c: make(m * n) };
        gpu.allocate(4 * (m * k + n * k + m * n), all).await
    }

    /// Creates operands for as much of `sides` as costs `cost_max`, or for less if the device has no room.
    async fn within(gpu: &Gpu, form: Form, sides: [u32; 3], mut cost_max: f64) -> Result<Self, GpuError> {
        loop {
            match Self::new(gpu, form, cut(sides, cost_max, gpu)).await {
                Err(GpuError::Memory { .. }) if cost_max > COST_SOFTWARE_MAX => cost_max /= 2.0,
                made => return made,
            }
        }
    }

    /// Returns a program of `count` products, one after the other.
    fn program(&self, gpu: &Gpu, matmul: &Matmul, count: u32) -> Program {
        let [m, n, k] = self.sides;
        let width = |side: u32| side.next_multiple_of(4);
        let (a_stride, b_stride) = match self.form {
            Form::Nt => (width(k), width(k)),
            Form::Nn => (width(k), width(n)),
            Form::Tn => (width(m), width(n)),
        };
        let (form, c_stride, store) = (self.form, width(n), Store::Set);
        let (a, b, c) = (self.a.clone(), self.b.clone(), self.c.clone());
        let (b_values, first, scale) = (Values::Whole, [0, 0], 1.0);
        let product =
            Product { form, m, n, k, a, a_stride, b, b_stride, b_values, c, c_stride, store, first, scale };
        let mut builder = Builder::default();
        (0..count).for_each(|_| matmul.add(&mut builder, product.clone()));
        builder.build(gpu)
    }

    /// Returns the microseconds per product: the best of a few runs, or the first if it exceeds `enough_us`.
    async fn time(
        &self,
        gpu: &Gpu,
        matmul: &Matmul,
        now_us: &dyn Fn() -> u64,
        enough_us: f64,
    ) -> Result<f64, GpuError> {
        let mut repeats = 1;
        let mut program = self.program(gpu, matmul, repeats);
        // Some drivers compile at first use.
        program.run(gpu).await?;
        let (mut best_us, mut total_us, mut runs) = (f64::INFINITY, 0, 0);
        while runs < RUNS && total_us < RUNS_US {
            let start_us = now_us();
            program.run(gpu).await?;
            let us = now_us().saturating_sub(start_us).max(1);
            if us < RUN_US_MIN && repeats < REPEATS_MAX {
                repeats *= 4;
                program = self.program(gpu, matmul, repeats);
                continue;
            }
            best_us = best_us.min(us as f64 / f64::from(repeats));
            if best_us > enough_us {
                break;
            }
            total_us += us;
            runs += 1;
        }
        Ok(best_us)
    }

    /// Returns the floating-point operations of a product.
    fn flops(&self) -> f64 {
        2.0 * self.sides.iter().map(|&side| f64::from(side)).product::<f64>()
    }

    fn trial(&self, variant: Variant, us: f64) -> Trial {
        let ([m, n, k], gflops) = (self.sides, self.flops() / us / 1e3);
        Trial { variant, form: self.form, m, n, k, gflops }
    }
}
