//! For tests: a device, and one kernel run on plain vectors.

use wgpu::util::DeviceExt;

use super::super::kernels::{Access, Call};
use super::super::program::{Builder, Constant, Dispatch, Slice};
use super::super::ring::Ring;
use super::super::{Gpu, GpuError, GpuOptions};
use crate::rng::Rng;

/// The devices that tests share.
#[derive(Debug)]
pub struct Gpus(Vec<Gpu>);

impl Gpus {
    /// Opens one on the best adapter that keeps to WebGPU's limits, and another with the adapter's own where those
    /// allow more kernels: elsewhere it would compile the same ones again, each for seconds on a CPU.
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub async fn open() -> Result<Self, GpuError> {
        let (own, defaults) = (open(false, None).await?, open(true, None).await?);
        Ok(Self(if own.has_matrices() { vec![own, defaults] } else { vec![defaults] }))
    }

    /// Opens the one that a page gets, with the adapter's limits: what the defaults allow is known without a
    /// browser.
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub async fn open_as_a_page() -> Result<Self, GpuError> {
        Ok(Self(vec![open(false, None).await?]))
    }

    /// All of them.
    #[cfg(test)]
    pub(super) fn all(&self) -> &[Gpu] {
        &self.0
    }

    /// Calls `check` with each.
    pub(super) async fn each(&self, mut check: impl AsyncFnMut(&Gpu)) {
        for gpu in &self.0 {
            check(gpu).await;
        }
    }
}

async fn open(default_limits: bool, binding_bytes_max: Option<u64>) -> Result<Gpu, GpuError> {
    Gpu::open(&GpuOptions { software: true, default_limits, binding_bytes_max, ..GpuOptions::default() })
        .await
}

/// A device for one test alone, that may be lost there and binds no more than this at once, if not `None`.
pub async fn own_gpu(binding_bytes_max: Option<u64>) -> Gpu {
    open(false, binding_bytes_max).await.unwrap()
}

/// A device for one test alone, with the limits that WebGPU promises.
#[cfg(not(target_arch = "wasm32"))]
pub async fn default_gpu() -> Gpu {
    open(true, None).await.unwrap()
}

/// Lies behind the words of each buffer and must stay as it is. A signalling NaN: any sum with it has other bits.
const GUARD: [u32; 16] = [0x7f80_dead; 16];

/// Runs a kernel once on `buffers`, the words of its storage; returns those that it may write, in order.
pub async fn run(
    gpu: &Gpu,
    call: Call,
    constants: &[Constant],
    buffers: &[Vec<u32>],
    groups: [u32; 3],
) -> Vec<Vec<u32>> {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    let init = |words: &Vec<u32>| {
        let contents: Vec<u8> = words.iter().chain(&GUARD).flat_map(|word| word.to_le_bytes()).collect();
        gpu.device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: None,
            contents: &contents,
            usage,
        })
    };
    let storage: Vec<Slice> = buffers.iter().map(|words| Slice::whole(&init(words))).collect();
    let (mut builder, kernel) = (Builder::default(), call.kernel());
    builder.add(Dispatch { call, constants: constants.to_vec(), storage: storage.clone(), groups, cost: 1 });
    builder.build(gpu).submit(gpu, u64::MAX);
    let mut written = Vec::new();
    for ((access, slice), words) in kernel.storage.iter().zip(storage).zip(buffers) {
        if *access == Access::Write {
            let mut found = read(gpu, &slice).await;
            assert_eq!(found.split_off(words.len()), GUARD, "{} writes beyond its output", kernel.name);
            written.push(found);
        }
    }
    written
}

/// The words of `slice`, waited for.
pub async fn read(gpu: &Gpu, slice: &Slice) -> Vec<u32> {
    let mut ring = Ring::new(gpu, "read", 1, slice.bytes);
    ring.read(gpu, std::slice::from_ref(slice), ());
    ring.ready(gpu).await.unwrap();
    let take = |(), bytes: &[u8]| bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    ring.next(gpu, take).unwrap().expect("it was waited for")
}

/// Floats as words.
pub fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Words as floats.
pub fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&word| f32::from_bits(word)).collect()
}

/// Floats as the twins take them.
pub fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// `len` values between −`size` and `size`, the same at each call.
pub fn noise(len: usize, size: f32) -> Vec<f32> {
    noise_of(len as u64, len, size)
}

/// As [`noise`], other values for another `seed`.
pub fn noise_of(seed: u64, len: usize, size: f32) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| (2.0 * rng.unit() as f32 - 1.0) * size).collect()
}

/// Fails unless each value is within `tolerance` times the larger of 1 and what is expected.
pub fn close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.0), "{what}[{i}]: {found} instead of {expected}");
    }
}
