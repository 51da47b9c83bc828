//! Exchange of updates and changes on the device, equivalent to [`crate::diloco::Replica`] in host memory.
//!
//! θ stays on the device, and so does Θ̂ unless memory must be saved. Only coded bodies are transferred, and, if Θ̂ is
//! in host memory, the Θ̂ of the exchanged fragment. Θ̂ and its digest have the same bits as with a `Replica`. On every
//! device, a body's bytes are exactly the progress that the learner reports. The bytes equal those of a `Replica` if
//! the device rounds differences and products according to IEEE 754 and keeps subnormal numbers and the sign of zero.

mod slices;

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_core::bytes::from_f32s;

use super::arena::Arena;
use super::program::{ALIGN_BYTES, DispatchList, Slice, buffer, buffer_bytes};
use super::ring::Ring;
use super::{Gpu, GpuError};
use crate::diloco::replica::{all_finite, kept_share, same_length};
use crate::diloco::{Codec, Fragments, ReplicaError, Segment, binary16};
use crate::engine::{Encoded, EngineError};
use crate::wire::{ApplyPolicy, FragmentId, Serial};
use slices::{Body, DIGEST_BYTES, DispatchInputs, FLAG_BYTES, SPAN, SegmentSlice};

pub use slices::kernel_code;

/// Exchange of fragments on the device. It encodes progress and applies merged changes.
///
/// Its operations see the parameters as they are after all earlier submissions to the queue.
#[derive(Debug)]
pub struct Exchange {
    gpu: Gpu,
    fragments: Arc<Fragments>,
    codec: Codec,
    share: Option<f32>,
    is_additive: bool,
    theta: Vec<wgpu::Buffer>,
    hat: Hat,
    /// For each fragment, the value of θ when its last update was coded. Empty if the rounding error is kept too, or if
    /// no progress is kept.
    position: Vec<wgpu::Buffer>,
    /// Copy of one span of the old Θ̂, the base of progress while a change is applied.
    old: Slice,
    largest: Slice,
    /// Body of the change that is being applied. Its slices are empty if Θ̂ is in host memory.
    incoming: Body,
    parts: Vec<FragmentExchange>,
    /// Updates whose coded bodies wait on the device for a slot of the ring.
    waiting: VecDeque<(Serial, FragmentId)>,
    ring: Ring<(Serial, FragmentId)>,
    /// Bodies that were read back and that [`Self::encoded`] has not returned yet.
    coded: VecDeque<Encoded>,
    bytes_read_back: u64,
}

/// One fragment. Each of its programs has one dispatch per span.
#[derive(Debug)]
struct FragmentExchange {
    spans: Vec<SegmentSlice>,
    /// Body of the most recent update. If the rounding error is kept, it is the reported progress until a change
    /// includes it.
    body: Body,
    measure: DispatchList,
    code: DispatchList,
    /// Digest of Θ̂ and addition of a change. Present if Θ̂ is on the device.
    digest_and_add: Option<[DispatchList; 2]>,
    /// Move of θ to a new Θ̂. Present if progress is kept.
    rebase: Option<DispatchList>,
    /// Inclusion of the reported progress. Present if progress is kept. If the rounding error is kept too, it adds the
    /// value of `body` to θ. Otherwise it sets θ to Θ̂ plus the progress since `position`.
    include: Option<DispatchList>,
    is_reported: bool,
}

