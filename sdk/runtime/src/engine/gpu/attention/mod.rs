//! Which kernels compute attention, and how they divide their work.

mod proof;

pub use self::proof::agrees;
use super::kernels::{self, Call};
use super::params;
use super::program::{Constant, Dispatch, Slice};

/// Rows of a head that a workgroup with units for matrices has.
const SIDE: u32 = 64;
/// Most workgroups in a dimension.
const GROUPS_MAX: u32 = 65_535;

/// Lanes of a workgroup where a band has several: those of a subgroup on most devices, which wait for nobody else.
const LANES: u32 = 32;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Attention, from qkv to y and lse.
    Forward,
    /// The queries' part of the gradient, from qkv, dy, lse and dots to dqkv.
    Queries,
    /// The keys' and values' part.
    Keys,
}

/// The kernels of attention.
#[derive(Clone, Copy, Debug)]
pub enum Attention {
    /// On 32-bit floats.
    Bands(Bands),
    /// On units for matrices, for heads of this width: see `kernels/parts/strips.wgsl`.
    Strips {
        /// D.
        head: u32,
    },
}

impl Attention {
    /// For heads of width `head`, a multiple of 4 up to 256, and windows of `context` tokens. `strips`: units for
    /// matrices may be used, where there are kernels for that width.
    pub fn new(head: u32, context: u32, software: bool, strips: bool) -> Self {
        if strips && head.is_multiple_of(16) && head <= 64 {
            return Self::Strips { head };
        }
        Self::Bands(Bands::new(head, context, software))
    }

    /// `pass` over `storage`, the buffers of its kernel. `gain` is a power of two that gradients can be multiplied by
    /// without becoming infinite as 16-bit floats.
    pub fn dispatch(
        self,
        pass: Pass,
        sizes: params::Attention,
        gain: f32,
        storage: Vec<Slice>,
        cost: u64,
    ) -> Dispatch {
        let params::Attention { windows, context, heads, kv_heads } = sizes;
        let divided = if pass == Pass::Keys { kv_heads } else { heads };
        let (call, constants, groups): (Call, _, _) = match self {
            Self::Bands(bands) => {
                let kernel = match pass {
                    Pass::Forward => kernels::ATTENTION,
                    Pass::Queries => kernels::ATTENTION_GRAD_Q,
                    Pass::Keys => kernels::ATTENTION_GRAD_KV,
                };
                (kernel.with(sizes), bands.constants(), bands.groups(windows, divided, context))
            }
            Self::Strips { head } => {
                let kernel = match pass {
                    Pass::Forward => kernels::ATTENTION_MATRIX,
                    Pass::Queries => kernels::ATTENTION_MATRIX_GRAD_Q,
                    Pass::Keys => kernels::ATTENTION_MATRIX_GRAD_KV,
                };
                let call = kernel.with(params::AttentionMatrix { windows, context, heads, kv_heads, gain });
                let units = windows * divided * context.div_ceil(SIDE);
                (call, vec![("HEAD", head / 4)], [units.min(GROUPS_MAX), 1, 1])
            }
        };
        Dispatch { call, constants, storage, groups, cost }
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
    /// For heads of width `head`, a multiple of 4 up to 256, and windows of `context` tokens.
    pub fn new(head: u32, context: u32, software: bool) -> Self {
        let head = head / 4;
        if software {
            // Barriers are dear there, and neighbours gain nothing from looking at the same keys.
            return Self { head, lanes: 1, keys: 32, bands: 1, heads: 8 };
        }
        // A wide head has a subgroup for each band, whose lanes take several quads each.
        let lanes = head.min(LANES);
        let slots = LANES / lanes;
        let bands = slots.min(context.div_ceil(8));
        Self { head, lanes, keys: 4 * lanes, bands, heads: slots / bands }
    }

    /// The overrides.
    pub fn constants(self) -> Vec<Constant> {
        let Self { head, lanes, keys, bands, heads } = self;
        vec![("HEAD", head), ("LANES", lanes), ("KEYS", keys), ("BANDS", bands), ("HEADS", heads)]
    }

    /// Workgroups for `heads` heads, of queries or of keys, in each of `windows` windows; as many as there is
    /// work for, if a dimension allows it.
    pub fn groups(self, windows: u32, heads: u32, context: u32) -> [u32; 3] {
        let units = (windows * heads).div_ceil(self.heads) * context.div_ceil(8 * self.bands);
        [units.min(GROUPS_MAX), 1, 1]
    }
}
