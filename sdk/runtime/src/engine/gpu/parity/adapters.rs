//! Tests of adapters on frozen weights: products with these weights, the embedding, and the whole engine.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::super::{GpuEngine, GpuError, GpuSetup};
use super::engine::{SHAPES, partly_masked, ramps, run_spec, setup, spec, steps_agree, tokens};
use super::harness::Gpus;
#[cfg(not(target_arch = "wasm32"))]
use super::harness::own_gpu;
use crate::engine::cpu::CpuTrainer;
use crate::engine::gpu::Gpu;
use crate::engine::{Engine, EngineError, Trainer};
use crate::model::{
    FrozenForm, FrozenWeights, InnerSpec, LoraSpec, LoraTargets, ModelSpec, Preset, init, layout,
    reference_adapters_loss_and_grad,
};

pub fn with_adapters(base: ModelSpec, rank: u32, targets: &str) -> ModelSpec {
    ModelSpec { lora: Some(LoraSpec { rank, alpha: 5.0, targets: targets.parse().unwrap() }), ..base }
}

/// Returns frozen weights in `form` with ten times the usual spread, and their values as 32-bit floats.
pub fn frozen(model: &ModelSpec, form: FrozenForm) -> (Arc<FrozenWeights>, Vec<f32>) {
    let spread = |p: f32| if p == 1.0 { 0.9 } else { p * 10.0 };
    let params: Vec<f32> = init(&model.base(), 1).unwrap().into_iter().map(spread).collect();
    let frozen = FrozenWeights::quantised(model, &params, form).unwrap();
    let mut wide = vec![0.0; frozen.layout().len()];
    frozen.read(0..wide.len(), &mut wide);
    (Arc::new(frozen), wide)
}

async fn engine(
    gpu: &Gpu,
    model: ModelSpec,
    batch: u32,
    frozen: Option<Arc<FrozenWeights>>,
) -> Result<GpuEngine, EngineError> {
    let inner = InnerSpec { batch, ..Preset::Tiny.inner() };
    GpuEngine::new(gpu, &run_spec(model, inner), GpuSetup { frozen, ..setup() }).await
}

async fn agrees(gpu: &Gpu, model: ModelSpec, batch: u32, form: FrozenForm) {
    let (frozen, wide) = frozen(&model, form);
    let len = layout(&model).unwrap().len();
    let adapters: Vec<f32> = (0..len).map(|i| ((i * 7919 + 13) % 101) as f32 / 200.0 - 0.25).collect();
    for tokens in [tokens(&model, batch, 0), partly_masked(&model, batch)] {
        let mut exact = vec![0.0; len];
        let expected =
            reference_adapters_loss_and_grad(&model, &wide, &adapters, &tokens, &mut exact).unwrap();
        let mut engine = engine(gpu, model, batch, Some(Arc::clone(&frozen))).await.unwrap();
        steps_agree(&mut engine, &model, &adapters, &tokens, expected, &exact).await;
    }
}

async fn adapters_agree_with_the_reference(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let kinds = [(8, "q,k,v,o,gate,up,down"), (4, "q,v"), (12, "k,o,down"), (4, "gate"), (8, "up,o")];
        for (i, ((shape, batch), (rank, targets))) in SHAPES.into_iter().zip(kinds).enumerate() {
            // Over the loop, each form occurs with a tied head and with a separate one. Not all combinations are run,
            // because a software GPU takes seconds to compile each kernel.
            let (untied_head, form) = (i % 2 == 1, FrozenForm::ALL[i / 2 % 2]);
            let model = with_adapters(ModelSpec { untied_head, ..spec(shape) }, rank, targets);
            agrees(gpu, model, batch, form).await;
        }
    })
    .await;
}

/// Uses bindings so small that the embedding is split into slices and the batch into microbatches. Not run in browsers:
/// this division is the same code there, and the test would take a minute.
#[cfg(not(target_arch = "wasm32"))]
async fn adapters_agree_in_small_bindings(_: &Gpus) {
    let small = own_gpu(Some(225 << 10)).await;
    for (untied_head, form) in [(false, FrozenForm::F16), (true, FrozenForm::Int8)] {
        let base = ModelSpec { untied_head, ..spec([900, 256, 1, 4, 1, 64, 70]) };
        agrees(&small, with_adapters(base, 8, "q,k,v,o,gate,up,down"), 6, form).await;
    }
}

/// Goal: in thirty steps from the same parameters, losses stay within 1e-4 of the CPU engine's, relatively.
async fn adapters_follow_the_cpu_engine(gpus: &Gpus) {
    let model = with_adapters(Preset::Tiny.model(64), 8, "q,k,v,o,gate,up,down");
    let inner = InnerSpec { batch: 4, ..Preset::Tiny.inner() };
    let (frozen, _) = frozen(&model, FrozenForm::Int8);
    gpus.each(async |gpu| {
        let mut engine = engine(gpu, model, 4, Some(Arc::clone(&frozen))).await.unwrap();
        let mut cpu = CpuTrainer::on(Some(Arc::clone(&frozen)), &model, &inner, NonZeroUsize::MIN).unwrap();
        let params = init(&model, 7).unwrap();
        cpu.params_mut().copy_from_slice(&params);
        engine.set_params(&params);
        let mut losses = Vec::new();
        for step in 0..30 {
            let tokens = ramps(step);
            losses.push(cpu.step(&tokens, 2e-3).unwrap().loss);
            let stats = engine.step(&tokens, 2e-3).await.unwrap();
            // From step 2 on, the engine reports the loss of the previous step; the first step reports its own.
            let expected = losses[losses.len().saturating_sub(2)];
            assert!((stats.loss / expected - 1.0).abs() < 1e-4, "{step}: {} not {expected}", stats.loss);
        }
        assert!(losses[29] < losses[0] - 0.3, "it learns: {losses:?}");
    })
    .await;
}

async fn adapters_that_do_not_fit_are_refused(gpus: &Gpus) {
    let lora = |rank| Some(LoraSpec { rank, alpha: 8.0, targets: LoraTargets::ALL });
    let model = ModelSpec { lora: lora(4), ..spec(SHAPES[0].0) };
    gpus.each(async |gpu| {
        let refused = async |model, frozen| engine(gpu, model, 3, frozen).await.unwrap_err();
        assert!(matches!(refused(model, None).await, EngineError::Frozen));
        let other = frozen(&ModelSpec { d_ff: 24, ..model }, FrozenForm::F16).0;
        assert!(matches!(refused(model, Some(other)).await, EngineError::FrozenUnfit));
        let odd = ModelSpec { lora: lora(6), ..model };
        let error = refused(odd, Some(frozen(&odd, FrozenForm::F16).0)).await;
        let shape = EngineError::Gpu(GpuError::Shape { field: "lora.rank", value: 6 });
        assert_eq!(error.to_string(), shape.to_string());
    })
    .await;
}

parity!(
    adapters_agree_with_the_reference,
    #[cfg(not(target_arch = "wasm32"))]
    adapters_agree_in_small_bindings,
    adapters_follow_the_cpu_engine,
    adapters_that_do_not_fit_are_refused
);
