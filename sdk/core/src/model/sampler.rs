//! Choice of the next token of a text from the logits of the model.

use crate::rng::Rng;

/// Chooses tokens from logits; the same seed gives the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    temperature: f32,
    rng: Rng,
}

impl Sampler {
    /// Returns a sampler. With a `temperature` of 0 or below, or NaN, it takes the most likely token each time.
    #[must_use]
    pub fn new(temperature: f32, seed: u64) -> Self {
        Self { temperature, rng: Rng::new(seed) }
    }

    /// Draws a token from `softmax(logits / temperature)`; 0 if there are no logits.
    ///
    /// Tokens with NaN logits are never drawn.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |x: f32| {
            let scaled = f64::from(x - max) / f64::from(self.temperature);
            if self.temperature > 0.0 { libm::exp(scaled) } else { f64::from(u8::from(x == max)) }
        };
        let weights = || logits.iter().map(|&x| weight(x)).map(|w| if w.is_nan() { 0.0 } else { w });
        let total: f64 = weights().sum();
        let mut left = self.rng.unit() * total;
        let drawn = weights().position(|w| {
            left -= w;
            left < 0.0
        });
        drawn.unwrap_or(0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_distribution() {
        let logits = [0.0, 2_f32.ln(), f32::NEG_INFINITY, f32::NAN];
        let mut sampler = Sampler::new(1.0, 5);
        let mut counts = [0_u32; 4];
        for _ in 0..30_000 {
            counts[sampler.choose(&logits) as usize] += 1;
        }
        assert!(counts[0].abs_diff(10_000) < 300, "{counts:?}");
        assert!(counts[1].abs_diff(20_000) < 300, "{counts:?}");
    }

    #[test]
    fn is_greedy_when_cold() {
        for temperature in [0.0, -1.0, f32::NAN, 1e-9] {
            assert_eq!(Sampler::new(temperature, 1).choose(&[1.0, 3.0, 2.0]), 1);
        }
        assert_eq!(Sampler::new(1.0, 1).choose(&[]), 0);
    }
}
