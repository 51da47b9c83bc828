//! Whether attention on units for matrices is right on a device, before it is used there.

use archipelago_core::bytes::to_f32s;

use super::{Attention, Bands, Pass};
use crate::engine::gpu::program::{Builder, Dispatch, Slice, buffer};
use crate::engine::gpu::ring::Ring;
use crate::engine::gpu::{Gpu, GpuError, kernels, params};

/// Across the edges of strips and blocks, with heads that share keys.
const SIZES: params::Attention = params::Attention { windows: 2, context: 77, heads: 4, kv_heads: 2 };
const HEAD: u32 = 64;
const ROWS: u32 = SIZES.windows * SIZES.context;
const WIDTH: u32 = SIZES.heads * HEAD;
const WIDE: u32 = WIDTH + 2 * SIZES.kv_heads * HEAD;
/// Most that a value may be off, where values are about 1 and 16-bit floats keep 11 bits of what is summed.
const ERROR_MAX: f32 = 4e-3;

/// Whether attention on units for matrices gives on `gpu` what that on 32-bit floats gives, within rounding.
///
/// # Errors
/// [`GpuError::Lost`] and [`GpuError::Refused`].
pub async fn agrees(gpu: &Gpu) -> Result<bool, GpuError> {
    let (qkv, dy) = (noise(gpu, ROWS * WIDE), noise(gpu, ROWS * WIDTH));
    let mut found = Vec::new();
    for attention in
        [Attention::Bands(Bands::new(HEAD, SIZES.context, false)), Attention::Strips { head: HEAD }]
    {
        let make = |values: u32| Slice::whole(&buffer(gpu, "proof", u64::from(values)));
        let (y, lse, dots) = (make(ROWS * WIDTH), make(ROWS * SIZES.heads), make(ROWS * SIZES.heads));
        let dqkv = make(ROWS * WIDE);
        let mut builder = Builder::default();
        let storage = [&qkv, &y, &lse].map(Slice::clone).to_vec();
        builder.add(attention.dispatch(Pass::Forward, SIZES, 1024.0, storage, 1));
        let call =
            kernels::ATTENTION_DOTS.with(params::AttentionDots { rows: ROWS * SIZES.heads, quads: HEAD / 4 });
        let storage = vec![y.clone(), dy.clone(), dots.clone()];
        let (constants, groups) = (vec![("WG", 64)], [1, 1, 1]);
        builder.add(Dispatch { call, constants, storage, groups, cost: 1 });
        for pass in [Pass::Queries, Pass::Keys] {
            let storage = [&qkv, &dy, &lse, &dots, &dqkv].map(Slice::clone).to_vec();
            builder.add(attention.dispatch(pass, SIZES, 1024.0, storage, 1));
        }
        builder.build(gpu).submit(gpu, u64::MAX);
        let mut ring = Ring::new(gpu, "proof", 1, y.bytes + dqkv.bytes);
        ring.read(gpu, &[y, dqkv], ());
        ring.ready(gpu).await?;
        found.push(ring.next(gpu, |(), bytes| to_f32s(bytes))?.unwrap_or_default());
    }
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= ERROR_MAX * a.abs().max(1.0);
    Ok(found[0].len() == found[1].len() && found[0].iter().zip(&found[1]).all(near))
}

/// `len` numbers between −1 and 1 that 16-bit floats have exactly.
fn noise(gpu: &Gpu, len: u32) -> Slice {
    let value = |i: u32| (i.wrapping_add(len).wrapping_mul(2_654_435_761) >> 24) as f32 / 128.0 - 1.0;
    let values: Vec<f32> = (0..len).map(value).collect();
    let slice = Slice::whole(&buffer(gpu, "proof", u64::from(len)));
    gpu.write(&slice, &values);
    slice
}
