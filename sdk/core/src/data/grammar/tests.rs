//! Tests of the built-in grammar: the next word decides every choice, and text and entropy are frozen.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// For each rule and each of its choices, the next words that lead to the choice; "" stands for the end of the text.
type Table = Vec<Vec<BTreeSet<String>>>;

/// Computes the sets FIRST and FOLLOW of every rule by iteration to the least fixed point. They give, for each
/// choice, the words that it can begin with, and, if it can be empty, those that can follow it.
fn table(grammar: &Grammar) -> Table {
    let count = grammar.rules.len();
    // `None` in a FIRST set means that the rule can be empty.
    let mut first: Vec<BTreeSet<Option<String>>> = vec![BTreeSet::new(); count];
    let mut follow: Vec<BTreeSet<String>> = vec![BTreeSet::new(); count];
    follow[0].insert(String::new());
    loop {
        let before = (first.clone(), follow.clone());
        for (index, rule) in grammar.rules.iter().enumerate() {
            for choice in &rule.choices {
                let begin = first_of(&choice.symbols, &first);
                first[index].extend(begin);
                for (place, symbol) in choice.symbols.iter().enumerate() {
                    let Symbol::Rule(part) = symbol else { continue };
                    for word in first_of(&choice.symbols[place + 1..], &first) {
                        match word {
                            Some(word) => follow[*part].extend([word]),
                            None => {
                                let after = follow[index].clone();
                                follow[*part].extend(after);
                            }
                        }
                    }
                }
            }
        }
        if before == (first.clone(), follow.clone()) {
            break;
        }
    }
    let words = |index: usize, symbols: &[Symbol]| {
        let begin = first_of(symbols, &first);
        let after = if begin.contains(&None) { follow[index].clone() } else { BTreeSet::new() };
        begin.into_iter().flatten().chain(after).collect()
    };
    let rules = grammar.rules.iter().enumerate();
    rules.map(|(index, rule)| rule.choices.iter().map(|c| words(index, &c.symbols)).collect()).collect()
}

fn first_of(symbols: &[Symbol], first: &[BTreeSet<Option<String>>]) -> BTreeSet<Option<String>> {
    let mut found = BTreeSet::new();
    for symbol in symbols {
        match symbol {
            Symbol::Word(word) => {
                found.insert(Some(word.clone()));
                return found;
            }
            Symbol::Rule(rule) => {
                found.extend(first[*rule].iter().filter(|word| word.is_some()).cloned());
                if !first[*rule].contains(&None) {
                    return found;
                }
            }
        }
    }
    found.insert(None);
    found
}

/// Returns the words of a text, the inverse of `push`.
fn words(text: &str) -> Vec<String> {
    let spaced = text.replace('.', " .").replace(',', " ,").replace('\n', " # ");
    spaced.split_whitespace().map(String::from).collect()
}

/// Removes the first story from `words`, and returns −ln of the story's probability.
fn read(grammar: &Grammar, table: &Table, words: &mut &[String]) -> f64 {
    let mut nats = 0.0;
    let mut open = vec![&Symbol::Rule(0)];
    while let Some(symbol) = open.pop() {
        let next = words.first().cloned().unwrap_or_default();
        match symbol {
            Symbol::Word(word) => {
                assert_eq!(*word, next);
                *words = &words[1..];
            }
            Symbol::Rule(index) => {
                let rule = &grammar.rules[*index];
                let place = table[*index].iter().position(|words| words.contains(&next));
                let choice = &rule.choices[place.unwrap_or_else(|| panic!("{next} fits nothing"))];
                nats += (f64::from(rule.total) / f64::from(choice.weight)).ln();
                open.extend(choice.symbols.iter().rev());
            }
        }
    }
    nats
}

/// Goal: each text has one derivation, so that the entropy of derivations equals that of the text.
#[test]
fn the_next_word_decides_every_choice() {
    let grammar = Grammar::built_in();
    for (index, choices) in table(&grammar).iter().enumerate() {
        let mut seen = BTreeMap::new();
        for (choice, words) in choices.iter().enumerate() {
            for word in words {
                let other = seen.insert(word, choice);
                assert_eq!(other, None, "{word:?} begins two choices of {:?}", grammar.rules[index]);
            }
        }
    }
}

/// Goal: a text determines its words.
#[test]
fn words_have_no_separators() {
    for symbol in Grammar::built_in().rules.iter().flat_map(|r| &r.choices).flat_map(|c| &c.symbols) {
        let Symbol::Word(word) = symbol else { continue };
        let plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
        assert!(plain || matches!(word.as_str(), "." | "," | "#"), "{word:?}");
    }
}

/// Goal: generated text has the stated entropy, both by its derivation and by parsing the text.
#[test]
fn text_has_the_stated_entropy() {
    let grammar = Grammar::built_in();
    let table = table(&grammar);
    for seed in 0..3 {
        let (mut rng, mut text, mut generated) = (Rng::new(seed), String::new(), 0.0);
        while text.len() < 1_000_000 {
            generated += grammar.append_story(&mut rng, &mut text);
        }
        assert_eq!(text, generate(seed, 1_000_000), "seed {seed}");

        let words = words(&text);
        let (mut rest, mut parsed) = (words.as_slice(), 0.0);
        while !rest.is_empty() {
            parsed += read(&grammar, &table, &mut rest);
        }
        assert!(
            (generated - parsed).abs() < 1e-9 * generated,
            "seed {seed}: generated {generated}, parsed {parsed}"
        );

        let (measured, stated) = (generated / text.len() as f64, entropy_nats_per_byte());
        assert!((measured / stated - 1.0).abs() < 0.01, "seed {seed}: {measured} against {stated}");
    }
}

/// If this test fails, runs on the built-in corpus cannot be compared with earlier ones.
#[test]
fn text_and_entropy_are_frozen() {
    let story = "Felix often sails around the mill. He sees a white net because the goat runs to the harbour. \
                 At midnight, he carries the coat near his room because Anna looks late. He returns around \
                 the small well.\n";
    assert_eq!(generate(1, 200).lines().next(), story.lines().next());
    assert_eq!(generate(1, 0), "");
    assert!(generate(1, 200).len() >= 200);

    let stated = include_str!("mod.rs").contains("0.427 nats per byte");
    assert!(stated && (entropy_nats_per_byte() - 0.427).abs() < 5e-4, "{}", entropy_nats_per_byte());
}
