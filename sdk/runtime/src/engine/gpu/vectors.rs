//! Vectors of one value for each parameter, on the device, and their way there and back.

use archipelago_core::bytes::copy_f32s;

use super::Gpu;
use super::arena::Arena;
use super::error::GpuError;
use super::moments::Moments;
use super::program::buffer;
use super::ring::Ring;

/// Values that are read back at a time.
const PIECE: usize = 1 << 20;

/// Parameters and what belongs to each of them; one buffer for each chunk.
#[derive(Debug)]
pub struct Vectors {
    /// θ.
    pub theta: Vec<wgpu::Buffer>,
    /// Gradient.
    pub grad: Vec<wgpu::Buffer>,
    /// Moments.
    pub moments: Moments,
    /// θ as 16-bit floats, where the matrix products take it so.
    pub half: Option<Vec<wgpu::Buffer>>,
}

impl Vectors {
    /// All zero: moments in halves if `halves`, and θ as 16-bit floats too if `half`.
    pub fn new(gpu: &Gpu, arena: &Arena, halves: bool, half: bool) -> Self {
        let vector = |label| arena.vector(gpu, label);
        Self {
            theta: vector("theta"),
            grad: vector("grad"),
            moments: Moments::new(gpu, arena, halves),
            half: half.then(|| {
                arena.chunks().iter().map(|chunk| buffer(gpu, "half", chunk.len as u64 / 2)).collect()
            }),
        }
    }

    /// Bytes of the device that [`Self::new`] takes.
    pub fn bytes(arena: &Arena, halves: bool, half: bool) -> u64 {
        let half = if half { arena.bytes() / 2 } else { 0 };
        (2 + Moments::words(halves)) * arena.bytes() + half
    }
}

/// Writes `flat`, `[len]`, to `vector`.
pub fn upload(gpu: &Gpu, arena: &Arena, vector: &[wgpu::Buffer], flat: &[f32]) {
    for run in arena.runs(0..flat.len()) {
        gpu.write(&run.slice(vector), &flat[run.flat]);
    }
}

/// Reads `vector` back, `[len]`.
///
/// # Errors
/// - [`GpuError::Lost`]: the device is gone.
pub async fn download(
    gpu: &Gpu,
    arena: &Arena,
    vector: &[wgpu::Buffer],
    len: usize,
) -> Result<Vec<f32>, GpuError> {
    let mut flat = vec![0.0; len];
    let mut ring = Ring::new(gpu, "download", 1, PIECE as u64 * 4);
    let pieces = (0..len).step_by(PIECE).map(|first| first..len.min(first + PIECE));
    for run in pieces.flat_map(|piece| arena.runs(piece)) {
        ring.read(gpu, &[run.slice(vector)], ());
        ring.ready(gpu).await?;
        ring.next(gpu, |(), bytes| copy_f32s(bytes, &mut flat[run.flat.clone()]))?;
    }
    Ok(flat)
}
