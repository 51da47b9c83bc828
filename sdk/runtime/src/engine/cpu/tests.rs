//! The engine compared with the reference, at sizes that are no multiple of a block, and with itself on other threads.

mod adapters;
mod moments;

use std::num::NonZeroUsize;

use super::{CpuGradient, CpuModel, CpuTrainer, Writer};
use crate::engine::{EngineError, OptimiserState, StepStats, Trainer};
use crate::model::{
    AdamW, ExpertSpec, InnerSpec, ModelError, ModelSpec, Preset, init, layout, reference_logits,
    reference_loss_and_grad, reference_seen,
};
use crate::token;

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn inner(batch: u32) -> InnerSpec {
    InnerSpec { batch, ..Preset::Tiny.inner() }
}

/// Shapes `[vocab, d_model, layers, heads, kv_heads, d_ff, context]` and a batch.
const SHAPES: [([u32; 7], u32); 6] = [
    ([37, 24, 2, 4, 2, 20, 70], 3),
    ([101, 36, 1, 3, 1, 23, 9], 31),
    ([256, 32, 3, 2, 2, 88, 129], 2),
    ([2, 2, 1, 1, 1, 2, 1], 1),
    // More than one part of the embedding and more than one chunk of logits.
    ([70_001, 4, 1, 1, 1, 8, 70], 3),
    ([50, 64, 1, 8, 4, 64, 200], 1),
];

fn spec([vocab, d_model, layers, heads, kv_heads, d_ff, context]: [u32; 7]) -> ModelSpec {
    ModelSpec { vocab, d_model, layers, heads, kv_heads, d_ff, context, ..Preset::Tiny.model(vocab) }
}

fn tokens(spec: &ModelSpec, windows: u32) -> Vec<u32> {
    (0..windows * (spec.context + 1)).map(|i| (i * i / 7 + i % 5) % spec.vocab).collect()
}

/// Returns parameters with ten times the usual spread, so that attention is not flat.
fn params(spec: &ModelSpec) -> Vec<f32> {
    init(spec, 1).unwrap().into_iter().map(|p| if p == 1.0 { 0.9 } else { p * 10.0 }).collect()
}

fn trainer(spec: &ModelSpec, batch: u32, count: usize) -> CpuTrainer {
    let mut trainer = CpuTrainer::new(spec, &inner(batch), threads(count)).unwrap();
    trainer.params_mut().copy_from_slice(&params(spec));
    trainer
}

#[test]
fn agrees_with_the_reference() {
    for ((shape, batch), untied_head) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)])
    {
        let spec = ModelSpec { untied_head, ..spec(shape) };
        agrees(&spec, batch, &tokens(&spec, batch));
        agrees(&spec, batch, &partly_given(&spec, batch));
    }
}

/// Shapes of experts, `[E, A]`, each with the weight of its balancing loss: several per token, all of them, one of
/// many.
const EXPERTS: [(u32, u32, f32); 3] = [(4, 2, 0.1), (3, 3, 0.0), (7, 1, 0.5)];

/// Goal: tokens gathered by expert give the same results as one by one, and the same expert counts.
#[test]
fn experts_agree_with_the_reference() {
    for ((shape, batch), (count, per_token, aux_loss)) in
        [0, 1, 2].map(|i| SHAPES[i]).into_iter().zip(EXPERTS)
    {
        let experts = Some(ExpertSpec { count, per_token, aux_loss });
        let spec = ModelSpec { experts, ..spec(shape) };
        let tokens = tokens(&spec, batch);
        agrees(&spec, batch, &tokens);
        agrees(&spec, batch, &partly_given(&spec, batch));
        let mut trainer = trainer(&spec, batch, 2);
        trainer.rehearse(&tokens).unwrap();
        assert_eq!(trainer.take_seen(), [0; 0], "nothing was trained");
        let expected = reference_seen(&spec, &params(&spec), &tokens).unwrap();
        trainer.step(&tokens, 0.0).unwrap();
        trainer.step(&tokens, 0.0).unwrap();
        let twice: Vec<u64> = expected.iter().map(|seen| 2 * seen).collect();
        assert_eq!(trainer.take_seen(), twice);
        assert_eq!(trainer.take_seen(), [0; 0], "they were asked for");
    }
}

