//! Vectors with one value for each parameter, on the device, and their transfer. The optimiser's moments are among
//! them.

use std::ops::Range;

use archipelago_core::bytes::{copy_f32s, from_f32s};

use super::Gpu;
use super::arena::{Arena, ChunkRange};
use super::error::GpuError;
use super::program::{Slice, buffer};
use super::ring::Ring;
use crate::engine::OptimiserState;
use crate::model::moments::{pack, unpack};

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
pub fn reader(gpu: &Gpu, len: usize) -> Ring<Vec<ChunkRange>> {
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
    ring: &mut Ring<Vec<ChunkRange>>,
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
fn loads(arena: &Arena, ranges: &[Range<usize>]) -> Vec<Vec<ChunkRange>> {
    let mut loads: Vec<Vec<ChunkRange>> = Vec::new();
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
fn take(load: &[ChunkRange], mut bytes: &[u8], flat: &mut [f32]) {
    for run in load {
        let (own, rest) = bytes.split_at(run.flat.len() * 4);
        copy_f32s(own, &mut flat[run.flat.clone()]);
        bytes = rest;
    }
}

/// Number of steps in which all moments are read back once.
const SWEEP_STEPS: usize = 128;
/// Minimum number of values in a piece of the read-back.
const PIECE_MIN: usize = 1 << 12;
/// Number of values written at a time.
const WRITTEN: usize = 1 << 20;

/// AdamW's moments, with one buffer for each chunk.
#[derive(Debug)]
pub enum Moments {
    /// The first and the second, as 32-bit floats.
    Whole([Vec<wgpu::Buffer>; 2]),
    /// Both in one word, as packed by [`crate::model::moments`].
    Halves(Vec<wgpu::Buffer>),
}

impl Moments {
    /// Creates moments of zero.
    pub fn new(gpu: &Gpu, arena: &Arena, halves: bool) -> Self {
        match halves {
            true => Self::Halves(arena.vector(gpu, "moments")),
            false => Self::Whole(["m", "v"].map(|label| arena.vector(gpu, label))),
        }
    }

    /// Returns the words per parameter.
    pub fn words(halves: bool) -> u64 {
        if halves { 1 } else { 2 }
    }

    fn vectors(&self) -> &[Vec<wgpu::Buffer>] {
        match self {
            Self::Whole(both) => both,
            Self::Halves(packed) => std::slice::from_ref(packed),
        }
    }

    /// Writes moments, `[len]`, rounded to the nearest value if they are packed.
    pub fn upload(&self, gpu: &Gpu, arena: &Arena, [m, v]: [&[f32]; 2]) {
        for first in (0..m.len()).step_by(WRITTEN) {
            for run in arena.runs(first..m.len().min(first + WRITTEN)) {
                let [m, v] = [m, v].map(|moment| &moment[run.flat.clone()]);
                let bytes = match self {
                    Self::Whole(_) => [m, v].map(from_f32s).to_vec(),
                    Self::Halves(_) => {
                        vec![m.iter().zip(v).flat_map(|(m, v)| pack(*m, *v).to_le_bytes()).collect()]
                    }
                };
                for (vector, bytes) in self.vectors().iter().zip(bytes) {
                    gpu.queue.write_buffer(&vector[run.chunk], run.start as u64 * 4, &bytes);
                }
            }
            // Written data stays in separate memory until the next submission.
            gpu.queue.submit([]);
        }
    }

    /// Copies the bytes read for `run` into `m` and `v`, `[len]`.
    fn take(&self, run: &ChunkRange, bytes: &[u8], [m, v]: [&mut [f32]; 2]) {
        let (m, v) = (&mut m[run.flat.clone()], &mut v[run.flat.clone()]);
        match self {
            Self::Whole(_) => {
                let (first, second) = bytes.split_at(m.len() * 4);
                copy_f32s(first, m);
                copy_f32s(second, v);
            }
            Self::Halves(_) => {
                let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
                m.iter_mut().zip(v).zip(words).for_each(|((m, v), word)| [*m, *v] = unpack(word));
            }
        }
    }
}

/// Copy of the moments in host memory, slightly outdated. One piece is read back after each step, so a lost device
/// costs the optimiser only [`SWEEP_STEPS`] steps of memory.
#[derive(Debug)]
pub struct Shadow {
    moments: OptimiserState,
    pieces: Vec<ChunkRange>,
    next: usize,
    ring: Ring<ChunkRange>,
    /// Whether every piece was read at least once.
    whole: bool,
}

/// Returns the values of a piece, for `len` values in total.
fn piece_len(len: usize) -> usize {
    len.div_ceil(SWEEP_STEPS).max(PIECE_MIN)
}

impl Shadow {
    /// Creates a copy that starts with the moments `begun`.
    pub fn new(gpu: &Gpu, arena: &Arena, begun: Option<OptimiserState>, len: usize, halves: bool) -> Self {
        let piece = piece_len(len);
        let pieces = (0..len).step_by(piece).flat_map(|first| arena.runs(first..len.min(first + piece)));
        let whole = begun.is_some();
        let zeros = || OptimiserState::of_adamw(0, vec![0.0; len], vec![0.0; len]);
        Self {
            pieces: pieces.collect(),
            moments: begun.unwrap_or_else(zeros),
            next: 0,
            ring: Ring::new(gpu, "moments", 2, Self::slot_bytes(len, halves)),
            whole,
        }
    }

    fn slot_bytes(len: usize, halves: bool) -> u64 {
        piece_len(len) as u64 * 4 * Moments::words(halves)
    }

    /// Returns the device memory that [`Self::new`] takes, in bytes.
    pub fn bytes(len: usize, halves: bool) -> u64 {
        2 * Self::slot_bytes(len, halves)
    }

    /// Processes finished reads after step `steps`, and requests the next piece.
    ///
    /// # Errors
    /// - [`GpuError::Lost`]: the device is gone.
    pub fn follow(&mut self, gpu: &Gpu, moments: &Moments, steps: u64) -> Result<(), GpuError> {
        let [m, v] = &mut self.moments.vectors[..] else { unreachable!("AdamW has two moments") };
        let mut take = |run: ChunkRange, bytes: &[u8]| moments.take(&run, bytes, [m, v]);
        while self.ring.next(gpu, &mut take)?.is_some() {}
        self.moments.steps = steps;
        if !self.ring.is_full() {
            let run = &self.pieces[self.next];
            let slices: Vec<Slice> = moments.vectors().iter().map(|vector| run.slice(vector)).collect();
            self.ring.read(gpu, &slices, run.clone());
            self.next = (self.next + 1) % self.pieces.len();
            self.whole |= self.next == 0;
        }
        Ok(())
    }

    /// Returns the copy, if it covers all moments.
    pub fn salvage(&self) -> Option<OptimiserState> {
        self.whole.then(|| self.moments.clone())
    }
}