impl Exchange {
    /// Allocates a body for each fragment, the read-back slots, and Θ̂ unless it is in host memory. If the policy in
    /// `parts` keeps progress but not the rounding error, also allocates a vector as large as `theta`.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`] if a body exceeds the binding limit, and [`GpuError::Memory`].
    pub async fn new(gpu: &Gpu, theta: &[wgpu::Buffer], parts: Parts<'_>) -> Result<Self, GpuError> {
        let Parts { arena, fragments, codec, policy, host_hat } = parts;
        let share = kept_share(policy);
        let sizes = parts.sizes();
        parts.check(gpu)?;
        let make = || {
            let [head, codes] = parts.incoming();
            let position = parts.has_position().then(|| arena.vector(gpu, "position"));
            (
                sizes.iter().map(|&[head, codes]| Body::new(gpu, "body", head, codes)).collect::<Vec<_>>(),
                Body::new(gpu, "incoming", head, codes),
                position.unwrap_or_default(),
                Hat::new(gpu, &parts),
                [("old", parts.span_words()), ("largest", parts.blocks())]
                    .map(|(label, words)| Slice::whole(&buffer(gpu, label, words))),
                Ring::new(gpu, "bodies", SLOTS, parts.slot_bytes()),
            )
        };
        let (bodies, incoming, position, hat, [old, largest], ring) =
            gpu.allocate(parts.bytes(), make).await?;
        let plan = DispatchInputs { gpu, codec, theta, hat: &hat, largest: &largest };
        let part = |(p, body): (FragmentId, Body)| {
            let pieces = SegmentSlice::all(arena, &codec, parts.segments(p));
            let spans: Vec<SegmentSlice> = pieces.iter().flat_map(SegmentSlice::spans).collect();
            FragmentExchange {
                measure: plan.measure(&spans, &body),
                code: plan.code(&spans, &body),
                digest_and_add: (!host_hat)
                    .then(|| [plan.digest(&spans, &body), plan.add(&spans, &incoming)]),
                rebase: share.map(|share| plan.rebase(&spans, share, |span| span.alone(&old))),
                include: share.map(|_| match policy.is_additive() {
                    true => plan.give_back(&spans, &body),
                    false => plan.rebase(&spans, 1.0, |span| span.slice(&position)),
                }),
                spans,
                body,
                is_reported: false,
            }
        };
        let parts = fragments.ids().zip(bodies).map(part).collect();
        Ok(Self {
            gpu: gpu.clone(),
            fragments: Arc::clone(fragments),
            codec,
            share,
            is_additive: policy.is_additive(),
            theta: theta.to_vec(),
            hat,
            position,
            old,
            largest,
            incoming,
            parts,
            waiting: VecDeque::new(),
            ring,
            coded: VecDeque::new(),
            bytes_read_back: 0,
        })
    }

