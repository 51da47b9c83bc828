//! Attention kernels, their division into dispatches, and the check of attention on matrix units before its use.

use archipelago_core::bytes::to_f32s;
use archipelago_core::rng::Rng;

use super::program::{Builder, Constant, Dispatch, DispatchList, Slice, buffer};
use super::ring::Ring;
use super::{Gpu, GpuError, kernels, params};

/// Number of rows of a head that a workgroup on matrix units processes.
const SIDE: u32 = 64;
/// Maximum number of workgroups in one dimension of a dispatch.
const GROUPS_MAX: u32 = 65_535;

/// Lanes of a workgroup if a band has several lanes. On most devices this is one subgroup, which needs no barrier.
const LANES: u32 = 32;

/// Part of the attention computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionPass {
    /// Forward pass: reads qkv, writes y and lse.
    Forward,
    /// Gradient of the queries: reads qkv, dy, lse and dots, writes dqkv.
    Queries,
    /// Gradient of keys and values: reads qkv, dy, lse and dots, writes dqkv.
    Keys,
}

/// Sizes of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of windows, B.
    pub windows: u32,
    /// Number of tokens in a window, T.
    pub context: u32,
    /// Number of query heads, H.
    pub heads: u32,
    /// Number of key and value heads, K.
    pub kv_heads: u32,
    /// Values in a head, D: a multiple of 4 up to 256.
    pub head: u32,
}

/// Choice of attention kernels.
#[derive(Clone, Copy, Debug)]
pub enum Attention {
    /// Kernels on 32-bit floats.
    Bands(Bands),
    /// Kernels on matrix units, for heads of 16, 32, 48 or 64 values; see `kernels/parts/strips.wgsl`.
    Strips,
}

impl Attention {
    /// Chooses kernels for `sizes`. With `strips`, matrix units are used if there are kernels for heads of this width.
    pub fn new(sizes: Sizes, software: bool, strips: bool) -> Self {
        if strips && sizes.has_matrix_kernels() {
            return Self::Strips;
        }
        Self::Bands(Bands::new(sizes.head, sizes.context, software))
    }

    /// Returns the dispatches of `pass`, each of about `cost_max` floating-point operations. `storage` has the buffers
    /// of the kernel's bindings. `gain` is a power of two that scales gradients without overflow of 16-bit floats.
    pub fn dispatches(
        self,
        pass: AttentionPass,
        sizes: Sizes,
        gain: f32,
        storage: &[Slice],
        cost_max: u64,
    ) -> impl Iterator<Item = Dispatch> {
        let Sizes { windows, context, heads, kv_heads, head } = sizes;
        let divided = if pass == AttentionPass::Keys { kv_heads } else { heads };
        let units = match self {
            Self::Bands(bands) => bands.units(windows, divided, context),
            Self::Strips => windows * divided * context.div_ceil(SIDE),
        };
        let cost = self.cost(pass, sizes) / u64::from(units);
        let units_max = (cost_max / cost.max(1)).clamp(1, u64::from(units)) as u32;
        (0..units).step_by(units_max as usize).map(move |first| {
            let end = units.min(first + units_max);
            let (call, constants) = match self {
                Self::Bands(bands) => {
                    let kernel = match pass {
                        AttentionPass::Forward => kernels::ATTENTION,
                        AttentionPass::Queries => kernels::ATTENTION_GRAD_Q,
                        AttentionPass::Keys => kernels::ATTENTION_GRAD_KV,
                    };
                    let params = params::Attention { windows, context, heads, kv_heads, first, end };
                    (kernel.with(params), bands.constants())
                }
                Self::Strips => {
                    let kernel = match pass {
                        AttentionPass::Forward => kernels::ATTENTION_MATRIX,
                        AttentionPass::Queries => kernels::ATTENTION_MATRIX_GRAD_Q,
                        AttentionPass::Keys => kernels::ATTENTION_MATRIX_GRAD_KV,
                    };
                    let params =
                        params::AttentionMatrix { windows, context, heads, kv_heads, first, end, gain };
                    (kernel.with(params), vec![("HEAD", head / 4)])
                }
            };
            let groups = [(end - first).min(GROUPS_MAX), 1, 1];
            Dispatch {
                call,
                constants,
                storage: storage.to_vec(),
                groups,
                cost: cost * u64::from(end - first),
            }
        })
    }

