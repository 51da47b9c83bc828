//! Vectors with one value per parameter on the device (θ, gradient, moments), and their transfer to and from the host.

use std::ops::Range;

use archipelago_core::bytes::{copy_f32s, from_f32s};

use super::Gpu;
use super::arena::{Arena, ChunkRange};
use super::error::GpuError;
use super::program::{Slice, buffer};
use super::ring::Ring;
use crate::engine::OptimiserState;
use crate::model::moments::{pack, unpack};

/// Maximum number of values in one read-back.
const PIECE: usize = 1 << 20;
/// Number of read-backs that are in progress while the host processes one.
const READ_AHEAD: usize = 3;

/// Parameters with their gradient and moments. Each vector has one buffer per chunk.
#[derive(Debug)]
pub struct Vectors {
    /// Parameters θ.
    pub theta: Vec<wgpu::Buffer>,
    /// Gradient of θ.
    pub grad: Vec<wgpu::Buffer>,
    /// Moments of AdamW.
    pub moments: Moments,
    /// θ as 16-bit floats, if matrix products read weights in this format.
    pub half: Option<Vec<wgpu::Buffer>>,
}

impl Vectors {
    /// Allocates zeroed vectors. Moments are packed if `packed`. θ is stored as 16-bit floats too if `half`.
    pub fn new(gpu: &Gpu, arena: &Arena, packed: bool, half: bool) -> Self {
        let vector = |label| arena.vector(gpu, label);
        Self {
            theta: vector("theta"),
            grad: vector("grad"),
            moments: Moments::new(gpu, arena, packed),
            half: half.then(|| {
                arena.chunks().iter().map(|chunk| buffer(gpu, "half", chunk.len as u64 / 2)).collect()
            }),
        }
    }

    /// Returns the size of the vectors on the device, in bytes.
    pub fn bytes(arena: &Arena, packed: bool, half: bool) -> u64 {
        let half = if half { arena.bytes() / 2 } else { 0 };
        (2 + Moments::words(packed)) * arena.bytes() + half
    }
}

/// Writes `range` of `flat`, `[len]`, to the same range of `vector`.
pub fn upload(gpu: &Gpu, arena: &Arena, vector: &[wgpu::Buffer], range: Range<usize>, flat: &[f32]) {
    for run in arena.runs(range) {
        gpu.write(&run.slice(vector), &flat[run.flat]);
    }
}

/// Creates the ring that [`read_into`] needs for vectors of `len` values.
pub fn reader(gpu: &Gpu, len: usize) -> Ring<Vec<ChunkRange>> {
    Ring::new(gpu, "download", READ_AHEAD, len.clamp(1, PIECE) as u64 * 4)
}

/// Reads `vector`, `[len]`, from the device.
///
/// # Errors
/// [`GpuError::Lost`] and [`GpuError::Refused`].
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

/// Reads `ranges` of `vector` from the device into the same ranges of `flat`, `[len]`. `ring` comes from [`reader`].
///
/// # Errors
/// [`GpuError::Lost`] and [`GpuError::Refused`].
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

/// Divides `ranges` into loads of at most [`PIECE`] values. Each load is read back at once.
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

/// Copies the bytes of a load to their ranges of `flat`.
fn take(load: &[ChunkRange], mut bytes: &[u8], flat: &mut [f32]) {
    for run in load {
        let (own, rest) = bytes.split_at(run.flat.len() * 4);
        copy_f32s(own, &mut flat[run.flat.clone()]);
        bytes = rest;
    }
}

/// Approximate number of steps in which all moments are read back once.
const SWEEP_STEPS: usize = 128;
/// Minimum number of values in a piece of the moments.
const PIECE_MIN: usize = 1 << 12;
/// Maximum number of values written at a time.
const WRITTEN: usize = 1 << 20;

/// AdamW's moments on the device. Each vector has one buffer per chunk.
#[derive(Debug)]
pub enum Moments {
    /// First and second moments as 32-bit floats.
    Whole([Vec<wgpu::Buffer>; 2]),
    /// Both moments in one word, as packed by [`crate::model::moments`].
    Packed(Vec<wgpu::Buffer>),
}

