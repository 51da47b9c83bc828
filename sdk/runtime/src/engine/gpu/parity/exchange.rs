//! Tests of the exchange on the device against [`Replica`], with fragments and chunks of irregular sizes.

use std::num::NonZeroU16;
use std::sync::Arc;

use archipelago_core::bytes::from_f32s;

use super::super::arena::Arena;
use super::super::exchange::{Exchange, Parts};
use super::super::program::Slice;
use super::super::{Gpu, GpuError};
use super::harness::{Gpus, floats, own_gpu, read, words};
use crate::diloco::{Codec, Fragments, Replica, ReplicaError};
use crate::engine::{Encoded, EngineError};
use crate::model::{self, Dims, ModelSpec, Preset, Slots};
use crate::rng::Rng;
use crate::wire::{ApplyPolicy, Code, ExchangeSpec, FragmentId, Serial};

const KEEP: ApplyPolicy = ApplyPolicy::Keep { residue: false };
const RESIDUE: ApplyPolicy = ApplyPolicy::Keep { residue: true };
const BLEND: ApplyPolicy = ApplyPolicy::Blend { alpha: 0.3 };
const P0: FragmentId = FragmentId(0);
/// Chunk size limit for [`odd_model`], in bytes: the minimum number of embedding rows fits exactly.
const ODD_BYTES: u64 = 128 * 20 * 4;

/// Returns a model with an embedding of 259 rows of 20 values, and matrices of irregular sizes.
fn odd_model() -> ModelSpec {
    ModelSpec { vocab: 259, d_model: 20, layers: 1, heads: 2, kv_heads: 1, d_ff: 12, ..Preset::Tiny.model(1) }
}

/// Code, number of values in a block, and treatment of unmerged progress.
type Spec = (Code, u32, ApplyPolicy);

/// Same fragments in a host replica and in a device exchange.
struct HostDevicePair {
    gpu: Gpu,
    arena: Arena,
    fragments: Arc<Fragments>,
    codec: Codec,
    theta: Vec<f32>,
    replica: Replica,
    device: Vec<wgpu::Buffer>,
    exchange: Exchange,
    rng: Rng,
}

impl HostDevicePair {
    /// Creates a pair for `model` in chunks of at most `chunk_bytes`, with random values loaded into every fragment.
    async fn new(gpu: &Gpu, model: &ModelSpec, chunk_bytes: u64, count: u16, spec: Spec) -> Self {
        Self::with(gpu, (model, chunk_bytes, count), spec, false).await
    }

    /// Creates a pair as [`Self::new`] does. If `host_hat`, the exchange keeps Θ̂ in host memory.
    async fn with(gpu: &Gpu, of: (&ModelSpec, u64, u16), spec: Spec, host_hat: bool) -> Self {
        let ((model, chunk_bytes, count), (code, block, apply)) = (of, spec);
        let exchange = ExchangeSpec { fragments: count, sync_every: 1, block, code, apply };
        let codec = Codec::new(&exchange).unwrap();
        let dims = Dims::new(model);
        let arena = Arena::plan(&dims, &Slots::new(&dims), chunk_bytes, "test").unwrap();
        let layout = model::layout(model).unwrap();
        let fragments = Arc::new(Fragments::plan(&layout, NonZeroU16::new(count).unwrap()));
        let device = arena.vector(gpu, "theta");
        let parts = Parts { arena: &arena, fragments: &fragments, codec, policy: apply, host_hat };
        let exchange = Exchange::new(gpu, &device, parts).await.unwrap();
        let replica = Replica::new(Arc::clone(&fragments), codec, apply);
        let (theta, rng) = (vec![0.0; layout.len()], Rng::new(u64::from(count)));
        let mut pair =
            Self { gpu: gpu.clone(), arena, fragments, codec, theta, replica, device, exchange, rng };
        for p in pair.fragments.ids() {
            let values = pair.noise(p, 1.0);
            pair.load(p, &values, false, false);
        }
        pair
    }

    fn noise(&mut self, p: FragmentId, size: f32) -> Vec<f32> {
        (0..self.fragments.len(p)).map(|_| (2.0 * self.rng.unit() as f32 - 1.0) * size).collect()
    }

    /// Simulates training: changes θ on the host and uploads it to the device.
    fn train(&mut self) {
        let size = 0.1_f32.powi(self.rng.below(4) as i32);
        for value in &mut self.theta {
            // Some values stay the same.
            if self.rng.below(8) > 0 {
                *value += (2.0 * self.rng.unit() as f32 - 1.0) * size;
            }
        }
        self.upload();
    }

