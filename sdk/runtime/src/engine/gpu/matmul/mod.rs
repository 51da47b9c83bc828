//! Matrix products: the kernels, the kernel that computes each product, and its division into dispatches.

mod trial;

use serde::{Deserialize, Serialize};

use super::kernels::{self, KernelOf};
use super::program::{Builder, Constant, Dispatch, Slice, buffer};
use super::{Gpu, params};

pub use self::trial::Trial;
#[cfg(any(test, feature = "parity"))]
pub use trial::agrees;
pub use trial::{Choice, ChoiceError};

/// Form of a product: the orientation of its operands. All matrices are row-major; the length of a row is a multiple of
/// 4 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `C = A Bᵀ`: A `[m, k]`, B `[n, k]`. Between k and the next multiple of 4, both hold zeros.
    Nt,
    /// `C = A B`: A `[m, k]`, B `[k, n]`. Between k and the next multiple of 4, A holds zeros. A holds gradients.
    Nn,
    /// `C = Aᵀ B`: A `[k, m]`, B `[k, n]`. A holds gradients.
    Tn,
}

impl Form {
    /// All forms, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Nt, Self::Nn, Self::Tn];
}

/// Result stored in C.
#[derive(Clone, Debug)]
pub enum WriteMode {
    /// C is set to the product.
    Set,
    /// The product is added to C.
    Add,
    /// C is set to the sum of this slice and the product. Its rows are laid out as C's, in another buffer.
    Plus(Slice),
}

/// Storage form of weights, see `kernels/parts/frozen.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// 32-bit floats.
    Whole,
    /// 16-bit floats.
    Half,
    /// Codes of 8 bits with scales.
    Int8,
}

/// One product: C `[m, n]`, whose sums have k terms; m, n and k are at least 1.
#[derive(Clone, Debug)]
pub struct Product {
    /// Orientation of A and B.
    pub form: Form,
    /// Rows of C.
    pub m: u32,
    /// Columns of C. Columns up to the next multiple of 4 are overwritten with arbitrary values.
    pub n: u32,
    /// Terms of each sum.
    pub k: u32,
    /// Left operand.
    pub a: Slice,
    /// Stride of A's rows, in floats; a multiple of 4, like the other two strides.
    pub a_stride: u32,
    /// Right operand.
    pub b: Slice,
    /// Stride of B's rows, in values.
    pub b_stride: u32,
    /// Storage form of B: whole for [`Form::Tn`].
    pub b_values: Values,
    /// The result.
    pub c: Slice,
    /// Stride of C's rows, in floats.
    pub c_stride: u32,
    /// Treatment of C's existing values.
    pub store: WriteMode,
    /// First column of A and of C within their rows; multiples of 4.
    pub first: [u32; 2],
    /// Factor by which the product is multiplied.
    pub scale: f32,
}

/// Floating-point operations that any device does without a noticeable delay for its user.
const COST_MAX: u64 = 2_000_000_000;
/// Maximum duration of a dispatch on a device of known speed, in seconds.
const DISPATCH_S: f64 = 0.02;
/// Maximum factor on gradients. Even if only one value in that many counts, its gradient can still be rounded.
const GAIN_MAX: f32 = 32_768.0;
/// Room for partial sums.
const SCRATCH_BYTES: u64 = 8 << 20;

/// Fastest variant for products of one size, measured on a part of them if they are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Best {
    /// Number of values of C.
    pub area: u64,
    /// Fastest variant.
    pub variant: Variant,
}

/// Variants that compute the products of each form.
#[derive(Clone, Debug)]
pub struct Matmul {
    /// Indexed by the number of the form; no entry is empty. A few large tiles keep only a part of a device busy, and
    /// many small ones read more. So the fastest variant depends on the size of C.
    best: [Vec<Best>; 3],
    scratch: Option<Slice>,
    /// Whether B of [`Form::Nt`] and [`Form::Nn`] holds 16-bit floats.
    pub(super) half: bool,
    /// Floating-point operations of a dispatch; larger ones are split.
    pub(super) cost_max: u64,
    /// Rate of the slowest form, in 10⁹ floating-point operations per second; 0 if unknown.
    gflops: u32,
    /// Factor on gradients, and divisor of the sums, if 16-bit floats are multiplied.
    gain: f32,
    /// Whether attention uses matrix units too.
    pub(super) strips: bool,
}