    /// Encodes Θ̂ − θ of `fragment` and marks it as reported, as [`crate::diloco::Replica::encode`] does. An earlier
    /// body of this fragment that still waits for a slot is dropped.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`] and [`GpuError`].
    pub fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.segments(fragment)?;
        self.parts[usize::from(fragment.0)].is_reported = true;
        let part = &self.parts[usize::from(fragment.0)];
        let Body { head, codes, digest } = &part.body;
        self.submit(|encoder| {
            for slice in [head, codes, digest, &self.largest] {
                encoder.clear_buffer(&slice.buffer, slice.start_byte, Some(slice.bytes));
            }
        });
        if let Hat::Host(hat) = &self.hat {
            let known = hat.digest(fragment).to_le_bytes();
            self.gpu.queue.write_buffer(&digest.buffer, digest.start_byte, &known);
        }
        self.run(fragment, &part.measure);
        self.run(fragment, &part.code);
        self.submit(|encoder| {
            if let Some([digest, _]) = &part.digest_and_add {
                digest.record(encoder);
            }
            if !self.position.is_empty() {
                copy(encoder, &part.spans, &self.theta, &self.position);
            }
        });
        self.waiting.retain(|&(_, other)| other != fragment);
        self.waiting.push_back((serial, fragment));
        self.read_back();
        Ok(())
    }

    /// Returns the oldest finished body, without waiting. Returns `None` if none is finished.
    ///
    /// # Errors
    /// [`ReplicaError::NotFinite`] and [`GpuError`].
    pub fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        if self.coded.is_empty() {
            self.collect()?;
        }
        Ok(self.coded.pop_front())
    }

    /// Waits until all pending bodies are finished, so that [`Self::encoded`] returns them.
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

    /// Returns true if any body is pending.
    pub fn is_busy(&self) -> bool {
        // A body waits outside the ring only if the ring is full.
        !self.ring.is_empty()
    }

    /// Returns the total bytes of all read-backs so far.
    pub fn bytes_read_back(&self) -> u64 {
        self.bytes_read_back
    }

    /// Records that the most recent update was merged, as [`crate::diloco::Replica::include`] does.
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
            self.run(fragment, include);
        }
        Ok(())
    }

    /// Applies a merged change in `body`, as [`crate::diloco::Replica::apply`] does.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Body`] and [`GpuError`].
    pub fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError> {
        self.gpu.check()?;
        let segments = self.segments(fragment)?;
        self.codec.norm(segments, body).map_err(ReplicaError::Body)?;
        if let Hat::Host(hat) = &self.hat {
            let mut values = self.codec.decode(segments, body).map_err(ReplicaError::Body)?;
            for (value, old) in values.iter_mut().zip(hat.values(fragment)) {
                *value = binary16::nearest(*value + old);
            }
            self.put(fragment, &values, self.share.is_some());
            return Ok(());
        }
        let (head, codes) = body.split_at(self.codec.head_bytes(segments));
        let keep = self.share.is_some();
        self.forget_position(fragment, keep);
        self.gpu.queue.write_buffer(&self.incoming.head.buffer, FLAG_BYTES, head);
        self.gpu.queue.write_buffer(&self.incoming.codes.buffer, 0, codes);
        let part = &self.parts[usize::from(fragment.0)];
        self.submit(|encoder| {
            for (i, span) in part.spans.iter().enumerate() {
                if keep {
                    self.remember(encoder, span);
                }
                if let Some([_, add]) = &part.digest_and_add {
                    add.record_one(i, encoder, None);
                }
                self.follow(encoder, part, i, keep);
            }
        });
        Ok(())
    }

    /// Sets Θ̂ of `fragment` to `values`, `[fragment_len]`, as [`crate::diloco::Replica::load`] does.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], [`ReplicaError::NotFinite`] and [`GpuError`].
    pub fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.segments(fragment)?;
        same_length(self.fragments.len(fragment), values.len())?;
        all_finite(fragment, values)?;
        let mut values = values.to_vec();
        binary16::round(&mut values);
        self.put(fragment, &values, keep && self.share.is_some());
        Ok(())
    }

    /// Returns Θ̂, `[len]`, in the order of the flat vector. `arena` is the layout of θ.
    #[cfg(any(test, feature = "parity"))]
    pub async fn hat(&self, arena: &Arena, len: usize) -> Result<Vec<f32>, GpuError> {
        let host = match &self.hat {
            Hat::Device(hat) => return super::vectors::download(&self.gpu, arena, hat, len).await,
            Hat::Host(host) => host,
        };
        let mut flat = vec![0.0; len];
        self.fragments.ids().for_each(|p| self.fragments.scatter(p, &host.values(p), &mut flat));
        Ok(flat)
    }

    fn segments(&self, fragment: FragmentId) -> Result<&[Segment], ReplicaError> {
        let count = self.fragments.count();
        self.fragments.segments(fragment).ok_or(ReplicaError::Fragment { fragment, count })
    }

    /// Discards the reported progress of `fragment`, which is invalid with another Θ̂. If `keep` and the policy keeps
    /// the rounding error, reported progress stays valid.
    fn forget_position(&mut self, fragment: FragmentId, keep: bool) {
        self.parts[usize::from(fragment.0)].is_reported &= keep && self.is_additive;
    }

    /// Sets Θ̂ of `fragment` to `values`, which fit in 16 bits, and moves θ accordingly, span by span.
    fn put(&mut self, fragment: FragmentId, values: &[f32], keep: bool) {
        self.forget_position(fragment, keep);
        let spans = self.parts[usize::from(fragment.0)].spans.clone();
        for (i, span) in spans.iter().enumerate() {
            if keep {
                self.hat.send(&self.gpu, fragment, span);
                self.submit(|encoder| self.remember(encoder, span));
            }
            self.hat.set(&self.gpu, fragment, span, &values[span.in_fragment()]);
            self.submit(|encoder| self.follow(encoder, &self.parts[usize::from(fragment.0)], i, keep));
        }
        if let Hat::Host(hat) = &mut self.hat {
            hat.note(fragment, values);
        }
    }

    /// Copies Θ̂ of `span` to `old`, the base of progress.
    fn remember(&self, encoder: &mut wgpu::CommandEncoder, span: &SegmentSlice) {
        let (hat, len) = (self.hat.slice(span), u64::from(span.len) * 4);
        let from = hat.start_byte + span.first_byte();
        encoder.copy_buffer_to_buffer(&hat.buffer, from, &self.old.buffer, span.first_byte(), len);
    }

    /// Sets θ of span `index` to the new Θ̂, plus the unmerged progress if `keep`.
    fn follow(&self, encoder: &mut wgpu::CommandEncoder, part: &FragmentExchange, index: usize, keep: bool) {
        match &part.rebase {
            Some(rebase) if keep => rebase.record_one(index, encoder, None),
            _ => {
                let span = &part.spans[index];
                let (hat, bytes) = (self.hat.slice(span), span.bytes());
                let (from, len) = (hat.start_byte + span.first_byte(), bytes.end - bytes.start);
                let theta = &self.theta[span.chunk];
                encoder.copy_buffer_to_buffer(&hat.buffer, from, theta, bytes.start, len);
            }
        }
    }

    /// Runs `program` for all spans of `fragment`. If Θ̂ is in host memory, first sends each span's part of it to the
    /// device.
    fn run(&self, fragment: FragmentId, program: &DispatchList) {
        if let Hat::Device(_) = &self.hat {
            return self.submit(|encoder| program.record(encoder));
        }
        for (i, span) in self.parts[usize::from(fragment.0)].spans.iter().enumerate() {
            self.hat.send(&self.gpu, fragment, span);
            self.submit(|encoder| program.record_one(i, encoder, None));
        }
    }

    fn submit(&self, record: impl FnOnce(&mut wgpu::CommandEncoder)) {
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        record(&mut encoder);
        self.gpu.queue.submit([encoder.finish()]);
    }

    /// Assigns free slots of the ring to waiting bodies and starts their transfer.
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

    /// Moves the oldest body from the ring to `coded`, if it has arrived.
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

