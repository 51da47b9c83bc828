//! Model cards (`README.md`): the card of an export, and the keys that it repeats from the card of the source folder.

use std::fmt::Write;
use std::io::Read;
use std::path::Path;

use archipelago_core::diloco::Ledger;
use archipelago_core::model::{ExpertSpec, LoraSpec, ModelSpec};
use archipelago_core::wire::{Optimiser, RunSpec};
use serde::{Deserialize, Serialize};

use super::reader::open;
use super::{SourceSettings, is_id};

/// Maximum length of a licence's name, in characters.
const LICENCE_CHARS_MAX: usize = 64;

/// Progress of a run, for its model card.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingProgress {
    /// Number of learners with merged tokens.
    pub learners: u64,
    /// Number of merged tokens.
    pub tokens_merged: u64,
    /// First held-out loss, in nats per token; `None` if it was not measured.
    pub loss_first: Option<f32>,
    /// Newest held-out loss, in nats per token; `None` if it was not measured.
    pub loss_last: Option<f32>,
}

impl TrainingProgress {
    /// Returns the progress recorded in `ledger`. `losses` are the first and the newest held-out loss, in nats per
    /// token.
    #[must_use]
    pub fn of(ledger: &Ledger, losses: [Option<f32>; 2]) -> Self {
        let merged = ledger.accounts().filter(|(_, account)| ledger.tokens_merged(account) > 0);
        let [loss_first, loss_last] = losses;
        Self { learners: merged.count() as u64, tokens_merged: ledger.clock_tokens(), loss_first, loss_last }
    }
}

/// Content of a model card.
#[derive(Clone, Copy, Debug)]
pub struct Card<'a> {
    /// Run id, as 16 hex digits.
    pub run: &'a str,
    /// Specification of the run, as learners receive it.
    pub spec: &'a RunSpec,
    /// Model, if it is the built-in decoder.
    pub model: Option<&'a ModelSpec>,
    /// Number of parameters in the exported folder.
    pub params: u64,
    /// True if the run's adapters, if any, are merged into the weights.
    pub merged: bool,
    /// Name of the file with the model if it is one for llama.cpp.
    pub gguf: Option<&'a str>,
    /// Display name of the training text.
    pub text: &'a str,
    /// Name of the folder whose model the run started from.
    pub init: Option<&'a str>,
    /// Settings of that folder that do not affect training.
    pub source: Option<&'a SourceSettings>,
    /// Initial model of the run in the form that libraries load: a name on the hub or a folder.
    pub base: Option<&'a str>,
    /// Name of the folder that contains the card.
    pub folder: &'a str,
    /// Progress of the run.
    pub course: TrainingProgress,
    /// Licence chosen by the owner.
    pub licence: Option<&'a str>,
    /// Date of the export, as 2026-11-29.
    pub date: &'a str,
}

