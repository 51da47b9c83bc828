//! Parser of `rules.txt`.

/// A probabilistic context-free grammar. The first rule is the start.
#[derive(Debug)]
pub(super) struct Grammar {
    pub rules: Vec<Rule>,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub choices: Vec<Choice>,
    /// Sum of the weights.
    pub total: u32,
}

#[derive(Debug)]
pub(super) struct Choice {
    pub weight: u32,
    pub symbols: Vec<Symbol>,
}

#[derive(Debug)]
pub(super) enum Symbol {
    Word(String),
    /// Index of the rule.
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
    /// Panics on a fault in the rules, which are part of the program.
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
    /// Returns the choice for `ticket`, which is below `total`.
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

/// Returns the name, whether the rule is a list of words, and the rest.
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
