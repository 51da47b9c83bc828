//! Built-in corpus: short stories from a seeded grammar with known entropy.
//!
//! `rules.txt` is a probabilistic context-free grammar. Names, pronouns, possessives and verbs agree throughout a
//! story, so a model can learn dependencies at every distance.
//!
//! - `name = 3 a <b> | c` expands `<name>` into `a <b>` three times as often as into `c`. The default weight is 1; `_`
//!   is the empty expansion.
//! - `name ~ a b c` gives the words decreasing weights, 60 / (index + 2) rounded down: 30, 20, 15 …
//! - A rule with a `$` stands for four rules, one for each pronoun.
//! - Words are joined by spaces, except before `.` and `,`; `#` is a line break.
//!
//! > Felix often sails around the mill. He sees a white net because the goat runs to the harbour.
//!
//! **Entropy**: 0.427 nats per byte. Stories are independent and identically distributed, so the entropy per byte is
//! the entropy of a story divided by its expected number of bytes. The entropy of a derivation is exact by the chain
//! rule: for each rule `H = Σ p (−ln p + Σ H(parts))`. It equals the entropy of the text, because each text has only
//! one derivation. The grammar is LL(1): the next word alone always decides between alternatives (a test derives that
//! from the rules), and the text determines its words.

use crate::rng::Rng;

/// Generates successive stories in ASCII, at least `bytes_min` bytes in total. The same `seed` gives the same text on
/// every machine.
#[must_use]
pub fn generate(seed: u64, bytes_min: usize) -> String {
    let grammar = Grammar::built_in();
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    while text.len() < bytes_min {
        grammar.append_story(&mut rng, &mut text);
    }
    text
}

/// Returns the entropy of the text in nats per byte: a lower bound of any model's expected loss on unseen text.
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
    fn append_story(&self, rng: &mut Rng, text: &mut String) -> f64 {
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

    /// Returns the expectation, over stories, of the sum of `of_choice(weight, total)` over all choices and of
    /// `of_word` over all words.
    ///
    /// It solves `x_rule = Σ p (of_choice + Σ of_word + Σ x_part)` by iteration from 0. The iteration converges
    /// because a rule expands on average into less than one further use of itself.
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

/// Probabilistic context-free grammar. Stories are derived from the first rule.
#[derive(Debug)]
struct Grammar {
    pub rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    pub choices: Vec<Choice>,
    /// Sum of the weights.
    pub total: u32,
}

#[derive(Debug)]
struct Choice {
    pub weight: u32,
    pub symbols: Vec<Symbol>,
}

#[derive(Debug)]
enum Symbol {
    Word(String),
    /// Index of a rule.
    Rule(usize),
}

/// Replacements of `$P`, `$own`, `$n` and `$p` for each pronoun.
const PRONOUNS: [[(&str, &str); 4]; 4] = [
    [("$P", "She"), ("$own", "her"), ("$n", "sg"), ("$p", "she")],
    [("$P", "He"), ("$own", "his"), ("$n", "sg"), ("$p", "he")],
    [("$P", "It"), ("$own", "its"), ("$n", "sg"), ("$p", "it")],
    [("$P", "They"), ("$own", "their"), ("$n", "pl"), ("$p", "they")],
];

impl Grammar {
    /// Returns the grammar of the built-in corpus.
    pub(crate) fn built_in() -> Self {
        Self::parse(include_str!("rules.txt"))
    }

    /// # Panics
    /// Panics on an error in `rules.txt`, which is part of the program.
    fn parse(source: &str) -> Self {
        let lines = logical_lines(source);
        let lines: Vec<String> = lines.iter().flat_map(|line| for_each_pronoun(line)).collect();
        let rules: Vec<(&str, bool, &str)> = lines.iter().map(|line| split_rule(line)).collect();
        let find = |name: &str| {
            let index = rules.iter().position(|(known, ..)| *known == name);
            index.unwrap_or_else(|| panic!("the grammar has no rule {name}"))
        };
        let symbol = |word: &str| match word.strip_prefix('<').and_then(|name| name.strip_suffix('>')) {
            Some(name) => Symbol::Rule(find(name)),
            None => Symbol::Word(word.into()),
        };
        let rules = rules.iter().map(|(_, is_list, body)| {
            let choices: Vec<Choice> = if *is_list {
                words(body)
            } else {
                body.split('|').map(|text| choice(text, symbol)).collect()
            };
            Rule { total: choices.iter().map(|choice| choice.weight).sum(), choices }
        });
        Self { rules: rules.collect() }
    }
}

impl Rule {
    /// Returns the choice for the random number `ticket`, which is below `total`.
    pub(crate) fn pick(&self, mut ticket: u32) -> &Choice {
        for choice in &self.choices {
            if ticket < choice.weight {
                return choice;
            }
            ticket -= choice.weight;
        }
        unreachable!("the ticket is below the sum of the weights")
    }
}

/// Returns lines without comments, each joined with its continuations, which begin with a space.
fn logical_lines(source: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in source.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        match lines.last_mut() {
            Some(last) if line.starts_with(' ') => last.push_str(line),
            _ => lines.push(line.into()),
        }
    }
    lines
}

fn for_each_pronoun(line: &str) -> Vec<String> {
    if !line.contains('$') {
        return vec![line.into()];
    }
    let fill = |marks: &[(&str, &str); 4]| {
        marks.iter().fold(line.to_string(), |line, (mark, text)| line.replace(mark, text))
    };
    PRONOUNS.iter().map(fill).collect()
}

/// Returns the name, whether the body is a list of words, and the body.
fn split_rule(line: &str) -> (&str, bool, &str) {
    let (name, rest) = line.split_once(' ').expect("a rule has a name");
    let (kind, body) = rest.split_once(' ').expect("a rule has a body");
    assert!(matches!(kind, "=" | "~"), "rule {name} has neither = nor ~");
    (name, kind == "~", body)
}

fn words(body: &str) -> Vec<Choice> {
    let word = |(place, word): (u32, &str)| Choice {
        weight: 60 / (place + 2),
        symbols: vec![Symbol::Word(word.into())],
    };
    (0..).zip(body.split_whitespace()).map(word).collect()
}

fn choice(text: &str, symbol: impl Fn(&str) -> Symbol) -> Choice {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let weight = words.first().and_then(|word| word.parse().ok());
    if weight.is_some() {
        words.remove(0);
    }
    words.retain(|word| *word != "_");
    Choice { weight: weight.unwrap_or(1), symbols: words.into_iter().map(symbol).collect() }
}

#[cfg(test)]
mod tests;
