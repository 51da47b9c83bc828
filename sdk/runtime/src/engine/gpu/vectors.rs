//! Vectors with one value for each parameter, on the device, and their transfer.

use std::ops::Range;

use archipelago_core::bytes::copy_f32s;

use super::Gpu;
use super::arena::{Arena, Run};
use super::error::GpuError;
use super::moments::Moments;
use super::program::{Slice, buffer};
use super::ring::Ring;

/// Number of values read back at a time.
const PIECE: usize = 1 << 20;
/// Number of such pieces that the device copies while the host processes one.
const READ_AHEAD: usize = 3;

/// Parameters and their gradient and moments, with one buffer for each chunk.
#[derive(Debug)]
pub struct Vectors {
    /// θ.
    pub theta: Vec<wgpu::Buffer>,
    /// Gradient.
    pub grad: Vec<wgpu::Buffer>,
    /// Moments.
    pub moments: Moments,
    /// θ as 16-bit floats, if the matrix products read this form.
    pub half: Option<Vec<wgpu::Buffer>>,
}

impl Vectors {
    /// Allocates zeroed vectors: packed moments if `halves`, and θ as 16-bit floats too if `half`.
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

    /// Returns the device memory that [`Self::new`] takes, in bytes.
    pub fn bytes(arena: &Arena, halves: bool, half: bool) -> u64 {
        let half = if half { arena.bytes() / 2 } else { 0 };
        (2 + Moments::words(halves)) * arena.bytes() + half
    }
}

/// Writes `range` of `flat`, `[len]`, to the same range of `vector`.
pub fn upload(gpu: &Gpu, arena: &Arena, vector: &[wgpu::Buffer], range: Range<usize>, flat: &[f32]) {
    for run in arena.runs(range) {
        gpu.write(&run.slice(vector), &flat[run.flat]);
    }
}

/// Creates the ring in which [`read_into`] reads vectors of length `len`.
pub fn reader(gpu: &Gpu, len: usize) -> Ring<Vec<Run>> {
    Ring::new(gpu, "download", READ_AHEAD, len.clamp(1, PIECE) as u64 * 4)
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
    let whole = 0..len;
    read_into(gpu, arena, (vector, std::slice::from_ref(&whole)), &mut reader(gpu, len), &mut flat).await?;
    Ok(flat)
}

/// Reads `ranges` of `vector` back into the same ranges of `flat`, `[len]`. `ring` comes from [`reader`] for `len`.
///
/// # Errors
/// - [`GpuError::Lost`]: the device is gone.
pub async fn read_into(
    gpu: &Gpu,
    arena: &Arena,
    (vector, ranges): (&[wgpu::Buffer], &[Range<usize>]),
    ring: &mut Ring<Vec<Run>>,
    flat: &mut [f32],
) -> Result<(), GpuError> {
    let mut loads = loads(arena, ranges).into_iter();
    loop {
        while !ring.is_full()
            && let Some(load) = loads.next()
        {
            let slices: Vec<Slice> = load.iter().map(|run| run.slice(vector)).collect();
            ring.read(gpu, &slices, load);
        }
        if ring.is_empty() {
            return Ok(());
        }
        ring.ready(gpu).await?;
        ring.next(gpu, |load, bytes| take(&load, bytes, flat))?;
    }
}

/// Groups the pieces of `ranges` into loads that are read at once.
fn loads(arena: &Arena, ranges: &[Range<usize>]) -> Vec<Vec<Run>> {
    let mut loads: Vec<Vec<Run>> = Vec::new();
    let mut room = 0;
    let cut = ranges
        .iter()
        .flat_map(|range| range.clone().step_by(PIECE).map(|first| first..range.end.min(first + PIECE)));
    for run in cut.flat_map(|piece| arena.runs(piece)) {
        let len = run.flat.len();
        match loads.last_mut().filter(|_| len <= room) {
            Some(load) => load.push(run),
            None => {
                room = PIECE;
                loads.push(vec![run]);
            }
        }
        room -= len;
    }
    loads
}

/// Copies the bytes read for `load` into `flat`.
fn take(load: &[Run], mut bytes: &[u8], flat: &mut [f32]) {
    for run in load {
        let (own, rest) = bytes.split_at(run.flat.len() * 4);
        copy_f32s(own, &mut flat[run.flat.clone()]);
        bytes = rest;
    }
}
