//! Model card of an export, `README.md`.

use std::fmt::Write;

use archipelago_core::diloco::Ledger;
use archipelago_core::model::{ExpertSpec, LoraSpec, ModelSpec};
use archipelago_core::wire::{Optimiser, RunSpec};

use super::card_keys::CardKeys;
use super::{SourceSettings, is_id};

/// Largest length of a licence's name in characters.
const LICENCE_CHARS_MAX: usize = 64;

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Course {
    /// Number of learners with merged tokens.
    pub learners: u64,
    /// Number of merged tokens.
    pub tokens_merged: u64,
    /// First held-out loss, in nats per token, if it was measured.
    pub loss_first: Option<f32>,
    /// Newest held-out loss, in nats per token.
    pub loss_last: Option<f32>,
}

impl Course {
    /// Returns the progress recorded in `ledger`. `losses` are the first and the newest held-out loss.
    #[must_use]
    pub fn of(ledger: &Ledger, losses: [Option<f32>; 2]) -> Self {
        let merged = ledger.accounts().filter(|(_, account)| ledger.tokens_merged(account) > 0);
        let [loss_first, loss_last] = losses;
        Self { learners: merged.count() as u64, tokens_merged: ledger.clock_tokens(), loss_first, loss_last }
    }
}

/// Facts in a model card.
#[derive(Clone, Copy, Debug)]
pub struct Card<'a> {
    /// Run number as 16 hex digits.
    pub run: &'a str,
    /// Specification of the run, as learners get it.
    pub spec: &'a RunSpec,
    /// Sizes of the model, if it is the built-in decoder.
    pub model: Option<&'a ModelSpec>,
    /// Number of parameters in the folder.
    pub params: u64,
    /// True if the run's adapters, if any, are merged into the weights.
    pub merged: bool,
    /// Name of the text.
    pub text: &'a str,
    /// Name of the folder that the run began with.
    pub init: Option<&'a str>,
    /// Further settings of that folder.
    pub source: Option<&'a SourceSettings>,
    /// Initial model of the run as libraries load it: a name on the hub or a folder.
    pub base: Option<&'a str>,
    /// Name of the folder that contains the card.
    pub folder: &'a str,
    /// Progress of the run.
    pub course: Course,
    /// Licence that the owner chose.
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
        let folder = literal(self.folder);
        let mut card = format!(
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
        );
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
        self.add_rows(&mut card, &rows);
        card
    }

    /// Returns the header keys about the model's origin, with the licence that its owner chose.
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

    /// Returns the card of adapters without their base model.
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

    /// Returns the card of a model with an architecture of its own.
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

    /// Adds the rows that all models share, and the rows `more`.
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

    /// Returns the facts about the learners' training.
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

/// Returns `text` as a Python string literal.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a name as inline code, without characters that would end the code or the table cell.
fn quoted(name: &str) -> String {
    let plain = |c: char| if c.is_control() || "`|".contains(c) { ' ' } else { c };
    format!("`{}`", name.chars().map(plain).collect::<String>())
}

/// Returns true if `name` is valid as a licence in a model card: letters, digits, `.`, `+`, `-` and `_`, as in
/// `apache-2.0`.
#[must_use]
pub fn licence(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+-_".contains(c);
    (1..=LICENCE_CHARS_MAX).contains(&name.len()) && name.chars().all(plain)
}
