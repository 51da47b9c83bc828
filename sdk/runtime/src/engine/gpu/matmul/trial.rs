//! Measurement of the fastest correct variants on a device, and the stored result.

use archipelago_core::bytes::to_f32s;
use serde::{Deserialize, Serialize};

use super::{Best, Form, Matmul, Product, SCRATCH_BYTES, Values, Variant, WriteMode};
use crate::engine::gpu::program::{Builder, DispatchList, Slice, buffer};
use crate::engine::gpu::ring::Ring;
use crate::engine::gpu::{Gpu, GpuError};

/// Maximum number of floating-point operations in a measured product; larger ones are measured in part. This takes some
/// tens of milliseconds on a weak GPU, and so does the smaller number on a software GPU. If the first product takes
/// less than [`TRIED_US`] microseconds, later products may be so large that they take that long, because a smaller
/// product would use only a part of a large GPU.
const COST_MAX: f64 = 2e9;
const COST_SOFTWARE_MAX: f64 = 5e8;
const TRIED_US: f64 = 5_000.0;
/// Maximum number of rows or columns of a measured product: as many as the smallest tiles cover in one dispatch.
const SIDE_MAX: u32 = 65_535 * 32;
/// Minimum duration of a run, in microseconds. Clocks and completion callbacks are too coarse for shorter runs.
const RUN_US_MIN: u64 = 4_000;
/// Maximum number of products in a run.
const REPEATS_MAX: u32 = 64;
/// Maximum number of timed runs of a variant, and the total time in microseconds after which no further run begins.
const RUNS: u32 = 3;
const RUNS_US: u64 = 30_000;
/// Variant for the first measurement, and for forms without a shape to measure.
const FIRST: Variant = Variant::Register8;
/// Multiple of the best variant's time. If a run takes longer, the measurement of its variant ends early.
const BEHIND: f64 = 2.0;

/// Measured speed of one variant for one product.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The variant.
    pub variant: Variant,
    /// Form of the product.
    pub form: Form,
    /// Rows of C. If the requested product was too large, m, n and k are halved repeatedly.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// Terms of each sum.
    pub k: u32,
    /// Speed of the fastest run, in 10⁹ floating-point operations per second. A product has 2 m n k operations.
    pub gflops: f64,
}