fn agrees(spec: &ModelSpec, batch: u32, tokens: &[u32]) {
    let params = params(spec);
    let mut exact = vec![0.0; params.len()];
    let expected = reference_loss_and_grad(spec, &params, tokens, &mut exact).unwrap();
    for count in 1..=3 {
        gradients_agree(&mut trainer(spec, batch, count), spec, tokens, expected, &exact, (2e-5, 1e-8));
    }
    let mut model = CpuModel::new(spec, threads(2)).unwrap();
    let loss = model.loss(&params, tokens).unwrap();
    assert!((f64::from(loss) - expected).abs() < 1e-5, "{spec:?}: {loss} instead of {expected}");
}

/// Asserts that the loss is `expected` within 1e-5, and the gradient is `exact`. Each tensor may differ by `part` of
/// its norm plus `more`.
fn gradients_agree(
    trainer: &mut CpuTrainer,
    spec: &ModelSpec,
    tokens: &[u32],
    expected: f64,
    exact: &[f32],
    (part, more): (f64, f64),
) {
    // Twice: the second call must not depend on the first.
    trainer.loss_and_grad(tokens).unwrap();
    let (loss, grad) = trainer.loss_and_grad(tokens).unwrap();
    assert!((f64::from(loss) - expected).abs() < 1e-5, "{spec:?}: {loss} instead of {expected}");
    for (start, tensor) in layout(spec).unwrap().offsets() {
        let range = start as usize..(start + tensor.len()) as usize;
        let error = distance(&grad[range.clone()], &exact[range.clone()]);
        let size = distance(&exact[range], &vec![0.0; tensor.len() as usize]);
        assert!(error <= part * size + more, "{spec:?} {}: {error} of {size}", tensor.name);
    }
}

/// Returns the same windows with runs of three given tokens, and a wholly given first window if there are several.
fn partly_given(spec: &ModelSpec, windows: u32) -> Vec<u32> {
    let window = spec.context as usize + 1;
    let is_given = |at: usize| (windows > 1 && at < window) || at / 3 % 2 == 1;
    let tokens = tokens(spec, windows).into_iter().enumerate();
    tokens.map(|(at, token)| if is_given(at) { token | token::GIVEN } else { token }).collect()
}