impl Matmul {
    /// Uses `variant` for all products.
    pub fn fixed(variant: Variant) -> Self {
        Self::of(Form::ALL.map(|_| vec![Best { area: 1, variant }]))
    }

    /// Uses the best measured variants of each form.
    fn of(best: [Vec<Best>; 3]) -> Self {
        Self { best, scratch: None, half: false, cost_max: COST_MAX, gflops: 0, gain: 1.0, strips: false }
    }

    /// Returns a copy that uses `variant` for all products.
    fn with_all(&self, variant: Variant) -> Self {
        Self { best: Self::fixed(variant).best, ..self.clone() }
    }

    /// Sets the rate of the device, in 10⁹ floating-point operations per second. A fast device gets larger dispatches.
    fn at(mut self, gflops: u32) -> Self {
        self.gflops = gflops;
        self.cost_max = COST_MAX.max((f64::from(gflops) * 1e9 * DISPATCH_S) as u64);
        self
    }

    /// Adds 8 MiB for partial sums. Products with few rows and columns and many terms, such as the gradients of
    /// weights, then use the whole device.
    #[must_use]
    pub fn with_scratch(mut self, gpu: &Gpu) -> Self {
        self.scratch = Some(Slice::whole(&buffer(gpu, "partial sums", SCRATCH_BYTES / 4)));
        self
    }

    /// Applies [`Self::with_scratch`] if it pays. Any product already keeps the few cores of a CPU busy.
    fn suited(self, gpu: &Gpu) -> Self {
        if gpu.facts().software { self } else { self.with_scratch(gpu) }
    }

    /// Reads weights, B of [`Form::Nt`] and [`Form::Nn`], as 16-bit floats from `halve`, which halves the memory to
    /// read. Sums use 32 bits in either case.
    #[must_use]
    pub fn with_half_weights(mut self) -> Self {
        self.half = true;
        self
    }

    /// Enables or disables attention on matrix units.
    pub(super) fn with_strips(mut self, strips: bool) -> Self {
        self.strips = strips;
        self
    }

    /// See [`Self::for_means_of`].
    pub(super) fn gain(&self) -> f32 {
        self.gain
    }

    /// Adapts to gradients of a mean over `count` values, which are too small for 16-bit floats. If those are
    /// multiplied, gradients are scaled to their size for a single value. A power of two costs no precision.
    #[must_use]
    pub fn for_means_of(mut self, count: usize) -> Self {
        self.gain = (count.next_power_of_two() as f32).min(GAIN_MAX);
        self
    }

    /// Returns the device memory taken, in bytes.
    pub fn bytes(&self) -> u64 {
        self.scratch.as_ref().map_or(0, |scratch| scratch.bytes)
    }

    /// Returns true if it rounds the operands of a product to 16-bit floats.
    #[cfg(any(test, feature = "parity"))]
    pub(super) fn rounds(&self, form: Form, m: u32, n: u32) -> bool {
        self.variant(form, m, n).is_half()
    }

    /// Returns the fastest variant for the size nearest to `m` × `n`.
    pub(super) fn variant(&self, form: Form, m: u32, n: u32) -> Variant {
        let area = u64::from(m) * u64::from(n);
        let times = |best: &&Best| best.area.max(area) as f64 / best.area.min(area).max(1) as f64;
        let nearest = self.best[form as usize].iter().min_by(|a, b| times(a).total_cmp(&times(b)));
        nearest.expect("each form has one").variant
    }

