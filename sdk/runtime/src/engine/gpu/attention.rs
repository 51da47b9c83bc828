//! How the kernels of attention divide their work: see `kernels/parts/bands.wgsl`.

use super::program::Constant;

/// Lanes of a workgroup where a band has several: those of a subgroup on most devices, which wait for nobody else.
const LANES: u32 = 32;

/// Values of the overrides.
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
    /// For heads of width `head`, a multiple of 4 up to 128, and windows of `context` tokens.
    pub fn new(head: u32, context: u32, software: bool) -> Self {
        let head = head / 4;
        if software {
            // Barriers are dear there, and neighbours gain nothing from looking at the same keys.
            return Self { head, lanes: 1, keys: 32, bands: 1, heads: 8 };
        }
        let slots = LANES / head;
        let bands = slots.min(context.div_ceil(8));
        Self { head, lanes: head, keys: 4 * head, bands, heads: slots / bands }
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
        [units.min(65_535), 1, 1]
    }
}
