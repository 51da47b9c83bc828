//! Built-in corpus: short stories from a seeded grammar with known entropy.
//!
//! `rules.txt` is a probabilistic context-free grammar. Names, pronouns, possessives and verbs agree
//! through a whole story, so there is something to learn at every distance.
//!
//! - `name = 3 a <b> | c` expands `<name>` into `a <b>` three times as often as into `c`. The default weight is 1; `_`
//!   is the empty expansion.
//! - `name ~ a b c` gives the words decreasing weights, 60 / (place + 2) rounded down: 30, 20, 15 …
//! - A rule with a `$` stands for four rules, one for each pronoun.
//! - Words are joined by spaces, except before `.` and `,`; `#` is a line break.
//!
//! > Felix often sails around the mill. He sees a white net because the goat runs to the harbour.
//!
//! **Entropy**: 0.427 nats per byte. Stories are independent and identically distributed, so the entropy per byte is
//! the entropy of a story over its expected bytes. The entropy of a derivation is exact by the chain rule: for each
//! rule `H = Σ p (−ln p + Σ H(parts))`. It equals the entropy of the text, because each text has only one derivation.
//! The grammar is LL(1): the next word alone always decides between alternatives (a test derives that from the rules),
//! and the words can be read off the text.

use crate::rng::Rng;

mod rules;
#[cfg(test)]
mod tests;

use rules::{Grammar, Symbol};

/// Generates at least `bytes_min` bytes of successive stories in ASCII; the same for the same `seed` on every machine.
#[must_use]
pub fn generate(seed: u64, bytes_min: usize) -> String {
    let grammar = Grammar::built_in();
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    while text.len() < bytes_min {
        grammar.tell(&mut rng, &mut text);
    }
    text
}

/// Returns the entropy of the text in nats per byte, a lower bound of any model's expected loss on fresh text.
#[must_use]
pub fn entropy_nats_per_byte() -> f64 {
    let grammar = Grammar::built_in();
    let story = grammar.expected(|weight, total| (f64::from(total) / f64::from(weight)).ln(), |_| 0.0);
    let bytes = grammar.expected(|_, _| 0.0, |word| bytes(word) as f64);
    // The first word of a story has no space before it.
    story / (bytes - 1.0)
}

impl Grammar {
    /// Appends one story to `text`, and returns −ln of its probability.
    fn tell(&self, rng: &mut Rng, text: &mut String) -> f64 {
        let mut nats = 0.0;
        let mut open = vec![&Symbol::Rule(0)];
        while let Some(symbol) = open.pop() {
            match symbol {
                Symbol::Word(word) => push(text, word),
                Symbol::Rule(rule) => {
                    let rule = &self.rules[*rule];
                    let choice = rule.pick(rng.below(rule.total));
                    nats += (f64::from(rule.total) / f64::from(choice.weight)).ln();
                    open.extend(choice.symbols.iter().rev());
                }
            }
        }
        nats
    }

    /// Returns the expectation over stories of a sum: `of_choice(weight, total)` for each choice, `of_word` for each
    /// word.
    ///
    /// It solves `x_rule = Σ p (of_choice + Σ of_word + Σ x_part)` by iteration from 0, which converges because a rule
    /// leads to less than one of itself on average.
    fn expected(&self, of_choice: impl Fn(u32, u32) -> f64, of_word: impl Fn(&str) -> f64) -> f64 {
        let mut values = vec![0.0; self.rules.len()];
        loop {
            let of_symbol = |symbol: &Symbol| match symbol {
                Symbol::Word(word) => of_word(word),
                Symbol::Rule(rule) => values[*rule],
            };
            let next: Vec<f64> = self
                .rules
                .iter()
                .map(|rule| {
                    let weighted = rule.choices.iter().map(|choice| {
                        let parts: f64 = choice.symbols.iter().map(of_symbol).sum();
                        f64::from(choice.weight) * (of_choice(choice.weight, rule.total) + parts)
                    });
                    weighted.sum::<f64>() / f64::from(rule.total)
                })
                .collect();
            let settled =
                next.iter().zip(&values).all(|(next, last)| (next - last).abs() <= 1e-13 * next.abs());
            values = next;
            if settled {
                return values[0];
            }
        }
    }
}

/// Returns the bytes that a word adds to a text, including the space before it.
fn bytes(word: &str) -> usize {
    match word {
        "." | "," | "#" => 1,
        _ => 1 + word.len(),
    }
}

fn push(text: &mut String, word: &str) {
    match word {
        "#" => text.push('\n'),
        "." | "," => text.push_str(word),
        _ => {
            if !(text.is_empty() || text.ends_with('\n')) {
                text.push(' ');
            }
            text.push_str(word);
        }
    }
}
