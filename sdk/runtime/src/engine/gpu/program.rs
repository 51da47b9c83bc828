//! A list of dispatches that is built once and submitted any number of times.

use futures::channel::oneshot;
use wgpu::util::DeviceExt;
use wgpu::{BindGroupEntry, BufferUsages};

use super::kernels::Call;
use super::pipelines::Pipeline;
pub use super::pipelines::{ALIGN_BYTES, Constant, Slice};
use super::{Gpu, GpuError};

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
    pub fn build(self, gpu: &Gpu) -> Program {
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
            Bound {
                kernel: kernel.name,
                pipeline,
                group,
                groups: dispatch.groups,
                cost: dispatch.cost.max(1),
            }
        });
        Program { bound: bound.collect() }
    }
}

/// A list of dispatches, ready to run.
#[derive(Debug)]
pub struct Program {
    bound: Vec<Bound>,
}

#[derive(Debug)]
struct Bound {
    kernel: &'static str,
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    groups: [u32; 3],
    cost: u64,
}

impl Program {
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
    bound: &[Bound],
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
