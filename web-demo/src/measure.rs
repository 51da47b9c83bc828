//! Measurement of the training speed in this browser.

use archipelago_core::model::Preset;
use archipelago_runtime::engine::{Engine, EngineError, EngineKind, PresetEstimate, Rehearsal};
use archipelago_runtime::platform::{Clock, yield_now};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

use crate::helper::{Team, helpers};
use crate::learner::open;
use crate::options::{read, to_js};
use crate::{Failure, MeasureOptions, Measured, PresetFacts, options};

/// Trains a preset on pseudorandom tokens for a while, and resolves with [`Measured`]. `measure_options` are
/// [`MeasureOptions`]; `team` starts the helpers of a CPU engine.
///
/// # Errors
/// [`Failure`], as an `Error` with a `code`.
#[wasm_bindgen]
pub async fn measure(measure_options: JsValue, team: Team) -> Result<JsValue, JsValue> {
    let options: MeasureOptions = read(measure_options)?;
    Ok(to_js(&train(&options, team).await?))
}

async fn train(options: &MeasureOptions, team: Team) -> Result<Measured, Failure> {
    let preset: Preset = options.preset.parse().map_err(|error| Failure::Options(format!("{error}")))?;
    let rehearsal = Rehearsal::new(preset);
    let Rehearsal { spec, tokens } = &rehearsal;
    let clock = Clock::start();
    let mut builder = open(options::engine(&options.engine)?, helpers(team, options.helpers)).await?;
    let mut engine = builder.build(spec, None).await?;
    rehearsal.load(&mut engine)?;
    let mut stats = engine.step(tokens, spec.inner.lr_max).await?;
    engine.synchronise().await?;
    let first_step_us = clock.now_us();
    let (mut trained, mut steps) = (0, 0);
    // At least one step is measured, even if `train_ms` is 0.
    while steps == 0 || clock.now_us() - first_step_us < options.train_ms * 1_000 {
        stats = engine.step(tokens, spec.inner.lr_max).await?;
        trained += stats.tokens;
        steps += 1;
        yield_now().await;
    }
    engine.synchronise().await?;
    let train_s = (clock.now_us() - first_step_us).max(1) as f64 / 1e6;
    let tokens_per_s = trained as f64 / train_s;
    let gpu = (engine.kind() == EngineKind::Gpu).then(|| builder.gpu()).flatten();
    Ok(Measured {
        device: engine.describe(),
        params: engine.layout().len() as u64,
        tokens_per_s,
        first_step_ms: first_step_us as f64 / 1e3,
        loss: stats.loss,
        steps,
        memory_bytes: memory_bytes(),
        binding_bytes_max: gpu.map(|gpu| gpu.facts().binding_bytes_max),
        presets: presets(preset, tokens_per_s)?,
    })
}

/// Returns the estimate for each preset, if `measured` trains at `tokens_per_s`.
fn presets(measured: Preset, tokens_per_s: f64) -> Result<Vec<PresetFacts>, EngineError> {
    let facts = |PresetEstimate { preset, params, state_bytes, tokens_per_s }| PresetFacts {
        name: preset.name(),
        params,
        state_bytes,
        tokens_per_s,
    };
    Ok(PresetEstimate::of_all(measured, tokens_per_s)?.into_iter().map(facts).collect())
}

fn memory_bytes() -> u64 {
    let memory: js_sys::WebAssembly::Memory = wasm_bindgen::memory().unchecked_into();
    let buffer: js_sys::ArrayBuffer = memory.buffer().unchecked_into();
    buffer.byte_length().into()
}
