//! Tests of the whole engine against the reference implementation in 64-bit floats and against the CPU engine.

use std::num::NonZeroUsize;

use super::super::matmul::{Matmul, Variant};
use super::super::{Gpu, GpuEngine, GpuError, GpuSetup, MemoryPlan};
use super::harness::{Gpus, own_gpu};
use crate::engine::cpu::CpuTrainer;
use crate::engine::{Engine, EngineError, Trainer};
use crate::model::{
    ExpertSpec, InnerSpec, ModelSpec, Preset, init, layout, reference_loss_and_grad, reference_seen,
};
use crate::token;
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

pub fn run_spec(model: ModelSpec, inner: InnerSpec) -> RunSpec {
    RunSpec {
        model: model.into(),
        inner,
        exchange: ExchangeSpec {
            fragments: 3,
            sync_every: 4,
            block: 64,
            code: Code::Int4,
            apply: ApplyPolicy::Keep { residue: true },
        },
        data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
        seed: 1,
        frozen: None,
    }
}

pub fn setup() -> GpuSetup {
    let (matmul, memory_plans) = (Matmul::fixed(Variant::Register8), vec![MemoryPlan::NONE]);
    GpuSetup { matmul, frozen: None, memory_plans, bytes_max: None, moments: None, now_us: Box::new(|| 0) }
}

/// Returns four windows of tokens that ascend by 3 modulo 64. The first token depends on `step`.
pub fn ramps(step: u32) -> Vec<u32> {
    (0..4 * 65).map(|i| (i * 3 + step * 5) % 64).collect()
}

async fn engine(gpu: &Gpu, model: ModelSpec, inner: InnerSpec) -> Result<GpuEngine, EngineError> {
    GpuEngine::new(gpu, &run_spec(model, inner), setup()).await
}

/// Returns windows in which every second run of three tokens is masked. If there are several windows, the first is
/// wholly masked.
pub fn partly_masked(model: &ModelSpec, windows: u32) -> Vec<u32> {
    let window = model.context as usize + 1;
    let is_given = |at: usize| (windows > 1 && at < window) || at / 3 % 2 == 1;
    let tokens = tokens(model, windows, 0).into_iter().enumerate();
    tokens.map(|(at, token)| if is_given(at) { token | token::MASKED } else { token }).collect()
}

pub fn tokens(model: &ModelSpec, windows: u32, seed: u32) -> Vec<u32> {
    (0..windows * (model.context + 1)).map(|i| (i * i / 7 + i % 5 + seed * 11) % model.vocab).collect()
}

/// Returns initial parameters with ten times the usual spread, so that attention weights differ.
pub fn params(model: &ModelSpec) -> Vec<f32> {
    init(model, 1).unwrap().into_iter().map(|p| if p == 1.0 { 0.9 } else { p * 10.0 }).collect()
}

pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
}

/// Shapes `[vocab, d_model, layers, heads, kv_heads, d_ff, context]`, each with a batch size.
pub const SHAPES: [([u32; 7], u32); 5] = [
    ([37, 24, 2, 3, 3, 20, 70], 3),
    ([101, 48, 1, 12, 4, 28, 9], 31),
    ([256, 32, 3, 2, 1, 88, 129], 2),
    ([2, 4, 1, 1, 1, 4, 1], 1),
    ([50, 64, 1, 8, 4, 64, 200], 1),
];

pub fn spec([vocab, d_model, layers, heads, kv_heads, d_ff, context]: [u32; 7]) -> ModelSpec {
    ModelSpec { vocab, d_model, layers, heads, kv_heads, d_ff, context, ..Preset::Tiny.model(vocab) }
}

