//! The exchange on the device: what [`crate::diloco::Replica`] is in host memory.
//!
//! θ and Θ̂ stay where they are; only coded bodies travel. Θ̂ and its digest are the host's to the bit, and the
//! progress that a body reports is what its bytes say, on every device. The bytes are the host's too where the
//! device rounds differences and products as IEEE 754 says and keeps subnormal numbers and the sign of zero.

mod part;

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_core::bytes::from_f32s;

pub use part::kernel_code;
use part::{Body, DIGEST_BYTES, FLAG_BYTES, Piece, Plan};

use super::arena::Arena;
use super::program::{Program, Slice, buffer};
use super::ring::Ring;
use super::{Gpu, GpuError};
use crate::diloco::replica::{all_finite, kept_share, same_length};
use crate::diloco::{Codec, Fragments, ReplicaError, Segment, halves};
use crate::engine::{Encoded, EngineError};
use crate::wire::{ApplyPolicy, FragmentId, Serial};

/// How many bodies may be on their way to the host at once; further ones wait in device memory.
const SLOTS: usize = 4;

/// θ and Θ̂, as `arena` lays them out.
#[derive(Clone, Copy, Debug)]
pub struct Vectors<'a> {
    /// The layout.
    pub arena: &'a Arena,
    /// The parameters.
    pub theta: &'a [wgpu::Buffer],
    /// Θ̂.
    pub hat: &'a [wgpu::Buffer],
}

/// Codes the progress on fragments, and takes in what the syncer made of it.
///
/// What is submitted here sees the parameters as they are after all that was submitted before.
#[derive(Debug)]
pub struct Exchange {
    gpu: Gpu,
    fragments: Arc<Fragments>,
    codec: Codec,
    share: Option<f32>,
    is_additive: bool,
    theta: Vec<wgpu::Buffer>,
    hat: Vec<wgpu::Buffer>,
    /// What progress is measured from while a change comes in. Before that, unless rounding is kept too, for each
    /// fragment the θ that the last coded update stands for. There are no buffers here if the policy keeps nothing.
    reference: Vec<wgpu::Buffer>,
    largest: Slice,
    incoming: Body,
    parts: Vec<Part>,
    /// Coded, and waiting for a slot in the ring.
    waiting: VecDeque<(Serial, FragmentId)>,
    ring: Ring<(Serial, FragmentId)>,
    /// Read back, and waiting to be taken.
    coded: VecDeque<Encoded>,
    bytes_read_back: u64,
}

/// One fragment.
#[derive(Debug)]
struct Part {
    pieces: Vec<Piece>,
    /// Coded last. If rounding is kept, it stays the progress that was reported until a change includes it.
    body: Body,
    encode: Program,
    add: Program,
    /// If progress is kept.
    rebase: Option<Program>,
    /// If progress is kept: adds what `body` says to θ if rounding is kept too, else moves θ from the reference to Θ̂.
    include: Option<Program>,
    is_reported: bool,
}

impl Exchange {
    /// Takes memory for one body of each fragment, one more and [`SLOTS`] to read back, and unless `policy`
    /// keeps nothing, for a vector like θ.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`] for a body that cannot be bound, and [`GpuError::Memory`].
    pub async fn new(
        gpu: &Gpu,
        vectors: Vectors<'_>,
        fragments: Arc<Fragments>,
        codec: Codec,
        policy: ApplyPolicy,
    ) -> Result<Self, GpuError> {
        let Vectors { arena, theta, hat } = vectors;
        let share = kept_share(policy);
        let segments = |p| fragments.segments(p).unwrap_or_default();
        let sizes: Vec<[u64; 2]> = fragments
            .ids()
            .map(|p| {
                let head = codec.head_bytes(segments(p));
                [head as u64, (codec.body_bytes(segments(p)) - head) as u64]
            })
            .collect();
        check_sizes(gpu, &sizes)?;
        let largest = sizes.iter().fold([0, 0], |max, size| [0, 1].map(|i| size[i].max(max[i])));
        let slot_bytes = FLAG_BYTES + largest[0] + largest[1] + DIGEST_BYTES;
        let blocks = fragments.ids().map(|p| codec.block_count(segments(p))).max().unwrap_or_default() as u64;
        let bytes = sizes.iter().flatten().sum::<u64>()
            + (SLOTS as u64 + 1) * slot_bytes
            + share.map_or(0, |_| arena.bytes())
            + sizes.len() as u64 * DIGEST_BYTES
            + blocks * 4;
        let make = || {
            (
                sizes.iter().map(|&[head, codes]| Body::new(gpu, "body", head, codes)).collect::<Vec<_>>(),
                Body::new(gpu, "incoming", largest[0], largest[1]),
                share.map(|_| arena.vector(gpu, "reference")).unwrap_or_default(),
                Slice::whole(&buffer(gpu, "largest", blocks)),
                Ring::new(gpu, "bodies", SLOTS, slot_bytes),
            )
        };
        let (bodies, incoming, reference, largest, ring) = gpu.allocate(bytes, make).await?;
        let plan =
            Plan { gpu, codec, theta, hat, reference: &reference, largest: &largest, incoming: &incoming };
        let part = |(p, body)| {
            let pieces = Piece::all(arena, &codec, segments(p));
            Part {
                encode: plan.encode(&pieces, &body),
                add: plan.add(&pieces),
                rebase: share.map(|share| plan.rebase(&pieces, share)),
                include: share.map(|_| match policy.is_additive() {
                    true => plan.give_back(&pieces, &body),
                    false => plan.rebase(&pieces, 1.0),
                }),
                pieces,
                body,
                is_reported: false,
            }
        };
        let parts = fragments.ids().zip(bodies).map(part).collect();
        Ok(Self {
            gpu: gpu.clone(),
            codec,
            share,
            is_additive: policy.is_additive(),
            theta: theta.to_vec(),
            hat: hat.to_vec(),
            reference,
            largest,
            incoming,
            parts,
            waiting: VecDeque::new(),
            ring,
            coded: VecDeque::new(),
            bytes_read_back: 0,
            fragments,
        })
    }

