//! Speed of one learner's steps without a network: tokens a second by preset and threads.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use archipelago_core::model::Preset;
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::CpuTrainer;
use serde_json::{Value, json};

/// Number of byte tokens.
const VOCAB: u32 = 256;
/// Minimum length of a measurement; shorter steps are repeated.
const WINDOW_MIN: Duration = Duration::from_millis(300);

/// Measures tokens a second. `tokens_per_s`, `threads` and `params` belong to the preset `small` on all cores, the
/// shape for comparison with other trainers; `presets` has the rest. Each rate is the median of several measurements,
/// and `best` is the fastest.
pub fn learner() -> Value {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut rows = Vec::new();
    for (preset, windows) in [(Preset::Tiny, 7), (Preset::Small, 7), (Preset::Medium, 3), (Preset::Base, 1)] {
        let alone = matches!(preset, Preset::Medium | Preset::Base);
        for threads in if alone { vec![cores] } else { doubling(cores) } {
            rows.push(measure(preset, threads, windows));
        }
    }
    let compared = rows.iter().rfind(|row| row["preset"] == Preset::Small.name()).cloned();
    let mut figures = compared.expect("small is one of the presets");
    figures["presets"] = Value::Array(rows);
    figures
}

/// Returns 1, 2, 4 and so on, and `most`.
fn doubling(most: NonZeroUsize) -> Vec<NonZeroUsize> {
    let mut counts: Vec<NonZeroUsize> =
        (0..usize::BITS).map_while(|i| NonZeroUsize::new(1 << i)).take_while(|&count| count < most).collect();
    counts.push(most);
    counts
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn measure(preset: Preset, threads: NonZeroUsize, windows: usize) -> Value {
    let (model, inner) = (preset.model(VOCAB), preset.inner());
    let mut trainer = CpuTrainer::new(&model, &inner, threads).expect("presets are valid");
    // Step time does not depend on the tokens.
    let tokens: Vec<u32> =
        (0..inner.batch * (model.context + 1)).map(|i| i.wrapping_mul(40_503) % VOCAB).collect();
    let mut tokens_per_step = 0;
    let mut step = || {
        let stats = trainer.step(&tokens, 1e-4).expect("tokens are in the vocabulary");
        tokens_per_step = stats.tokens;
    };
    // The first step faults the memory in.
    step();
    let mut rates: Vec<f64> = (0..windows)
        .map(|_| {
            let (start, mut steps) = (Instant::now(), 0);
            while start.elapsed() < WINDOW_MIN {
                step();
                steps += 1;
            }
            f64::from(steps) / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let rate = |steps: f64| (steps * tokens_per_step as f64).round();
    json!({
        "preset": preset.name(),
        "tokens_per_s": rate(rates[windows / 2]),
        "best": rate(rates[windows - 1]),
        "threads": threads,
        "params": trainer.layout().len(),
        "activation_mb": (trainer.activation_bytes() as f64 / 1e6).round(),
        "device": trainer.describe(),
    })
}