impl Moments {
    /// Allocates zeroed moments. They are packed if `packed`.
    pub fn new(gpu: &Gpu, arena: &Arena, packed: bool) -> Self {
        match packed {
            true => Self::Packed(arena.vector(gpu, "moments")),
            false => Self::Whole(["m", "v"].map(|label| arena.vector(gpu, label))),
        }
    }

    /// Returns the number of words per parameter.
    pub fn words(packed: bool) -> u64 {
        if packed { 1 } else { 2 }
    }

    fn vectors(&self) -> &[Vec<wgpu::Buffer>] {
        match self {
            Self::Whole(both) => both,
            Self::Packed(packed) => std::slice::from_ref(packed),
        }
    }

    /// Writes the moments m and v, `[len]`, to the device. Packed moments are rounded to the nearest value.
    pub fn upload(&self, gpu: &Gpu, arena: &Arena, [m, v]: [&[f32]; 2]) {
        for first in (0..m.len()).step_by(WRITTEN) {
            for run in arena.runs(first..m.len().min(first + WRITTEN)) {
                let [m, v] = [m, v].map(|moment| &moment[run.flat.clone()]);
                let bytes = match self {
                    Self::Whole(_) => [m, v].map(from_f32s).to_vec(),
                    Self::Packed(_) => {
                        vec![m.iter().zip(v).flat_map(|(m, v)| pack(*m, *v).to_le_bytes()).collect()]
                    }
                };
                for (vector, bytes) in self.vectors().iter().zip(bytes) {
                    gpu.queue.write_buffer(&vector[run.chunk], run.start as u64 * 4, &bytes);
                }
            }
            // The queue holds written data in separate memory until a submission. An empty one releases it.
            gpu.queue.submit([]);
        }
    }

    /// Copies the moments read back for `run` to their ranges of `m` and `v`, `[len]`.
    fn take(&self, run: &ChunkRange, bytes: &[u8], [m, v]: [&mut [f32]; 2]) {
        let (m, v) = (&mut m[run.flat.clone()], &mut v[run.flat.clone()]);
        match self {
            Self::Whole(_) => {
                let (first, second) = bytes.split_at(m.len() * 4);
                copy_f32s(first, m);
                copy_f32s(second, v);
            }
            Self::Packed(_) => {
                let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
                m.iter_mut().zip(v).zip(words).for_each(|((m, v), word)| [*m, *v] = unpack(word));
            }
        }
    }
}

/// Copy of the moments in host memory. One piece is read back after each step, so after a loss of the device, restored
/// moments are at most about [`SWEEP_STEPS`] steps old.
#[derive(Debug)]
pub struct Shadow {
    moments: OptimiserState,
    pieces: Vec<ChunkRange>,
    next: usize,
    ring: Ring<ChunkRange>,
    /// Whether every piece was read at least once, or the copy began with restored moments.
    whole: bool,
}

/// Returns the number of values in a piece, for `len` values in total.
fn piece_len(len: usize) -> usize {
    len.div_ceil(SWEEP_STEPS).max(PIECE_MIN)
}

impl Shadow {
    /// Creates a copy of `len` values that begins with the moments `begun`, or with zeros.
    pub fn new(gpu: &Gpu, arena: &Arena, begun: Option<OptimiserState>, len: usize, packed: bool) -> Self {
        let piece = piece_len(len);
        let pieces = (0..len).step_by(piece).flat_map(|first| arena.runs(first..len.min(first + piece)));
        let whole = begun.is_some();
        let zeros = || OptimiserState::of_adamw(0, vec![0.0; len], vec![0.0; len]);
        Self {
            pieces: pieces.collect(),
            moments: begun.unwrap_or_else(zeros),
            next: 0,
            ring: Ring::new(gpu, "moments", 2, Self::slot_bytes(len, packed)),
            whole,
        }
    }

    fn slot_bytes(len: usize, packed: bool) -> u64 {
        piece_len(len) as u64 * 4 * Moments::words(packed)
    }

    /// Returns the size of the read-back buffers, in bytes.
    pub fn bytes(len: usize, packed: bool) -> u64 {
        2 * Self::slot_bytes(len, packed)
    }

    /// Processes the read-backs that have arrived by step `steps`, and requests the next piece.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and [`GpuError::Refused`].
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

    /// Returns the copy, or `None` if a piece is missing.
    pub fn saved_moments(&self) -> Option<OptimiserState> {
        self.whole.then(|| self.moments.clone())
    }
}
