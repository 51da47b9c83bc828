//! Asynchronous copies from the device to the host.

use std::collections::VecDeque;

use futures::channel::oneshot;
use wgpu::{BufferUsages, MapMode, PollType, SubmissionIndex};

use super::program::Slice;
use super::{Gpu, GpuError};

/// Pending copies of device memory to the host, oldest first, in a fixed number of slots.
///
/// After a method has returned [`GpuError::Lost`] or [`GpuError::Refused`], pending copies never arrive.
#[derive(Debug)]
pub struct Ring<T> {
    free: Vec<wgpu::Buffer>,
    pending: VecDeque<Pending<T>>,
}

#[derive(Debug)]
struct Pending<T> {
    tag: T,
    staging: wgpu::Buffer,
    bytes: u64,
    submission: SubmissionIndex,
    /// Receives when `staging` is readable. It is cancelled if `staging` never will be.
    arrival: oneshot::Receiver<()>,
    arrived: bool,
}

impl<T> Ring<T> {
    /// Creates a ring of `slots` slots, each of at most `bytes` bytes, a multiple of 4. It allocates buffers, so call
    /// it in [`Gpu::allocate`].
    pub fn new(gpu: &Gpu, label: &str, slots: usize, bytes: u64) -> Self {
        let descriptor = wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes,
            usage: BufferUsages::COPY_DST | BufferUsages::MAP_READ,
            mapped_at_creation: false,
        };
        gpu.add_allocated(slots as u64 * bytes);
        let free = (0..slots).map(|_| gpu.device.create_buffer(&descriptor)).collect();
        Self { free, pending: VecDeque::with_capacity(slots) }
    }

    /// Returns true if every slot has a pending copy.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns true if no copy is pending.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the number of pending copies.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Copies `slices`, one after the other, to a free slot, with their values after all earlier submissions.
    /// [`Self::next`] returns `tag` with the copy. Each slice is at least 4 bytes long; its start and length are
    /// multiples of 4.
    ///
    /// # Panics
    /// If the ring is full, or if the slices exceed the size of a slot.
    pub fn read(&mut self, gpu: &Gpu, slices: &[Slice], tag: T) {
        let staging = self.free.pop().expect("the caller asks is_full first");
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut bytes = 0;
        for slice in slices {
            encoder.copy_buffer_to_buffer(&slice.buffer, slice.start_byte, &staging, bytes, slice.bytes);
            bytes += slice.bytes;
        }
        assert!(bytes <= staging.size(), "{bytes} bytes in a slot of {}", staging.size());
        let submission = gpu.queue.submit([encoder.finish()]);
        let (notify, arrival) = oneshot::channel();
        staging.map_async(MapMode::Read, ..bytes, move |mapped| {
            if mapped.is_ok() {
                // The receiver is gone if the ring was dropped. That is no error.
                notify.send(()).ok();
            }
        });
        self.pending.push_back(Pending { tag, staging, bytes, submission, arrival, arrived: false });
    }

    /// If the oldest copy has arrived, calls `take` with its tag and bytes, and frees its slot. Never waits.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and [`GpuError::Refused`].
    pub fn next<R>(&mut self, gpu: &Gpu, take: impl FnOnce(T, &[u8]) -> R) -> Result<Option<R>, GpuError> {
        poll(gpu, PollType::Poll)?;
        let Some(oldest) = self.pending.front_mut() else { return Ok(None) };
        if !oldest.arrived && oldest.arrival.try_recv().map_err(|_| unreadable(gpu))?.is_none() {
            return Ok(None);
        }
        let Pending { tag, staging, bytes, .. } = self.pending.pop_front().expect("it was there above");
        let view = staging.get_mapped_range(..bytes).map_err(|_| unreadable(gpu))?;
        let taken = take(tag, &view);
        drop(view);
        staging.unmap();
        self.free.push(staging);
        Ok(Some(taken))
    }

    /// Waits until [`Self::next`] can return the oldest copy. Returns at once if no copy is pending.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and [`GpuError::Refused`].
    pub async fn ready(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let submission_index = self.pending.front().map(|oldest| oldest.submission.clone());
        let Some(submission_index) = submission_index else { return gpu.check() };
        // In native programs this blocks until the copy has arrived. In browsers it does nothing, and `arrival` wakes
        // this future.
        poll(gpu, PollType::Wait { submission_index: Some(submission_index), timeout: None })?;
        let oldest = self.pending.front_mut().expect("it was there above");
        if !oldest.arrived {
            (&mut oldest.arrival).await.map_err(|_| unreadable(gpu))?;
            oldest.arrived = true;
        }
        Ok(())
    }
}

fn poll(gpu: &Gpu, how: PollType) -> Result<(), GpuError> {
    let polled = gpu.device.poll(how);
    gpu.check()?;
    polled.map(drop).map_err(|error| GpuError::Refused { reason: error.to_string() })
}

/// Returns the error that prevents a requested copy from arriving.
fn unreadable(gpu: &Gpu) -> GpuError {
    if gpu.check().is_ok() {
        gpu.note_loss("its memory can no longer be read");
    }
    gpu.check().expect_err("it was noted")
}
