//! Kernels of attention, and the division of their work.

mod proof;

pub use self::proof::{agrees, wins};
use super::kernels;
use super::params;
use super::program::{Constant, Dispatch, Slice};

/// Rows of a head in a workgroup on matrix units.
const SIDE: u32 = 64;
/// Maximum number of workgroups in a dimension.
const GROUPS_MAX: u32 = 65_535;

/// Lanes of a workgroup in which a band has several lanes: a subgroup on most devices, which needs no barrier with
/// others.
const LANES: u32 = 32;

/// Part of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Attention, from qkv to y and lse.
    Forward,
    /// Gradient of the queries, from qkv, dy, lse and dots to dqkv.
    Queries,
    /// Gradient of keys and values.
    Keys,
}

/// Sizes of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// B.
    pub windows: u32,
    /// T.
    pub context: u32,
    /// H.
    pub heads: u32,
    /// K.
    pub kv_heads: u32,
    /// D, a multiple of 4 up to 256.
    pub head: u32,
}

/// The kernels of attention.
#[derive(Clone, Copy, Debug)]
pub enum Attention {
    /// On 32-bit floats.
    Bands(Bands),
    /// On matrix units, for heads of 16, 32, 48 or 64 values: see `kernels/parts/strips.wgsl`.
    Strips,
}

impl Attention {
    /// Chooses kernels for `sizes`. With `strips`, matrix units may be used if there are kernels for heads of that
    /// width.
    pub fn new(sizes: Sizes, software: bool, strips: bool) -> Self {
        if strips && sizes.suit_strips() {
            return Self::Strips;
        }
        Self::Bands(Bands::new(sizes.head, sizes.context, software))
    }

    /// Returns the dispatches of `pass` over `storage`, the buffers of its kernel, each of about `cost_max`
    /// floating-point operations. `gain` is a power of two by which gradients can be multiplied without overflow as
    /// 16-bit floats.
    pub fn dispatches(
        self,
        pass: Pass,
        sizes: Sizes,
        gain: f32,
        storage: &[Slice],
        cost_max: u64,
    ) -> impl Iterator<Item = Dispatch> {
        let Sizes { windows, context, heads, kv_heads, head } = sizes;
        let divided = if pass == Pass::Keys { kv_heads } else { heads };
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
                        Pass::Forward => kernels::ATTENTION,
                        Pass::Queries => kernels::ATTENTION_GRAD_Q,
                        Pass::Keys => kernels::ATTENTION_GRAD_KV,
                    };
                    let params = params::Attention { windows, context, heads, kv_heads, first, end };
                    (kernel.with(params), bands.constants())
                }
                Self::Strips => {
                    let kernel = match pass {
                        Pass::Forward => kernels::ATTENTION_MATRIX,
                        Pass::Queries => kernels::ATTENTION_MATRIX_GRAD_Q,
                        Pass::Keys => kernels::ATTENTION_MATRIX_GRAD_KV,
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

    /// Returns the floating-point operations: two for each product of values of a query with those of a visible key.
    fn cost(self, pass: Pass, sizes: Sizes) -> u64 {
        let products = match (self, pass) {
            (Self::Bands(_), Pass::Forward) => 2,
            // The keys are read twice.
            (Self::Strips, Pass::Forward) | (_, Pass::Queries) => 3,
            (_, Pass::Keys) => 4,
        };
        let Sizes { windows, context, heads, head, .. } = sizes;
        [windows, context, context, heads, head].into_iter().map(u64::from).product::<u64>() * products
    }
}

impl Sizes {
    /// Returns true if there are kernels on matrix units.
    fn suit_strips(self) -> bool {
        self.head.is_multiple_of(16) && self.head <= 64
    }
}

/// Values of the overrides of `kernels/parts/bands.wgsl`.
#[derive(Clone, Copy, Debug)]
pub struct Bands {
    /// D / 4.
    pub head: u32,
    /// Lanes of a band.
    pub lanes: u32,
    /// Rows in a block.
    pub keys: u32,
    /// Bands of a head in a workgroup.
    pub bands: u32,
    /// Heads in a workgroup.
    pub heads: u32,
}

impl Bands {
    /// Chooses values for heads of width `head`, a multiple of 4 up to 256, and windows of `context` tokens.
    fn new(head: u32, context: u32, software: bool) -> Self {
        let head = head / 4;
        if software {
            // Barriers are expensive there, and neighbours gain nothing from reading the same keys.
            return Self { head, lanes: 1, keys: 32, bands: 1, heads: 8 };
        }
        // A wide head has a subgroup for each band, whose lanes take several quads each.
        let lanes = head.min(LANES);
        let slots = LANES / lanes;
        let bands = slots.min(context.div_ceil(8));
        Self { head, lanes, keys: 4 * lanes, bands, heads: slots / bands }
    }

    /// Returns the overrides.
    fn constants(self) -> Vec<Constant> {
        let Self { head, lanes, keys, bands, heads } = self;
        vec![("HEAD", head), ("LANES", lanes), ("KEYS", keys), ("BANDS", bands), ("HEADS", heads)]
    }

    /// Returns the number of workgroups with work, for `heads` heads, of queries or of keys, in each of `windows`
    /// windows.
    fn units(self, windows: u32, heads: u32, context: u32) -> u32 {
        (windows * heads).div_ceil(self.heads) * context.div_ceil(8 * self.bands)
    }
}
