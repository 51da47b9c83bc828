//! The header of a model card, `README.md`: licence and origin of a model, as its folder states them.

use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::reader::open;

/// Bytes read from the beginning of a card.
const CARD_BYTES_MAX: u64 = 64 << 10;

/// Largest length of a value in characters, and largest number of values of a key; others are left out.
const VALUE_CHARS_MAX: usize = 256;
const VALUES_MAX: usize = 64;

/// Keys of the YAML header that exports repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CardKeys {
    /// Licence, as `apache-2.0`.
    pub license: Option<String>,
    /// Name of a licence that the hub does not list.
    pub license_name: Option<String>,
    /// Location of the licence's text.
    pub license_link: Option<String>,
    /// Models that the model is based on.
    pub base_model: Vec<String>,
    /// Languages.
    pub language: Vec<String>,
    /// Data sets that it was trained on.
    pub datasets: Vec<String>,
}

impl CardKeys {
    /// Returns the keys of the card in the folder at `path`; empty if there is no card, or if it has no header.
    pub(super) fn read(path: &Path) -> Self {
        let mut card = Vec::new();
        let read = open(path, "README.md").map(|file| file.take(CARD_BYTES_MAX).read_to_end(&mut card));
        match read {
            Ok(Ok(_)) => Self::of(&String::from_utf8_lossy(&card)),
            _ => Self::default(),
        }
    }

    /// Returns the keys in the header of `card`. Cards have three forms of values: a value behind the key, a list in
    /// brackets, and an entry on each line.
    fn of(card: &str) -> Self {
        let mut keys = Self::default();
        let mut lines = card.trim_start_matches('\u{feff}').lines();
        if lines.next().map(str::trim_end) != Some("---") {
            return keys;
        }
        let mut key = "";
        for line in lines.take_while(|line| line.trim_end() != "---") {
            if let Some(entry) = line.trim_start().strip_prefix("- ") {
                keys.add(key, entry);
            } else if let Some((name, value)) = line.split_once(':').filter(|_| !line.starts_with([' ', '#']))
            {
                key = name.trim_end();
                let value = value.trim();
                let list = value.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
                list.unwrap_or(value)
                    .split(if list.is_some() { ',' } else { '\n' })
                    .for_each(|one| keys.add(key, one));
            }
        }
        keys
    }

    fn add(&mut self, key: &str, value: &str) {
        let value = value.trim().trim_matches(['"', '\'']);
        let plain = |c: char| c.is_ascii_alphanumeric() || " ._/+-:~%#?=&@".contains(c);
        if value.is_empty() || value.len() > VALUE_CHARS_MAX || !value.chars().all(plain) {
            return;
        }
        let several = match key {
            "license" => return self.license = Some(value.to_owned()),
            "license_name" => return self.license_name = Some(value.to_owned()),
            "license_link" => return self.license_link = Some(value.to_owned()),
            "base_model" => &mut self.base_model,
            "language" => &mut self.language,
            "datasets" => &mut self.datasets,
            _ => return,
        };
        if several.len() < VALUES_MAX {
            several.push(value.to_owned());
        }
    }

    /// Returns the keys as lines of YAML.
    pub(super) fn to_yaml(&self) -> String {
        let mut yaml = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| {
            writeln!(yaml, "{line}").expect("a string takes all that is written");
        };
        let single = [
            ("license", &self.license),
            ("license_name", &self.license_name),
            ("license_link", &self.license_link),
        ];
        for (key, value) in single {
            value.iter().for_each(|value| line(format_args!("{key}: {}", scalar(value))));
        }
        for (key, values) in
            [("base_model", &self.base_model), ("language", &self.language), ("datasets", &self.datasets)]
        {
            match &values[..] {
                [] => {}
                [one] if key == "base_model" => line(format_args!("{key}: {}", scalar(one))),
                several => {
                    line(format_args!("{key}:"));
                    several.iter().for_each(|value| line(format_args!("- {}", scalar(value))));
                }
            }
        }
        yaml
    }
}

/// Returns a text in YAML: unquoted if YAML cannot read it as anything else, otherwise in quotation marks.
fn scalar(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/+-".contains(c);
    let is_word = |word: &&str| word.eq_ignore_ascii_case(value);
    let other = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"].iter().any(is_word);
    match value.starts_with(|c: char| c.is_ascii_alphabetic()) && value.chars().all(plain) && !other {
        true => value.to_owned(),
        false => serde_json::Value::from(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_key_comes_back() {
        let card = "---\nlicense: other\nlicense_name: 'llama3.2 community'\nlicense_link: https://x.org/a?b=c\n\
                    language: [en, \"no\"]\ndatasets:\n- a/b\n  - c\nbase_model: lab/tiny\ntags:\n- x\n\
                    model-index:\n  license: mit\n---\nlicense: gpl\n";
        let keys = CardKeys::of(card);
        assert_eq!(keys.license.as_deref(), Some("other"));
        assert_eq!(
            (&*keys.language, &*keys.datasets),
            (&["en".into(), "no".into()][..], &["a/b".into(), "c".into()][..])
        );
        let yaml = "license: other\nlicense_name: \"llama3.2 community\"\nlicense_link: \"https://x.org/a?b=c\"\n\
                    base_model: lab/tiny\nlanguage:\n- en\n- \"no\"\ndatasets:\n- a/b\n- c\n";
        assert_eq!(keys.to_yaml(), yaml);
        assert_eq!(CardKeys::of(&format!("---\n{yaml}---\n")), keys);
        for card in
            ["", "# A model\nlicense: mit", "license: mit", "---\nlicense: a\u{7}b\nlanguage: [`x`]\n"]
        {
            assert_eq!(CardKeys::of(card), CardKeys::default(), "{card}");
        }
    }
}