async fn agrees(gpu: &Gpu, model: ModelSpec, batch: u32) {
    let inner = InnerSpec { batch, ..Preset::Tiny.inner() };
    let params = params(&model);
    for tokens in [tokens(&model, batch, 0), partly_masked(&model, batch)] {
        let mut exact = vec![0.0; params.len()];
        let expected = reference_loss_and_grad(&model, &params, &tokens, &mut exact).unwrap();
        let mut engine = engine(gpu, model, inner).await.unwrap();
        steps_agree(&mut engine, &model, &params, &tokens, expected, &exact).await;
    }
}

/// Asserts that a step from `params` has the loss `expected` within 1e-5, relatively, and that each tensor's gradient
/// differs from `exact` by at most 1e-4 of the tensor's gradient norm.
pub async fn steps_agree(
    engine: &mut GpuEngine,
    model: &ModelSpec,
    params: &[f32],
    tokens: &[u32],
    expected: f64,
    exact: &[f32],
) {
    // The second step must give the same results as the first.
    for _ in 0..2 {
        engine.set_params(params);
        let stats = engine.step(tokens, 1e-3).await.unwrap();
        assert!(
            (f64::from(stats.loss) / expected - 1.0).abs() < 1e-5,
            "{model:?}: {stats:?}, not {expected}"
        );
        engine.synchronise().await.unwrap();
        let grad = engine.grad().await.unwrap();
        for (start, tensor) in layout(model).unwrap().offsets() {
            let range = start as usize..(start + tensor.len()) as usize;
            let error = distance(&grad[range.clone()], &exact[range.clone()]);
            let size = distance(&exact[range], &vec![0.0; tensor.len() as usize]);
            assert!(error <= 1e-4 * size + 1e-7, "{model:?} {}: {error} of {size}", tensor.name);
        }
    }
}

async fn agrees_with_the_reference(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (shape, batch) in SHAPES {
            agrees(gpu, spec(shape), batch).await;
        }
        // Later microbatches must add to the gradients that the first one has set, and to the embedding's that it has
        // cleared.
        agrees(gpu, ModelSpec { untied_head: true, ..spec(SHAPES[1].0) }, SHAPES[1].1).await;
    })
    .await;
}

/// Goal: models with 3, 4 and 7 experts agree with the reference, also in token counts. One, some or all experts are
/// active per token.
async fn experts_agree_with_the_reference(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for ((shape, batch), (count, per_token, aux_loss)) in
            SHAPES[..3].iter().zip([(4, 2, 0.1), (3, 3, 0.0), (7, 1, 0.5)])
        {
            let experts = Some(ExpertSpec { count, per_token, aux_loss });
            let model = ModelSpec { experts, ..spec(*shape) };
            agrees(gpu, model, *batch).await;

            let inner = InnerSpec { batch: *batch, ..Preset::Tiny.inner() };
            let (tokens, params) = (tokens(&model, *batch, 0), params(&model));
            let mut engine = engine(gpu, model, inner).await.unwrap();
            engine.set_params(&params);
            engine.rehearse(&tokens).await.unwrap();
            engine.step(&tokens, 0.0).await.unwrap();
            engine.step(&tokens, 0.0).await.unwrap();
            engine.synchronise().await.unwrap();
            let once = reference_seen(&model, &params, &tokens).unwrap();
            let twice: Vec<u64> = once.into_iter().map(|seen| 2 * seen).collect();
            assert_eq!(engine.take_expert_counts(), twice);
            assert_eq!(engine.take_expert_counts(), [0; 0]);
        }
    })
    .await;
}

/// Uses bindings so small that the embedding is split into slices, the parameters into chunks, and the batch into
/// microbatches.
async fn agrees_in_small_bindings(_: &Gpus) {
    let small = own_gpu(Some(140 << 10)).await;
    for untied_head in [false, true] {
        agrees(&small, ModelSpec { untied_head, ..spec([300, 128, 1, 4, 2, 64, 70]) }, 6).await;
    }
}