impl Matmul {
    /// Measures the variants on `gpu` for `shapes` (form, m, n, k) of the model, and chooses the fastest for each
    /// shape. A variant on matrix units is measured only if its results are correct. `now_us` returns microseconds
    /// since an arbitrary origin.
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
            for variant in Variant::candidates(gpu) {
                if !variant.is_half() || agrees(gpu, variant, form).await? {
                    variants.push(variant);
                }
            }
            let (mut found, mut flops, mut total_us) = (Vec::new(), 0.0, 0.0);
            for &(_, m, n, k) in shapes.iter().filter(|shape| shape.0 == form) {
                let bench = TrialOperands::within(gpu, form, [m, n, k], cost_max).await?;
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

/// Returns the speed of `matmul` for the first of `shapes`, in 10⁹ floating-point operations per second. Returns 0 on a
/// software GPU, where any product uses all cores.
async fn first_gflops(
    gpu: &Gpu,
    matmul: &Matmul,
    shapes: &[(Form, u32, u32, u32)],
    now_us: &dyn Fn() -> u64,
) -> Result<f64, GpuError> {
    let Some(&(form, m, n, k)) = shapes.first().filter(|_| !gpu.facts().software) else { return Ok(0.0) };
    let bench = TrialOperands::new(gpu, form, cut([m, n, k], COST_MAX, gpu)).await?;
    let us = bench.time(gpu, matmul, now_us, f64::INFINITY).await?;
    Ok(bench.flops() / us / 1e3)
}

/// Halves the largest side until a product costs at most `cost_max`, each matrix can be bound, and tiles can cover it.
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

/// Buffers for products of one shape, and the shape.
struct TrialOperands {
    form: Form,
    sides: [u32; 3],
    a: Slice,
    b: Slice,
    c: Slice,
}

impl TrialOperands {
    async fn new(gpu: &Gpu, form: Form, sides: [u32; 3]) -> Result<Self, GpuError> {
        let [m, n, k] = sides.map(|side| u64::from(side.next_multiple_of(4)));
        let make = |words| Slice::whole(&buffer(gpu, "trial", words));
        let all = || Self { form, sides, a: make(m * k), b: make(n * k), c: make(m * n) };
        gpu.allocate(4 * (m * k + n * k + m * n), all).await
    }

    /// Creates buffers for a product of `sides`, cut to `cost_max` operations, or to fewer if the device lacks memory.
    async fn within(gpu: &Gpu, form: Form, sides: [u32; 3], mut cost_max: f64) -> Result<Self, GpuError> {
        loop {
            match Self::new(gpu, form, cut(sides, cost_max, gpu)).await {
                Err(GpuError::Memory { .. }) if cost_max > COST_SOFTWARE_MAX => cost_max /= 2.0,
                made => return made,
            }
        }
    }

    /// Returns the dispatches of `count` identical products, one after the other.
    fn program(&self, gpu: &Gpu, matmul: &Matmul, count: u32) -> DispatchList {
        let [m, n, k] = self.sides;
        let width = |side: u32| side.next_multiple_of(4);
        let (a_stride, b_stride) = match self.form {
            Form::Nt => (width(k), width(k)),
            Form::Nn => (width(k), width(n)),
            Form::Tn => (width(m), width(n)),
        };
        let (form, c_stride, store) = (self.form, width(n), WriteMode::Set);
        let (a, b, c) = (self.a.clone(), self.b.clone(), self.c.clone());
        let (b_values, first, scale) = (Values::Whole, [0, 0], 1.0);
        let product =
            Product { form, m, n, k, a, a_stride, b, b_stride, b_values, c, c_stride, store, first, scale };
        let mut builder = Builder::default();
        (0..count).for_each(|_| matmul.add(&mut builder, product.clone()));
        builder.build(gpu)
    }

    /// Returns the time of one product in microseconds: the best of a few runs. Stops early if it exceeds `enough_us`.
    async fn time(
        &self,
        gpu: &Gpu,
        matmul: &Matmul,
        now_us: &dyn Fn() -> u64,
        enough_us: f64,
    ) -> Result<f64, GpuError> {
        let mut repeats = 1;
        let mut program = self.program(gpu, matmul, repeats);
        // The first run is not timed, because some drivers compile at first use.
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

    /// Returns the number of floating-point operations in a product.
    fn flops(&self) -> f64 {
        2.0 * self.sides.iter().map(|&side| f64::from(side)).product::<f64>()
    }

    fn trial(&self, variant: Variant, us: f64) -> Trial {
        let ([m, n, k], gflops) = (self.sides, self.flops() / us / 1e3);
        Trial { variant, form: self.form, m, n, k, gflops }
    }
}

/// Chosen variants for each form, on one device with one driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the adapter.
    pub adapter: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Variants for `A Bᵀ`, one entry per product size of the model. Large products were measured in part.
    pub nt: Vec<Best>,
    /// Variants for `A B`.
    pub nn: Vec<Best>,
    /// Variants for `Aᵀ B`.
    pub tn: Vec<Best>,
    /// Whether variants on matrix units were measured too.
    pub matrices: bool,
    /// Whether attention on matrix units is at least as fast.
    pub strips: bool,
    /// Speed of the slowest form, in 10⁹ floating-point operations per second.
    pub gflops: u32,
}

/// Reason why a stored choice does not apply to a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// The choice was made on another adapter.
    #[error("the kernels were chosen for {chosen:?}, but this is {found:?}: choose again")]
    Adapter {
        /// Adapter on which the choice was made.
        chosen: String,
        /// Adapter of this device.
        found: String,
    },
    /// The choice was made with another driver or version.
    #[error("the kernels were chosen with driver {chosen:?}, but this is {found:?}: choose again")]
    Driver {
        /// Driver with which the choice was made.
        chosen: String,
        /// Driver of this device.
        found: String,
    },
    /// Matrix units were allowed when the choice was made and are not allowed now, or the reverse.
    #[error("the kernels were chosen {} matrix units: choose again", if *.tried { "with" } else { "without" })]
    Matrices {
        /// Whether variants on matrix units were measured.
        tried: bool,
    },
    /// The choice is invalid: a form has no variant, or a variant needs matrix units although none were measured. Or a
    /// chosen kernel gives wrong results on this device now.
    #[error("the chosen kernels are invalid, or give wrong results on this machine: choose again")]
    Wrong,
}

impl Matmul {
    /// Creates an instance with the variants of `choice`.
    ///
    /// # Errors
    /// - [`ChoiceError::Adapter`], [`ChoiceError::Driver`]: the choice was made on another adapter, or with another
    ///   driver.
    /// - [`ChoiceError::Matrices`]: matrix units were allowed when the choice was made and are not on `gpu`, or the
    ///   reverse.
    /// - [`ChoiceError::Wrong`]: the choice is invalid.
    pub fn from_choice(gpu: &Gpu, choice: &Choice) -> Result<Self, ChoiceError> {
        let Choice { adapter, driver, nt, nn, tn, matrices, strips, gflops } = choice;
        let facts = gpu.facts();
        if *adapter != facts.name {
            return Err(ChoiceError::Adapter { chosen: adapter.clone(), found: facts.name.clone() });
        }
        if *driver != facts.driver {
            return Err(ChoiceError::Driver { chosen: driver.clone(), found: facts.driver.clone() });
        }
        if *matrices != gpu.has_matrices() {
            return Err(ChoiceError::Matrices { tried: *matrices });
        }
        let best = [nt, nn, tn].map(Clone::clone);
        let on_matrices = *strips || best.iter().flatten().any(|best| best.variant.is_half());
        if best.iter().any(Vec::is_empty) || on_matrices && !matrices {
            return Err(ChoiceError::Wrong);
        }
        Ok(Self::of(best).at(*gflops).suited(gpu).with_strips(*strips))
    }