impl Card<'_> {
    /// Returns the card as Markdown, with the header that model hubs read.
    #[must_use]
    pub fn to_markdown(self) -> String {
        let keys = self.keys().to_yaml();
        let Some(model) = self.model else { return self.of_tensors(&keys) };
        if let Some(lora) = model.lora.filter(|_| !self.merged) {
            return self.of_adapters(&keys, &lora);
        }
        let mut card = match self.gguf {
            Some(file) => self.head_of_gguf(&keys, file),
            None => self.head_of_transformers(&keys, model),
        };
        self.add_model(&mut card, model);
        card
    }

    /// Returns the beginning of a card for transformers.
    fn head_of_transformers(&self, keys: &str, model: &ModelSpec) -> String {
        let folder = literal(self.folder);
        format!(
            "---\n{keys}library_name: transformers\npipeline_tag: text-generation\ntags:\n- archipelago\n---\n\n\
             # A language model of {} parameters\n\n\
             It was trained with Archipelago, in which many computers train one model together. `transformers` loads \
             this folder as a {}:\n\n\
             ```python\n\
             from transformers import AutoModelForCausalLM, AutoTokenizer\n\
             model = AutoModelForCausalLM.from_pretrained({folder})\n\
             tokenizer = AutoTokenizer.from_pretrained({folder})\n\
             ```\n\n| | |\n|---|---|\n",
            self.params,
            if model.experts.is_some() { "Mixtral" } else { "Llama" },
        )
    }

    /// Returns the beginning of a card for llama.cpp, which loads the model from `file`.
    fn head_of_gguf(&self, keys: &str, file: &str) -> String {
        format!(
            "---\n{keys}pipeline_tag: text-generation\ntags:\n- archipelago\n- gguf\n---\n\n# A language model of {} \
             parameters\n\nIt was trained with Archipelago, in which many computers train one model together. \
             llama.cpp loads this file:\n\n```\nllama-cli -m {file}\n```\n\n| | |\n|---|---|\n",
            self.params,
        )
    }

    /// Adds the rows about the model, then those that all cards have.
    fn add_model(&self, card: &mut String, model: &ModelSpec) {
        let ModelSpec { vocab, d_model, layers, heads, kv_heads, .. } = model;
        let mut size = format!(
            "{layers} layers of width {d_model}, {heads} query heads, {kv_heads} key and value heads, vocabulary of \
             {vocab} tokens"
        );
        if let Some(experts) = model.experts {
            let ExpertSpec { count, per_token, .. } = experts;
            size += &format!(", {count} experts, {per_token} of them for each token");
        }
        let mut rows = vec![("size", size)];
        rows.extend(model.lora.map(|lora| ("trained", trained(&lora))));
        self.add_rows(card, &rows);
    }

    /// Returns the keys of the card's header. A licence chosen by the owner replaces that of the source folder.
    fn keys(&self) -> CardKeys {
        let mut keys = self.source.map(|source| source.card.clone()).unwrap_or_default();
        if let Some(licence) = self.licence {
            keys = CardKeys {
                license: Some(licence.to_owned()),
                license_name: None,
                license_link: None,
                ..keys
            };
        }
        if let Some(base) = self.base.filter(|base| is_id(base)) {
            keys.base_model = vec![base.to_owned()];
        }
        keys
    }

    /// Returns the card of adapters that are exported without their base model.
    fn of_adapters(self, keys: &str, lora: &LoraSpec) -> String {
        let (folder, base) = (literal(self.folder), self.base.unwrap_or("BASE"));
        let (named, base) = (quoted(base), literal(base));
        let mut card = format!(
            "---\n{keys}library_name: peft\npipeline_tag: text-generation\ntags:\n- archipelago\n- lora\n---\n\n# \
             Adapters of {} parameters\n\nThey were trained with Archipelago, in which many computers train one model \
             together, on the model {named}, whose weights stayed frozen. `peft` adds them to it:\n\n```python\nfrom \
             peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, \
             GenerationConfig\nbase = AutoModelForCausalLM.from_pretrained({base})\nmodel = \
             PeftModel.from_pretrained(base, {folder})\nmodel.generation_config = \
             GenerationConfig.from_pretrained({folder})\ntokenizer = \
             AutoTokenizer.from_pretrained({folder})\n```\n\n| | |\n|---|---|\n",
            self.params,
        );
        self.add_rows(&mut card, &[("trained", trained(lora))]);
        card
    }

    /// Returns the card of a model that is not the built-in decoder.
    fn of_tensors(self, keys: &str) -> String {
        let mut card = format!(
            "---\n{keys}tags:\n- archipelago\n---\n\n# A model of {} parameters\n\nIt was trained with Archipelago, \
             in which many computers train one model together. `model.safetensors` holds its tensors under their \
             original names; only the program that trained it can interpret them.\n\n| | |\n|---|---|\n",
            self.params,
        );
        self.add_rows(&mut card, &[]);
        card
    }

    /// Adds the rows in `more`, then the rows that all cards have.
    fn add_rows(self, card: &mut String, more: &[(&str, String)]) {
        let course = self.course;
        let text = quoted(self.text);
        let text_tokens: u64 = self.spec.data.shards.iter().map(|shard| shard.tokens).sum();
        let begun = match (self.base.filter(|base| is_id(base)), self.init) {
            (Some(id), _) => format!("the model {}", quoted(id)),
            (None, Some(name)) => format!("the model in the folder {}", quoted(name)),
            (None, None) => "random parameters".to_owned(),
        };
        let measured = |value: Option<f32>| {
            value.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.4}"))
        };
        let losses = format!(
            "first {}, last {}, in nats per token",
            measured(course.loss_first),
            measured(course.loss_last)
        );
        let kept = self.source.and_then(|source| source.card.license.as_deref());
        let licence = match (self.licence, kept) {
            (Some(chosen), _) => chosen.to_owned(),
            (None, Some(kept)) => format!("{}, as of the initial model", quoted(kept)),
            (None, None) => "none was chosen: ask the owner of the run".to_owned(),
        };
        let rows = [
            ("trained on", format!("{text}, {text_tokens} tokens")),
            ("initial weights", begun),
            ("learners with merged updates", course.learners.to_string()),
            ("merged tokens", course.tokens_merged.to_string()),
            ("loss on held-out text", losses),
            ("perplexity on held-out text", measured(course.loss_last.map(f32::exp))),
            ("licence", licence),
            ("run", self.run.to_owned()),
            ("exported", format!("{} by Archipelago {}", self.date, env!("CARGO_PKG_VERSION"))),
        ];
        for (what, value) in more.iter().chain(&self.training()).chain(&rows) {
            writeln!(card, "| {what} | {value} |").expect("a string takes all that is written");
        }
    }

    /// Returns the rows about the learners' training.
    fn training(&self) -> [(&'static str, String); 3] {
        let inner = &self.spec.inner;
        let rate = format!(
            "up to {}, after {} tokens of warm-up, down to {} at {} tokens by a cosine",
            inner.lr_max,
            inner.warmup_tokens,
            inner.lr_max * inner.lr_min_ratio,
            inner.total_tokens,
        );
        let name = match inner.optimiser {
            Optimiser::AdamW => "AdamW",
            Optimiser::Muon => "Muon for matrices and AdamW for the rest",
        };
        let optimiser = format!(
            "{name} in each learner (betas {} and {}, weight decay {}, clipping at {}), and SGD with Nesterov \
             momentum for merges",
            inner.beta1, inner.beta2, inner.weight_decay, inner.clip_norm,
        );
        let batch = format!("{} windows of {} tokens in each learner", inner.batch, self.spec.model.context);
        [("batch", batch), ("learning rate", rate), ("optimiser", optimiser)]
    }
}

