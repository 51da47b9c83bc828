//! Matrix products: the choice of a kernel for each product, and the division of a product into dispatches.

mod trial;

use serde::{Deserialize, Serialize};

use super::kernels::{self, KernelOf};
use super::program::{Builder, Constant, Dispatch, Slice, buffer};
use super::{Gpu, params};

pub use self::trial::Trial;
#[cfg(any(test, feature = "parity"))]
pub use trial::agrees;
pub use trial::{Choice, ChoiceError};

/// Form of a product: which operands are transposed. All matrices are row-major, and their row lengths are multiples of
/// 4 values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `C = A Bᵀ`, A `[m, k]`, B `[n, k]`. From column k to the next multiple of 4, A and B must hold zeros.
    Nt,
    /// `C = A B`, A `[m, k]`, B `[k, n]`. From column k to the next multiple of 4, A must hold zeros. A holds
    /// gradients.
    Nn,
    /// `C = Aᵀ B`, A `[k, m]`, B `[k, n]`. A holds gradients.
    Tn,
}

impl Form {
    /// All forms, by the number that kernels use.
    pub const ALL: [Self; 3] = [Self::Nt, Self::Nn, Self::Tn];
}

/// Way to store a product in C.
#[derive(Clone, Debug)]
pub enum WriteMode {
    /// C is set to the product.
    Set,
    /// The product is added to C.
    Add,
    /// C is set to the sum of this slice and the product. The slice has C's layout and lies in another buffer.
    Plus(Slice),
}

/// Number format of weights; see `kernels/parts/frozen.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// 32-bit floats.
    Whole,
    /// 16-bit floats.
    Half,
    /// 8-bit codes with scales.
    Int8,
}

/// One matrix product. C is `[m, n]`, and each of its values is a sum of k terms; m, n and k are at least 1.
#[derive(Clone, Debug)]
pub struct Product {
    /// Which operands are transposed.
    pub form: Form,
    /// Rows of C.
    pub m: u32,
    /// Columns of C. Columns from n to the next multiple of 4 are overwritten with arbitrary values.
    pub n: u32,
    /// Terms of each sum.
    pub k: u32,
    /// Left operand.
    pub a: Slice,
    /// Stride of A's rows in values: a multiple of 4, like the other two strides.
    pub a_stride: u32,
    /// Right operand.
    pub b: Slice,
    /// Stride of B's rows, in values.
    pub b_stride: u32,
    /// Number format of B. It is [`Values::Whole`] for [`Form::Tn`].
    pub b_values: Values,
    /// The result.
    pub c: Slice,
    /// Stride of C's rows, in values.
    pub c_stride: u32,
    /// Treatment of the previous values of C.
    pub store: WriteMode,
    /// First columns of A and of C within their rows; multiples of 4.
    pub first: [u32; 2],
    /// Factor on the product.
    pub scale: f32,
}

/// Number of floating-point operations that do not delay a device's other users noticeably, on any device.
const COST_MAX: u64 = 2_000_000_000;
/// Maximum duration of a dispatch on a device of known speed, in seconds.
const DISPATCH_S: f64 = 0.02;
/// Maximum factor on gradients. Even if only one token of a batch is a target, its gradient times this factor does not
/// overflow a 16-bit float.
const GAIN_MAX: f32 = 32_768.0;
/// Size of the buffer for partial sums, in bytes.
const SCRATCH_BYTES: u64 = 8 << 20;

/// Fastest variant for products of one size. Large products were measured in part.
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
    /// Fastest variants by form and size of C; at least one per form. A few large tiles keep only a part of a device
    /// busy, and many small tiles read more memory. So the fastest variant depends on the size of C.
    best: [Vec<Best>; 3],
    scratch: Option<Slice>,
    /// Whether B is in 16-bit floats for [`Form::Nt`] and [`Form::Nn`].
    pub(super) half: bool,
    /// Maximum number of floating-point operations in a dispatch; larger products are split.
    pub(super) cost_max: u64,
    /// Speed of the slowest form, in 10⁹ floating-point operations per second; 0 if unknown.
    gflops: u32,
    /// Factor on gradients before they are rounded to 16-bit floats. The sums are divided by it.
    gain: f32,
    /// Whether attention uses matrix units.
    pub(super) strips: bool,
}

impl Matmul {
    /// Creates an instance that uses `variant` for all products.
    pub fn fixed(variant: Variant) -> Self {
        Self::of(Form::ALL.map(|_| vec![Best { area: 1, variant }]))
    }

    /// Creates an instance that uses the measured variants in `best`.
    fn of(best: [Vec<Best>; 3]) -> Self {
        Self { best, scratch: None, half: false, cost_max: COST_MAX, gflops: 0, gain: 1.0, strips: false }
    }

    /// Returns a copy that uses `variant` for all products.
    fn with_all(&self, variant: Variant) -> Self {
        Self { best: Self::fixed(variant).best, ..self.clone() }
    }

    /// Sets the speed of the device, in 10⁹ floating-point operations per second. A faster device gets larger
    /// dispatches.
    fn at(mut self, gflops: u32) -> Self {
        self.gflops = gflops;
        self.cost_max = COST_MAX.max((f64::from(gflops) * 1e9 * DISPATCH_S) as u64);
        self
    }

    /// Allocates a buffer for partial sums. Products with few rows and columns and many terms, such as weight
    /// gradients, then use the whole device.
    #[must_use]
    pub fn with_scratch(mut self, gpu: &Gpu) -> Self {
        self.scratch = Some(Slice::whole(&buffer(gpu, "partial sums", SCRATCH_BYTES / 4)));
        self
    }

