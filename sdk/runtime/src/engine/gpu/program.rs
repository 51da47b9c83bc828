//! A list of dispatches that is built once and submitted any number of times, the amount of work in one submission, and
//! the time of each kernel on the device's own clock.

use std::collections::BTreeMap;

use futures::channel::oneshot;
use wgpu::util::DeviceExt;
use wgpu::{BindGroupEntry, BufferUsages, QueryType};

use super::kernels::{Call, Pipeline};
use super::ring::Ring;
use super::{Gpu, GpuError};

pub use super::kernels::{ALIGN_BYTES, Constant, Slice};

/// Creates a device buffer of `words` 32-bit words, zeroed. It may be bound, copied from and copied to.
pub fn buffer(gpu: &Gpu, label: &str, words: u64) -> wgpu::Buffer {
    gpu.take(buffer_bytes(words));
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: buffer_bytes(words),
        usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// Returns the bytes of a [`buffer`] of `words`.
pub fn buffer_bytes(words: u64) -> u64 {
    (words * 4).max(16)
}

/// One dispatch, before it is built.
#[derive(Debug)]
pub struct Dispatch {
    /// Kernel with its parameters.
    pub call: Call,
    /// Values of its `override`s.
    pub constants: Vec<Constant>,
    /// Its storage buffers.
    pub storage: Vec<Slice>,
    /// Workgroups in each dimension; each at most 65,535.
    pub groups: [u32; 3],
    /// Rough count of floating-point operations and moved values, by which long lists are split.
    pub cost: u64,
}

/// Builder of a program.
#[derive(Debug, Default)]
pub struct Builder {
    dispatches: Vec<Dispatch>,
}

impl Builder {
    /// Adds a dispatch. Dispatches run in call order, and each sees the writes of earlier ones.
    pub fn add(&mut self, dispatch: Dispatch) {
        let kernel = dispatch.call.kernel();
        debug_assert_eq!(dispatch.storage.len(), kernel.storage.len(), "{}", kernel.name);
        if dispatch.groups.iter().all(|&count| count > 0) {
            self.dispatches.push(dispatch);
        }
    }

    /// Compiles kernels that are not compiled yet, and binds all buffers.
    pub fn build(self, gpu: &Gpu) -> DispatchList {
        let stride = ALIGN_BYTES as usize;
        let mut words = vec![0_u8; (self.dispatches.len() * stride).max(stride)];
        for (dispatch, slot) in self.dispatches.iter().zip(words.chunks_mut(stride)) {
            for (word, bytes) in dispatch.call.params().iter().zip(slot.chunks_mut(4)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        let uniforms = gpu.device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: Some("params"),
            contents: &words,
            usage: BufferUsages::UNIFORM,
        });
        let bound = self.dispatches.into_iter().zip(0..).map(|(dispatch, index)| {
            let kernel = dispatch.call.kernel();
            let Pipeline { pipeline, layout } = gpu.pipelines.get(&gpu.device, kernel, &dispatch.constants);
            let params =
                Slice { buffer: uniforms.clone(), start_byte: index * ALIGN_BYTES, bytes: ALIGN_BYTES };
            let slices = std::iter::once(&params).chain(&dispatch.storage);
            let entries: Vec<_> = slices
                .zip(0..)
                .map(|(slice, binding)| BindGroupEntry {
                    binding,
                    resource: wgpu::BindingResource::Buffer(slice.binding()),
                })
                .collect();
            let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(kernel.name),
                layout: &layout,
                entries: &entries,
            });
            BoundDispatch {
                kernel: kernel.name,
                pipeline,
                group,
                groups: dispatch.groups,
                cost: dispatch.cost.max(1),
            }
        });
        DispatchList { bound: bound.collect() }
    }
}

/// A list of dispatches, ready to run.
#[derive(Debug)]
pub struct DispatchList {
    bound: Vec<BoundDispatch>,
}

#[derive(Debug)]
struct BoundDispatch {
    kernel: &'static str,
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    groups: [u32; 3],
    cost: u64,
}

impl DispatchList {
    /// Returns the sum of the costs of its dispatches.
    pub fn cost(&self) -> u64 {
        self.bound.iter().map(|bound| bound.cost).sum()
    }

    /// Returns the number of dispatches.
    pub fn len(&self) -> usize {
        self.bound.len()
    }

    /// Returns the kernels that it runs, with the cost of each dispatch.
    pub fn kernels(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.bound.iter().map(|bound| (bound.kernel, bound.cost))
    }

