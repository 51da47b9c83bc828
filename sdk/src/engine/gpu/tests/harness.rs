//! For tests: a device, and one kernel run on plain vectors.

use std::sync::OnceLock;

use wgpu::util::DeviceExt;

use super::super::kernels::{Access, Kernel};
use super::super::program::{Builder, Constant, Dispatch, Pipelines, Slice};
use super::super::{Gpu, GpuOptions};
use crate::rng::Rng;

/// `no` skips everything that needs an adapter; any other state of it makes a missing adapter a failure.
const SWITCH: &str = "GPU_TESTS";

/// One device for all tests of this process, and another that keeps to WebGPU's default limits. None if the
/// tests were switched off by `GPU_TESTS=no`.
fn gpus() -> Option<&'static [Gpu; 2]> {
    static GPUS: OnceLock<Option<[Gpu; 2]>> = OnceLock::new();
    GPUS.get_or_init(|| {
        if std::env::var(SWITCH).is_ok_and(|value| value == "no") {
            eprintln!("skipped: {SWITCH}=no");
            return None;
        }
        Some([false, true].map(|default_limits| open(default_limits, None)))
    })
    .as_ref()
}

fn open(default_limits: bool, binding_bytes_max: Option<u64>) -> Gpu {
    let options = GpuOptions { adapter: None, software: true, default_limits, binding_bytes_max };
    futures::executor::block_on(Gpu::open(&options))
        .unwrap_or_else(|error| panic!("{error}; {SWITCH}=no skips the tests of the GPU engine"))
}

/// A device for one test alone, that may be lost there and binds no more than this at once, if not `None`.
pub fn own_gpu(binding_bytes_max: Option<u64>) -> Option<Gpu> {
    gpus().map(|_| open(false, binding_bytes_max))
}

/// Lies behind the words of each buffer and must stay as it is. A signalling NaN: any sum with it has other bits.
const GUARD: [u32; 16] = [0x7f80_dead; 16];

/// Runs `kernel` once on `buffers`, the words of its storage; returns those that it may write, in order.
pub fn run(
    gpu: &Gpu,
    kernel: &'static Kernel,
    constants: &[Constant],
    params: &[u32],
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
    let mut builder = Builder::default();
    builder.add(Dispatch {
        kernel,
        constants: constants.to_vec(),
        params: params.to_vec(),
        storage: storage.clone(),
        groups,
        cost: 1,
    });
    builder.build(gpu, &Pipelines::default()).submit(gpu, u64::MAX);
    let written = kernel.storage.iter().zip(storage).zip(buffers);
    written
        .filter(|((access, _), _)| **access == Access::Write)
        .map(|((_, slice), words)| {
            let mut found = read(gpu, &slice);
            assert_eq!(found.split_off(words.len()), GUARD, "{} writes beyond its output", kernel.name);
            found
        })
        .collect()
}

/// The words of `slice`, waited for.
pub fn read(gpu: &Gpu, slice: &Slice) -> Vec<u32> {
    let staging = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: slice.bytes,
        usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
        mapped_at_creation: false,
    });
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(&slice.buffer, slice.start_byte, &staging, 0, slice.bytes);
    gpu.queue.submit([encoder.finish()]);
    staging.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("the device is there"));
    gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    gpu.check().unwrap();
    let view = staging.get_mapped_range(..).unwrap();
    view.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Floats as words.
pub fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Words as floats.
pub fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&word| f32::from_bits(word)).collect()
}

/// Calls `check` with each device, if there are any.
pub fn each_gpu(check: impl FnMut(&Gpu)) {
    gpus().into_iter().flatten().for_each(check);
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
