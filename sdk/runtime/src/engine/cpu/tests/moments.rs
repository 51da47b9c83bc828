//! Moments in 16 bits compared with moments in 32 bits: their effect on a model's loss.

use super::threads;
use crate::data::{BYTE_VOCAB, bytes_to_tokens, grammar};
use crate::engine::cpu::{CpuGradient, CpuModel};
use crate::model::moments::adjust_halves;
use crate::model::{Adjust, InnerSpec, Preset, adjust, decayed_ranges, init, layout, learning_rate};
use crate::rng::Rng;

/// Windows of the held-out text.
const HELD_OUT: usize = 64;

/// Storage form of moments.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    Whole,
    /// Whole, with initial parameters changed by a millionth: the effect of chance.
    WholeFromElsewhere,
    Halves,
}

/// Training of `preset` on the built-in text.
#[derive(Clone, Copy)]
struct Course {
    preset: Preset,
    steps: u64,
    seed: u64,
}

impl Course {
    /// Returns the final loss on held-out text, in nats per byte.
    fn held_out(self, kept: Kept) -> f64 {
        let Self { preset, steps, seed } = self;
        let spec = preset.model(BYTE_VOCAB);
        let window = spec.context as usize + 1;
        let tokens_of_step = u64::from(preset.inner().batch * spec.context);
        let total_tokens = steps * tokens_of_step;
        let inner = InnerSpec { total_tokens, warmup_tokens: total_tokens / 20, ..preset.inner() };
        let (mut params, mut rng) = (init(&spec, seed).unwrap(), Rng::new(seed));
        if kept == Kept::WholeFromElsewhere {
            params.iter_mut().for_each(|p| *p *= 1.0 + 1e-6);
        }
        let mut gradient = CpuGradient::new(&spec, inner.batch, threads(2)).unwrap();
        let (mut m, mut v) = (vec![0.0; params.len()], vec![0.0; params.len()]);
        let mut packed = vec![0; params.len()];
        let text = bytes_to_tokens(grammar::generate(seed, 1 << 20).as_bytes());
        for step in 1..=steps {
            let starts = (0..inner.batch).map(|_| rng.below((text.len() - window) as u32) as usize);
            let tokens: Vec<u32> = starts.flat_map(|start| text[start..start + window].to_vec()).collect();
            gradient.params_mut().copy_from_slice(&params);
            let sums = gradient.differentiate(&tokens, tokens_of_step).unwrap();
            let lr = learning_rate(&inner, step * tokens_of_step);
            let numbers = Adjust::new(&inner, step, lr, sums.squares.sqrt() as f32);
            for (range, decayed) in decayed_ranges(&layout(&spec).unwrap()) {
                let numbers = Adjust { keep: if decayed { numbers.keep } else { 1.0 }, ..numbers };
                let (params, grad) = (&mut params[range.clone()], &gradient.grad()[range.clone()]);
                if kept == Kept::Halves {
                    let at = (range.start as u32, step as u32);
                    adjust_halves(params, grad, &mut packed[range], &numbers, at);
                } else {
                    adjust(params, grad, &mut m[range.clone()], &mut v[range], &numbers);
                }
            }
        }
        let text = bytes_to_tokens(grammar::generate(seed + 1_000, HELD_OUT * window).as_bytes());
        let mut model = CpuModel::new(&spec, threads(2)).unwrap();
        f64::from(model.loss(&params, &text[..HELD_OUT * window]).unwrap())
    }
}

fn setting<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Returns mean and standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

/// Goal: moments in 16 bits cost a model nothing that is visible compared with chance. The variables
/// `ARCHIPELAGO_TEST_PRESET`, `ARCHIPELAGO_TEST_STEPS` and `ARCHIPELAGO_TEST_COUNT` (of seeds) make the test longer.
#[test]
#[ignore = "a measurement, for tests/evidence/MEMORY.md: what chance does is more than any bound that would show harm"]
fn half_moments_learn_as_whole_ones() {
    let preset = setting("ARCHIPELAGO_TEST_PRESET", Preset::Tiny);
    let (steps, seeds) = (setting("ARCHIPELAGO_TEST_STEPS", 100), setting("ARCHIPELAGO_TEST_COUNT", 2));
    let mut differences = [Vec::new(), Vec::new()];
    for seed in 1..=seeds {
        let course = Course { preset, steps, seed };
        let whole = course.held_out(Kept::Whole);
        let others = [Kept::Halves, Kept::WholeFromElsewhere].map(|kept| course.held_out(kept));
        let percent = others.map(|other| 100.0 * (other / whole - 1.0));
        let [halves, elsewhere] = percent;
        println!("| `{preset}` | {steps} | {seed} | {whole:.4} | {halves:+.2} % | {elsewhere:+.2} % |");
        assert!(!others.contains(&whole), "they are other moments");
        differences.iter_mut().zip(percent).for_each(|(all, percent)| all.push(percent));
    }
    let [halves, elsewhere] = differences.each_ref().map(|all| mean_and_error(all));
    println!("means with standard errors: {halves:+.2?} and {elsewhere:+.2?}");
    assert!(halves.0.abs() < 3.0, "{differences:?}");
}