/// Copies the values of `spans` from one vector to another.
fn copy(
    encoder: &mut wgpu::CommandEncoder,
    spans: &[SegmentSlice],
    from: &[wgpu::Buffer],
    to: &[wgpu::Buffer],
) {
    for piece in spans {
        let bytes = piece.bytes();
        let (start, len) = (bytes.start, bytes.end - bytes.start);
        encoder.copy_buffer_to_buffer(&from[piece.chunk], start, &to[piece.chunk], start, len);
    }
}

/// Storage of Θ̂, initially zero.
#[derive(Debug)]
enum Hat {
    /// On the device, with the same layout as θ.
    Device(Vec<wgpu::Buffer>),
    /// In host memory. Only the span that is being processed is on the device.
    Host(HostHat),
}

/// Θ̂ in host memory.
#[derive(Debug)]
struct HostHat {
    /// 16-bit values of each fragment, in order, as [`binary16::to_bytes`] encodes them. They represent Θ̂ exactly.
    fragments: Vec<Vec<u8>>,
    /// Digest of Θ̂ of each fragment.
    digests: Vec<u64>,
    /// Device buffer of one span.
    span: Slice,
}

impl Hat {
    /// Creates a zeroed Θ̂ on the device or in host memory, as `parts` say.
    pub fn new(gpu: &Gpu, parts: &Parts<'_>) -> Self {
        if !parts.host_hat {
            return Self::Device(parts.arena.vector(gpu, "hat"));
        }
        let zeros = |p| vec![0; binary16::BYTES * parts.fragments.len(p)];
        let fragments: Vec<Vec<u8>> = parts.fragments.ids().map(zeros).collect();
        let digests = fragments.iter().map(|bytes| binary16::digest(&binary16::from_bytes(bytes))).collect();
        let span = Slice::whole(&buffer(gpu, "hat", parts.span_words()));
        Self::Host(HostHat { fragments, digests, span })
    }

    /// Returns the slice of `span` on the device. If Θ̂ is in host memory, [`Self::send`] must have sent the span.
    pub fn slice(&self, span: &SegmentSlice) -> Slice {
        match self {
            Self::Device(hat) => span.slice(hat),
            Self::Host(host) => span.alone(&host.span),
        }
    }

    /// Writes `span` of `fragment` to the device for the next submission, if Θ̂ is in host memory.
    pub fn send(&self, gpu: &Gpu, fragment: FragmentId, span: &SegmentSlice) {
        if let Self::Host(host) = self {
            let mut values = vec![0.0; span.len as usize];
            binary16::widen(host.bytes(fragment, span), &mut values);
            gpu.queue.write_buffer(&host.span.buffer, span.first_byte(), &from_f32s(&values));
        }
    }

