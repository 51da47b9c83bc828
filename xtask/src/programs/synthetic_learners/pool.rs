//! Data shared by all learners of this process: a cache of downloads, prepared updates, and statistics.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::diloco::{Codec, Fragments, Layout, binary16};
use archipelago_core::rng::Rng;
use archipelago_core::wire::http::{fragment_path, shard_path};
use archipelago_core::wire::{FragmentId, RunId, RunSpec, Version};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::socket::get;

/// Number of different updates of each fragment.
const BODIES: usize = 8;
/// Number of versions of a fragment whose digests are remembered.
const DIGESTS_MAX: usize = 256;
/// Root mean square of an update's values: typical of a few steps of the preset.
const VALUE: f32 = 1e-3;

/// Version and values of one fragment of Θ̂.
type Fragment = (Version, Vec<f32>);

/// Data shared by all learners of this process.
pub struct LearnerPool {
    pub address: SocketAddr,
    pub step: Duration,
    pub began: Instant,
    pub stats: RefCell<Stats>,
    run: RefCell<Option<RunModel>>,
    cache: Mutex<BTreeMap<FragmentId, Fragment>>,
    shards: Mutex<BTreeMap<u32, Vec<u8>>>,
    digests: RefCell<BTreeMap<FragmentId, BTreeMap<Version, u64>>>,
}

/// Parameters of the run, as its learners see them.
pub struct RunModel {
    pub fragments: Arc<Fragments>,
    pub codec: Codec,
    /// Prepared updates, `[P][BODIES]`: [`BODIES`] for each fragment.
    bodies: Vec<Vec<Vec<u8>>>,
}

impl LearnerPool {
    pub fn new(address: SocketAddr, step: Duration) -> Self {
        Self {
            address,
            step,
            began: Instant::now(),
            stats: RefCell::new(Stats::new()),
            run: RefCell::new(None),
            cache: Mutex::default(),
            shards: Mutex::default(),
            digests: RefCell::default(),
        }
    }

    /// Returns the microseconds since the start.
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns the fragments of the run that `spec` describes.
    ///
    /// # Errors
    /// A message if the description is invalid.
    pub fn fragments(&self, spec: &RunSpec) -> Result<Arc<Fragments>, String> {
        let mut run = self.run.borrow_mut();
        if run.is_none() {
            *run = Some(RunModel::new(spec)?);
        }
        Ok(run.as_ref().map(|run| Arc::clone(&run.fragments)).expect("just made"))
    }

    /// Returns one of the prepared updates of `fragment`.
    pub fn body(&self, fragment: FragmentId, number: u64) -> Vec<u8> {
        self.run.borrow().as_ref().map(|run| run.body(fragment, number).to_vec()).unwrap_or_default()
    }

    /// Returns Θ̂ of `fragment` at `version` or later. The first caller downloads it for all.
    ///
    /// # Errors
    /// A message if the download failed.
    pub async fn fragment(
        &self,
        run: RunId,
        fragment: FragmentId,
        version: Version,
    ) -> Result<Fragment, String> {
        let mut cache = self.cache.lock().await;
        if let Some(held) = cache.get(&fragment).filter(|(held, _)| *held >= version) {
            return Ok(held.clone());
        }
        let (body, held) = get(self.address, &fragment_path(run, fragment, version)).await?;
        let held = Version(held.ok_or("the syncer does not say which version it gives")?);
        let values = binary16::from_bytes(&body);
        self.note_digest(fragment, held, binary16::digest(&values));
        cache.insert(fragment, (held, values.clone()));
        Ok((held, values))
    }

    /// Returns the bytes of `shard`, downloaded once.
    ///
    /// # Errors
    /// A message if the download failed.
    pub async fn shard(&self, run: RunId, shard: u32) -> Result<Vec<u8>, String> {
        let mut shards = self.shards.lock().await;
        if let Some(bytes) = shards.get(&shard) {
            return Ok(bytes.clone());
        }
        let (bytes, _) = get(self.address, &shard_path(run, shard)).await?;
        shards.insert(shard, bytes.clone());
        Ok(bytes)
    }

    /// Records the digest of Θ̂ that came with `version` of `fragment`.
    pub fn note_digest(&self, fragment: FragmentId, version: Version, digest: u64) {
        let mut digests = self.digests.borrow_mut();
        let of = digests.entry(fragment).or_default();
        of.insert(version, digest);
        while of.len() > DIGESTS_MAX {
            of.pop_first();
        }
    }

