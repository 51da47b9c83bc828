//! Comparison of the model with Hugging Face's Llama and Mixtral in PyTorch. `golden/llama_fixture.py` and
//! `golden/mixtral_fixture.py` wrote `golden/llama_fixture.json` and `golden/mixtral_fixture.json`, from weights and
//! tokens that follow the same formulas as here.

use std::num::NonZeroUsize;

use archipelago_core::model::{ExpertSpec, InnerSpec, ModelSpec, Preset, layout, reference_loss_and_grad};
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::{CpuModel, CpuTrainer};
use serde_json::Value;

struct Fixture {
    values: Value,
    model: ModelSpec,
    inner: InnerSpec,
    lr: f32,
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn integer(value: &Value) -> u32 {
    u32::try_from(value.as_u64().expect("an integer")).expect("32 bits")
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().expect("a list").iter()
}

impl Fixture {
    fn llama() -> Self {
        Self::read(include_str!("../golden/llama_fixture.json"))
    }

    fn mixtral() -> Self {
        Self::read(include_str!("../golden/mixtral_fixture.json"))
    }

    fn read(json: &str) -> Self {
        let values: Value = serde_json::from_str(json).expect("the fixture is JSON");
        let (model, inner) = (&values["model"], &values["inner"]);
        let model = ModelSpec {
            vocab: integer(&model["vocab"]),
            d_model: integer(&model["d_model"]),
            layers: integer(&model["layers"]),
            heads: integer(&model["heads"]),
            kv_heads: integer(&model["kv_heads"]),
            d_ff: integer(&model["d_ff"]),
            context: integer(&model["context"]),
            rope_theta: number(&model["rope_theta"]) as f32,
            norm_eps: number(&model["norm_eps"]) as f32,
            untied_head: false,
            experts: model.get("experts").map(|experts| ExpertSpec {
                count: integer(&experts["count"]),
                per_token: integer(&experts["per_token"]),
                aux_loss: number(&experts["aux_loss"]) as f32,
            }),
            lora: None,
        };
        let lr = number(&inner["lr"]) as f32;
        let inner = InnerSpec {
            batch: integer(&values["batch"]),
            beta1: number(&inner["beta1"]) as f32,
            beta2: number(&inner["beta2"]) as f32,
            eps: number(&inner["eps"]) as f32,
            weight_decay: number(&inner["weight_decay"]) as f32,
            clip_norm: number(&inner["clip_norm"]) as f32,
            ..Preset::Tiny.inner()
        };
        Self { values, model, inner, lr }
    }

    /// Returns the parameters in PyTorch's order of the tensors. Must match `weight` in the script.
    fn params(&self) -> Vec<f32> {
        let layout = layout(&self.model).expect("a model");
        let mut params = vec![0.0; layout.len()];
        let mut index = 0_u64;
        for tensor in list(&self.values["gradients"]) {
            let (start, found) = layout
                .offsets()
                .find(|(_, found)| found.name == tensor["name"])
                .unwrap_or_else(|| panic!("no {}", tensor["name"]));
            let shape: u32 = list(&tensor["shape"]).map(integer).product();
            assert_eq!(found.len(), shape, "{}", found.name);
            for value in &mut params[start as usize..(start + shape) as usize] {
                let hash = (index * 2_654_435_761 % (1 << 32)) >> 8;
                let weight = (hash as f64 / f64::from(1 << 24) - 0.5) * 0.5;
                *value = (weight + f64::from(u8::from(found.rows == 1))) as f32;
                index += 1;
            }
        }
        assert_eq!(index, layout.len() as u64, "all tensors have a weight");
        params
    }

    /// Returns the tokens of a step. Must match `batch` in the script.
    fn tokens(&self, step: u64) -> Vec<u32> {
        let size = u64::from(self.inner.batch * (self.model.context + 1));
        let token = |i: u64| ((i * 40_503 + i * i * 7) % 65_537 % u64::from(self.model.vocab)) as u32;
        (step * size..(step + 1) * size).map(token).collect()
    }

    fn trainer(&self, threads: usize) -> CpuTrainer {
        let threads = NonZeroUsize::new(threads).expect("not 0");
        let mut trainer = CpuTrainer::new(&self.model, &self.inner, threads).expect("a trainer");
        trainer.params_mut().copy_from_slice(&self.params());
        trainer
    }

    fn check_gradient(&self, loss: f64, grad: &[f32]) {
        close("loss", loss, &self.values["losses"][0], 1e-6);
        let layout = layout(&self.model).expect("a model");
        for tensor in list(&self.values["gradients"]) {
            let name = tensor["name"].as_str().expect("a name");
            let (start, found) =
                layout.offsets().find(|(_, found)| found.name == name).expect("params() has looked it up");
            let grad = &grad[start as usize..(start + found.len()) as usize];
            let norm = grad.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
            close(name, norm, &tensor["norm"], 1e-5 * norm);
            // transformers computes norms and angles in float32, which affects the sixth digit.
            for entry in list(&tensor["entries"]) {
                let index = integer(&entry[0]) as usize;
                close(name, f64::from(grad[index]), &entry[1], 1e-5 * norm);
            }
        }
    }
}

fn close(what: &str, found: f64, expected: &Value, tolerance: f64) {
    let expected = number(expected);
    assert!((found - expected).abs() <= tolerance, "{what}: {found} instead of {expected}");
}

#[test]
fn reference_agrees_with_transformers() {
    for fixture in [Fixture::llama(), Fixture::mixtral()] {
        let params = fixture.params();
        let mut grad = vec![0.0; params.len()];
        let loss =
            reference_loss_and_grad(&fixture.model, &params, &fixture.tokens(0), &mut grad).expect("a model");
        fixture.check_gradient(loss, &grad);
    }
}

#[test]
fn cpu_engine_agrees_with_transformers() {
    for fixture in [Fixture::llama(), Fixture::mixtral()] {
        for threads in 1..=3 {
            let mut trainer = fixture.trainer(threads);
            let (loss, grad) = trainer.loss_and_grad(&fixture.tokens(0)).expect("windows");
            fixture.check_gradient(f64::from(loss), grad);
        }
    }
}

#[test]
fn logits_agree_with_transformers() {
    logits_agree(&Fixture::llama());
    logits_agree(&Fixture::mixtral());
}

fn logits_agree(fixture: &Fixture) {
    let threads = NonZeroUsize::MIN;
    let mut model = CpuModel::new(&fixture.model, threads).expect("a model");
    let (params, tokens) = (fixture.params(), fixture.tokens(0));
    let context = fixture.model.context as usize;
    let logits: Vec<f32> = tokens
        .chunks(context + 1)
        .flat_map(|window| model.logits(&params, &window[..context]).expect("a sequence"))
        .collect();
    for entry in list(&fixture.values["logits"]) {
        close("logit", f64::from(logits[integer(&entry[0]) as usize]), &entry[1], 1e-5);
    }
}

/// Goal: ten steps of AdamW with clipping and decay, on two alternating batches, match PyTorch.
#[test]
fn training_follows_pytorch() {
    let fixture = Fixture::llama();
    let mut trainer = fixture.trainer(2);
    let recorded = list(&fixture.values["losses"]).zip(list(&fixture.values["grad_norms"]));
    for (step, (loss, grad_norm)) in recorded.enumerate() {
        let stats = trainer.step(&fixture.tokens(step as u64 % 2), fixture.lr).expect("a step");
        close("loss", f64::from(stats.loss), loss, 2e-5);
        close("gradient norm", f64::from(stats.grad_norm), grad_norm, 2e-4);
    }
}
