//! Inputs of an exchange, and the device memory that it takes.

use std::sync::Arc;

use super::super::arena::Arena;
use super::super::program::{ALIGN_BYTES, buffer_bytes};
use super::super::{Gpu, GpuError};
use super::piece::{Body, DIGEST_BYTES, FLAG_BYTES, Piece, SPAN};
use crate::diloco::replica::kept_share;
use crate::diloco::{Codec, Fragments, Segment};
use crate::wire::{ApplyPolicy, FragmentId};

/// Maximum number of bodies being read back at once. Further ones wait in device memory.
pub const SLOTS: usize = 4;

/// Inputs of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Layout of θ.
    pub arena: &'a Arena,
    /// The fragments.
    pub fragments: &'a Arc<Fragments>,
    /// Codec of changes.
    pub codec: Codec,
    /// Treatment of unmerged progress when a change arrives.
    pub policy: ApplyPolicy,
    /// Whether Θ̂ is in host memory.
    pub host_hat: bool,
}

impl Parts<'_> {
    /// Returns the segments of a fragment.
    pub fn segments(&self, p: FragmentId) -> &[Segment] {
        self.fragments.segments(p).unwrap_or_default()
    }

    /// Returns the bytes of head and codes of each fragment's body.
    pub fn sizes(&self) -> Vec<[u64; 2]> {
        let size = |p| {
            let head = self.codec.head_bytes(self.segments(p));
            [head as u64, (self.codec.body_bytes(self.segments(p)) - head) as u64]
        };
        self.fragments.ids().map(size).collect()
    }

    /// Returns head and codes of the largest body, or 0 without bodies.
    pub fn largest(&self) -> [u64; 2] {
        self.sizes().iter().fold([0, 0], |max, size| [0, 1].map(|i| size[i].max(max[i])))
    }

    /// Returns head and codes of the body that is being applied on the device.
    pub fn incoming(&self) -> [u64; 2] {
        if self.host_hat { [0, 0] } else { self.largest() }
    }

    /// Returns the maximum number of blocks in a fragment.
    pub fn blocks(&self) -> u64 {
        let blocks = self.fragments.ids().map(|p| self.codec.block_count(self.segments(p)));
        blocks.max().unwrap_or_default() as u64
    }

    /// Returns the bytes that are read back for a fragment.
    pub fn slot_bytes(&self) -> u64 {
        FLAG_BYTES + self.largest().iter().sum::<u64>() + DIGEST_BYTES
    }

    /// Returns the words of a buffer that holds any span at any possible offset.
    pub fn span_words(&self) -> u64 {
        let pieces = self.fragments.ids().flat_map(|p| Piece::all(self.arena, &self.codec, self.segments(p)));
        let longest = pieces.map(|piece| u64::from(piece.len)).max().unwrap_or_default();
        longest.min(SPAN as u64) + ALIGN_BYTES / 4
    }

    /// Returns true if positions are kept.
    pub fn has_position(&self) -> bool {
        kept_share(self.policy).is_some() && !self.policy.is_additive()
    }

    /// Returns the device memory that an exchange takes, in bytes.
    pub fn bytes(&self) -> u64 {
        let bodies: u64 = self.sizes().iter().map(|&[head, codes]| Body::bytes(head, codes)).sum();
        let [head, codes] = self.incoming();
        let position = if self.has_position() { self.arena.bytes() } else { 0 };
        bodies
            + Body::bytes(head, codes)
            + position
            + if self.host_hat { buffer_bytes(self.span_words()) } else { self.arena.bytes() }
            + buffer_bytes(self.span_words())
            + buffer_bytes(self.blocks())
            + SLOTS as u64 * self.slot_bytes()
    }

    /// Rejects bodies that cannot be bound.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`].
    pub fn check(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let bytes_max = gpu.binding_bytes_max() - FLAG_BYTES;
        let sizes = self.sizes();
        let too_large =
            sizes.iter().enumerate().find(|(_, size)| size.iter().any(|&bytes| bytes > bytes_max));
        too_large.map_or(Ok(()), |(fragment, size)| {
            Err(GpuError::TensorTooLarge {
                tensor: format!("the body of fragment {fragment}"),
                bytes: size.iter().sum(),
                bytes_max,
                adapter: gpu.facts().name.clone(),
            })
        })
    }
}