    /// Returns the number of floating-point operations: two for each product of a query's value and a visible key's
    /// value.
    fn cost(self, pass: AttentionPass, sizes: Sizes) -> u64 {
        let products = match (self, pass) {
            (Self::Bands(_), AttentionPass::Forward) => 2,
            // The forward kernel on matrix units reads the keys twice.
            (Self::Strips, AttentionPass::Forward) | (_, AttentionPass::Queries) => 3,
            (_, AttentionPass::Keys) => 4,
        };
        let Sizes { windows, context, heads, head, .. } = sizes;
        [windows, context, context, heads, head].into_iter().map(u64::from).product::<u64>() * products
    }
}

impl Sizes {
    /// Returns true if there are kernels on matrix units for this head width.
    fn has_matrix_kernels(self) -> bool {
        self.head.is_multiple_of(16) && self.head <= 64
    }
}

/// Values of the overrides in `kernels/parts/bands.wgsl`.
#[derive(Clone, Copy, Debug)]
pub struct Bands {
    /// Vectors of four values in a head, D / 4.
    pub head: u32,
    /// Lanes of a band. A band is eight rows of one head.
    pub lanes: u32,
    /// Rows of the window that a band processes at a time.
    pub keys: u32,
    /// Bands of one head in a workgroup.
    pub bands: u32,
    /// Heads in a workgroup.
    pub heads: u32,
}

impl Bands {
    /// Chooses the values for heads of `head` values, a multiple of 4 up to 256, and windows of `context` tokens.
    fn new(head: u32, context: u32, software: bool) -> Self {
        let head = head / 4;
        if software {
            // On a software GPU, barriers are expensive, and lanes gain nothing from reading the same keys.
            return Self { head, lanes: 1, keys: 32, bands: 1, heads: 8 };
        }
        // In a wide head, a subgroup processes each band, and each lane holds several vectors of four values.
        let lanes = head.min(LANES);
        let slots = LANES / lanes;
        let bands = slots.min(context.div_ceil(8));
        Self { head, lanes, keys: 4 * lanes, bands, heads: slots / bands }
    }

    /// Returns the override constants of the kernels.
    fn constants(self) -> Vec<Constant> {
        let Self { head, lanes, keys, bands, heads } = self;
        vec![("HEAD", head), ("LANES", lanes), ("KEYS", keys), ("BANDS", bands), ("HEADS", heads)]
    }

    /// Returns the number of workgroups that have work, for `heads` heads (of queries or of keys) in each of `windows`
    /// windows.
    fn units(self, windows: u32, heads: u32, context: u32) -> u32 {
        (windows * heads).div_ceil(self.heads) * context.div_ceil(8 * self.bands)
    }
}

/// Maximum number of query rows in a trial. A single window may exceed it.
const ROWS_MAX: u32 = 2048;
/// Factor on the trial's gradients before they are rounded to 16-bit floats.
const GAIN: f32 = 1024.0;
/// Error limits for a whole tensor and for each row, relative to the norm of the 32-bit result. For a row with a norm
/// below the mean, the limit is relative to the mean. 16-bit floats keep 11 bits of each factor, which gives errors of
/// 4e-4 and 2e-3 for windows of up to 2,048 tokens, as computed with NumPy.
const ERROR_MAX: f64 = 3e-3;
const ROW_ERROR_MAX: f64 = 3e-2;
/// Number of timed runs.
const RUNS: u32 = 3;

