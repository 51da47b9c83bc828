//! The built-in corpus: text from a seeded grammar whose entropy is known.

use super::rng::Rng;

const WORDS: [&str; 8] = ["island ", "ship ", "harbour ", "sails ", "to ", "the ", "far ", "storm "];

/// Text of at least `bytes_min` bytes, the same for the same `seed` everywhere.
#[must_use]
pub fn generate(seed: u64, bytes_min: usize) -> String {
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    while text.len() < bytes_min {
        text.push_str(WORDS[rng.below(WORDS.len() as u32) as usize]);
    }
    text
}

/// The entropy of the text, in nats per byte: no model's loss can stay below it.
#[must_use]
pub fn entropy_nats_per_byte() -> f64 {
    let bytes: usize = WORDS.iter().map(|word| word.len()).sum();
    let words = WORDS.len() as f64;
    words.ln() / (bytes as f64 / words)
}
