//! Matrix products: the kernel that computes each, and its division into dispatches.

mod choice;
mod proof;
mod trial;
mod variant;

use serde::{Deserialize, Serialize};

pub use self::choice::{Choice, ChoiceError};
pub use self::proof::agrees;
pub use self::trial::Trial;
pub use self::variant::Variant;
use super::Gpu;
use super::kernels;
use super::params;
use super::program::{Builder, Dispatch, Slice, buffer};

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
pub enum Store {
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
    pub store: Store,
    /// First column of A and of C within their rows; multiples of 4.
    pub first: [u32; 2],
    /// Factor on the product.
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
                    store: Store::Set,
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
fn stored(store: Store) -> (u32, Option<Slice>) {
    match store {
        Store::Set => (0, None),
        Store::Add => (1, None),
        Store::Plus(residual) => (2, Some(residual)),
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
