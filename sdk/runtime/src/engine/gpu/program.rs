//! Lists of dispatches, built once and submitted any number of times; the size of a submission; and the time of each
//! kernel by the device's clock.

use std::collections::BTreeMap;

use futures::channel::oneshot;
use wgpu::util::DeviceExt;
use wgpu::{BindGroupEntry, BufferUsages, QueryType};

use super::kernels::{Call, Pipeline};
use super::ring::Ring;
use super::{Gpu, GpuError};

pub use super::kernels::{ALIGN_BYTES, Constant, Slice};

/// Creates a zeroed device buffer of `words` 32-bit words. Kernels can bind it, and it can be copied from and to.
pub fn buffer(gpu: &Gpu, label: &str, words: u64) -> wgpu::Buffer {
    gpu.add_allocated(buffer_bytes(words));
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: buffer_bytes(words),
        usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

/// Returns the size of a [`buffer`] of `words` words, in bytes.
pub fn buffer_bytes(words: u64) -> u64 {
    (words * 4).max(16)
}

/// One dispatch of a kernel.
#[derive(Debug)]
pub struct Dispatch {
    /// Kernel with its parameters.
    pub call: Call,
    /// Values of the kernel's overrides.
    pub constants: Vec<Constant>,
    /// Storage buffers of the kernel.
    pub storage: Vec<Slice>,
    /// Number of workgroups in each dimension, each at most 65,535.
    pub groups: [u32; 3],
    /// Estimated number of floating-point operations and moved values. Long lists are divided by it.
    pub cost: u64,
}

/// Builder of a [`DispatchList`].
#[derive(Debug, Default)]
pub struct Builder {
    dispatches: Vec<Dispatch>,
}

impl Builder {
    /// Adds a dispatch. Dispatches run in the order of these calls, and each sees the writes of earlier ones.
    pub fn add(&mut self, dispatch: Dispatch) {
        let kernel = dispatch.call.kernel();
        debug_assert_eq!(dispatch.storage.len(), kernel.storage.len(), "{}", kernel.name);
        if dispatch.groups.iter().all(|&count| count > 0) {
            self.dispatches.push(dispatch);
        }
    }

    /// Builds the list: compiles kernels that are not compiled yet, and binds all buffers.
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

/// List of dispatches, ready to submit.
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
    /// Returns the sum of the costs of the dispatches.
    pub fn cost(&self) -> u64 {
        self.bound.iter().map(|bound| bound.cost).sum()
    }

    /// Returns the number of dispatches.
    pub fn len(&self) -> usize {
        self.bound.len()
    }

    /// Returns the name of the kernel and the cost of each dispatch.
    pub fn kernels(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.bound.iter().map(|bound| (bound.kernel, bound.cost))
    }

    /// Submits the whole list and waits until it is done.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and [`GpuError::Refused`].
    pub async fn run(&self, gpu: &Gpu) -> Result<(), GpuError> {
        self.submit(gpu, u64::MAX);
        let (done, wait) = oneshot::channel();
        gpu.queue.on_submitted_work_done(move || {
            let _ = done.send(());
        });
        // This blocks in native programs. In browsers it does nothing, and the event loop calls the callback. Errors
        // are checked below.
        let _ = gpu.device.poll(wgpu::PollType::wait_indefinitely());
        let notified = wait.await;
        gpu.check()?;
        if notified.is_err() {
            gpu.note_loss("no report of completion");
        }
        gpu.check()
    }

    /// Records all dispatches of the list.
    pub fn record(&self, encoder: &mut wgpu::CommandEncoder) {
        record(&self.bound, encoder, None);
    }

    /// Records only dispatch `index`.
    pub fn record_one(
        &self,
        index: usize,
        encoder: &mut wgpu::CommandEncoder,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        record(&self.bound[index..=index], encoder, timestamp_writes);
    }

    /// Submits the list in parts with a cost of at most `cost_max`, so that others can use the device in between. A
    /// dispatch with a higher cost is a part of its own. Returns the number of parts.
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
/// screen, wait for it. Browsers destroy a device that does not respond for seconds.
const SUBMISSION_US_MAX: f64 = 100_000.0;
/// Cost of a submission that any device completes in [`SUBMISSION_US_MAX`]. It is used until a step time is measured.
const COST_FIRST: u64 = 200_000_000;
/// Weight of the newest step in the average step time.
const SHARE: f64 = 0.2;

/// Average step time, from which the size of submissions follows.
pub struct StepTimes {
    now_us: Box<dyn Fn() -> u64>,
    step_cost: u64,
    /// Time when the previous step finished; `None` if the device has been idle since.
    done_us: Option<u64>,
    /// Average step time in microseconds; `None` before the first measurement.
    step_us: Option<f64>,
}

impl StepTimes {
    /// Creates an instance for steps of cost `step_cost`. `now_us` is a clock in microseconds.
    pub fn new(now_us: Box<dyn Fn() -> u64>, step_cost: u64) -> Self {
        Self { now_us, step_cost, done_us: None, step_us: None }
    }

    /// Records that a step has finished. Unless [`Self::idle`] is called, the device begins the next step at once.
    pub fn step_done(&mut self) {
        let now_us = (self.now_us)();
        if let Some(done_us) = self.done_us {
            let found = now_us.saturating_sub(done_us) as f64;
            self.step_us = Some(self.step_us.map_or(found, |us| us + SHARE * (found - us)));
        }
        self.done_us = Some(now_us);
    }

    /// Records that the device is idle, so the time until the next step finishes is not a step time.
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

/// Maximum number of queries in a query set, WebGPU's limit.
const QUERIES_MAX: u32 = 4096;

/// Total time of the dispatches of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// Number of dispatches.
    pub dispatches: u32,
    /// Total time on the device, in microseconds.
    pub us: f64,
    /// Total cost in floating-point operations: exact for matrix products, estimated for other kernels.
    pub cost: u64,
}

/// Runs `program` once and returns the time of each kernel, by name. Returns `None` if the device has no timestamps.
///
/// # Errors
/// [`GpuError::Lost`] and [`GpuError::Refused`].
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

/// Runs dispatches `first..first + count`, each in a separate pass, and returns the duration of each in clock ticks.
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
    fn submission_size_follows_step_times() {
        let clock = Rc::new(Cell::new(0));
        let now = Rc::clone(&clock);
        let mut times = StepTimes::new(Box::new(move || now.get()), 1_000_000_000);
        let step = |times: &mut StepTimes, us: u64| {
            clock.set(clock.get() + us);
            times.step_done();
        };
        step(&mut times, 77);
        assert_eq!(times.cost_max(), COST_FIRST, "nothing is known of the time before");
        step(&mut times, 1_000_000);
        assert_eq!(times.cost_max(), 100_000_000, "a tenth of a step of one second");
        step(&mut times, 500_000);
        assert_eq!(times.cost_max(), 111_111_111);
        times.idle();
        step(&mut times, 60_000_000);
        assert_eq!(times.cost_max(), 111_111_111, "it was idle");
    }
}