    /// Returns the digest of Θ̂ at `version` of `fragment`; 0 if it is unknown.
    pub fn digest(&self, fragment: FragmentId, version: Option<Version>) -> u64 {
        let digests = self.digests.borrow();
        version.and_then(|version| digests.get(&fragment)?.get(&version).copied()).unwrap_or(0)
    }
}

impl RunModel {
    /// Creates the model that `spec` describes.
    ///
    /// # Errors
    /// A message if the description is invalid.
    pub fn new(spec: &RunSpec) -> Result<Self, String> {
        let layout = Layout::of(&spec.model).map_err(|error| error.to_string())?;
        let count = NonZeroU16::new(spec.exchange.fragments).ok_or("a run without fragments")?;
        let fragments = Fragments::plan(&layout, count);
        let codec = Codec::new(&spec.exchange).map_err(|error| error.to_string())?;
        let mut rng = Rng::new(1);
        let mut bodies = Vec::new();
        for fragment in fragments.ids() {
            let segments = fragments.segments(fragment).unwrap_or_default();
            let mut body = || {
                let values = (0..fragments.len(fragment)).map(|_| noise(&mut rng) * VALUE);
                codec.encode(segments, &values.collect::<Vec<f32>>())
            };
            bodies.push((0..BODIES).map(|_| body()).collect());
        }
        Ok(Self { fragments: Arc::new(fragments), codec, bodies })
    }

    /// Returns update `number` of `fragment`; empty if the fragment does not exist.
    pub fn body(&self, fragment: FragmentId, number: u64) -> &[u8] {
        let bodies = self.bodies.get(usize::from(fragment.0));
        bodies.and_then(|bodies| bodies.get(number as usize % BODIES)).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Counts since the start, and latencies since the last printed line.
pub struct Stats {
    began: Instant,
    started: usize,
    ready: usize,
    ended: usize,
    pub steps: u64,
    pub updates: u64,
    pub merged: u64,
    pub late: u64,
    pub refused: u64,
    /// Number of received changes.
    pub changes: u64,
    /// Number of fragments that were downloaded whole.
    pub loads: u64,
    /// Number of errors.
    pub troubles: u64,
    /// Message of the last error.
    pub trouble: String,
    /// Milliseconds from each update to its confirmation.
    pub arrived_ms: Vec<f64>,
    /// Milliseconds from each hello to the welcome.
    pub welcomed_ms: Vec<f64>,
}

impl Stats {
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            started: 0,
            ready: 0,
            ended: 0,
            steps: 0,
            updates: 0,
            merged: 0,
            late: 0,
            refused: 0,
            changes: 0,
            loads: 0,
            troubles: 0,
            trouble: String::new(),
            arrived_ms: Vec::new(),
            welcomed_ms: Vec::new(),
        }
    }

    /// Counts a learner that starts to join.
    pub fn start_join(&mut self) {
        self.started += 1;
    }

    /// Counts a learner that takes part for the first time.
    pub fn is_ready(&mut self) {
        self.ready += 1;
    }

    /// Counts a learner that is gone for good; `was_ready` is true if it had taken part.
    pub fn end(&mut self, was_ready: bool) {
        self.ended += 1;
        self.ready += usize::from(!was_ready);
    }

    /// Returns the number of learners that have started to join and do not take part yet.
    pub fn joining(&self) -> usize {
        self.started.saturating_sub(self.ready)
    }

    /// Records an error of a learner.
    pub fn note(&mut self, trouble: String) {
        self.troubles += 1;
        self.trouble = trouble;
    }

    /// Returns all statistics as one JSON line.
    pub fn line(&mut self, now: Instant) -> Value {
        json!({
            "at_s": (now - self.began).as_secs_f64(),
            "ready": self.ready - self.ended.min(self.ready),
            "ended": self.ended,
            "steps": self.steps,
            "updates": self.updates,
            "merged": self.merged,
            "late": self.late,
            "refused": self.refused,
            "changes": self.changes,
            "loads": self.loads,
            "troubles": self.troubles,
            "trouble": self.trouble,
            "arrived_ms": std::mem::take(&mut self.arrived_ms),
            "welcomed_ms": std::mem::take(&mut self.welcomed_ms),
        })
    }
}

/// Returns a roughly normal number with a mean square of 1: the sum of three uniform numbers.
fn noise(rng: &mut Rng) -> f32 {
    (0..3).map(|_| 2.0 * rng.unit() - 1.0).sum::<f64>() as f32
}