    fn upload(&self) {
        for run in self.arena.runs(0..self.theta.len()) {
            let bytes = from_f32s(&self.theta[run.flat]);
            self.gpu.queue.write_buffer(&self.device[run.chunk], run.start as u64 * 4, &bytes);
        }
    }

    async fn download(&self, vector: &[wgpu::Buffer]) -> Vec<f32> {
        let mut chunks = Vec::new();
        for chunk in vector {
            chunks.push(floats(&read(&self.gpu, &Slice::whole(chunk)).await));
        }
        let runs = self.arena.runs(0..self.theta.len());
        runs.flat_map(|run| chunks[run.chunk][run.start..][..run.flat.len()].to_vec()).collect()
    }

    fn load(&mut self, p: FragmentId, values: &[f32], keep: bool, included: bool) {
        if included {
            self.include(p);
        }
        self.replica.load(p, values, keep, &mut self.theta).unwrap();
        self.exchange.load(p, values, keep).unwrap();
    }

    fn include(&mut self, p: FragmentId) {
        self.replica.include(p, &mut self.theta).unwrap();
        self.exchange.include(p).unwrap();
    }

    fn encode(&mut self, round: u64, p: FragmentId) -> Encoded {
        self.exchange.encode(Serial(round), p).unwrap();
        let body = self.replica.encode(p, &self.theta).unwrap();
        Encoded { serial: Serial(round), fragment: p, body, digest: self.replica.digest(p) }
    }

    fn apply(&mut self, p: FragmentId, included: bool) {
        let values = self.noise(p, 0.1);
        let body = self.codec.encode(self.fragments.segments(p).unwrap(), &values);
        if included {
            self.include(p);
        }
        self.replica.apply(p, &body, &mut self.theta).unwrap();
        self.exchange.apply(p, &body).unwrap();
    }

    /// Asserts that Θ̂ is equal bit for bit, and that θ is within `tolerance`. With a tolerance of 0, θ must be equal
    /// bit for bit. A tolerance is needed if a product is rounded, because a device may fuse it with the sum.
    async fn check(&mut self, tolerance: f32) {
        let hat = self.exchange.hat(&self.arena, self.theta.len()).await.unwrap();
        assert_eq!(words(&hat), words(self.replica.hat()));
        let theta = self.download(&self.device).await;
        if tolerance == 0.0 {
            assert_eq!(words(&theta), words(&self.theta));
        }
        assert!(theta.iter().zip(&self.theta).all(|(found, expected)| (found - expected).abs() <= tolerance));
        self.theta = theta;
    }

    async fn finish(&mut self) -> Vec<Encoded> {
        self.exchange.ready().await.unwrap();
        assert!(!self.exchange.is_busy());
        std::iter::from_fn(|| self.exchange.encoded().unwrap()).collect()
    }

    /// Makes `steps` random calls in an order that the core may use. `waits` says whether reported progress outlasts a
    /// change.
    async fn walk(&mut self, steps: u64, tolerance: f32, waits: bool) {
        let mut reported = vec![false; usize::from(self.fragments.count())];
        let (mut expected, mut waited) = (Vec::new(), 0);
        for round in 0..steps {
            let p = FragmentId(self.rng.below(u32::from(self.fragments.count())) as u16);
            let reported = &mut reported[usize::from(p.0)];
            let included = *reported && self.rng.below(2) == 0;
            match self.rng.below(4) {
                0 | 1 => {
                    self.train();
                    expected.push(self.encode(round, p));
                    *reported = true;
                    if self.rng.below(2) == 0 {
                        self.train();
                    }
                }
                2 => {
                    self.apply(p, included);
                    *reported &= waits && !included;
                    waited += u32::from(*reported);
                }
                _ => {
                    let (values, keep) = (self.noise(p, 1.0), self.rng.below(3) > 0);
                    self.load(p, &values, keep, included);
                    *reported &= waits && keep && !included;
                }
            }
            self.check(tolerance).await;
            if expected.len() > 3 || round + 1 == steps {
                assert_eq!(self.finish().await, std::mem::take(&mut expected));
            }
        }
        assert_eq!(waited > 0, waits);
    }
}

/// Goal: bodies, digests, Θ̂ and θ agree bit for bit. Only with [`ApplyPolicy::Blend`], θ agrees within 1e-6.
async fn exchange_equals_replica(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (code, block) in [(Code::Int4, 8), (Code::Int4, 256), (Code::E3m0, 24), (Code::F32, 256)] {
            for (apply, tolerance) in
                [(KEEP, 0.0), (RESIDUE, 0.0), (ApplyPolicy::Overwrite, 0.0), (BLEND, 1e-6)]
            {
                for host_hat in [false, true] {
                    let spec = (code, block, apply);
                    let mut pair =
                        HostDevicePair::with(gpu, (&odd_model(), ODD_BYTES, 3), spec, host_hat).await;
                    assert!(pair.arena.chunks().len() > 2);
                    pair.walk(30, tolerance, apply == RESIDUE).await;
                }
            }
        }
    })
    .await;
}