    /// Adds the dispatches that compute `product`: one, or several by rows if it is large, plus one if its sums are
    /// split.
    pub fn add(&self, builder: &mut Builder, product: Product) {
        let Product { form, m, n, k, .. } = product;
        match (&self.scratch, self.variant(form, m, n).depth(m, n, k)) {
            (Some(scratch), depth) if depth < k => {
                let c_stride = n.next_multiple_of(4);
                let partial = Product {
                    c: scratch.clone(),
                    c_stride,
                    store: WriteMode::Set,
                    first: [product.first[0], 0],
                    scale: 1.0,
                    ..product.clone()
                };
                self.multiply(builder, partial, depth);
                sum(builder, product, scratch, k.div_ceil(depth));
            }
            _ => self.multiply(builder, product, k.next_multiple_of(16)),
        }
    }

    /// Adds `product` in sums of `depth` terms, one matrix C after another.
    fn multiply(&self, builder: &mut Builder, product: Product, depth: u32) {
        let variant = self.variant(product.form, product.m, product.n);
        let Product { form, m, n, k, a_stride, b_stride, b_values, c_stride, scale, .. } = product;
        let Product { a, b, c, store, first: [a_first, c_first], .. } = product;
        debug_assert!(
            [a_stride, b_stride, c_stride, a_first, c_first].iter().all(|stride| stride % 4 == 0),
            "strides"
        );
        let gain = if form == Form::Nt { 1.0 } else { self.gain };
        let (store, residual) = stored(store);
        debug_assert!(
            form != Form::Tn || b_values == Values::Whole,
            "only weights are stored in other formats"
        );
        let shared = vec![("FORM", form as u32), ("STORE", store), ("VALUES", b_values as u32)];
        let constants = [shared, variant.constants()].concat();
        let storage = vec![a.clone(), b.clone(), b, residual.unwrap_or(a), c];
        let [tile_rows, tile_columns] = variant.tile();
        let row_cost = 2 * u64::from(n) * u64::from(k);
        let tiles_max = (self.cost_max / (row_cost * u64::from(tile_rows)).max(1)).max(1);
        let rows_max = u64::from(tile_rows).saturating_mul(tiles_max).min(u64::from(u32::MAX)) as u32;
        for row in (0..m).step_by(rows_max as usize) {
            let rows = rows_max.min(m - row);
            builder.add(Dispatch {
                call: variant.kernel().with(params::Product {
                    m,
                    n,
                    k,
                    a_stride: a_stride / 4,
                    b_stride: b_stride / 4,
                    c_stride: c_stride / 4,
                    row,
                    depth,
                    a_first: a_first / 4,
                    c_first: c_first / 4,
                    scale,
                    gain,
                }),
                constants: constants.clone(),
                storage: storage.clone(),
                groups: [n.div_ceil(tile_columns), rows.div_ceil(tile_rows), k.div_ceil(depth)],
                cost: row_cost * u64::from(rows),
            });
        }
    }
}

/// Returns the number of `store` in the kernels, and the slice to add.
fn stored(store: WriteMode) -> (u32, Option<Slice>) {
    match store {
        WriteMode::Set => (0, None),
        WriteMode::Add => (1, None),
        WriteMode::Plus(residual) => (2, Some(residual)),
    }
}

/// Adds a dispatch that sums the `count` partial products in `partial`.
fn sum(builder: &mut Builder, product: Product, partial: &Slice, count: u32) {
    const WORKGROUP: u32 = 64;
    let Product { m, n, c, c_stride, store, first: [_, c_first], scale, .. } = product;
    let (store, residual) = stored(store);
    let quads = n.div_ceil(4);
    let residual = residual.unwrap_or_else(|| partial.clone());
    builder.add(Dispatch {
        call: kernels::MATMUL_SUM.with(params::Product {
            m,
            n,
            k: count,
            a_stride: quads,
            b_stride: 0,
            c_stride: c_stride / 4,
            row: 0,
            depth: 0,
            a_first: 0,
            c_first: c_first / 4,
            scale,
            gain: 1.0,
        }),
        constants: vec![("STORE", store), ("WG", WORKGROUP)],
        storage: vec![partial.clone(), partial.clone(), partial.clone(), residual, c],
        groups: [(m * quads).div_ceil(WORKGROUP).min(1024), 1, 1],
        cost: u64::from(count) * u64::from(m) * u64::from(n),
    });
}