    /// Submits the whole program, and waits until it is done.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and [`GpuError::Refused`].
    pub async fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.submit(gpu, u64::MAX);
        let (done, wait) = oneshot::channel();
        gpu.queue.on_submitted_work_done(move || {
            let _ = done.send(());
        });
        // Waits, except in browsers, whose event loop delivers the notice. An error appears below.
        let _ = gpu.device.poll(wgpu::PollType::wait_indefinitely());
        let heard = wait.await;
        gpu.check()?;
        if heard.is_err() {
            gpu.note_loss("no report of completion");
        }
        gpu.check()
    }

    /// Records the whole program.
    pub fn record(&self, encoder: &mut wgpu::CommandEncoder) {
        record(&self.bound, encoder, None);
    }

    /// Records dispatch `index` alone.
    pub fn record_one(
        &self,
        index: usize,
        encoder: &mut wgpu::CommandEncoder,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        record(&self.bound[index..=index], encoder, timestamp_writes);
    }

    /// Submits the program in parts of at most `cost_max` each, so that others can use the device in between. A single
    /// dispatch above that is a separate part. Returns the number of parts.
    pub fn submit(&self, gpu: &Gpu, cost_max: u64) -> u32 {
        let mut parts = 0;
        let mut rest = &self.bound[..];
        while !rest.is_empty() {
            let mut cost = 0;
            let count = rest.iter().take_while(|bound| {
                cost += bound.cost;
                cost <= cost_max
            });
            let (part, later) = rest.split_at(count.count().max(1));
            let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            record(part, &mut encoder, None);
            gpu.queue.submit([encoder.finish()]);
            parts += 1;
            rest = later;
        }
        parts
    }
}

fn record(
    bound: &[BoundDispatch],
    encoder: &mut wgpu::CommandEncoder,
    timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
    for bound in bound {
        pass.set_pipeline(&bound.pipeline);
        pass.set_bind_group(0, &bound.group, &[]);
        let [x, y, z] = bound.groups;
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Maximum time that one submission should occupy the device, in microseconds. Other users of the device, such as the
/// screen, wait for it, and browsers revoke a device that does not answer for seconds.
const SUBMISSION_US_MAX: f64 = 100_000.0;
/// Cost that any device handles within that time, in floating-point operations; used for the first step.
const COST_FIRST: u64 = 200_000_000;
/// Weight of the newest step in the average.
const SHARE: f64 = 0.2;

/// Measurement of step times, from which the size of submissions follows.
pub struct StepTimes {
    now_us: Box<dyn Fn() -> u64>,
    step_cost: u64,
    /// Time when the last step finished; `None` if the device has been idle since.
    done_us: Option<u64>,
    /// Average step time, in microseconds.
    step_us: Option<f64>,
}

impl StepTimes {
    /// Creates a pace for steps of `step_cost`, with a clock in microseconds.
    pub fn new(now_us: Box<dyn Fn() -> u64>, step_cost: u64) -> Self {
        Self { now_us, step_cost, done_us: None, step_us: None }
    }

    /// Records a finished step after which the device continued with the next one at once.
    pub fn step_done(&mut self) {
        let now_us = (self.now_us)();
        if let Some(done_us) = self.done_us {
            let found = now_us.saturating_sub(done_us) as f64;
            self.step_us = Some(self.step_us.map_or(found, |us| us + SHARE * (found - us)));
        }
        self.done_us = Some(now_us);
    }

    /// Records that the device is idle, so that the next step's time does not count.
    pub fn idle(&mut self) {
        self.done_us = None;
    }

    /// Returns the maximum cost of one submission.
    pub fn cost_max(&self) -> u64 {
        match self.step_us {
            None => COST_FIRST,
            Some(us) => (self.step_cost as f64 * SUBMISSION_US_MAX / us.max(1.0)) as u64,
        }
    }
}

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
    program: &DispatchList,
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
async fn time(gpu: &Gpu, program: &DispatchList, first: usize, count: usize) -> Result<Vec<u64>, GpuError> {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn cuts_by_what_steps_took() {
        let clock = Rc::new(Cell::new(0));
        let now = Rc::clone(&clock);
        let mut pace = StepTimes::new(Box::new(move || now.get()), 1_000_000_000);
        let step = |pace: &mut StepTimes, us: u64| {
            clock.set(clock.get() + us);
            pace.step_done();
        };
        step(&mut pace, 77);
        assert_eq!(pace.cost_max(), COST_FIRST, "nothing is known of the time before");
        step(&mut pace, 1_000_000);
        assert_eq!(pace.cost_max(), 100_000_000, "a tenth of a step of one second");
        step(&mut pace, 500_000);
        assert_eq!(pace.cost_max(), 111_111_111);
        pace.idle();
        step(&mut pace, 60_000_000);
        assert_eq!(pace.cost_max(), 111_111_111, "it was idle");
    }
}