/// Returns true if attention on matrix units agrees on `gpu` with attention on 32-bit floats, within rounding, and
/// gives the same bits twice. Returns false if the device has no matrix units, no kernel for this head width, or no
/// memory for a trial.
///
/// # Errors
/// [`GpuError::Lost`] and [`GpuError::Refused`].
pub async fn agrees(gpu: &Gpu, sizes: Sizes) -> Result<bool, GpuError> {
    if !gpu.has_matrices() || !sizes.has_matrix_kernels() {
        return Ok(false);
    }
    let Some(trial) = Trial::new(gpu, sizes).await else { return Ok(false) };
    let [bands, strips] = trial.programs(gpu);
    let expected = trial.found(gpu, &bands).await?;
    let found = trial.found(gpu, &strips).await?;
    let again = trial.found(gpu, &strips).await?;
    Ok(found == again && trial.differ_only_by_rounding(&expected, &found))
}

/// Returns true if attention on matrix units agrees and is at least as fast. `now_us` returns microseconds since an
/// arbitrary origin.
///
/// # Errors
/// Those of [`agrees`].
pub async fn is_faster(gpu: &Gpu, sizes: Sizes, now_us: &dyn Fn() -> u64) -> Result<bool, GpuError> {
    if !agrees(gpu, sizes).await? {
        return Ok(false);
    }
    let Some(trial) = Trial::new(gpu, sizes).await else { return Ok(false) };
    let mut best_us = [u64::MAX; 2];
    for _ in 0..RUNS {
        for (program, best_us) in trial.programs(gpu).iter().zip(&mut best_us) {
            let start_us = now_us();
            program.run(gpu).await?;
            *best_us = now_us().saturating_sub(start_us).min(*best_us);
        }
    }
    let [bands_us, strips_us] = best_us;
    Ok(strips_us <= bands_us)
}

/// Buffers for one forward and backward pass of attention.
struct Trial {
    sizes: Sizes,
    qkv: Slice,
    dy: Slice,
    y: Slice,
    lse: Slice,
    dots: Slice,
    dqkv: Slice,
}

impl Trial {
    /// Creates buffers for `sizes`, with at most [`ROWS_MAX`] rows. Returns `None` if the device lacks memory.
    async fn new(gpu: &Gpu, sizes: Sizes) -> Option<Self> {
        let windows = sizes.windows.min(ROWS_MAX.div_ceil(sizes.context)).max(1);
        let sizes = Sizes { windows, ..sizes };
        let rows = u64::from(sizes.windows * sizes.context);
        let (width, wide) = (u64::from(sizes.width()), u64::from(sizes.wide()));
        let heads = u64::from(sizes.heads);
        let make = |values: u64| Slice::whole(&buffer(gpu, "attention", values));
        let all = || Self {
            sizes,
            qkv: make(rows * wide),
            dy: make(rows * width),
            y: make(rows * width),
            lse: make(rows * heads),
            dots: make(rows * heads),
            dqkv: make(rows * wide),
        };
        let trial = gpu.allocate(8 * rows * (wide + width + heads), all).await.ok()?;
        // The gradients are small enough to need `GAIN`.
        for (slice, seed, size) in [(&trial.qkv, 1, 1.0), (&trial.dy, 2, 1.0 / GAIN)] {
            let mut rng = Rng::new(seed);
            let mut value = || (2.0 * rng.unit() as f32 - 1.0) * size;
            let values: Vec<f32> = (0..slice.bytes / 4).map(|_| value()).collect();
            gpu.write(slice, &values);
        }
        Some(trial)
    }

    /// Returns the dispatches on 32-bit floats, and those on matrix units.
    fn programs(&self, gpu: &Gpu) -> [DispatchList; 2] {
        let Self { sizes, qkv, dy, y, lse, dots, dqkv } = self;
        let software = gpu.facts().software;
        [false, true].map(|strips| {
            let attention = Attention::new(*sizes, software, strips);
            let mut builder = Builder::default();
            let storage = [qkv, y, lse].map(Slice::clone);
            let dispatches = attention.dispatches(AttentionPass::Forward, *sizes, GAIN, &storage, u64::MAX);
            dispatches.for_each(|dispatch| builder.add(dispatch));
            let rows = sizes.windows * sizes.context * sizes.heads;
            builder.add(Dispatch {
                call: kernels::ATTENTION_DOTS.with(params::AttentionDots { rows, quads: sizes.head / 4 }),
                constants: vec![("WG", 64)],
                storage: [y, dy, dots].map(Slice::clone).to_vec(),
                groups: [rows.div_ceil(64).min(GROUPS_MAX), 1, 1],
                cost: 1,
            });
            let storage = [qkv, dy, lse, dots, dqkv].map(Slice::clone);
            for pass in [AttentionPass::Queries, AttentionPass::Keys] {
                let dispatches = attention.dispatches(pass, *sizes, GAIN, &storage, u64::MAX);
                dispatches.for_each(|dispatch| builder.add(dispatch));
            }
            builder.build(gpu)
        })
    }