/// Checks the property for which these sizes were chosen: chunks end within a code word, so two chunks share a block.
#[test]
fn chunks_end_within_a_word() {
    let dims = Dims::new(&odd_model());
    let arena = Arena::plan(&dims, &Slots::new(&dims), ODD_BYTES, "test").unwrap();
    let layout = model::layout(&odd_model()).unwrap();
    let fragments = Fragments::plan(&layout, NonZeroU16::new(3).unwrap());
    let segments = fragments.ids().flat_map(|p| fragments.segments(p).unwrap().to_vec());
    let mut ends = segments.flat_map(|segment| {
        let runs = arena.runs(segment.range()).collect::<Vec<_>>();
        runs.into_iter().skip(1).map(move |run| run.flat.start - segment.start as usize)
    });
    assert!(ends.any(|offset| offset % 8 != 0));
}

/// Goal: bodies wait if there are more of them than slots. If several of one fragment wait, only the newest is sent.
async fn bodies_wait_for_slots(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let mut pair = HostDevicePair::new(gpu, &odd_model(), 1 << 20, 7, (Code::Int4, 8, KEEP)).await;
        let rounds = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 0), (8, 6), (9, 5), (10, 0)];
        let begun = rounds.map(|(round, p)| {
            pair.train();
            pair.encode(round, FragmentId(p))
        });
        assert!(pair.exchange.is_busy());
        let kept = begun.into_iter().filter(|body| ![6, 7].contains(&body.serial.0));
        assert_eq!(pair.finish().await, kept.collect::<Vec<_>>());
        pair.check(0.0).await;
    })
    .await;
}

fn refusal<T>(result: Result<T, EngineError>) -> ReplicaError {
    match result.map(drop) {
        Err(EngineError::Exchange(error)) => error,
        other => panic!("{other:?}"),
    }
}

async fn exchange_and_replica_return_the_same_errors(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let pair = &mut HostDevicePair::new(gpu, &odd_model(), 1 << 20, 2, (Code::Int4, 8, RESIDUE)).await;
        let values = pair.noise(P0, 1.0);
        let good = pair.codec.encode(pair.fragments.segments(P0).unwrap(), &values);
        let (mut bad, mut infinite) = (good.clone(), values.clone());
        bad[1] = 0xff;
        infinite[9] = f32::INFINITY;

        let apply = |pair: &mut HostDevicePair, p, body: &[u8]| {
            let expected = pair.replica.apply(p, body, &mut pair.theta).unwrap_err();
            assert_eq!(refusal(pair.exchange.apply(p, body)), expected);
        };
        apply(pair, FragmentId(2), &good);
        apply(pair, P0, &good[1..]);
        apply(pair, P0, &bad);
        let load = |pair: &mut HostDevicePair, p, values: &[f32]| {
            let expected = pair.replica.load(p, values, true, &mut pair.theta).unwrap_err();
            assert_eq!(refusal(pair.exchange.load(p, values, true)), expected);
        };
        load(pair, FragmentId(2), &values);
        load(pair, P0, &values[1..]);
        load(pair, P0, &infinite);
        let include = |pair: &mut HostDevicePair, p| {
            let expected = pair.replica.include(p, &mut pair.theta).unwrap_err();
            assert_eq!(refusal(pair.exchange.include(p)), expected);
        };
        include(pair, FragmentId(2));
        include(pair, P0);
        let expected = pair.replica.encode(FragmentId(2), &pair.theta).unwrap_err();
        assert_eq!(refusal(pair.exchange.encode(Serial(0), FragmentId(2))), expected);
        pair.check(0.0).await;

        // Reported progress can be included only once.
        pair.encode(1, P0);
        pair.include(P0);
        include(pair, P0);
        pair.check(0.0).await;
    })
    .await;
}

/// Goal: encoding a value that is not finite is an error that names the first such value. Loading the fragment repairs
/// it.
async fn encoding_non_finite_values_is_an_error(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let mut pair = HostDevicePair::new(gpu, &odd_model(), ODD_BYTES, 3, (Code::Int4, 8, RESIDUE)).await;
        let segments = pair.fragments.segments(P0).unwrap().to_vec();
        let last = segments.last().unwrap().range();
        pair.theta[last.start + 3] = f32::NAN;
        pair.theta[last.start + 1] = f32::NEG_INFINITY;
        pair.upload();
        pair.exchange.encode(Serial(1), P0).unwrap();
        let expected = pair.replica.encode(P0, &pair.theta).unwrap_err();
        assert_eq!(refusal(pair.exchange.ready().await), expected);

        let values = pair.noise(P0, 1.0);
        pair.load(P0, &values, false, false);
        pair.check(0.0).await;
        pair.train();
        let encoded = pair.encode(2, P0);
        assert_eq!(pair.finish().await, [encoded]);
    })
    .await;
}