/// Number of workgroups that keep a device busy; a product with fewer is split along k.
const GROUPS_MIN: u32 = 256;
/// Minimum number of terms in a partial sum, because writing and reading one takes as long as a few terms.
const DEPTH_MIN: u32 = 256;

/// A kernel with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// 4 × 4 values of C in the registers of an invocation.
    Register4,
    /// 8 × 8 values of C in the registers of an invocation.
    Register8,
    /// 8 × 16 values of C in the registers of an invocation.
    Register8x16,
    /// 64 × 64 values of C for a workgroup of 64 invocations; operands pass through workgroup memory.
    Tile64,
    /// 128 × 128 values of C for a workgroup of 256 invocations; operands pass through workgroup memory.
    Tile128,
    /// 64 × 64 values of C for four subgroups on the device's matrix units, which take 16-bit floats and sum in 32
    /// bits.
    Matrix64,
    /// 128 × 128 values of C on the matrix units.
    Matrix128,
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 7] = [
        Self::Register8x16,
        Self::Register8,
        Self::Register4,
        Self::Tile64,
        Self::Tile128,
        Self::Matrix64,
        Self::Matrix128,
    ];

    fn kernel(self) -> KernelOf<params::Product> {
        match self {
            Self::Register4 | Self::Register8 | Self::Register8x16 => kernels::MATMUL_REGISTER,
            Self::Tile64 | Self::Tile128 => kernels::MATMUL_TILE,
            Self::Matrix64 | Self::Matrix128 => kernels::MATMUL_MATRIX,
        }
    }

    fn constants(self) -> Vec<Constant> {
        match self {
            Self::Register4 => vec![("DOWN", 1), ("ACROSS", 1), ("WG", 8)],
            Self::Register8 => vec![("DOWN", 2), ("ACROSS", 2), ("WG", 8)],
            Self::Register8x16 => vec![("DOWN", 2), ("ACROSS", 4), ("WG", 8)],
            Self::Tile64 => vec![("WG", 8)],
            Self::Tile128 => vec![("WG", 16)],
            Self::Matrix64 => vec![("COUNT", 2)],
            Self::Matrix128 => vec![("COUNT", 4)],
        }
    }

    /// Returns the variants worth trying on `gpu`. Tiles in workgroup memory only slow down a software GPU.
    pub fn suitable(gpu: &Gpu) -> impl Iterator<Item = Self> {
        let facts = gpu.facts();
        let (tiled, matrices) = (!facts.software, gpu.has_matrices());
        Self::ALL.into_iter().filter(move |variant| match variant {
            Self::Register4 | Self::Register8 | Self::Register8x16 => true,
            Self::Tile64 | Self::Tile128 => tiled,
            Self::Matrix64 | Self::Matrix128 => matrices,
        })
    }

    /// Returns true if it multiplies 16-bit floats.
    pub(super) fn is_half(self) -> bool {
        matches!(self, Self::Matrix64 | Self::Matrix128)
    }

    /// Returns the rows and columns of C in a workgroup.
    fn tile(self) -> [u32; 2] {
        match self {
            Self::Register4 => [32, 32],
            Self::Register8 | Self::Tile64 | Self::Matrix64 => [64, 64],
            Self::Register8x16 => [64, 128],
            Self::Tile128 | Self::Matrix128 => [128, 128],
        }
    }

    /// Returns the number of terms in a partial sum. It depends only on the shape, and so do the bits of a product.
    fn depth(self, m: u32, n: u32, k: u32) -> u32 {
        let [rows, columns] = self.tile();
        let groups = u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns));
        let fit = SCRATCH_BYTES / (u64::from(m) * u64::from(n.next_multiple_of(4)) * 4).max(1);
        let splits = (u64::from(GROUPS_MIN) / groups.max(1)).min(u64::from(k / DEPTH_MIN)).min(fit).max(1);
        k.div_ceil(splits as u32).next_multiple_of(16)
    }
}
