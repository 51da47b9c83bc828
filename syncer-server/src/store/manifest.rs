//! Manifest of a run: its identity, stored in its folder.

use archipelago_core::diloco::{Layout, Tensor};
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::{RunId, RunSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::architecture::{decoder, readable};
use crate::errors::ServerError;
use crate::llama::{Chat, SourceSettings, SpecialTokens};

/// Identity of a run, which never changes. Other settings may change from one start to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version of the run's folder.
    pub format: u32,
    /// Number of the run.
    pub run: RunId,
    /// SHA-256 of the text and of its tokenisation, in hexadecimal.
    pub corpus: String,
    /// Run description that learners receive.
    pub spec: RunSpec,
    /// Origin of initial parameters taken from a folder. Without it, they follow from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Initial>,
    /// Run that this one was forked from, and its last decision before the fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<(RunId, u64)>,
    /// Chat format of the model, if known.
    #[serde(default, skip_serializing_if = "Chat::is_empty")]
    pub chat: Chat,
    /// Display name of the text.
    pub text: String,
    /// SHA-256 of `tokenizer.json`, in hexadecimal.
    pub tokenizer: String,
}

/// Model folder that a run began with, as recorded in the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Initial {
    /// Display name of the folder.
    pub folder: String,
    /// SHA-256 of the parameters as little-endian f32 in the order of the layout, in hexadecimal.
    pub sha256: String,
    /// Special tokens.
    pub special: SpecialTokens,
    /// Further settings of the folder, for exports. Missing if the run has a model other than the decoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<SourceSettings>>,
}

/// Format version that this program writes.
pub const FORMAT: u32 = 1;

impl Manifest {
    /// Returns the built-in decoder that the model is, or `None` if the model has another architecture.
    ///
    /// # Errors
    /// As [`decoder`].
    pub fn decoder(&self) -> Result<Option<ModelSpec>, ServerError> {
        decoder(&self.spec.model)
    }

    /// Returns the layout of the model's parameters.
    ///
    /// # Errors
    /// `Internal`: the manifest describes no valid model.
    pub fn layout(&self) -> Result<Layout, ServerError> {
        Layout::of(&self.spec.model)
            .map_err(|error| ServerError::Internal { what: format!("the run has no model: {error}") })
    }

    /// Describes the first difference between this manifest and `other`, or returns `None` if both describe the same
    /// run.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.format != other.format {
            return Some(format!("form {} there, {} here", self.format, other.format));
        }
        // The storage of tokens follows from the corpus; naming it would not help the user.
        let comparable = |manifest: &Self| {
            let mut spec = manifest.spec.clone();
            // The same holds for the parts of frozen weights, whose bytes follow from their form.
            if let Some(frozen) = &mut spec.frozen {
                (frozen.sha256, frozen.bytes) = (Vec::new(), 0);
            }
            let mut value = serde_json::to_value(spec).expect("plain data");
            value["model"] = readable(&manifest.spec.model);
            value["data"] = Value::Null;
            value
        };
        let (there, here) = (comparable(self), comparable(other));
        // The preset shows in the model and in other settings; the model describes it best.
        let model = difference("model", &there["model"], &here["model"]);
        let corpus = || {
            (self.corpus != other.corpus).then(|| {
                "--data, --held-out, --vocab, --tokenizer or --chat-template gave another text there"
                    .to_owned()
            })
        };
        let rest = || difference("", &there, &here);
        let shards = || (self.spec.data != other.spec.data).then(|| "other shards there".to_owned());
        let init = || (beginning(self) != beginning(other)).then(|| self.other_beginning(other));
        let frozen = || {
            (self.spec.frozen != other.spec.frozen).then(|| {
                "--init gave other weights to train adapters on there, by their checksums".to_owned()
            })
        };
        model.or_else(init).or_else(rest).or_else(frozen).or_else(corpus).or_else(shards)
    }

    fn other_beginning(&self, other: &Self) -> String {
        let name = |manifest: &Self| match &manifest.init {
            Some(Initial { folder, sha256, .. }) => {
                format!("the model of {folder} ({})", sha256.get(..8).unwrap_or(sha256))
            }
            None => "parameters from its seed".to_owned(),
        };
        format!("it began with {} there, {} here", name(self), name(other))
    }
}

/// Returns the part of the initial parameters' identity that the seed does not determine.
fn beginning(manifest: &Manifest) -> Option<(&str, &[Tensor])> {
    manifest.init.as_ref().map(|initial| (&*initial.sha256, &*manifest.spec.model.tensors))
}

/// Settings of single manifest fields, by JSON path. The preset may also determine the model's shape, batch and rates.
const FLAGS: [(&str, &str); 10] = [
    ("model.architecture.name", "architecture"),
    ("model.architecture.settings", "architecture-settings"),
    ("seed", "seed"),
    ("model.lora.rank", "lora-rank"),
    ("model.lora.alpha", "lora-alpha"),
    ("model.lora.targets", "lora-targets"),
    ("frozen.form", "frozen"),
    ("exchange.fragments", "fragments"),
    ("exchange.sync_every", "sync-every"),
    ("exchange.block", "block"),
];

/// Describes the first leaf in which two values differ.
fn difference(name: &str, there: &Value, here: &Value) -> Option<String> {
    match (there, here) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => a.iter().find_map(|(key, value)| {
            let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
            difference(&name, value, &b[key])
        }),
        (a, b) if a == b => None,
        (a, b) => {
            let flag = FLAGS.iter().find(|(known, _)| *known == name);
            let name = flag.map_or(name.to_owned(), |(_, flag)| format!("--{flag}"));
            Some(format!("{name} is {a} there, {b} here"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_first_difference() {
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let a = json(r#"{"model": {"d": 1, "e": {"x": 2}}, "seed": 1}"#);
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(difference("", &a, &json(text)).as_deref(), expected);
        };
        check(r#"{"seed": 1, "model": {"d": 1, "e": {"x": 2}}}"#, None);
        check(r#"{"model": {"d": 1, "e": {"x": 3}}, "seed": 1}"#, Some("model.e.x is 2 there, 3 here"));
        check(r#"{"model": {"d": 1, "e": "f"}, "seed": 2}"#, Some("model.e is {\"x\":2} there, \"f\" here"));
        check(r#"{"model": {"d": 1, "e": {"x": 2}}, "seed": 2}"#, Some("--seed is 1 there, 2 here"));
    }
}
