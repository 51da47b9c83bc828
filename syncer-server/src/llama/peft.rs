//! Adapters in the format of PEFT, a library of Hugging Face.

use archipelago_core::diloco::{Layout, LayoutError, Tensor};
use archipelago_core::model::{LoraSpec, LoraTarget};
use serde_json::{Value, json};

/// Prefix that PEFT adds to each tensor name of a model.
const PREFIX: &str = "base_model.model.";

/// Returns the `adapter_config.json` for adapters like `lora`. `base` is their model: a name on the hub or a folder.
#[must_use]
pub fn adapter_config(lora: &LoraSpec, base: Option<&str>) -> Value {
    // PEFT declares alpha as an integer, so it is one if possible, otherwise the shortest decimal.
    let alpha = lora.alpha.to_string();
    let alpha = alpha.parse::<u64>().map(Value::from).or_else(|_| alpha.parse::<f64>().map(Value::from));
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": null,
        "r": lora.rank,
        "lora_alpha": alpha.unwrap_or_default(),
        "lora_dropout": 0.0,
        "target_modules": lora.targets.iter().map(module).collect::<Vec<_>>(),
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "use_rslora": false,
        "use_dora": false,
        "modules_to_save": null,
        "layers_to_transform": null,
        "layers_pattern": null,
        "rank_pattern": {},
        "alpha_pattern": {},
        "inference_mode": true,
    })
}

/// Returns the name by which PEFT finds the matrix `target`: the last part of its full name.
fn module(target: LoraTarget) -> &'static str {
    target.module().rsplit('.').next().unwrap_or_default()
}

/// Returns the tensors of `layout` under their PEFT names.
///
/// # Errors
/// [`LayoutError`]: a name is too long.
pub fn peft_layout(layout: &Layout) -> Result<Layout, LayoutError> {
    let named = |tensor: &Tensor| Tensor { name: format!("{PREFIX}{}", tensor.name), ..tensor.clone() };
    Layout::new(layout.tensors().iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::{LoraTargets, ModelSpec, Preset, layout};

    use super::*;

    #[test]
    fn tensors_are_named_as_peft_names_them() {
        let lora = LoraSpec { rank: 4, alpha: 8.0, targets: "q,down".parse().unwrap() };
        let spec = ModelSpec { lora: Some(lora), ..Preset::Tiny.model(256) };
        let layout = peft_layout(&layout(&spec).unwrap()).unwrap();
        let names: Vec<&str> = layout.tensors().iter().take(4).map(|tensor| &*tensor.name).collect();
        let expected = [
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
            "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight",
            "base_model.model.model.layers.0.mlp.down_proj.lora_B.weight",
        ];
        assert_eq!(names, expected);
        let config = adapter_config(&lora, Some("base"));
        assert_eq!(config["target_modules"], json!(["q_proj", "down_proj"]));
        assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(4), &json!(8)));
        let halves = LoraSpec { alpha: 0.5, targets: LoraTargets::ALL, ..lora };
        assert_eq!(adapter_config(&halves, None)["lora_alpha"], json!(0.5));
    }
}
