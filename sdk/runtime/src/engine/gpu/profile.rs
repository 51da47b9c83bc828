//! Time of a step by kernel, on the device's own clock.

use std::collections::BTreeMap;

use wgpu::{BufferUsages, QueryType};

use super::Gpu;
use super::error::GpuError;
use super::program::{ALIGN_BYTES, Program, Slice};
use super::ring::Ring;

/// Maximum number of queries in a set, by WebGPU.
const QUERIES_MAX: u32 = 4096;

/// Total time of the dispatches of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// Number of dispatches.
    pub dispatches: u32,
    /// Time on the device, in microseconds.
    pub us: f64,
    /// Rough cost, in floating-point operations; exact for matrix products.
    pub cost: u64,
}

/// Runs `program` once and times each kernel. Returns `None` if the device has no timestamps.
///
/// # Errors
/// - [`GpuError::Lost`]: the device is gone.
pub async fn profile(
    gpu: &Gpu,
    program: &Program,
) -> Result<Option<BTreeMap<&'static str, KernelTime>>, GpuError> {
    if !gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
        return Ok(None);
    }
    let mut times: BTreeMap<&'static str, KernelTime> = BTreeMap::new();
    let kernels: Vec<_> = program.kernels().collect();
    let ns_per_tick = f64::from(gpu.queue.get_timestamp_period());
    let part_max = (QUERIES_MAX / 2) as usize;
    for first in (0..kernels.len()).step_by(part_max) {
        let part = &kernels[first..kernels.len().min(first + part_max)];
        let ticks = time(gpu, program, first, part.len()).await?;
        for (&(kernel, cost), ticks) in part.iter().zip(ticks) {
            let time = times.entry(kernel).or_default();
            time.dispatches += 1;
            time.us += ticks as f64 * ns_per_tick / 1e3;
            time.cost += cost;
        }
    }
    Ok(Some(times))
}

/// Returns the ticks of dispatches `first..first + count`, each in a separate pass.
async fn time(gpu: &Gpu, program: &Program, first: usize, count: usize) -> Result<Vec<u64>, GpuError> {
    let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
        label: Some("profile"),
        ty: QueryType::Timestamp,
        count: count as u32 * 2,
    });
    let bytes = (count as u64 * 16).next_multiple_of(ALIGN_BYTES);
    let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("profile"),
        size: bytes,
        usage: BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    });
    for index in 0..count {
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let writes = wgpu::ComputePassTimestampWrites {
            query_set: &queries,
            beginning_of_pass_write_index: Some(index as u32 * 2),
            end_of_pass_write_index: Some(index as u32 * 2 + 1),
        };
        program.record_one(first + index, &mut encoder, Some(writes));
        gpu.queue.submit([encoder.finish()]);
    }
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.resolve_query_set(&queries, 0..count as u32 * 2, &resolved, 0);
    gpu.queue.submit([encoder.finish()]);
    let mut ring = Ring::new(gpu, "profile", 1, bytes);
    ring.read(gpu, &[Slice::whole(&resolved)], ());
    ring.ready(gpu).await?;
    let ticks = ring.next(gpu, |(), bytes| {
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        words.as_chunks::<2>().0[..count].iter().map(|[begin, end]| end.saturating_sub(*begin)).collect()
    })?;
    Ok(ticks.unwrap_or_default())
}
