//! Tests of Muon on the device against the core's scalar implementation.

use super::super::{Gpu, GpuEngine, GpuSetup};
use super::engine::{SHAPES, distance, params, run_spec, setup, spec, tokens};
use super::harness::Gpus;
use crate::engine::{Engine, OptimiserState};
use crate::model::{ExpertSpec, InnerSpec, ModelSpec, Muon, Optimiser, Preset, layout, second_moments};

/// Number of steps in which the state of a small model is read back.
const STEPS: u32 = 40;

fn inner(batch: u32) -> InnerSpec {
    InnerSpec { batch, optimiser: Optimiser::Muon, ..Preset::Tiny.inner() }
}

async fn engine(gpu: &Gpu, model: ModelSpec, batch: u32, moments: Option<OptimiserState>) -> GpuEngine {
    let setup = GpuSetup { moments, ..setup() };
    let mut engine = GpuEngine::new(gpu, &run_spec(model, inner(batch)), setup).await.unwrap();
    engine.set_params(&params(&model));
    engine
}

/// Goal: with the same gradients, each tensor moves as the core's optimiser moves it, within 0.5 %. Matrices are wide,
/// tall and square, lie at offsets that cannot be bound, and belong to experts.
async fn muon_follows_the_core(gpus: &Gpus) {
    gpus.each(async |gpu| {
        for (index, (shape, batch)) in SHAPES[..4].iter().enumerate() {
            let experts = (index == 2).then_some(ExpertSpec { count: 3, per_token: 2, aux_loss: 0.1 });
            let model = ModelSpec { experts, ..spec(*shape) };
            let layout = layout(&model).unwrap();
            let mut engine = engine(gpu, model, *batch, None).await;
            let (begun, mut muon) = (params(&model), Muon::new(&layout));
            let mut expected = begun.clone();
            for step in 0..3 {
                engine.step(&tokens(&model, *batch, step), 1e-2).await.unwrap();
                engine.synchronise().await.unwrap();
                let grad = engine.grad().await.unwrap();
                muon.step(&layout, &inner(*batch), 1e-2, &mut expected, &grad);
            }
            let found = engine.params().await.unwrap();
            for (start, tensor) in layout.offsets() {
                let range = start as usize..(start + tensor.len()) as usize;
                let error = distance(&found[range.clone()], &expected[range.clone()]);
                let moved = distance(&begun[range.clone()], &expected[range]);
                assert!(error <= 5e-3 * moved + 1e-7, "{model:?} {}: {error} of {moved}", tensor.name);
            }
        }
    })
    .await;
}

/// Goal: a rehearsal changes no bit, and an engine that restores the state continues with the same bits. The state has
/// no second moments of matrices.
async fn muon_state_is_restored(gpus: &Gpus) {
    let (shape, batch) = SHAPES[3];
    let model = spec(shape);
    gpus.each(async |gpu| {
        let train = async |rehearsals: usize| {
            let mut engine = engine(gpu, model, batch, None).await;
            for step in 0..STEPS {
                for _ in 0..rehearsals {
                    assert!(engine.rehearse(&tokens(&model, batch, 9)).await.unwrap());
                }
                engine.step(&tokens(&model, batch, step), 1e-2).await.unwrap();
                engine.synchronise().await.unwrap();
            }
            (engine.params().await.unwrap(), engine.saved_moments().expect("every piece is read by then"))
        };
        let (params, state) = train(0).await;
        assert!(train(1).await == (params, state.clone()), "a rehearsal moved something");
        let layout = layout(&model).unwrap();
        let moments = second_moments(&layout, Optimiser::Muon);
        assert_eq!(state.vectors.iter().map(Vec::len).collect::<Vec<_>>(), [layout.len(), moments]);
        assert!(state.vectors.iter().all(|vector| vector.iter().any(|value| *value != 0.0)));

        let mut restored = engine(gpu, model, batch, Some(state.clone())).await;
        assert_eq!(restored.saved_moments(), Some(state));
    })
    .await;
}

parity!(muon_follows_the_core, muon_state_is_restored);