/// Goal: in fifty steps from the same parameters, losses stay within 1e-4 of the CPU engine's, relatively.
async fn follows_the_cpu_engine(gpus: &Gpus) {
    let model = Preset::Tiny.model(64);
    let inner = InnerSpec { batch: 4, ..Preset::Tiny.inner() };
    gpus.each(async |gpu| {
        let mut engine = engine(gpu, model, inner).await.unwrap();
        let mut cpu = CpuTrainer::new(&model, &inner, NonZeroUsize::MIN).unwrap();
        let params = init(&model, 7).unwrap();
        cpu.params_mut().copy_from_slice(&params);
        engine.set_params(&params);
        let mut losses = Vec::new();
        for step in 0..50 {
            let tokens = ramps(step);
            losses.push(cpu.step(&tokens, 2e-3).unwrap().loss);
            let stats = engine.step(&tokens, 2e-3).await.unwrap();
            // From step 2 on, the engine reports the loss of the previous step; the first step reports its own.
            let expected = losses[losses.len().saturating_sub(2)];
            assert!((stats.loss / expected - 1.0).abs() < 1e-4, "{step}: {} not {expected}", stats.loss);
        }
        assert!(losses[49] < losses[0] - 0.5, "it learns: {losses:?}");
        let error = distance(&engine.params().await.unwrap(), cpu.params());
        let moved = distance(&params, cpu.params());
        assert!(error < 1e-2 * moved, "parameters are {error} apart after moving {moved}");
    })
    .await;
}

/// Goal: a step without target tokens has a zero gradient and reports the loss of the previous step.
async fn step_without_target_tokens_has_no_gradient(gpus: &Gpus) {
    let model = spec(SHAPES[0].0);
    let good = tokens(&model, 3, 0);
    let nothing: Vec<u32> = good.iter().map(|token| token | token::MASKED).collect();
    gpus.each(async |gpu| {
        let mut engine = engine(gpu, model, InnerSpec { batch: 3, ..Preset::Tiny.inner() }).await.unwrap();
        engine.set_params(&params(&model));
        assert_eq!(engine.step(&nothing, 1e-3).await.unwrap().loss, 0.0);
        engine.synchronise().await.unwrap();
        assert!(engine.grad().await.unwrap().iter().all(|&g| g == 0.0));
        engine.step(&good, 1e-3).await.unwrap();
        engine.synchronise().await.unwrap();
        let before = engine.step(&nothing, 1e-3).await.unwrap();
        engine.synchronise().await.unwrap();
        let after = engine.step(&good, 1e-3).await.unwrap();
        assert!(
            before.loss > 1.0 && before.loss == after.loss && after.grad_norm == 0.0,
            "{before:?} {after:?}"
        );
    })
    .await;
}

async fn the_same_steps_give_the_same_bits(gpus: &Gpus) {
    let model = spec(SHAPES[0].0);
    gpus.each(async |gpu| {
        let run = async || {
            let mut engine =
                engine(gpu, model, InnerSpec { batch: 3, ..Preset::Tiny.inner() }).await.unwrap();
            engine.set_params(&params(&model));
            for step in 0..3 {
                engine.step(&tokens(&model, 3, step), 1e-3).await.unwrap();
            }
            engine.params().await.unwrap()
        };
        assert!(run().await == run().await);
    })
    .await;
}

async fn refuses_bad_input_and_keeps_its_parameters_when_training_blows_up(gpus: &Gpus) {
    let model = spec(SHAPES[0].0);
    gpus.each(async |gpu| {
        let mut engine = engine(gpu, model, InnerSpec { batch: 3, ..Preset::Tiny.inner() }).await.unwrap();
        engine.set_params(&params(&model));
        let good = tokens(&model, 3, 0);
        let mut error = async |tokens: &[u32], lr| engine.step(tokens, lr).await.unwrap_err();
        assert!(matches!(error(&good[1..], 1e-3).await, EngineError::Model(_)));
        assert!(matches!(error(&good[..142], 1e-3).await, EngineError::Windows { found: 2, batch: 3 }));
        assert!(matches!(error(&[37; 213], 1e-3).await, EngineError::Model(_)));
        assert!(matches!(error(&good, f32::NAN).await, EngineError::Rate { .. }));

        let mut bad = params(&model);
        bad[100] = f32::NAN;
        engine.set_params(&bad);
        assert!(matches!(engine.step(&good, 1e-3).await, Err(EngineError::NotFinite { .. })));
        let found = engine.params().await.unwrap();
        assert!(found.iter().zip(&bad).all(|(a, b)| a.to_bits() == b.to_bits()));
        engine.set_params(&params(&model));
        assert!(engine.step(&good, 1e-3).await.is_ok(), "recovers");
    })
    .await;
}

