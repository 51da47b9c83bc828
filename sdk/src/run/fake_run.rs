//! Run of the syncer for tests: a few parameters, and an engine for them.

use std::thread;
use std::time::Duration;

use archipelago_core::data::shard_spec;
use archipelago_core::diloco::{Layout, MergeClass, Tensor};
use archipelago_core::model::{LoraSpec, LoraTargets, ModelSpec, Preset};
use archipelago_core::wire::{
    ApplyPolicy, Architecture, Code, DataSpec, ExchangeSpec, Frozen, FrozenForm, InnerSpec, Model, RunSpec,
};
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};

fn layout() -> Layout {
    let tensor = |name: &str, rows, merge| Tensor { name: name.into(), rows, cols: 8, merge };
    Layout::new(vec![tensor("embed", 4, MergeClass::Mean), tensor("a", 6, MergeClass::Radial)]).unwrap()
}

pub(super) fn spec(shard: &[u8]) -> RunSpec {
    RunSpec {
        model: Model {
            context: 4,
            vocab: 256,
            tensors: layout().tensors().to_vec(),
            architecture: Architecture::default(),
            experts: None,
        },
        inner: InnerSpec {
            batch: 2,
            lr_max: 0.1,
            lr_min_ratio: 1.0,
            warmup_tokens: 0,
            total_tokens: 1,
            beta1: 0.9,
            beta2: 0.9,
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: 0.0,
        },
        exchange: ExchangeSpec {
            fragments: 2,
            sync_every: 4,
            block: 8,
            code: Code::Int4,
            apply: ApplyPolicy::Keep { residue: true },
        },
        data: DataSpec { token_bytes: 2, masks: false, shards: vec![shard_spec(shard, 2).unwrap()] },
        seed: 1,
        frozen: None,
    }
}

/// Adapters of a model of a few values.
pub(super) fn adapters() -> ModelSpec {
    let lora = Some(LoraSpec { rank: 1, alpha: 1.0, targets: LoraTargets::ALL });
    ModelSpec {
        context: 4,
        d_model: 8,
        layers: 1,
        heads: 1,
        kv_heads: 1,
        d_ff: 8,
        lora,
        ..Preset::Tiny.model(256)
    }
}

/// Returns `spec` with the model of [`adapters`], which builds on `bytes` in parts of 1000.
pub(super) fn of_adapters(spec: RunSpec, bytes: &[u8]) -> RunSpec {
    let (form, part_bytes) = (FrozenForm::F16, 1_000);
    let sha256 = bytes.chunks(part_bytes as usize).flat_map(|part| Frozen::of(form, part).sha256).collect();
    let frozen = Some(Frozen { form, bytes: bytes.len() as u64, part_bytes, sha256 });
    RunSpec { model: adapters().into(), frozen, ..spec }
}

/// Step time in milliseconds; at 0 the learner's rate would be meaningless.
pub(super) const STEP_MS: u64 = 2;

/// Pulls every parameter towards 1.
pub(super) struct Toy {
    layout: Layout,
    params: Vec<f32>,
}

impl Toy {
    pub(super) fn new() -> Self {
        Self::of(layout())
    }

    /// Returns a toy trainer for another layout.
    pub(super) fn of(layout: Layout) -> Self {
        let params = vec![0.0; layout.len()];
        Self { layout, params }
    }
}

impl Trainer for Toy {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        thread::sleep(Duration::from_millis(STEP_MS));
        let loss = self.params.iter().map(|x| (1.0 - x) * (1.0 - x)).sum::<f32>() / self.params.len() as f32;
        for x in &mut self.params {
            *x += lr * (1.0 - *x);
        }
        let windows = tokens.len() as u64 / 5;
        Ok(StepStats { loss, grad_norm: loss, tokens: windows * 4 })
    }

    fn describe(&self) -> String {
        "toy".to_owned()
    }
}