    /// Checks the chosen variants on matrix units again, because drivers and kernels change. Returns true if their
    /// results are still correct on `gpu`.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and [`GpuError::Refused`].
    pub(in crate::engine::gpu) async fn agrees(&self, gpu: &Gpu) -> Result<bool, GpuError> {
        for (form, best) in Form::ALL.into_iter().zip(&self.best) {
            for best in best.iter().filter(|best| best.variant.is_half()) {
                if !agrees(gpu, best.variant, form).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns the choice to store; [`Self::from_choice`] restores it.
    #[must_use]
    pub fn choice(&self, gpu: &Gpu) -> Choice {
        let (adapter, driver) = (gpu.facts().name.clone(), gpu.facts().driver.clone());
        let ([nt, nn, tn], strips, gflops) = (self.best.clone(), self.strips, self.gflops);
        Choice { adapter, driver, nt, nn, tn, matrices: gpu.has_matrices(), strips, gflops }
    }
}

/// Sides m, n and k of the test product. None is a multiple of a tile's side.
const SIDES: [u32; 3] = [77, 140, 91];
/// Maximum error of a value of C. Its terms are exact and at most 1, so only the order of additions differs.
const ERROR_MAX: f32 = 1e-6 * SIDES[2] as f32;

/// Returns true if `variant` and [`Variant::Register4`] give the same product of `form` on `gpu`, except for rounding.
///
/// # Errors
/// [`GpuError::Lost`] and [`GpuError::Refused`].
pub async fn agrees(gpu: &Gpu, variant: Variant, form: Form) -> Result<bool, GpuError> {
    let [m, n, k] = SIDES;
    let width = |side: u32| side.next_multiple_of(4);
    let ([rows_a, columns_a], [rows_b, columns_b]) = match form {
        Form::Nt => ([m, k], [n, k]),
        Form::Nn => ([m, k], [k, n]),
        Form::Tn => ([k, m], [k, n]),
    };
    let (a, b) = (operand(gpu, rows_a, columns_a), operand(gpu, rows_b, columns_b));
    let mut found = Vec::new();
    for variant in [Variant::Register4, variant] {
        let c = Slice::whole(&buffer(gpu, "proof", u64::from(m * n)));
        let product = Product {
            form,
            m,
            n,
            k,
            a: a.clone(),
            a_stride: width(columns_a),
            b: b.clone(),
            b_stride: width(columns_b),
            b_values: Values::Whole,
            c: c.clone(),
            c_stride: n,
            store: WriteMode::Set,
            first: [0, 0],
            scale: 1.0,
        };
        let mut builder = Builder::default();
        Matmul::fixed(variant).for_means_of(1000).add(&mut builder, product);
        builder.build(gpu).submit(gpu, u64::MAX);
        let mut ring = Ring::new(gpu, "proof", 1, c.bytes);
        ring.read(gpu, &[c], ());
        ring.ready(gpu).await?;
        found.push(ring.next(gpu, |(), bytes| to_f32s(bytes))?.unwrap_or_default());
    }
    Ok(differ_only_by_rounding(&found[0], &found[1]))
}

/// Returns true if both have the same length and differ only by rounding.
fn differ_only_by_rounding(expected: &[f32], found: &[f32]) -> bool {
    expected.len() == found.len() && expected.iter().zip(found).all(|(a, b)| (a - b).abs() <= ERROR_MAX)
}

/// Creates a matrix `[rows, columns]` of values between −1 and 1 that 16-bit floats represent exactly. Rows are padded
/// with 0 to a multiple of 4 values.
fn operand(gpu: &Gpu, rows: u32, columns: u32) -> Slice {
    let width = columns.next_multiple_of(4);
    let value = |i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 128.0 - 1.0;
    let values: Vec<f32> =
        (0..rows * width).map(|i| if i % width < columns { value(i) } else { 0.0 }).collect();
    let slice = Slice::whole(&buffer(gpu, "proof", values.len() as u64));
    gpu.write(&slice, &values);
    slice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_accepts_only_rounding_errors() {
        assert!(differ_only_by_rounding(&[1.0, -20.0], &[1.000_01, -20.000_04]));
        for other in [&[1.0, -20.001][..], &[1.0], &[1.0, 20.0], &[1.0, f32::NAN], &[1.0, f32::INFINITY]] {
            assert!(!differ_only_by_rounding(&[1.0, -20.0], other), "{other:?}");
        }
    }
}