/// Goal: a profile has a time for each kernel of a step, and the exact cost of matrix products.
async fn a_profile_times_every_kernel(gpus: &Gpus) {
    let model = spec(SHAPES[0].0);
    gpus.each(async |gpu| {
        let mut engine = engine(gpu, model, InnerSpec { batch: 3, ..Preset::Tiny.inner() }).await.unwrap();
        engine.set_params(&params(&model));
        engine.step(&tokens(&model, 3, 0), 1e-3).await.unwrap();
        let Some(times) = engine.profile().await.unwrap() else {
            return assert!(!gpu.facts().timestamps, "it has a clock");
        };
        for kernel in ["embed", "attention", "cross_entropy", "embed_grad", "adamw"] {
            assert!(times[kernel].dispatches > 0 && times[kernel].us > 0.0, "{kernel}: {times:?}");
        }
        // Layers of width 24 with 20 feed-forward values, and a head of 37 tokens. The backward pass costs twice the
        // forward pass.
        let weights = 2 * (4 * 24 * 24 + 3 * 24 * 20) + 37 * 24;
        assert_eq!(times["matmul_register"].cost, 6 * weights * 3 * 70);
    })
    .await;
}

async fn unsupported_shapes_are_refused(gpus: &Gpus) {
    let inner = Preset::Tiny.inner();
    gpus.each(async |gpu| {
        let refused = async |model| engine(gpu, model, inner).await.unwrap_err();
        let shape = spec([37, 24, 2, 4, 4, 20, 70]);
        assert!(matches!(refused(shape).await, EngineError::Gpu(GpuError::Shape { value: 6, .. })));
        let shape = spec([37, 24, 2, 3, 3, 22, 70]);
        assert!(matches!(
            refused(shape).await,
            EngineError::Gpu(GpuError::Shape { field: "d_ff", value: 22 })
        ));
        let shape = spec([37, 520, 2, 2, 2, 20, 70]);
        assert!(matches!(
            refused(shape).await,
            EngineError::Gpu(GpuError::Head { width: 260, width_max: 256 })
        ));
        let batch = InnerSpec { batch: 0, ..inner };
        assert!(matches!(engine(gpu, spec(SHAPES[0].0), batch).await, Err(EngineError::Batch { batch: 0 })));
    })
    .await;
}

/// Goal: a rehearsal changes no bit of parameters, moments or later statistics.
async fn a_rehearsal_changes_nothing(gpus: &Gpus) {
    let model = spec(SHAPES[0].0);
    let inner = InnerSpec { batch: 3, ..Preset::Tiny.inner() };
    gpus.each(async |gpu| {
        let train = async |rehearsals: u32| {
            let mut engine = engine(gpu, model, inner).await.unwrap();
            engine.set_params(&params(&model));
            let mut stats = Vec::new();
            for step in 0..3 {
                for _ in 0..rehearsals {
                    assert!(engine.rehearse(&tokens(&model, 3, 9)).await.unwrap());
                }
                stats.push(engine.step(&tokens(&model, 3, step), 1e-2).await.unwrap());
                engine.synchronise().await.unwrap();
            }
            assert!(matches!(
                engine.rehearse(&tokens(&model, 2, 0)).await,
                Err(EngineError::Windows { found: 2, batch: 3 })
            ));
            (stats, engine.params().await.unwrap(), engine.saved_moments())
        };
        let (stats, params, moments) = train(0).await;
        let rehearsed = train(2).await;
        assert!(rehearsed.1 == params && rehearsed.2 == moments, "something moved");
        assert_eq!(rehearsed.0, stats);
    })
    .await;
}

