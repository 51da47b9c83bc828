//! Options of pages, and results of measurements.

use archipelago::run::BatchChoice;
use archipelago_runtime::engine::EngineKind;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;

use crate::Failure;

/// How to take part in a run.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "RawJoin"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinOptions {
    /// Address of the syncer, with or without what follows `#`.
    pub syncer: String,
    /// The learner's key, 64 hex digits, the same at each start: its public half if `browser_signs`, else its secret.
    pub identity: String,
    /// Whether the browser holds the secret and signs.
    pub browser_signs: bool,
    /// Its name for people.
    pub name: String,
    /// "auto", "gpu" or "cpu".
    pub engine: String,
    /// Workers that help a CPU engine, at most; 0 for none.
    pub helpers: u32,
    /// Share of time to compute, above 0 and at most 1.
    pub share: f64,
    /// Windows of the text in one step, 1 to 4096; `null` for as many as the run says or as fit this device.
    pub batch: Option<u32>,
    /// How long to try to be taken in for the first time, in milliseconds.
    pub contact_ms_max: u64,
    /// Steps between two savings of the optimiser's moments; 0 for never.
    pub save_steps: u32,
    /// Whether the Worker keeps the frozen weights of runs.
    pub keeps: bool,
}

/// What to measure.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "RawMeasure"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MeasureOptions {
    /// "gpu" or "cpu".
    pub engine: String,
    /// Workers that help a CPU engine, at most; 0 for none.
    pub helpers: u32,
    /// Name of a preset: "tiny", "small", "medium", "base", "llama-135m" or "llama-360m".
    pub preset: String,
    /// How long to train after the first step, in milliseconds.
    pub train_ms: u64,
}

/// What training here comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// What it was computed with: "cpu wasm simd128", "gpu, …".
    pub device: String,
    /// Parameters of the model.
    pub params: u64,
    /// Tokens trained on per second.
    pub tokens_per_s: f64,
    /// From looking for the device to the end of the first step, in milliseconds.
    pub first_step_ms: f64,
    /// Mean loss of the last step, in nats per token.
    pub loss: f32,
    /// Steps measured.
    pub steps: u64,
    /// Memory that WebAssembly holds, in bytes; buffers of the GPU not included.
    pub memory_bytes: u64,
    /// Largest binding of a kernel on the GPU, in bytes.
    pub binding_bytes_max: Option<u64>,
    /// What that means for each preset, smallest first.
    pub presets: Vec<PresetFacts>,
}

/// What a preset asks of this browser.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct PresetFacts {
    /// Its name.
    pub name: &'static str,
    /// Parameters of the model.
    pub params: u64,
    /// Parameters, gradient, moments and what the exchange holds, in bytes; activations not included.
    pub state_bytes: u64,
    /// Tokens trained on per second at the rate of operations that was measured: an estimate but for the preset
    /// that was measured.
    pub tokens_per_s: f64,
}

/// Returns the engine with the name `name`.
///
/// # Errors [`Failure::Options`]: there is no such engine.
pub(crate) fn engine(name: &str) -> Result<EngineKind, Failure> {
    name.parse::<EngineKind>().map_err(|error| Failure::Options(error.to_string()))
}

/// Returns the batch for the given number of `windows`.
///
/// # Errors [`Failure::Options`]: the number is out of range.
pub(crate) fn batch(windows: Option<u32>) -> Result<BatchChoice, Failure> {
    let given = windows.map_or(Ok(BatchChoice::AUTO), BatchChoice::given);
    given.map_err(|error| Failure::Options(error.to_string()))
}

/// Parses `digits` as one half of a key.
///
/// # Errors [`Failure::Options`]: they are not 64 hex digits.
pub(crate) fn half(digits: &str) -> Result<[u8; 32], Failure> {
    let wrong = || Failure::Options("the identity is not 64 hex digits".to_owned());
    let mut bytes = [0; 32];
    if digits.len() != 2 * bytes.len() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
    }
    Ok(bytes)
}

/// Reads options from JavaScript.
pub(crate) fn read<T: DeserializeOwned>(options: JsValue) -> Result<T, Failure> {
    serde_wasm_bindgen::from_value(options).map_err(|error| Failure::Options(error.to_string()))
}

/// Converts plain data to plain objects.
pub(crate) fn to_js(value: &impl Serialize) -> JsValue {
    let serializer = serde_wasm_bindgen::Serializer::json_compatible();
    value.serialize(&serializer).expect("plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_in_their_range() {
        assert_eq!(batch(None).unwrap(), BatchChoice::AUTO);
        assert_eq!(batch(Some(3)).unwrap().to_string(), "3");
        for wrong in [0, 4_097] {
            assert!(matches!(batch(Some(wrong)), Err(Failure::Options(_))), "{wrong}");
        }
    }

    #[test]
    fn reads_halves_of_keys() {
        let digits = "000102030405060708090a0b0c0d0eff".repeat(2);
        assert_eq!(half(&digits).unwrap()[31], 0xff);
        let signed = format!("{}+f", &digits[..62]);
        for wrong in ["", &digits[1..], signed.as_str(), "é00102030405060708090a0b0c0d0e"] {
            assert!(matches!(half(wrong), Err(Failure::Options(_))), "{wrong}");
        }
    }
}