    /// Codes Θ̂ − θ of `fragment` as of now, and remembers what this reports, as [`crate::diloco::Replica::encode`]
    /// does. A body of this fragment that still waits for a slot is dropped.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`] and [`GpuError`].
    pub fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.segments(fragment)?;
        self.parts[usize::from(fragment.0)].is_reported = true;
        let part = &self.parts[usize::from(fragment.0)];
        self.submit(|encoder| {
            let Body { head, codes, digest } = &part.body;
            for slice in [head, codes, digest, &self.largest] {
                encoder.clear_buffer(&slice.buffer, slice.start_byte, Some(slice.bytes));
            }
            part.encode.record(encoder);
            if !self.is_additive && self.share.is_some() {
                copy(encoder, &part.pieces, &self.theta, &self.reference);
            }
        });
        self.waiting.retain(|&(_, other)| other != fragment);
        self.waiting.push_back((serial, fragment));
        self.read_back();
        Ok(())
    }

    /// The oldest body that is there. Does not wait.
    ///
    /// # Errors
    /// [`ReplicaError::NotFinite`] and [`GpuError`].
    pub fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        if self.coded.is_empty() {
            self.collect()?;
        }
        Ok(self.coded.pop_front())
    }

    /// Waits until [`Self::encoded`] gives every body that was begun.
    ///
    /// # Errors
    /// [`ReplicaError::NotFinite`] and [`GpuError`].
    pub async fn ready(&mut self) -> Result<(), EngineError> {
        while self.is_busy() {
            self.ring.ready(&self.gpu).await?;
            self.collect()?;
        }
        Ok(())
    }

    /// Whether a body that was begun is not there yet.
    pub fn is_busy(&self) -> bool {
        // None waits unless the ring is full.
        !self.ring.is_empty()
    }

    /// Bytes that were read back so far.
    pub fn bytes_read_back(&self) -> u64 {
        self.bytes_read_back
    }

    /// Takes in that the update coded last is merged, as [`crate::diloco::Replica::include`] does.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::NothingReported`] and [`GpuError`].
    pub fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.segments(fragment)?;
        let part = &mut self.parts[usize::from(fragment.0)];
        if !std::mem::take(&mut part.is_reported) {
            return match self.is_additive {
                true => Err(ReplicaError::NothingReported { fragment }.into()),
                false => Ok(()),
            };
        }
        if let Some(include) = &self.parts[usize::from(fragment.0)].include {
            self.submit(|encoder| include.record(encoder));
        }
        Ok(())
    }

    /// Takes in a merged change, as [`crate::diloco::Replica::apply`] does.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Body`] and [`GpuError`].
    pub fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError> {
        self.gpu.check()?;
        let segments = self.segments(fragment)?;
        self.codec.norm(segments, body).map_err(ReplicaError::Body)?;
        let (head, codes) = body.split_at(self.codec.head_bytes(segments));
        let keep = self.share.is_some();
        self.set_reference(fragment, keep);

        let part = &self.parts[usize::from(fragment.0)];
        self.gpu.queue.write_buffer(&self.incoming.head.buffer, FLAG_BYTES, head);
        self.gpu.queue.write_buffer(&self.incoming.codes.buffer, 0, codes);
        self.submit(|encoder| part.add.record(encoder));
        self.follow(part, keep);
        Ok(())
    }

    /// Takes in a whole Θ̂ of `fragment`, `[fragment_len]`, as [`crate::diloco::Replica::load`] does.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], [`ReplicaError::NotFinite`] and [`GpuError`].
    pub fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.segments(fragment)?;
        same_length(self.fragments.len(fragment), values.len())?;
        all_finite(fragment, values)?;
        let keep = keep && self.share.is_some();
        self.set_reference(fragment, keep);

        let part = &self.parts[usize::from(fragment.0)];
        let mut values = values.to_vec();
        halves::round(&mut values);
        let mut rest = values.as_slice();
        for piece in &part.pieces {
            let (values, tail) = rest.split_at(piece.len as usize);
            self.gpu.queue.write_buffer(&self.hat[piece.chunk], piece.bytes().start, &from_f32s(values));
            rest = tail;
        }
        self.follow(part, keep);
        Ok(())
    }

    fn segments(&self, fragment: FragmentId) -> Result<&[Segment], ReplicaError> {
        let count = self.fragments.count();
        self.fragments.segments(fragment).ok_or(ReplicaError::Fragment { fragment, count })
    }

    /// Makes the old Θ̂ what progress is measured from, if that is kept. A position that was reported means nothing
    /// beside another Θ̂, while progress is progress.
    fn set_reference(&mut self, fragment: FragmentId, keep: bool) {
        let part = &mut self.parts[usize::from(fragment.0)];
        part.is_reported &= keep && self.is_additive;
        let part = &self.parts[usize::from(fragment.0)];
        if keep {
            self.submit(|encoder| copy(encoder, &part.pieces, &self.hat, &self.reference));
        }
    }

    /// Makes θ follow the new Θ̂, with unmerged progress on top if `keep`.
    fn follow(&self, part: &Part, keep: bool) {
        self.submit(|encoder| match &part.rebase {
            Some(rebase) if keep => rebase.record(encoder),
            _ => copy(encoder, &part.pieces, &self.hat, &self.theta),
        });
    }

    fn submit(&self, record: impl FnOnce(&mut wgpu::CommandEncoder)) {
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        record(&mut encoder);
        self.gpu.queue.submit([encoder.finish()]);
    }

    /// Gives the slots of the ring to those that wait.
    fn read_back(&mut self) {
        while !self.ring.is_full()
            && let Some((serial, fragment)) = self.waiting.pop_front()
        {
            let Body { head, codes, digest } = &self.parts[usize::from(fragment.0)].body;
            let slices = [head, codes, digest].map(Slice::clone);
            self.bytes_read_back += slices.iter().map(|slice| slice.bytes).sum::<u64>();
            self.ring.read(&self.gpu, &slices, (serial, fragment));
        }
    }

    /// Takes the oldest body out of the ring, if it is there.
    fn collect(&mut self) -> Result<(), EngineError> {
        let taken = self.ring.next(&self.gpu, |(serial, fragment), bytes| {
            let (flag, rest) = bytes.split_first_chunk().expect("a head begins with a flag");
            let (body, digest) = rest.split_last_chunk().expect("a digest follows");
            let digest = u64::from_le_bytes(*digest);
            match u32::from_le_bytes(*flag) {
                0 => Ok(Encoded { serial, fragment, body: body.to_vec(), digest }),
                flag => Err(ReplicaError::NotFinite { fragment, index: !flag as usize }),
            }
        })?;
        self.read_back();
        self.coded.extend(taken.transpose()?);
        Ok(())
    }
}

/// Copies the values of `pieces`.
fn copy(encoder: &mut wgpu::CommandEncoder, pieces: &[Piece], from: &[wgpu::Buffer], to: &[wgpu::Buffer]) {
    for piece in pieces {
        let bytes = piece.bytes();
        let (start, len) = (bytes.start, bytes.end - bytes.start);
        encoder.copy_buffer_to_buffer(&from[piece.chunk], start, &to[piece.chunk], start, len);
    }
}

/// Refuses bodies that cannot be bound.
fn check_sizes(gpu: &Gpu, sizes: &[[u64; 2]]) -> Result<(), GpuError> {
    let bytes_max = gpu.binding_bytes_max() - FLAG_BYTES;
    let too_large = sizes.iter().enumerate().find(|(_, size)| size.iter().any(|&bytes| bytes > bytes_max));
    too_large.map_or(Ok(()), |(fragment, size)| {
        Err(GpuError::TensorTooLarge {
            tensor: format!("the body of fragment {fragment}"),
            bytes: size.iter().sum(),
            bytes_max,
            adapter: gpu.facts().name.clone(),
        })
    })
}
