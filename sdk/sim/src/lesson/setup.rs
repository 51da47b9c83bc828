//! Setup that a lesson and its twin share: model, text and islands.

use std::num::NonZeroU32;

use super::{Apply, Bounds, LessonError, LessonSpec};
use crate::corpus::Corpus;
use crate::world::{LinkSpec, MachineSpec, ShellSpec, WorldSpec};
use archipelago_core::data::grammar;
use archipelago_core::diloco::WeightBounds;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::diloco::{Layout, QuorumPolicy};
use archipelago_core::driver::{Doubling, Waits};
use archipelago_core::model::ModelSpec;
use archipelago_core::model::{Preset, init, layout};
use archipelago_core::wire::{ApplyPolicy, ExchangeSpec, InnerSpec, RunId, RunSpec};
use archipelago_runtime::engine::cpu::{CpuModel, CpuTrainer, Writer};

/// Size of the text in bytes. It lasts for lessons of minutes.
const TEXT_BYTES: usize = 400_000;
/// Time between two loss measurements, in milliseconds of virtual time.
pub(super) const MEASURE_MS: u64 = 1_000;
/// Number of windows in a loss measurement: a compromise between noise and time.
const MEASURE_WINDOWS: usize = 48;
/// Model with 30,880 parameters, so small that a browser trains all islands and the twin in real time.
const MODEL: ModelSpec = ModelSpec {
    vocab: 128,
    d_model: 32,
    layers: 2,
    heads: 2,
    kv_heads: 2,
    d_ff: 96,
    context: 32,
    rope_theta: 1e4,
    norm_eps: 1e-5,
    untied_head: false,
    experts: None,
    lora: None,
};
/// Factor on the updates of a lying island: reversed, and as long as an honest update can be, so that they are
/// accepted.
pub(super) const LIE_TIMES: i32 = -5;
/// Number of values with a common scale. Small fragments need small blocks.
pub(super) const BLOCK: u32 = 64;

/// Setup that a lesson and its twin share.
pub(super) struct LessonSetup {
    pub(super) spec: LessonSpec,
    pub(super) inner: InnerSpec,
    pub(super) corpus: Corpus,
    pub(super) theta: Vec<f32>,
    model: CpuModel,
    /// Held-out windows, `[MEASURE_WINDOWS, context + 1]`.
    held_out: Vec<u32>,
    /// Entropy of the text, in nats per token.
    pub(super) floor: f64,
    /// Number of steps that each island could have taken before the last change of settings. The next field is the time
    /// of that change, in milliseconds.
    steps_before: Vec<f64>,
    changed_ms: u64,
}

impl LessonSetup {
    /// # Errors
    /// [`LessonError::Range`]: a number in `spec` is out of range.
    pub(super) fn new(spec: LessonSpec) -> Result<Self, LessonError> {
        spec.check()?;
        let corpus = Corpus::new(grammar::generate(spec.seed.into(), TEXT_BYTES).as_bytes());
        let corpus = corpus.expect("the text is long enough to cut up");
        let length = MODEL.context as usize + 1;
        let starts = corpus.held_out.len() - length;
        let window = |i: usize| &corpus.held_out[i * starts / MEASURE_WINDOWS..][..length];
        Ok(Self {
            inner: InnerSpec {
                batch: 4,
                lr_max: 6e-3,
                lr_min_ratio: 0.2,
                warmup_tokens: 20_000,
                total_tokens: 4_000_000,
                beta2: 0.99,
                ..Preset::Tiny.inner()
            },
            held_out: (0..MEASURE_WINDOWS).flat_map(window).copied().collect(),
            corpus,
            theta: init(&MODEL, spec.seed.into()).expect("a model"),
            model: CpuModel::fixed(&MODEL).expect("a model, and no thread to start"),
            floor: grammar::entropy_nats_per_byte(),
            steps_before: vec![0.0; spec.islands as usize],
            changed_ms: 0,
            spec,
        })
    }

    /// Creates a trainer for steps of `batch` windows: those of one island, or of several islands together.
    pub(super) fn trainer(inner: &InnerSpec, batch: u32) -> CpuTrainer {
        let inner = InnerSpec { batch, ..*inner };
        CpuTrainer::fixed(&MODEL, &inner).expect("a model that can be trained")
    }

    /// Returns the layout of the model's parameters.
    pub(super) fn layout() -> Layout {
        layout(&MODEL).expect("a model")
    }

    /// Returns the number of tokens in a step of one island.
    pub(super) fn step_tokens(&self) -> u64 {
        u64::from(self.inner.batch * MODEL.context)
    }

    /// Returns the number of tokens that all islands could have trained by `now_ms`, at full speed and without a pause.
    pub(super) fn possible_tokens(&self, now_ms: u64) -> f64 {
        let steps = (0..self.spec.islands).map(|i| self.possible_steps(i, now_ms));
        steps.sum::<f64>() * self.step_tokens() as f64
    }

