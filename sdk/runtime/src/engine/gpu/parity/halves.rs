//! Training on 16-bit operands compared with training on 32-bit operands.

use super::super::matmul::{Matmul, Variant};
use super::super::{GpuEngine, GpuSetup};
use super::engine::{ramps, run_spec, setup};
use super::harness::Gpus;
use crate::engine::Engine;
use crate::model::{InnerSpec, Preset, init};

/// Thirty steps with weights, or all factors, rounded to 16-bit floats: losses are within 0.5 % of those with 32 bits.
/// A 16-bit float has 11 bits in the significand.
async fn half_weights_follow_whole_ones(gpus: &Gpus) {
    let model = Preset::Tiny.model(64);
    let inner = InnerSpec { batch: 4, ..Preset::Tiny.inner() };
    gpus.each(async |gpu| {
        let losses = async |matmul: Matmul| {
            let setup = GpuSetup { matmul, ..setup() };
            let mut engine = GpuEngine::new(gpu, &run_spec(model, inner), setup).await.unwrap();
            engine.set_params(&init(&model, 7).unwrap());
            let mut losses = Vec::new();
            for step in 0..30 {
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

parity!(half_weights_follow_whole_ones);