async fn a_lost_device_is_an_error(_: &Gpus) {
    let gpu = own_gpu(None).await;
    let mut pair = HostDevicePair::new(&gpu, &odd_model(), 1 << 20, 2, (Code::Int4, 8, KEEP)).await;
    pair.encode(1, P0);
    gpu.lose();
    let lost = |result| assert!(matches!(result, Err(EngineError::Lost { .. })), "{result:?}");
    lost(pair.exchange.ready().await);
    lost(pair.exchange.encoded().map(drop));
    lost(pair.exchange.encode(Serial(2), P0));
    lost(pair.exchange.include(P0));
    lost(pair.exchange.apply(P0, &[]));
    lost(pair.exchange.load(P0, &[], false));
}

/// Goal: an exchange whose body exceeds the binding limit is refused before any allocation.
async fn a_body_above_the_limit_is_refused(_: &Gpus) {
    let gpu = own_gpu(Some(4_096)).await;
    let (dims, layout) = (Dims::new(&odd_model()), model::layout(&odd_model()).unwrap());
    let arena = Arena::plan(&dims, &Slots::new(&dims), 1 << 20, "test").unwrap();
    let fragments = Arc::new(Fragments::plan(&layout, NonZeroU16::MIN));
    let exchange = ExchangeSpec { fragments: 1, sync_every: 1, block: 8, code: Code::F32, apply: KEEP };
    let codec = Codec::new(&exchange).unwrap();
    let parts = Parts { arena: &arena, fragments: &fragments, codec, policy: KEEP, host_hat: false };
    let made = Exchange::new(&gpu, &[], parts).await;
    assert!(matches!(made, Err(GpuError::TensorTooLarge { bytes_max: 4_092, .. })));
}

/// Goal: reported progress stays unmerged while other changes are applied, until a change includes it.
async fn an_update_outlasts_other_changes(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let mut pair = HostDevicePair::new(gpu, &odd_model(), ODD_BYTES, 3, (Code::Int4, 8, RESIDUE)).await;
        for p in [P0, FragmentId(2)] {
            pair.train();
            pair.encode(1, p);
            pair.train();
        }
        pair.apply(P0, false);
        pair.train();
        pair.apply(FragmentId(2), true);
        let values = pair.noise(P0, 1.0);
        pair.load(P0, &values, true, false);
        pair.apply(P0, false);
        pair.check(0.0).await;
        pair.apply(P0, true);
        pair.check(0.0).await;
        let expected = ReplicaError::NothingReported { fragment: P0 };
        assert_eq!(refusal(pair.exchange.include(P0)), expected);

        // A learner may fetch a version first, and only later receive the message that this version contains its
        // update.
        pair.train();
        pair.encode(2, P0);
        pair.train();
        pair.load(P0, &values, true, false);
        pair.include(P0);
        pair.check(0.0).await;
    })
    .await;
}

/// Goal: each body is read back with three more words (flag and digest), in total less than 4.07 bits per value.
async fn only_bodies_are_read_back(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let mut pair =
            HostDevicePair::new(gpu, &Preset::Small.model(256), 128 << 20, 8, (Code::Int4, 256, RESIDUE))
                .await;
        assert_eq!(pair.exchange.bytes_read_back(), 0);
        pair.train();
        let ids: Vec<FragmentId> = pair.fragments.ids().collect();
        let begun: Vec<Encoded> = ids.into_iter().map(|p| pair.encode(0, p)).collect();
        let bytes: usize = begun.iter().map(|encoded| encoded.body.len() + 12).sum();
        assert_eq!(pair.finish().await, begun);
        assert_eq!(pair.exchange.bytes_read_back(), bytes as u64);
        assert!(bytes as f64 * 8.0 < 4.07 * pair.theta.len() as f64, "{bytes}");
    })
    .await;
}

parity!(
    exchange_equals_replica,
    bodies_wait_for_slots,
    an_update_outlasts_other_changes,
    exchange_and_replica_return_the_same_errors,
    encoding_non_finite_values_is_an_error,
    a_lost_device_is_an_error,
    a_body_above_the_limit_is_refused,
    only_bodies_are_read_back
);
