//! What saves memory of the device, beside an engine that saves none.

use std::sync::Arc;

use super::super::{Gpu, GpuEngine, GpuSetup, Thrift};
use super::adapters::{frozen, with_adapters};
use super::engine::{SHAPES, params, partly_given, run_spec, setup, spec, tokens};
use super::harness::{Gpus, own_gpu};
use crate::engine::Engine;
use crate::model::{ExpertSpec, FrozenForm, FrozenWeights, InnerSpec, ModelSpec, Preset, layout};

/// A model that is trained, its batch, and what an engine of it begins with.
struct Case {
    model: ModelSpec,
    batch: u32,
    frozen: Option<Arc<FrozenWeights>>,
    params: Vec<f32>,
}

impl Case {
    fn new(model: ModelSpec, batch: u32) -> Self {
        if model.lora.is_none() {
            return Self { model, batch, frozen: None, params: params(&model) };
        }
        let len = layout(&model).unwrap().len();
        let params = (0..len).map(|i| ((i * 7919 + 13) % 101) as f32 / 200.0 - 0.25).collect();
        Self { model, batch, frozen: Some(frozen(&model, FrozenForm::F16).0), params }
    }

    /// Dense models, experts and adapters on all matrices and on some, with several layers.
    fn all() -> Vec<Self> {
        let base = |i: usize| ModelSpec { layers: 3, ..spec(SHAPES[i].0) };
        let experts = Some(ExpertSpec { count: 3, per_token: 2, aux_loss: 0.1 });
        vec![
            Self::new(base(0), 3),
            Self::new(ModelSpec { untied_head: true, ..base(1) }, 31),
            Self::new(ModelSpec { experts, ..base(2) }, 2),
            Self::new(with_adapters(base(0), 8, "q,k,v,o,gate,up,down"), 3),
            Self::new(with_adapters(base(1), 4, "q,v"), 4),
            Self::new(with_adapters(base(1), 4, "down"), 4),
        ]
    }

    async fn engine(&self, gpu: &Gpu, thrift: Thrift) -> GpuEngine {
        let inner = InnerSpec { batch: self.batch, ..Preset::Tiny.inner() };
        let setup = GpuSetup { frozen: self.frozen.clone(), thrift, ..setup() };
        let mut engine = GpuEngine::new(gpu, &run_spec(self.model, inner), setup).await.unwrap();
        engine.set_params(&self.params);
        engine
    }

    /// Loss, gradient, parameters and tokens of experts after three steps, as bits.
    async fn trained(&self, gpu: &Gpu, thrift: Thrift) -> (u32, [Vec<u32>; 2], Vec<u64>) {
        let mut engine = self.engine(gpu, thrift).await;
        let batches = [tokens(&self.model, self.batch, 0), partly_given(&self.model, self.batch)];
        let mut loss = 0;
        for step in 0..3 {
            loss = engine.step(&batches[step % 2], 1e-2).await.unwrap().loss.to_bits();
        }
        engine.settle().await.unwrap();
        let vectors = [engine.grad().await.unwrap(), engine.params().await.unwrap()];
        (loss, vectors.map(|vector| vector.iter().map(|value| value.to_bits()).collect()), engine.take_seen())
    }
}

/// Activations that are computed anew are those that would have been kept, to the bit.
async fn recomputing_changes_no_bit(gpus: &Gpus) {
    let again = Thrift { recompute: true };
    gpus.each(async |gpu| {
        for case in Case::all() {
            let plain = case.trained(gpu, Thrift::NONE).await;
            assert!(case.trained(gpu, again).await == plain, "{:?}", case.model);
        }
    })
    .await;
    // The batch in parts.
    let small = own_gpu(Some(140 << 10)).await;
    let case = Case::new(ModelSpec { layers: 2, ..spec([300, 128, 1, 4, 2, 64, 70]) }, 6);
    assert!(case.trained(&small, again).await == case.trained(&small, Thrift::NONE).await);
}

parity!(recomputing_changes_no_bit);
