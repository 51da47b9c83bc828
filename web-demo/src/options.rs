//! Options that pages set, and results of measurements.

use archipelago::run::BatchChoice;
use archipelago_runtime::engine::EngineKind;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;

use crate::Failure;

/// Options for taking part in a run.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "RawJoin"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinOptions {
    /// Address of the syncer, with or without the part from `#` on.
    pub syncer: String,
    /// Half of the learner's key, as 64 hex digits: the public half if `browser_signs`, otherwise the secret half. It
    /// must be the same at each start.
    pub identity: String,
    /// Whether the browser holds the secret half of the key and signs.
    pub browser_signs: bool,
    /// Name of the learner, for display.
    pub name: String,
    /// Choice of the engine: "auto", "gpu" or "cpu".
    pub engine: String,
    /// Maximum number of Workers that help a CPU engine; 0 for none.
    pub helpers: u32,
    /// Duty cycle: fraction of the time spent training, above 0 and at most 1.
    pub share: f64,
    /// Number of windows in a batch, 1 to 4096; `null` for as many as the run specifies or as fit this device.
    pub batch: Option<u32>,
    /// Maximum time to try to join for the first time, in milliseconds.
    pub contact_ms_max: u64,
    /// Number of steps between two saves of the optimiser's moments; 0 for never.
    pub save_steps: u32,
    /// Whether the Worker stores the frozen weights of runs.
    pub keeps: bool,
}

/// Options for a measurement of the training speed.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "RawMeasure"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MeasureOptions {
    /// Choice of the engine: "gpu" or "cpu".
    pub engine: String,
    /// Maximum number of Workers that help a CPU engine; 0 for none.
    pub helpers: u32,
    /// Name of a preset: "tiny", "small", "medium", "base", "llama-135m" or "llama-360m".
    pub preset: String,
    /// Time to train after the first step, in milliseconds.
    pub train_ms: u64,
}

/// Result of a measurement of the training speed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Engine and device, such as "cpu wasm simd128" or "gpu …".
    pub device: String,
    /// Number of the model's parameters.
    pub params: u64,
    /// Trained tokens per second.
    pub tokens_per_s: f64,
    /// Time from the search for a device to the end of the first step, in milliseconds.
    pub first_step_ms: f64,
    /// Mean loss of the last step, in nats per token.
    pub loss: f32,
    /// Number of measured steps.
    pub steps: u64,
    /// Memory that WebAssembly holds, in bytes, without buffers of the GPU.
    pub memory_bytes: u64,
    /// Maximum size of a binding on the GPU, in bytes; `null` on the CPU.
    pub binding_bytes_max: Option<u64>,
    /// Estimated memory and speed of each preset, smallest first.
    pub presets: Vec<PresetFacts>,
}

/// Estimated memory and speed of a preset in this browser.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct PresetFacts {
    /// Name of the preset.
    pub name: &'static str,
    /// Number of the model's parameters.
    pub params: u64,
    /// Size of parameters, gradient, moments and exchange state, in bytes, without activations.
    pub state_bytes: u64,
    /// Trained tokens per second. It is measured for one preset and estimated from the number of operations for the
    /// others.
    pub tokens_per_s: f64,
}

/// Returns the engine kind with the name `name`.
///
/// # Errors
/// [`Failure::Options`]: there is no such engine.
pub(crate) fn engine(name: &str) -> Result<EngineKind, Failure> {
    name.parse::<EngineKind>().map_err(|error| Failure::Options(error.to_string()))
}

/// Returns the choice of the batch size: `windows`, or automatic if that is `None`.
///
/// # Errors
/// [`Failure::Options`]: the number is out of range.
pub(crate) fn batch(windows: Option<u32>) -> Result<BatchChoice, Failure> {
    let given = windows.map_or(Ok(BatchChoice::AUTO), BatchChoice::given);
    given.map_err(|error| Failure::Options(error.to_string()))
}

/// Parses `digits` as one half of a key.
///
/// # Errors
/// [`Failure::Options`]: they are not 64 hex digits.
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

/// Converts options from JavaScript.
pub(crate) fn read<T: DeserializeOwned>(options: JsValue) -> Result<T, Failure> {
    serde_wasm_bindgen::from_value(options).map_err(|error| Failure::Options(error.to_string()))
}

/// Converts plain data to JavaScript objects.
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