/// Describes the adapters that were trained.
fn trained(lora: &LoraSpec) -> String {
    let LoraSpec { rank, alpha, targets } = lora;
    format!("adapters (LoRA) of rank {rank} on {targets}, alpha {alpha}")
}

/// Returns `text` as a Python string literal, with its quotes.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a name as inline code of Markdown, without characters that would end the code or the table cell.
fn quoted(name: &str) -> String {
    let plain = |c: char| if c.is_control() || "`|".contains(c) { ' ' } else { c };
    format!("`{}`", name.chars().map(plain).collect::<String>())
}

/// Returns true if `name` is a valid licence in a model card: letters, digits, `.`, `+`, `-` and `_`, as in
/// `apache-2.0`.
#[must_use]
pub fn licence(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+-_".contains(c);
    (1..=LICENCE_CHARS_MAX).contains(&name.len()) && name.chars().all(plain)
}

/// Number of bytes that are read from the beginning of a card.
const CARD_BYTES_MAX: u64 = 64 << 10;

/// Maximum length of a value in characters, and maximum number of values per key. Values beyond are left out.
const VALUE_CHARS_MAX: usize = 256;
const VALUES_MAX: usize = 64;

/// Keys in the YAML header of a card that exports repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CardKeys {
    /// Licence, as in `apache-2.0`.
    pub license: Option<String>,
    /// Name of a licence that the hub does not list.
    pub license_name: Option<String>,
    /// Location of the licence text.
    pub license_link: Option<String>,
    /// Models that the model is based on.
    pub base_model: Vec<String>,
    /// Languages of the model.
    pub language: Vec<String>,
    /// Data sets on which the model was trained.
    pub datasets: Vec<String>,
}

impl CardKeys {
    /// Returns the keys of the card in the folder at `path`. They are empty if there is no card, or if it has no
    /// header.
    pub(super) fn read(path: &Path) -> Self {
        let mut card = Vec::new();
        let read = open(path, "README.md").map(|file| file.take(CARD_BYTES_MAX).read_to_end(&mut card));
        match read {
            Ok(Ok(_)) => Self::of(&String::from_utf8_lossy(&card)),
            _ => Self::default(),
        }
    }

    /// Returns the keys in the header of `card`. A value may follow its key, be a list in brackets, or be a list with
    /// one entry per line.
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

/// Returns `value` as a YAML scalar. It is quoted if YAML could read it as anything but this text.
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
