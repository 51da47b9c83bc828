//! Θ̂, on the device or in host memory.

use archipelago_core::bytes::from_f32s;

use super::super::Gpu;
use super::super::program::{Slice, buffer};
use super::parts::Parts;
use super::piece::Piece;
use crate::diloco::halves;
use crate::wire::FragmentId;

/// Θ̂, initially zero.
#[derive(Debug)]
pub enum Hat {
    /// On the device, with the same layout as θ.
    Device(Vec<wgpu::Buffer>),
    /// In host memory. One span at a time is on the device, while it is processed.
    Host(HostHat),
}

/// Θ̂ in host memory.
#[derive(Debug)]
pub struct HostHat {
    /// Values of each fragment, in order, as [`halves::to_bytes`] encodes them. Two bytes represent them exactly.
    fragments: Vec<Vec<u8>>,
    /// Digest of each fragment.
    digests: Vec<u64>,
    /// One span on the device.
    span: Slice,
}

impl Hat {
    /// Creates Θ̂ in the memory that `parts` choose.
    pub fn new(gpu: &Gpu, parts: &Parts<'_>) -> Self {
        if !parts.host_hat {
            return Self::Device(parts.arena.vector(gpu, "hat"));
        }
        let zeros = |p| vec![0; halves::BYTES * parts.fragments.len(p)];
        let fragments: Vec<Vec<u8>> = parts.fragments.ids().map(zeros).collect();
        let digests = fragments.iter().map(|bytes| halves::digest(&halves::from_bytes(bytes))).collect();
        let span = Slice::whole(&buffer(gpu, "hat", parts.span_words()));
        Self::Host(HostHat { fragments, digests, span })
    }

    /// Returns the slice of a span on the device, once it is there.
    pub fn slice(&self, span: &Piece) -> Slice {
        match self {
            Self::Device(hat) => span.slice(hat),
            Self::Host(host) => span.alone(&host.span),
        }
    }

    /// Ensures that the next submission finds a span of `fragment` on the device.
    pub fn send(&self, gpu: &Gpu, fragment: FragmentId, span: &Piece) {
        if let Self::Host(host) = self {
            let mut values = vec![0.0; span.len as usize];
            halves::widen(host.bytes(fragment, span), &mut values);
            gpu.queue.write_buffer(&host.span.buffer, span.first_byte(), &from_f32s(&values));
        }
    }

    /// Sets a span of `fragment` to `values`, here and on the device, before the next submission.
    pub fn set(&mut self, gpu: &Gpu, fragment: FragmentId, span: &Piece, values: &[f32]) {
        let (target, start_byte) = match self {
            Self::Device(hat) => (&hat[span.chunk], span.bytes().start),
            Self::Host(host) => {
                let range = span.in_fragment();
                let bytes = &mut host.fragments[usize::from(fragment.0)];
                bytes[halves::BYTES * range.start..halves::BYTES * range.end]
                    .copy_from_slice(&halves::to_bytes(values));
                (&host.span.buffer, span.first_byte())
            }
        };
        gpu.queue.write_buffer(target, start_byte, &from_f32s(values));
    }
}

impl HostHat {
    fn bytes(&self, fragment: FragmentId, span: &Piece) -> &[u8] {
        let range = span.in_fragment();
        &self.fragments[usize::from(fragment.0)][halves::BYTES * range.start..halves::BYTES * range.end]
    }

    /// Returns Θ̂ of `fragment`, `[fragment_len]`.
    pub fn values(&self, fragment: FragmentId) -> Vec<f32> {
        halves::from_bytes(&self.fragments[usize::from(fragment.0)])
    }

    /// See [`halves::digest`].
    pub fn digest(&self, fragment: FragmentId) -> u64 {
        self.digests[usize::from(fragment.0)]
    }

    /// Updates the digest of `fragment`, whose Θ̂ is now `values`.
    pub fn note(&mut self, fragment: FragmentId, values: &[f32]) {
        self.digests[usize::from(fragment.0)] = halves::digest(values);
    }
}