/// Goal: a lost device is an error at the next call, and a new engine can resume from the moments that were read back.
async fn a_lost_device_leaves_its_moments(gpus: &Gpus) {
    let model = spec(SHAPES[3].0);
    let inner = InnerSpec { batch: 1, ..Preset::Tiny.inner() };
    let gpu = own_gpu(None).await;
    let mut lost = engine(&gpu, model, inner).await.unwrap();
    assert!(lost.saved_moments().is_none(), "nothing was read back yet");
    lost.set_params(&params(&model));
    for step in 0..40 {
        lost.step(&tokens(&model, 1, step), 1e-3).await.unwrap();
    }
    gpu.lose();
    assert!(matches!(lost.step(&tokens(&model, 1, 0), 1e-3).await, Err(EngineError::Lost { .. })));
    assert!(matches!(lost.synchronise().await, Err(EngineError::Lost { .. })));
    let moments = lost.saved_moments().expect("a small model is read back in a few steps");
    assert_eq!(moments.steps, 40);
    assert!(moments.vectors[1].iter().any(|&v| v > 0.0));

    gpus.each(async |gpu| {
        let setup = GpuSetup { moments: Some(moments.clone()), ..setup() };
        let mut next = GpuEngine::new(gpu, &run_spec(model, inner), setup).await.unwrap();
        next.set_params(&params(&model));
        assert_eq!(next.saved_moments().as_ref(), Some(&moments));
        next.step(&tokens(&model, 1, 0), 1e-3).await.unwrap();
    })
    .await;
}

/// Goal: with weights or all factors rounded to 16-bit floats (11 significant bits), the losses of twelve steps are
/// within 0.5 % of those with 32 bits.
async fn half_weights_follow_whole_ones(gpus: &Gpus) {
    let model = Preset::Tiny.model(64);
    let inner = InnerSpec { batch: 4, ..Preset::Tiny.inner() };
    gpus.each(async |gpu| {
        let losses = async |matmul: Matmul| {
            let setup = GpuSetup { matmul, ..setup() };
            let mut engine = GpuEngine::new(gpu, &run_spec(model, inner), setup).await.unwrap();
            engine.set_params(&init(&model, 7).unwrap());
            let mut losses = Vec::new();
            for step in 0..12 {
                losses.push(engine.step(&ramps(step), 2e-3).await.unwrap().loss);
            }
            losses
        };
        let plain = || Matmul::fixed(Variant::Register8);
        let whole = losses(plain()).await;
        let mut others = vec![plain().with_half_weights()];
        if gpu.has_matrices() {
            others.push(Matmul::fixed(Variant::Matrix64));
            others.push(Matmul::fixed(Variant::Matrix128).with_half_weights());
            others.push(plain().with_strips(true));
        }
        for other in others {
            let half = losses(other.clone()).await;
            assert!(whole != half, "{other:?} does something");
            let worst = whole.iter().zip(&half).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f32::max);
            assert!(worst < 5e-3, "{other:?} {worst}: {half:?} beside {whole:?}");
        }
    })
    .await;
}

parity!(
    agrees_with_the_reference,
    experts_agree_with_the_reference,
    agrees_in_small_bindings,
    follows_the_cpu_engine,
    step_without_target_tokens_has_no_gradient,
    the_same_steps_give_the_same_bits,
    refuses_bad_input_and_keeps_its_parameters_when_training_blows_up,
    a_profile_times_every_kernel,
    unsupported_shapes_are_refused,
    a_rehearsal_changes_nothing,
    a_lost_device_leaves_its_moments,
    half_weights_follow_whole_ones
);
