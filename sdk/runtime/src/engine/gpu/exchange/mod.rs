//! The exchange on the device, equivalent to [`crate::diloco::Replica`] in host memory.
//!
//! θ stays on the device, and so does Θ̂ unless memory must be saved. Only coded bodies are transferred; if Θ̂ is on
//! the host, its values in the exchanged fragment are transferred too. Θ̂ and its digest equal the host's to the bit,
//! and on every device the progress that a body reports is exactly the value of its bytes. The bytes equal the host's
//! too if the device rounds differences and products according to IEEE 754 and keeps subnormal numbers and the sign of
//! zero.

mod hat;
mod part;
mod parts;
mod piece;

use std::collections::VecDeque;
use std::sync::Arc;

use hat::Hat;
use part::Plan;
pub use part::kernel_code;
pub use parts::Parts;
use parts::SLOTS;
use piece::{Body, FLAG_BYTES, Piece};

use super::program::{Program, Slice, buffer};
use super::ring::Ring;
use super::{Gpu, GpuError};
use crate::diloco::replica::{all_finite, kept_share, same_length};
use crate::diloco::{Codec, Fragments, ReplicaError, Segment, halves};
use crate::engine::{Encoded, EngineError};
use crate::wire::{FragmentId, Serial};

/// Exchange of fragments on the device: encodes progress, and applies merged changes.
///
/// Operations submitted here see the parameters after all earlier submissions.
#[derive(Debug)]
pub struct Exchange {
    gpu: Gpu,
    fragments: Arc<Fragments>,
    codec: Codec,
    share: Option<f32>,
    is_additive: bool,
    theta: Vec<wgpu::Buffer>,
    hat: Hat,
    /// For each fragment, the θ that the last coded update represents. Empty if rounding is kept too, or if no progress
    /// is kept.
    position: Vec<wgpu::Buffer>,
    /// A span of the old Θ̂, against which progress is measured while a change is applied.
    old: Slice,
    largest: Slice,
    /// The body that is being applied; empty if Θ̂ is in host memory.
    incoming: Body,
    parts: Vec<Part>,
    /// Coded bodies that wait for a slot in the ring.
    waiting: VecDeque<(Serial, FragmentId)>,
    ring: Ring<(Serial, FragmentId)>,
    /// Bodies that were read back and wait to be taken.
    coded: VecDeque<Encoded>,
    bytes_read_back: u64,
}

/// One fragment. Programs have a dispatch for each span.
#[derive(Debug)]
struct Part {
    spans: Vec<Piece>,
    /// The most recently coded body. If rounding is kept, it stays the reported progress until a change includes it.
    body: Body,
    measure: Program,
    code: Program,
    /// Present if Θ̂ is on the device.
    digest_and_add: Option<[Program; 2]>,
    /// Present if progress is kept.
    rebase: Option<Program>,
    /// Present if progress is kept. If rounding is kept too, adds the value of `body` to θ; otherwise moves θ from the
    /// position to Θ̂.
    include: Option<Program>,
    is_reported: bool,
}

impl Exchange {
    /// Allocates a body for each fragment, the read-back slots, and Θ̂ unless it is in host memory. If `parts` keep
    /// progress but not rounding, also allocates a vector like `theta`.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`] for a body that cannot be bound, and [`GpuError::Memory`].
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
        let plan = Plan { gpu, codec, theta, hat: &hat, largest: &largest };
        let part = |(p, body): (FragmentId, Body)| {
            let pieces = Piece::all(arena, &codec, parts.segments(p));
            let spans: Vec<Piece> = pieces.iter().flat_map(Piece::spans).collect();
            Part {
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

    /// Encodes the current Θ̂ − θ of `fragment`, and records the reported progress, as
    /// [`crate::diloco::Replica::encode`] does. Drops a body of this fragment that still waits for a slot.
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

    /// Returns the oldest finished body. Does not wait.
    ///
    /// # Errors
    /// [`ReplicaError::NotFinite`] and [`GpuError`].
    pub fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        if self.coded.is_empty() {
            self.collect()?;
        }
        Ok(self.coded.pop_front())
    }

    /// Waits until [`Self::encoded`] can return every pending body.
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

    /// Returns true if a body is pending.
    pub fn is_busy(&self) -> bool {
        // Bodies wait only if the ring is full.
        !self.ring.is_empty()
    }

    /// Returns the bytes read back so far.
    pub fn bytes_read_back(&self) -> u64 {
        self.bytes_read_back
    }

    /// Records that the most recently coded update was merged, as [`crate::diloco::Replica::include`] does.
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

    /// Applies a merged change, as [`crate::diloco::Replica::apply`] does.
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
                *value = halves::nearest(*value + old);
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

    /// Loads a whole Θ̂ of `fragment`, `[fragment_len]`, as [`crate::diloco::Replica::load`] does.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], [`ReplicaError::NotFinite`] and [`GpuError`].
    pub fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.segments(fragment)?;
        same_length(self.fragments.len(fragment), values.len())?;
        all_finite(fragment, values)?;
        let mut values = values.to_vec();
        halves::round(&mut values);
        self.put(fragment, &values, keep && self.share.is_some());
        Ok(())
    }

    /// Returns Θ̂, `[len]`, where θ has the layout of `arena`.
    #[cfg(any(test, feature = "parity"))]
    pub async fn hat(&self, arena: &super::arena::Arena, len: usize) -> Result<Vec<f32>, GpuError> {
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

    /// Forgets a reported position, which is meaningless with another Θ̂. Additive progress stays valid.
    fn forget_position(&mut self, fragment: FragmentId, keep: bool) {
        self.parts[usize::from(fragment.0)].is_reported &= keep && self.is_additive;
    }

    /// Sets Θ̂ of `fragment` to `values`, which fit in 16 bits, span by span, and lets θ follow.
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

    /// Saves Θ̂ of `span` as the base against which progress is measured.
    fn remember(&self, encoder: &mut wgpu::CommandEncoder, span: &Piece) {
        let (hat, len) = (self.hat.slice(span), u64::from(span.len) * 4);
        let from = hat.start_byte + span.first_byte();
        encoder.copy_buffer_to_buffer(&hat.buffer, from, &self.old.buffer, span.first_byte(), len);
    }

    /// Moves θ of span `index` to the new Θ̂, plus unmerged progress if `keep`.
    fn follow(&self, encoder: &mut wgpu::CommandEncoder, part: &Part, index: usize, keep: bool) {
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

    /// Runs `program`, which has a dispatch for each span of `fragment`, each with its part of Θ̂ on the device.
    fn run(&self, fragment: FragmentId, program: &Program) {
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

    /// Assigns free slots of the ring to waiting bodies.
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

    /// Takes the oldest body out of the ring, if it has arrived.
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

/// Copies the values of `spans`.
fn copy(encoder: &mut wgpu::CommandEncoder, spans: &[Piece], from: &[wgpu::Buffer], to: &[wgpu::Buffer]) {
    for piece in spans {
        let bytes = piece.bytes();
        let (start, len) = (bytes.start, bytes.end - bytes.start);
        encoder.copy_buffer_to_buffer(&from[piece.chunk], start, &to[piece.chunk], start, len);
    }
}
