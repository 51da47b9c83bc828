//! Test harness: devices, and single runs of a kernel on host vectors.

use wgpu::util::DeviceExt;

use super::super::kernels::{Access, Call};
use super::super::program::{Builder, Constant, Dispatch, Slice};
use super::super::ring::Ring;
use super::super::{Gpu, GpuError, GpuOptions};
use crate::rng::Rng;

/// Devices that the tests share.
#[derive(Debug)]
pub struct Gpus(Vec<Gpu>);

impl Gpus {
    /// Opens the best adapter with WebGPU's default limits, and once more with its own limits if it has matrix units.
    /// On other adapters, a second device would compile the same kernels again, which takes seconds each on a CPU.
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub async fn open() -> Result<Self, GpuError> {
        let (own, defaults) = (open(false, None).await?, open(true, None).await?);
        Ok(Self(if own.has_matrices() { vec![own, defaults] } else { vec![defaults] }))
    }

    /// Opens one device with the adapter's own limits, as a page does. Tests with default limits need no browser.
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub async fn open_as_a_page() -> Result<Self, GpuError> {
        Ok(Self(vec![open(false, None).await?]))
    }

    /// Returns all devices.
    #[cfg(test)]
    pub(super) fn all(&self) -> &[Gpu] {
        &self.0
    }

    /// Calls `check` with each device.
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

/// Opens a device that a test does not share and may lose. `binding_bytes_max` limits its bindings if not `None`.
pub async fn own_gpu(binding_bytes_max: Option<u64>) -> Gpu {
    open(false, binding_bytes_max).await.unwrap()
}

/// Opens a device that a test does not share, with the limits that WebGPU guarantees.
#[cfg(not(target_arch = "wasm32"))]
pub async fn default_gpu() -> Gpu {
    open(true, None).await.unwrap()
}

/// Words after the end of each buffer. The kernel must not change them. As floats they are signalling NaNs, so a kernel
/// that adds to one changes its bits.
const GUARD: [u32; 16] = [0x7f80_dead; 16];

/// Runs a kernel once on storage buffers with the words in `buffers`. Returns the words of the writable buffers, in
/// order.
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

/// Reads the words of `slice` from the device.
pub async fn read(gpu: &Gpu, slice: &Slice) -> Vec<u32> {
    let mut ring = Ring::new(gpu, "read", 1, slice.bytes);
    ring.read(gpu, std::slice::from_ref(slice), ());
    ring.ready(gpu).await.unwrap();
    let take = |(), bytes: &[u8]| bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    ring.next(gpu, take).unwrap().expect("it was waited for")
}

/// Returns the bits of floats as words.
pub fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the floats with the given bits.
pub fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&word| f32::from_bits(word)).collect()
}

/// Converts floats to 64 bits, as the reference functions need them.
pub fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Returns `len` random values between −`size` and `size`. Calls with the same length give the same values.
pub fn noise(len: usize, size: f32) -> Vec<f32> {
    noise_of(len as u64, len, size)
}

/// Returns `len` random values between −`size` and `size` that depend on `seed`.
pub fn noise_of(seed: u64, len: usize, size: f32) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| (2.0 * rng.unit() as f32 - 1.0) * size).collect()
}

/// Asserts that the error of each value is at most `tolerance` times the larger of 1 and the expected magnitude.
pub fn close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(1.0), "{what}[{i}]: {found} instead of {expected}");
    }
}