    /// Calls [`Self::with_scratch`], except on a software GPU, where every product keeps the few cores busy.
    fn suited(self, gpu: &Gpu) -> Self {
        if gpu.facts().software { self } else { self.with_scratch(gpu) }
    }

    /// Reads weights (B of [`Form::Nt`] and [`Form::Nn`]) as 16-bit floats written by the kernel `halve`, which halves
    /// the memory traffic. Sums use 32 bits in either case.
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

    /// Returns the factor on gradients, see [`Self::for_means_of`].
    pub(super) fn gain(&self) -> f32 {
        self.gain
    }

    /// Sets the factor on gradients for a loss that is the mean over `count` tokens. Such gradients are too small for
    /// 16-bit floats. The factor, a power of two, scales them to their size for a single token without rounding.
    #[must_use]
    pub fn for_means_of(mut self, count: usize) -> Self {
        self.gain = (count.next_power_of_two() as f32).min(GAIN_MAX);
        self
    }

    /// Returns the device memory of the partial sums, in bytes.
    pub fn bytes(&self) -> u64 {
        self.scratch.as_ref().map_or(0, |scratch| scratch.bytes)
    }

    /// Returns true if a product of this form and size rounds its operands to 16-bit floats.
    #[cfg(any(test, feature = "parity"))]
    pub(super) fn rounds(&self, form: Form, m: u32, n: u32) -> bool {
        self.variant(form, m, n).is_half()
    }

    /// Returns the variant that was fastest for the measured size nearest to `m` × `n`.
    pub(super) fn variant(&self, form: Form, m: u32, n: u32) -> Variant {
        let area = u64::from(m) * u64::from(n);
        let times = |best: &&Best| best.area.max(area) as f64 / best.area.min(area).max(1) as f64;
        let nearest = self.best[form as usize].iter().min_by(|a, b| times(a).total_cmp(&times(b)));
        nearest.expect("each form has one").variant
    }

    /// Adds the dispatches that compute `product`. A large product is split by rows; a product with split sums ends
    /// with a dispatch that adds the partial sums.
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

    /// Adds dispatches that compute `product` in partial sums of `depth` terms. If there are several partial sums, each
    /// is a matrix of its own, one after the other in C.
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

/// Returns the number of `store` in the kernels, and the slice of [`WriteMode::Plus`].
fn stored(store: WriteMode) -> (u32, Option<Slice>) {
    match store {
        WriteMode::Set => (0, None),
        WriteMode::Add => (1, None),
        WriteMode::Plus(residual) => (2, Some(residual)),
    }
}

/// Adds a dispatch that sums `count` matrices of partial sums in `partial` to the C of `product`.
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

/// Number of workgroups that keep a device busy. The sums of a product with fewer are split.
const GROUPS_MIN: u32 = 256;
/// Minimum number of terms in a partial sum. Fewer terms take less time than writing and reading the partial sum.
const DEPTH_MIN: u32 = 256;

/// Variant: a kernel with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// An invocation computes 4 × 4 values of C in registers.
    Register4,
    /// An invocation computes 8 × 8 values of C in registers.
    Register8,
    /// An invocation computes 8 × 16 values of C in registers.
    Register8x16,
    /// A workgroup of 64 invocations computes 64 × 64 values of C, with operands in workgroup memory.
    Tile64,
    /// A workgroup of 256 invocations computes 128 × 128 values of C, with operands in workgroup memory.
    Tile128,
    /// Four subgroups compute 64 × 64 values of C on matrix units, from 16-bit operands with 32-bit sums.
    Matrix64,
    /// Four subgroups compute 128 × 128 values of C on matrix units.
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

    /// Returns the variants worth trying on `gpu`. On a software GPU, tiles in workgroup memory only cost time.
    pub fn candidates(gpu: &Gpu) -> impl Iterator<Item = Self> {
        let facts = gpu.facts();
        let (tiled, matrices) = (!facts.software, gpu.has_matrices());
        Self::ALL.into_iter().filter(move |variant| match variant {
            Self::Register4 | Self::Register8 | Self::Register8x16 => true,
            Self::Tile64 | Self::Tile128 => tiled,
            Self::Matrix64 | Self::Matrix128 => matrices,
        })
    }

    /// Returns true if the variant multiplies 16-bit floats.
    pub(super) fn is_half(self) -> bool {
        matches!(self, Self::Matrix64 | Self::Matrix128)
    }

    /// Returns the rows and columns of C that a workgroup computes.
    fn tile(self) -> [u32; 2] {
        match self {
            Self::Register4 => [32, 32],
            Self::Register8 | Self::Tile64 | Self::Matrix64 => [64, 64],
            Self::Register8x16 => [64, 128],
            Self::Tile128 | Self::Matrix128 => [128, 128],
        }
    }

    /// Returns the number of terms in a partial sum. It depends only on variant and shape, so the bits of a product do
    /// too.
    fn depth(self, m: u32, n: u32, k: u32) -> u32 {
        let [rows, columns] = self.tile();
        let groups = u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns));
        let fit = SCRATCH_BYTES / (u64::from(m) * u64::from(n.next_multiple_of(4)) * 4).max(1);
        let splits = (u64::from(GROUPS_MIN) / groups.max(1)).min(u64::from(k / DEPTH_MIN)).min(fit).max(1);
        k.div_ceil(splits as u32).next_multiple_of(16)
    }
}