    /// Runs `program` and returns the values of y, followed by those of dqkv.
    async fn found(&self, gpu: &Gpu, program: &DispatchList) -> Result<Vec<f32>, GpuError> {
        program.run(gpu).await?;
        let mut ring = Ring::new(gpu, "attention", 1, self.y.bytes + self.dqkv.bytes);
        ring.read(gpu, &[self.y.clone(), self.dqkv.clone()], ());
        ring.ready(gpu).await?;
        Ok(ring.next(gpu, |(), bytes| to_f32s(bytes))?.unwrap_or_default())
    }

    /// Returns true if y and dqkv in `found` differ from those in `expected` only by rounding.
    fn differ_only_by_rounding(&self, expected: &[f32], found: &[f32]) -> bool {
        let rows = (self.sizes.windows * self.sizes.context) as usize;
        let (width, wide) = (self.sizes.width() as usize, self.sizes.wide() as usize);
        if expected.len() != found.len() || expected.len() != rows * (width + wide) {
            return false;
        }
        let kv = (wide - width) / 2;
        let parts = [(0, width, 0..width), (rows * width, wide, 0..width)]
            .into_iter()
            .chain([width..width + kv, width + kv..wide].map(|columns| (rows * width, wide, columns)));
        parts.into_iter().all(|(first, stride, columns)| {
            let rows_of = |all: &[f32]| -> Vec<Vec<f32>> {
                let rows = all[first..][..rows * stride].chunks(stride);
                rows.map(|row| row[columns.clone()].to_vec()).collect()
            };
            near(&rows_of(expected), &rows_of(found))
        })
    }
}

impl Sizes {
    /// Returns the values in a row of y, C = H · D.
    fn width(self) -> u32 {
        self.heads * self.head
    }

    /// Returns the number of values in a row of qkv.
    fn wide(self) -> u32 {
        self.width() + 2 * self.kv_heads * self.head
    }
}

/// Returns true if the rows in `found` equal those in `expected` within [`ERROR_MAX`] in total and [`ROW_ERROR_MAX`]
/// each.
fn near(expected: &[Vec<f32>], found: &[Vec<f32>]) -> bool {
    let squares = |row: &[f32]| row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
    let errors: Vec<f64> = expected
        .iter()
        .zip(found)
        .map(|(a, b)| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum())
        .collect();
    let sizes: Vec<f64> = expected.iter().map(|row| squares(row)).collect();
    let (error, size) = (errors.iter().sum::<f64>(), sizes.iter().sum::<f64>());
    let mean = size / sizes.len().max(1) as f64;
    let row_is_near = |(error, size): (&f64, &f64)| error.sqrt() <= ROW_ERROR_MAX * size.max(mean).sqrt();
    error.sqrt() <= ERROR_MAX * size.sqrt() && errors.iter().zip(&sizes).all(row_is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_accepts_only_rounding_errors() {
        let rows = |last: f32| vec![vec![1.0, -2.0], vec![3.0, 0.5], vec![0.01, last]];
        let expected = rows(0.02);
        assert!(near(&expected, &rows(0.02)) && near(&expected, &rows(0.021)));
        for last in [0.2, f32::NAN, f32::INFINITY] {
            assert!(!near(&expected, &rows(last)), "{last}");
        }
        let mut scaled = expected.clone();
        scaled.iter_mut().flatten().for_each(|value| *value *= 1.006);
        assert!(!near(&expected, &scaled), "all of it a little off");
        scaled = expected.clone();
        scaled[0][0] = -1.0;
        assert!(!near(&expected, &scaled));
    }
}
