//! The model card, `README.md`: what whoever finds the model should know of it.

use std::fmt::Write;

use archipelago_core::diloco::Ledger;
use archipelago_core::model::{ExpertSpec, LoraSpec, ModelSpec};

/// Characters of a licence's name at most.
const LICENCE_CHARS_MAX: usize = 64;

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Course {
    /// Learners with a merged token.
    pub learners: u64,
    /// Tokens merged.
    pub tokens_merged: u64,
    /// The first held-out loss, in nats per token, if it was measured.
    pub loss_first: Option<f32>,
    /// The newest one.
    pub loss_last: Option<f32>,
}

impl Course {
    /// Of a run with these books whose first and newest held-out loss are `losses`.
    #[must_use]
    pub fn of(ledger: &Ledger, losses: [Option<f32>; 2]) -> Self {
        let merged = ledger.accounts().filter(|(_, account)| ledger.tokens_merged(account) > 0);
        let [loss_first, loss_last] = losses;
        Self { learners: merged.count() as u64, tokens_merged: ledger.clock_tokens(), loss_first, loss_last }
    }
}

/// What a model card tells.
#[derive(Clone, Copy, Debug)]
pub struct Card<'a> {
    /// The run, as 16 hex digits.
    pub run: &'a str,
    /// The sizes, of the built-in decoder.
    pub model: Option<&'a ModelSpec>,
    /// The parameters in the folder, counted.
    pub params: u64,
    /// Whether its adapters, if it has some, are added to the weights that they were trained on.
    pub merged: bool,
    /// The name of the text, if it is known.
    pub text: Option<&'a str>,
    /// Tokens of the text that is trained on.
    pub text_tokens: u64,
    /// The folder whose model the run began from, by its name.
    pub init: Option<&'a str>,
    /// How far the run has come.
    pub course: Course,
    /// The licence that the owner chose.
    pub licence: Option<&'a str>,
}

impl Card<'_> {
    /// The card as Markdown, with the header that model hubs read.
    #[must_use]
    pub fn to_markdown(self) -> String {
        let licence = self.licence.map(|licence| format!("license: {licence}\n")).unwrap_or_default();
        let Some(model) = self.model else { return self.of_tensors(&licence) };
        if let Some(lora) = model.lora.filter(|_| !self.merged) {
            return self.of_adapters(&licence, &lora);
        }
        let mut card = format!(
            "---\n{licence}library_name: transformers\npipeline_tag: text-generation\ntags:\n- archipelago\n---\n\n\
             # A language model of {} parameters\n\n\
             It was trained with Archipelago, in which many computers train one model together. `transformers` loads \
             this folder as a {}:\n\n\
             ```python\n\
             from transformers import AutoModelForCausalLM, AutoTokenizer\n\
             model = AutoModelForCausalLM.from_pretrained(\"FOLDER\")\n\
             tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n\
             ```\n\n| | |\n|---|---|\n",
            self.params,
            if model.experts.is_some() { "Mixtral" } else { "Llama" },
        );
        let ModelSpec { vocab, d_model, layers, heads, kv_heads, context, .. } = model;
        let mut size = format!(
            "{layers} layers of width {d_model}, {heads} query heads, {kv_heads} key and value heads, {vocab} tokens"
        );
        if let Some(experts) = model.experts {
            let ExpertSpec { count, per_token, .. } = experts;
            size += &format!(", {count} experts, {per_token} of them for each token");
        }
        let mut rows = vec![("size", size), ("longest text", format!("{context} tokens"))];
        rows.extend(model.lora.map(|lora| ("trained", trained(&lora))));
        self.add_rows(&mut card, &rows);
        card
    }

    /// The card of adapters alone.
    fn of_adapters(self, licence: &str, lora: &LoraSpec) -> String {
        let base = self.init.map_or_else(|| "`BASE`".to_owned(), quoted);
        let mut card = format!(
            "---\n{licence}library_name: peft\npipeline_tag: text-generation\ntags:\n- archipelago\n- lora\n---\n\n\
             # Adapters of {} parameters\n\n\
             They were trained with Archipelago, in which many computers train one model together, on the model in the \
             folder {base}, which stayed as it was. `peft` adds them to it:\n\n\
             ```python\n\
             from peft import PeftModel\n\
             from transformers import AutoModelForCausalLM, AutoTokenizer\n\
             base = AutoModelForCausalLM.from_pretrained(\"BASE\")\n\
             model = PeftModel.from_pretrained(base, \"FOLDER\")\n\
             tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n\
             ```\n\n| | |\n|---|---|\n",
            self.params,
        );
        self.add_rows(&mut card, &[("trained", trained(lora))]);
        card
    }

    /// The card of a model that only the program that trained it knows.
    fn of_tensors(self, licence: &str) -> String {
        let mut card = format!(
            "---\n{licence}tags:\n- archipelago\n---\n\n\
             # A model of {} parameters\n\n\
             It was trained with Archipelago, in which many computers train one model together. `model.safetensors` \
             holds its tensors under the names that they began with; what they mean is known to the program that \
             trained it.\n\n| | |\n|---|---|\n",
            self.params,
        );
        self.add_rows(&mut card, &[]);
        card
    }

    /// What is told of every model, and `more` of this one.
    fn add_rows(self, card: &mut String, more: &[(&str, String)]) {
        let course = self.course;
        let text = self.text.map_or_else(|| "a text".to_owned(), quoted);
        let init = self.init.map_or_else(
            || "random parameters".to_owned(),
            |name| format!("the model in the folder {}", quoted(name)),
        );
        let loss =
            |loss: Option<f32>| loss.map_or_else(|| "not measured".to_owned(), |loss| format!("{loss:.4}"));
        let rows = [
            ("trained on", format!("{text}, {} tokens", self.text_tokens)),
            ("began with", init),
            ("learners that were merged", course.learners.to_string()),
            ("merged tokens", course.tokens_merged.to_string()),
            (
                "loss on held-out text",
                format!(
                    "first {}, last {}, in nats per token",
                    loss(course.loss_first),
                    loss(course.loss_last)
                ),
            ),
            ("licence", self.licence.unwrap_or("none was chosen: ask whoever trained it").to_owned()),
            ("run", self.run.to_owned()),
        ];
        for (what, value) in more.iter().chain(&rows) {
            writeln!(card, "| {what} | {value} |").expect("a string takes all that is written");
        }
    }
}

/// What of a model was trained, if it was adapters.
fn trained(lora: &LoraSpec) -> String {
    let LoraSpec { rank, alpha, targets } = lora;
    format!("adapters (LoRA) of rank {rank} on {targets}, alpha {alpha}")
}

/// A name between the marks of code, without what would end them or the table.
fn quoted(name: &str) -> String {
    let plain = |c: char| if c.is_control() || "`|".contains(c) { ' ' } else { c };
    format!("`{}`", name.chars().map(plain).collect::<String>())
}

/// Whether `name` can stand as a licence in a model card: letters, digits, `.`, `+`, `-` and `_`, as in `apache-2.0`.
#[must_use]
pub fn licence(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+-_".contains(c);
    (1..=LICENCE_CHARS_MAX).contains(&name.len()) && name.chars().all(plain)
}
