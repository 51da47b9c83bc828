//! Adapters on frozen weights, compared with the reference and with training of the whole model.

use std::sync::Arc;

use super::{SHAPES, distance, gradients_agree, inner, params, partly_given, spec, threads, tokens};
use crate::engine::cpu::{CpuModel, CpuTrainer, Writer};
use crate::engine::{EngineError, Trainer};
use crate::model::{
    FrozenForm, FrozenWeights, LoraSpec, LoraTargets, ModelSpec, Preset, add_adapters, init, layout,
    reference_adapters_logits, reference_adapters_loss_and_grad,
};

fn with_adapters(base: ModelSpec, rank: u32, targets: &str) -> ModelSpec {
    ModelSpec { lora: Some(LoraSpec { rank, alpha: 5.0, targets: targets.parse().unwrap() }), ..base }
}

/// Returns weights with ten times the usual spread, quantised as `form`, and their values after quantisation.
fn frozen(spec: &ModelSpec, form: FrozenForm) -> (Option<Arc<FrozenWeights>>, Vec<f32>) {
    let frozen = FrozenWeights::quantised(spec, &params(&spec.base()), form).unwrap();
    let mut wide = vec![0.0; frozen.layout().len()];
    frozen.read(0..wide.len(), &mut wide);
    (Some(Arc::new(frozen)), wide)
}

/// Returns parameters in which A and B have similar size.
fn adapters(spec: &ModelSpec) -> Vec<f32> {
    let len = layout(spec).unwrap().len();
    (0..len).map(|i| ((i * 7919 + 13) % 101) as f32 / 200.0 - 0.25).collect()
}

/// Goal: gradients of A and B are correct for any rank, targets and form of the frozen weights.
#[test]
fn adapters_agree_with_the_reference() {
    let kinds = [(3, "q,k,v,o,gate,up,down"), (8, "q,v"), (1, "k,o,down"), (4, "gate"), (2, "up,o")];
    for (((shape, batch), (rank, targets)), form) in
        SHAPES.into_iter().zip(kinds.into_iter().cycle()).zip(FrozenForm::ALL.into_iter().cycle())
    {
        for untied_head in [false, true] {
            let spec = with_adapters(ModelSpec { untied_head, ..spec(shape) }, rank, targets);
            agrees(&spec, batch, &tokens(&spec, batch), form);
            agrees(&spec, batch, &partly_given(&spec, batch), form);
        }
    }
}

fn agrees(spec: &ModelSpec, batch: u32, tokens: &[u32], form: FrozenForm) {
    let ((frozen, wide), adapters) = (frozen(spec, form), adapters(spec));
    let mut exact = vec![0.0; adapters.len()];
    let expected = reference_adapters_loss_and_grad(spec, &wide, &adapters, tokens, &mut exact).unwrap();
    let check = |mut trainer: CpuTrainer| {
        trainer.params_mut().copy_from_slice(&adapters);
        gradients_agree(&mut trainer, spec, tokens, expected, &exact, (1e-4, 1e-7));
    };
    for count in 1..=3 {
        check(CpuTrainer::on(frozen.clone(), spec, &inner(batch), threads(count)).unwrap());
    }
    check(CpuTrainer::fixed_on(frozen.clone(), spec, &inner(batch)).unwrap());
    let mut model = CpuModel::on(frozen, spec, threads(2)).unwrap();
    let loss = model.loss(&adapters, tokens).unwrap();
    assert!((f64::from(loss) - expected).abs() < 1e-5, "{spec:?}: {loss} instead of {expected}");
    let logits = model.logits(&adapters, &tokens_of_one(spec)).unwrap();
    let expected = reference_adapters_logits(spec, &wide, &adapters, &tokens_of_one(spec)).unwrap();
    assert!(distance(&logits, &expected) < 1e-3 * f64::from(spec.context));
}

fn tokens_of_one(spec: &ModelSpec) -> Vec<u32> {
    tokens(spec, 1)[..spec.context as usize / 2 + 1].to_vec()
}

/// Goal: adapters learn a repetition on untrained weights, and the weights stay unchanged. Text is the same with
/// adapters as with the summed weights.
#[test]
fn adapters_learn_and_write() {
    let spec = with_adapters(Preset::Tiny.model(16), 8, "q,k,v,o,gate,up,down");
    let (frozen, mut wide) = frozen(&spec, FrozenForm::Int8);
    let before = frozen.as_ref().unwrap().bytes().to_vec();
    let tokens: Vec<u32> = (0..4 * 65).map(|i| i % 16).collect();
    let mut trainer = CpuTrainer::on(frozen.clone(), &spec, &inner(4), threads(2)).unwrap();
    assert_eq!(trainer.params(), init(&spec, 0).unwrap());
    let losses: Vec<f32> = (0..80).map(|_| trainer.step(&tokens, 1e-2).unwrap().loss).collect();
    assert!(losses[0] > 2.0 && losses[79] < 0.2, "{losses:?}");
    assert_eq!(frozen.as_ref().unwrap().bytes(), before);

    let mut writer = Writer::on(frozen, &spec, trainer.params()).unwrap();
    writer.begin(&[3, 4, 5], 0.0, 1).unwrap();
    let text: Vec<u32> = writer.take(100).collect();
    add_adapters(&spec, &mut wide, trainer.params()).unwrap();
    let mut whole = Writer::new(&spec.base(), wide).unwrap();
    whole.begin(&[3, 4, 5], 0.0, 1).unwrap();
    assert_eq!(text, whole.take(100).collect::<Vec<_>>());
    assert!(text.into_iter().take(40).eq((6..46).map(|i| i % 16)));
}

/// Threads add to A and B in turn.
#[test]
fn adapters_have_the_same_bits_on_any_number_of_threads() {
    let spec = with_adapters(spec(SHAPES[2].0), 4, "q,k,v,o,gate,up,down");
    let run = |count| {
        let frozen = frozen(&spec, FrozenForm::F16).0;
        let mut trainer = CpuTrainer::on(frozen, &spec, &inner(5), threads(count)).unwrap();
        trainer.params_mut().copy_from_slice(&adapters(&spec));
        let losses = [(); 3].map(|()| trainer.step(&tokens(&spec, 5), 1e-3).unwrap().loss);
        (losses, trainer.params().to_vec())
    };
    let alone = run(1);
    assert!((2..=5).all(|count| run(count) == alone));
}

#[test]
fn adapters_without_their_weights_are_refused() {
    let spec = with_adapters(spec(SHAPES[0].0), 4, "q");
    let error = CpuTrainer::new(&spec, &inner(3), threads(1)).err();
    assert!(matches!(error, Some(EngineError::Frozen)), "{error:?}");
    let other = ModelSpec { d_ff: 24, ..spec };
    let unfit = CpuTrainer::on(frozen(&other, FrozenForm::F16).0, &spec, &inner(3), threads(1)).err();
    assert!(matches!(unfit, Some(EngineError::FrozenUnfit)), "{unfit:?}");
    assert!(matches!(CpuModel::new(&spec, threads(1)).err(), Some(EngineError::Frozen)));
    let all = ModelSpec { lora: Some(LoraSpec { targets: LoraTargets::ALL, ..spec.lora.unwrap() }), ..spec };
    assert!(matches!(Writer::new(&all, adapters(&all)).err(), Some(EngineError::Frozen)));
    // A trainer of the whole model ignores frozen weights.
    let whole = CpuTrainer::on(frozen(&other, FrozenForm::F16).0, &spec.base(), &inner(3), threads(1));
    assert!(whole.is_ok());
}
