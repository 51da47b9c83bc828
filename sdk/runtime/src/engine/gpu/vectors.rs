//! Vectors of one value for each parameter, on the device, and their way there and back.

use archipelago_core::bytes::copy_f32s;

use super::Gpu;
use super::arena::{Arena, Run};
use super::error::GpuError;
use super::program::{Slice, buffer};
use super::ring::Ring;
use crate::engine::OptimiserState;

/// Values that are read back at a time.
const PIECE: usize = 1 << 20;
/// Steps in which the moments are read back once.
const SWEEP_STEPS: usize = 128;
/// Fewest values of a piece of that.
const PIECE_MIN: usize = 1 << 12;

/// Parameters and what belongs to each of them; one buffer for each chunk.
#[derive(Debug)]
pub struct Vectors {
    /// θ.
    pub theta: Vec<wgpu::Buffer>,
    /// Gradient.
    pub grad: Vec<wgpu::Buffer>,
    /// First moment.
    pub m: Vec<wgpu::Buffer>,
    /// Second moment.
    pub v: Vec<wgpu::Buffer>,
    /// Θ̂.
    pub hat: Vec<wgpu::Buffer>,
    /// θ as 16-bit floats, where the matrix products take it so.
    pub half: Option<Vec<wgpu::Buffer>>,
}

impl Vectors {
    /// All zero.
    pub fn new(gpu: &Gpu, arena: &Arena, half: bool) -> Self {
        let vector = |label| arena.vector(gpu, label);
        Self {
            theta: vector("theta"),
            grad: vector("grad"),
            m: vector("m"),
            v: vector("v"),
            hat: vector("hat"),
            half: half.then(|| {
                arena.chunks().iter().map(|chunk| buffer(gpu, "half", chunk.len as u64 / 2)).collect()
            }),
        }
    }
}

/// Writes `flat`, `[len]`, to `vector`.
pub fn upload(gpu: &Gpu, arena: &Arena, vector: &[wgpu::Buffer], flat: &[f32]) {
    for run in arena.runs(0..flat.len()) {
        gpu.write(&slice(vector, &run), &flat[run.flat]);
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
        ring.read(gpu, &[slice(vector, &run)], ());
        ring.ready(gpu).await?;
        ring.next(gpu, |(), bytes| copy_f32s(bytes, &mut flat[run.flat.clone()]))?;
    }
    Ok(flat)
}

fn slice(vector: &[wgpu::Buffer], run: &Run) -> Slice {
    Slice {
        buffer: vector[run.chunk].clone(),
        start_byte: run.start as u64 * 4,
        bytes: run.flat.len() as u64 * 4,
    }
}

/// The moments in host memory, a little behind: a piece of them is read back after each step, so that a lost
/// device costs the optimiser [`SWEEP_STEPS`] steps of memory, not all of it.
#[derive(Debug)]
pub struct Shadow {
    moments: OptimiserState,
    pieces: Vec<Run>,
    next: usize,
    ring: Ring<Run>,
    /// Whether every piece was read at least once.
    whole: bool,
}

impl Shadow {
    /// Of moments that are `begun` with.
    pub fn new(gpu: &Gpu, arena: &Arena, begun: Option<OptimiserState>, len: usize) -> Self {
        let piece = len.div_ceil(SWEEP_STEPS).max(PIECE_MIN);
        let pieces = (0..len).step_by(piece).flat_map(|first| arena.runs(first..len.min(first + piece)));
        let whole = begun.is_some();
        let zeros = || OptimiserState::of_adamw(0, vec![0.0; len], vec![0.0; len]);
        Self {
            pieces: pieces.collect(),
            moments: begun.unwrap_or_else(zeros),
            next: 0,
            ring: Ring::new(gpu, "moments", 2, piece as u64 * 8),
            whole,
        }
    }

    /// After step `steps`: takes in what has come and asks for the next piece.
    ///
    /// # Errors
    /// - [`GpuError::Lost`]: the device is gone.
    pub fn follow(&mut self, gpu: &Gpu, vectors: &Vectors, steps: u64) -> Result<(), GpuError> {
        let moments = &mut self.moments;
        let mut take = |run: Run, bytes: &[u8]| {
            let (m, v) = bytes.split_at(run.flat.len() * 4);
            for (vector, bytes) in moments.vectors.iter_mut().zip([m, v]) {
                copy_f32s(bytes, &mut vector[run.flat.clone()]);
            }
        };
        while self.ring.next(gpu, &mut take)?.is_some() {}
        self.moments.steps = steps;
        if !self.ring.is_full() {
            let run = &self.pieces[self.next];
            self.ring.read(gpu, &[slice(&vectors.m, run), slice(&vectors.v, run)], run.clone());
            self.next = (self.next + 1) % self.pieces.len();
            self.whole |= self.next == 0;
        }
        Ok(())
    }

    /// What is known of them, if that is all of them.
    pub fn salvage(&self) -> Option<OptimiserState> {
        self.whole.then(|| self.moments.clone())
    }
}