/// Given tokens reach the loss only as context. A step without learnt tokens has loss and gradient 0.
#[test]
fn given_tokens_are_read_and_not_learnt() {
    let spec = spec(SHAPES[0].0);
    let given: Vec<u32> = tokens(&spec, 3).iter().map(|token| token | token::GIVEN).collect();
    let mut trainer = trainer(&spec, 3, 2);
    let (loss, grad) = trainer.loss_and_grad(&given).unwrap();
    assert!(loss == 0.0 && grad.iter().all(|&g| g == 0.0));
    assert_eq!(trainer.step(&given, 1e-3).unwrap(), StepStats { loss: 0.0, grad_norm: 0.0, tokens: 210 });
    let stats = trainer.step(&tokens(&spec, 3), 1e-3).unwrap();
    assert_eq!(trainer.step(&given, 1e-3).unwrap().loss, stats.loss, "nothing new is known of the loss");

    let alien = [&[37 | token::GIVEN], &given[1..]].concat();
    assert!(matches!(
        trainer.step(&alien, 1e-3),
        Err(EngineError::Model(ModelError::Token { token: 37, vocab: 37 }))
    ));
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn logits_agree_for_any_length() {
    for ((shape, _), untied_head) in SHAPES.into_iter().zip([false, true].into_iter().cycle()) {
        let spec = ModelSpec { untied_head, ..spec(shape) };
        let params = params(&spec);
        let mut model = CpuModel::new(&spec, threads(1)).unwrap();
        for len in [1, spec.context / 2 + 1, spec.context] {
            let tokens = &tokens(&spec, 1)[..len as usize];
            let (found, expected) = (model.logits(&params, tokens), reference_logits(&spec, &params, tokens));
            let error = distance(&found.unwrap(), &expected.unwrap());
            assert!(error < 1e-3 * f64::from(len), "{shape:?} {len}: {error}");
        }
    }
}

/// Returns losses and parameters of three steps.
fn after_steps(spec: &ModelSpec, batch: u32, count: usize) -> ([f32; 3], Vec<f32>) {
    let mut trainer = trainer(spec, batch, count);
    let losses = [(); 3].map(|()| trainer.step(&tokens(spec, batch), 1e-3).unwrap().loss);
    (losses, trainer.params().to_vec())
}

#[test]
fn threads_do_not_race() {
    for (shape, batch) in SHAPES {
        for count in 2..=4 {
            let run = || after_steps(&spec(shape), batch, count);
            assert!(run() == run(), "{shape:?} on {count} threads");
        }
    }
}

/// A window of 129 tokens fills a thread, so that the batch is divided in the same way for any number of threads.
#[test]
fn steps_have_the_same_bits_on_any_number_of_threads() {
    let spec = spec(SHAPES[2].0);
    let alone = after_steps(&spec, 5, 1);
    for count in 2..=6 {
        assert!(alone == after_steps(&spec, 5, count), "{count} threads");
    }
}

#[test]
fn steps_follow_the_reference_optimiser() {
    let spec = spec(SHAPES[0].0);
    let (layout, inner) = (layout(&spec).unwrap(), inner(3));
    let mut trainer = trainer(&spec, 3, 2);
    let (mut expected, mut adamw) = (params(&spec), AdamW::new(layout.len()));
    for step in 0..5 {
        let tokens = tokens(&spec, 3);
        let before = trainer.params().to_vec();
        if step == 3 {
            trainer = taken_over(&spec, &before, &adamw);
        }
        let (_, grad) = trainer.loss_and_grad(&tokens).unwrap();
        let norm = adamw.step(&layout, &inner, 1e-2, &mut expected, grad);
        let stats = trainer.step(&tokens, 1e-2).unwrap();
        assert!((stats.grad_norm / norm - 1.0).abs() < 1e-5, "{step}: {stats:?}");
        assert_eq!(stats.tokens, 210);
        assert_ne!(trainer.params(), before);
        let error = distance(trainer.params(), &expected);
        assert!(error < 1e-5, "{step}: {error}");
    }
}

/// Creates another engine that continues from the state of one.
fn taken_over(spec: &ModelSpec, params: &[f32], adamw: &AdamW) -> CpuTrainer {
    let mut trainer = trainer(spec, 3, 1);
    trainer.params_mut().copy_from_slice(params);
    let AdamW { m, v, steps } = adamw.clone();
    trainer.resume(&OptimiserState::of_adamw(steps, m.clone(), v[1..].to_vec())).unwrap_err();
    trainer.resume(&OptimiserState::of_adamw(steps, m, v)).unwrap();
    trainer
}

/// Goal: an engine rebuilt from the saved state of another continues bit for bit.
#[test]
fn kept_moments_go_on() {
    let spec = spec(SHAPES[0].0);
    let tokens = tokens(&spec, 3);
    let mut first = trainer(&spec, 3, 1);
    for _ in 0..3 {
        first.step(&tokens, 1e-2).unwrap();
    }
    let mut second = trainer(&spec, 3, 1);
    second.params_mut().copy_from_slice(first.params());
    let moments = first.moments().unwrap();
    assert_eq!(moments.steps, 3);
    second.resume(&moments).unwrap();
    assert_eq!(first.step(&tokens, 1e-2).unwrap(), second.step(&tokens, 1e-2).unwrap());
    assert!(first.params() == second.params());
}

/// Goal: gradients of parts, weighted by the token count of the whole, add up to the gradient of the whole.
#[test]
fn parts_of_a_batch_add_up() {
    let spec = spec(SHAPES[1].0);
    let (tokens, count, cut) = (tokens(&spec, 31), 31 * 9, 12 * 10);
    let part = |tokens: &[u32]| {
        let mut gradient = CpuGradient::new(&spec, 31, threads(2)).unwrap();
        gradient.params_mut().copy_from_slice(&params(&spec));
        let sums = gradient.differentiate(tokens, count).unwrap();
        (sums, gradient)
    };
    let (whole, exact) = part(&tokens);
    let ((first, mut sum), (second, rest)) = (part(&tokens[..cut]), part(&tokens[cut..]));
    let squares = sum.add(&[rest.grad()]);
    assert!((first.loss + second.loss - whole.loss).abs() < 1e-3);
    assert!((squares / whole.squares - 1.0).abs() < 1e-5);
    assert!(distance(sum.grad(), exact.grad()) < 1e-5 * whole.squares.sqrt());
    let (_, mut gradient) = part(&tokens);
    let more = [&tokens[..], &tokens[..10]].concat();
    assert!(matches!(gradient.differentiate(&more, count), Err(EngineError::Windows { found: 32, .. })));
}

#[test]
fn a_fixed_trainer_takes_the_same_steps() {
    let spec = Preset::Tiny.model(64);
    let tokens: Vec<u32> = (0..4 * 65).map(|i| i * 7 % 64).collect();
    let mut trainers = [
        CpuTrainer::new(&spec, &inner(4), threads(1)).unwrap(),
        CpuTrainer::fixed(&spec, &inner(4)).unwrap(),
    ];
    for _ in 0..5 {
        let [fast, fixed] = trainers.each_mut().map(|trainer| trainer.step(&tokens, 3e-3).unwrap());
        assert!((fast.loss - fixed.loss).abs() < 1e-4 * fast.loss, "{fast:?} {fixed:?}");
    }
    let held = CpuModel::fixed(&spec).unwrap().loss(trainers[1].params(), &tokens).unwrap();
    assert!((held - trainers[1].step(&tokens, 0.0).unwrap().loss).abs() < 1e-5);
}

#[test]
fn learns_what_repeats() {
    let spec = Preset::Tiny.model(16);
    let tokens: Vec<u32> = (0..4 * 65).map(|i| i % 16).collect();
    let mut trainer = CpuTrainer::new(&spec, &inner(4), threads(2)).unwrap();
    let losses: Vec<f32> = (0..60).map(|_| trainer.step(&tokens, 3e-3).unwrap().loss).collect();
    assert!((losses[0] - 16_f32.ln()).abs() < 0.1, "{losses:?}");
    assert!(losses[59] < 0.1, "{losses:?}");

    let mut writer = Writer::new(&spec, trainer.params()).unwrap();
    writer.begin(&[3, 4, 5], 0.0, 1).unwrap();
    assert!(writer.take(100).eq((6..106).map(|i| i % 16)));
}

#[test]
fn a_rehearsal_changes_nothing() {
    let spec = spec(SHAPES[0].0);
    let tokens = tokens(&spec, 3);
    let mut alone = trainer(&spec, 3, 2);
    let mut rehearsed = trainer(&spec, 3, 2);
    for _ in 0..3 {
        assert!(rehearsed.rehearse(&tokens).unwrap());
        assert_eq!(rehearsed.step(&tokens, 1e-2).unwrap(), alone.step(&tokens, 1e-2).unwrap());
        assert!(rehearsed.params() == alone.params() && rehearsed.moments() == alone.moments());
    }
    assert!(matches!(rehearsed.rehearse(&tokens[71..]), Err(EngineError::Windows { found: 2, batch: 3 })));
    // Before they are loaded, parameters may have any value.
    rehearsed.params_mut()[100] = f32::NAN;
    assert!(rehearsed.rehearse(&tokens).unwrap());
    assert_eq!(rehearsed.moments(), alone.moments());
}

#[test]
fn refuses_bad_input_and_stays_as_it_was() {
    let spec = spec(SHAPES[0].0);
    let mut trainer = trainer(&spec, 3, 2);
    let good = tokens(&spec, 3);
    let error = |trainer: &mut CpuTrainer, tokens: &[u32], lr| trainer.step(tokens, lr).unwrap_err();
    let found = error(&mut trainer, &good[1..], 1e-3);
    assert!(matches!(found, EngineError::Model(ModelError::Tokens { found: 212, window: 71 })));
    let found = error(&mut trainer, &good[..142], 1e-3);
    assert!(matches!(found, EngineError::Windows { found: 2, batch: 3 }));
    let found = error(&mut trainer, &[37; 213], 1e-3);
    assert!(matches!(found, EngineError::Model(ModelError::Token { token: 37, vocab: 37 })));
    assert!(matches!(error(&mut trainer, &good, f32::NAN), EngineError::Rate { .. }));
    assert_eq!(trainer.params(), params(&spec));

    for bad in [f32::NAN, f32::INFINITY] {
        trainer.params_mut()[100] = bad;
        let before: Vec<u32> = trainer.params().iter().map(|p| p.to_bits()).collect();
        assert!(matches!(error(&mut trainer, &good, 1e-3), EngineError::NotFinite { .. }));
        assert!(trainer.params().iter().map(|p| p.to_bits()).eq(before));
    }
    trainer.params_mut().copy_from_slice(&params(&spec));
    assert!(trainer.step(&good, 1e-3).is_ok(), "recovers");

    let build = |batch, count| CpuTrainer::new(&spec, &inner(batch), threads(count));
    assert!(matches!(build(0, 1), Err(EngineError::Batch { batch: 0 })));
    assert!(matches!(build(u32::MAX, 1), Err(EngineError::Batch { .. })));
    assert!(build(1, 8).is_ok(), "more threads than windows");
}

#[test]
fn a_forward_model_refuses_bad_input() {
    let spec = spec(SHAPES[0].0);
    let (params, mut model) = (params(&spec), CpuModel::new(&spec, threads(2)).unwrap());
    assert!(model.loss(&params[1..], &tokens(&spec, 1)).is_err());
    assert!(model.loss(&params, &[0; 70]).is_err());
    assert!(model.loss(&params, &[37; 71]).is_err());
    assert!(model.logits(&params, &[]).is_err());
    assert!(model.logits(&params, &[0; 71]).is_err());
}