    /// Returns the number of steps that island `i` could have taken by `now_ms`, at full speed and without a pause.
    pub(super) fn possible_steps(&self, i: u32, now_ms: u64) -> f64 {
        let since_ms = self.spec.starts_ms_of(i).max(self.changed_ms);
        let since = now_ms.saturating_sub(since_ms) as f64 / self.spec.step_ms_of(i) as f64;
        self.steps_before[i as usize] + since
    }

    /// Replaces the settings by `spec`, which may differ in those of [`super::Setting`].
    pub(super) fn change(&mut self, now_ms: u64, spec: LessonSpec) {
        self.steps_before = (0..spec.islands).map(|i| self.possible_steps(i, now_ms)).collect();
        (self.changed_ms, self.spec) = (now_ms, spec);
    }

    /// Returns the conditions for the end of a round.
    pub(super) fn quorum(&self) -> QuorumPolicy {
        QuorumPolicy {
            updates_min: NonZeroU32::new(self.spec.quorum).expect("checked"),
            grace_ratio: self.spec.grace,
            rounds_in_flight: self.spec.rounds_in_flight,
            ..QuorumPolicy::default()
        }
    }

    pub(super) fn run_spec(&self) -> RunSpec {
        let LessonSpec { sync_every, fragments, code, apply, seed, .. } = self.spec;
        let apply = match apply {
            Apply::Keep => ApplyPolicy::Keep { residue: false },
            Apply::KeepResidue => ApplyPolicy::Keep { residue: true },
            Apply::Overwrite => ApplyPolicy::Overwrite,
            Apply::Blend => ApplyPolicy::Blend { alpha: 0.5 },
        };
        RunSpec {
            model: MODEL.into(),
            inner: self.inner,
            exchange: ExchangeSpec { fragments, sync_every, block: BLOCK, code, apply },
            data: self.corpus.data.clone(),
            seed: seed.into(),
            frozen: None,
        }
    }

    pub(super) fn world(&self) -> WorldSpec {
        let spec = &self.spec;
        let quorum = self.quorum();
        let silent_ms_max = 3_000.max(5 * u64::from(spec.step_ms));
        let patience = Doubling { first_ms: silent_ms_max, longest_ms: 16 * silent_ms_max };
        WorldSpec {
            run: RunId(spec.seed.into()),
            run_spec: self.run_spec(),
            syncer: SyncerConfig { quorum, merge: spec.merge, silent_ms_max, ..self.bounds() },
            theta: self.theta.clone(),
            shards: self.corpus.shards.clone(),
            machines: (0..spec.islands).map(|i| self.machine(i)).collect(),
            shell: ShellSpec {
                waits: Waits { patience, ..Waits::default() },
                ping_ms: silent_ms_max / 4,
                shards_at_hand: true,
                ..ShellSpec::default()
            },
        }
    }

    /// Returns a configuration with the bounds of an island's influence on a merge.
    fn bounds(&self) -> SyncerConfig {
        let usual = SyncerConfig::default();
        // The islands of a lesson are known, so they are not limited as newcomers.
        let influence = WeightBounds { newcomers_share_max: 1.0, ..usual.influence };
        match self.spec.bounds {
            Bounds::On => SyncerConfig { influence, ..usual },
            Bounds::Off => {
                let influence = WeightBounds { share_ratio_max: 0.0, turns_max: 0.0, ..influence };
                SyncerConfig { influence, norm_ratio_max: 0.0, ..usual }
            }
        }
    }

    pub(super) fn machine(&self, i: u32) -> MachineSpec {
        let spec = &self.spec;
        let bytes_per_s = Some(1_000 * u64::from(spec.kilobytes_per_s)).filter(|&rate| rate > 0);
        let latency_ms = u64::from(spec.latency_ms);
        let link = LinkSpec { latency_ms, jitter_ms: latency_ms / 4, bytes_per_s, loss: spec.loss };
        let (step_ms, starts_ms) = (spec.step_ms_of(i), spec.starts_ms_of(i));
        MachineSpec { step_ms, jitter: spec.jitter, link, starts_ms, ..MachineSpec::default() }
    }

    /// Returns the mean loss of `params` on the held-out windows, in nats per token.
    pub(super) fn measure(&mut self, params: &[f32]) -> f32 {
        self.model.loss(params, &self.held_out).expect("parameters of this model")
    }

    /// Returns a continuation of a fixed prompt by `params`, `bytes` bytes long.
    pub(super) fn sample(&self, params: &[f32], bytes: usize) -> String {
        let mut text = archipelago_core::data::bytes_to_tokens(b"The ");
        let mut writer = Writer::fixed(&MODEL, params).expect("parameters of this model");
        writer.begin(&text, 0.7, self.spec.seed.into()).expect("letters are tokens of this model");
        text.extend(writer.take(bytes));
        archipelago_core::data::tokens_to_text(&text)
    }
}