    /// Sets `span` of `fragment` to `values`, in host memory and on the device, before the next submission.
    pub fn set(&mut self, gpu: &Gpu, fragment: FragmentId, span: &SegmentSlice, values: &[f32]) {
        let (target, start_byte) = match self {
            Self::Device(hat) => (&hat[span.chunk], span.bytes().start),
            Self::Host(host) => {
                let range = span.in_fragment();
                let bytes = &mut host.fragments[usize::from(fragment.0)];
                bytes[binary16::BYTES * range.start..binary16::BYTES * range.end]
                    .copy_from_slice(&binary16::to_bytes(values));
                (&host.span.buffer, span.first_byte())
            }
        };
        gpu.queue.write_buffer(target, start_byte, &from_f32s(values));
    }
}

impl HostHat {
    fn bytes(&self, fragment: FragmentId, span: &SegmentSlice) -> &[u8] {
        let range = span.in_fragment();
        &self.fragments[usize::from(fragment.0)][binary16::BYTES * range.start..binary16::BYTES * range.end]
    }

    /// Returns Θ̂ of `fragment`, `[fragment_len]`.
    pub fn values(&self, fragment: FragmentId) -> Vec<f32> {
        binary16::from_bytes(&self.fragments[usize::from(fragment.0)])
    }

    /// Returns the digest of `fragment`'s Θ̂, see [`binary16::digest`].
    pub fn digest(&self, fragment: FragmentId) -> u64 {
        self.digests[usize::from(fragment.0)]
    }

    /// Updates the digest of `fragment`; its Θ̂ is now `values`.
    pub fn note(&mut self, fragment: FragmentId, values: &[f32]) {
        self.digests[usize::from(fragment.0)] = binary16::digest(values);
    }
}

/// Number of ring slots, which limits the bodies that are read back at once. Further bodies wait in device memory.
const SLOTS: usize = 4;

/// Inputs of an exchange, and the sizes that follow from them.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Layout of θ.
    pub arena: &'a Arena,
    /// Fragments of the parameters.
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

    /// Returns the sizes in bytes of head and codes of each fragment's body.
    pub fn sizes(&self) -> Vec<[u64; 2]> {
        let size = |p| {
            let head = self.codec.head_bytes(self.segments(p));
            [head as u64, (self.codec.body_bytes(self.segments(p)) - head) as u64]
        };
        self.fragments.ids().map(size).collect()
    }

    /// Returns the largest head and the largest codes of any body, in bytes; 0 without fragments.
    pub fn largest(&self) -> [u64; 2] {
        self.sizes().iter().fold([0, 0], |max, size| [0, 1].map(|i| size[i].max(max[i])))
    }

    /// Returns the sizes in bytes of head and codes of the buffer for incoming changes.
    pub fn incoming(&self) -> [u64; 2] {
        if self.host_hat { [0, 0] } else { self.largest() }
    }

    /// Returns the maximum number of blocks in a fragment.
    pub fn blocks(&self) -> u64 {
        let blocks = self.fragments.ids().map(|p| self.codec.block_count(self.segments(p)));
        blocks.max().unwrap_or_default() as u64
    }

    /// Returns the maximum number of bytes that are read back for one fragment.
    pub fn slot_bytes(&self) -> u64 {
        FLAG_BYTES + self.largest().iter().sum::<u64>() + DIGEST_BYTES
    }

    /// Returns the number of words in a buffer that can hold any span at any offset within the alignment.
    pub fn span_words(&self) -> u64 {
        let pieces =
            self.fragments.ids().flat_map(|p| SegmentSlice::all(self.arena, &self.codec, self.segments(p)));
        let longest = pieces.map(|piece| u64::from(piece.len)).max().unwrap_or_default();
        longest.min(SPAN as u64) + ALIGN_BYTES / 4
    }

    /// Returns true if the exchange needs the vector `position`.
    pub fn has_position(&self) -> bool {
        kept_share(self.policy).is_some() && !self.policy.is_additive()
    }

    /// Returns the size of the exchange's buffers, in bytes.
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

    /// Checks that all bodies can be bound.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`] if one exceeds the binding limit.
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
