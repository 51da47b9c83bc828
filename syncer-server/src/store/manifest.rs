//! Manifest of a run: its identity, stored in `run.json`, and its initial parameters.

use archipelago_core::bytes::{from_f32s, hex};
use archipelago_core::diloco::{Layout, Tensor};
use archipelago_core::model::{self, DECODER, ModelSpec};
use archipelago_core::wire::{Architecture, Model, RunId, RunSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Store, disk, or_remove, publish, temporary};
use crate::errors::ServerError;
use crate::llama::{Chat, Precision, SourceSettings, SpecialTokens, Tensors, write_tensors};

/// Identity of a run, which never changes. All other settings may change between starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version of the run's folder.
    pub format: u32,
    /// Id of the run.
    pub run: RunId,
    /// SHA-256 of the text and of its tokenisation, in hexadecimal.
    pub corpus: String,
    /// Specification of the run, as learners receive it.
    pub spec: RunSpec,
    /// Record of the initial parameters, if they came from a folder or a file. Otherwise they follow from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<Initial>,
    /// For a fork: the original run, and its last decision before the fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<(RunId, u64)>,
    /// Chat format of the model, if known.
    #[serde(default, skip_serializing_if = "Chat::is_empty")]
    pub chat: Chat,
    /// Display name of the training text.
    pub text: String,
    /// SHA-256 of `tokenizer.json`, in hexadecimal.
    pub tokenizer: String,
}

/// Record of the folder or file that a run's initial parameters came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Initial {
    /// Display name of the folder or file.
    pub folder: String,
    /// SHA-256 of the parameters, as little-endian f32 in the order of the layout, in hexadecimal.
    pub sha256: String,
    /// Special tokens of the model.
    pub special: SpecialTokens,
    /// Settings of the folder for exports. `None` if the model is not the built-in decoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<SourceSettings>>,
}

/// Format version of a run's folder that this program writes.
pub const FORMAT: u32 = 1;

impl Manifest {
    /// Returns the model if it is the built-in decoder, otherwise `None`.
    ///
    /// # Errors
    /// Those of [`decoder`].
    pub fn decoder(&self) -> Result<Option<ModelSpec>, ServerError> {
        decoder(&self.spec.model)
    }

    /// Returns the layout of the model's parameters.
    ///
    /// # Errors
    /// `Internal`: the manifest has no valid model.
    pub fn layout(&self) -> Result<Layout, ServerError> {
        Layout::of(&self.spec.model)
            .map_err(|error| ServerError::Internal { what: format!("the run has no model: {error}") })
    }

    /// Describes the first difference between this manifest and `other`. Returns `None` if both describe the same run.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.format != other.format {
            return Some(format!("form {} there, {} here", self.format, other.format));
        }
        // How tokens are stored follows from the corpus. To name it would not help the user.
        let comparable = |manifest: &Self| {
            let mut spec = manifest.spec.clone();
            // Likewise, the bytes of frozen weights follow from their form and the source.
            if let Some(frozen) = &mut spec.frozen {
                (frozen.sha256, frozen.bytes) = (Vec::new(), 0);
            }
            let mut value = serde_json::to_value(spec).expect("plain data");
            value["model"] = readable(&manifest.spec.model);
            value["data"] = Value::Null;
            value
        };
        let (there, here) = (comparable(self), comparable(other));
        // The preset affects the model and other settings. The model describes the difference best.
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

/// Returns the part of the manifest that identifies the initial parameters, except for the seed.
fn beginning(manifest: &Manifest) -> Option<(&str, &[Tensor])> {
    manifest.init.as_ref().map(|initial| (&*initial.sha256, &*manifest.spec.model.tensors))
}

/// Flags that set single fields of a manifest, by JSON path. Other fields may follow from several flags, such as the
/// preset.
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

/// Describes the first leaf in which two values differ. `name` is the path of both.
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

/// Returns the built-in decoder if `model` describes it. Returns `None` for any other architecture.
///
/// # Errors
/// `Internal`: `model` has the name of the built-in decoder but does not match it.
pub fn decoder(model: &Model) -> Result<Option<ModelSpec>, ServerError> {
    if model.architecture.name != DECODER {
        return Ok(None);
    }
    let none = |error| ServerError::Internal { what: format!("the run has no model: {error}") };
    ModelSpec::of(model).map(Some).map_err(none)
}

/// Returns the settings of `model` in readable form, without tensors. For the built-in decoder, sizes have names.
#[must_use]
pub fn readable(model: &Model) -> Value {
    // In JSON text, `f32` numbers have their shortest decimal form.
    let value = match decoder(model) {
        Ok(Some(spec)) => serde_json::to_string(&spec),
        _ => {
            let Model { context, vocab, architecture: Architecture { name, settings }, .. } = model;
            let settings = String::from_utf8_lossy(settings);
            let architecture = serde_json::json!({ "name": name, "settings": settings });
            let shown =
                serde_json::json!({ "context": context, "vocab": vocab, "architecture": architecture });
            serde_json::to_string(&shown)
        }
    };
    value.and_then(|text| serde_json::from_str(&text)).unwrap_or_default()
}

/// File with initial parameters that do not follow from the seed.
const INITIAL_FILE: &str = "initial.safetensors";

impl Initial {
    /// Returns the checksum of the parameters `theta`, `[len]`, in the form of [`Self::sha256`].
    #[must_use]
    pub fn digest(theta: &[f32]) -> String {
        let mut sha = Sha256::new();
        for piece in theta.chunks(1 << 18) {
            sha.update(from_f32s(piece));
        }
        hex(&sha.finalize())
    }
}

impl Store {
    /// Returns the initial parameters of the run with `manifest` as one flat vector: the stored ones, or those that
    /// follow from the seed.
    ///
    /// # Errors
    /// - `DirCorrupt`: the stored parameters are missing, or do not match the manifest.
    /// - `Internal`: the manifest has no valid model.
    pub fn initial(&self, manifest: &Manifest) -> Result<Vec<f32>, ServerError> {
        let Some(initial) = &manifest.init else {
            let none = || ServerError::Internal {
                what: "a run with a model of its own has no stored parameters".into(),
            };
            let theta = model::init(&manifest.decoder()?.ok_or_else(none)?, manifest.spec.seed);
            return theta.map_err(|error| ServerError::Internal { what: error.to_string() });
        };
        let corrupt = |why: String| ServerError::DirCorrupt {
            path: self.dir.join(INITIAL_FILE),
            why: format!("{why}: restore the file from a copy of the folder, or give --dir another one"),
        };
        let layout = manifest.layout()?;
        let read =
            Tensors::open(&self.dir, vec![INITIAL_FILE.to_owned()]).and_then(|tensors| tensors.read(&layout));
        let theta = read.map_err(|error| corrupt(error.to_string()))?;
        match Initial::digest(&theta) == initial.sha256 {
            true => Ok(theta),
            false => Err(corrupt("these are not the run's initial parameters".into())),
        }
    }

    /// Stores `theta`, `[len]`, unless it follows from the seed of `manifest`.
    pub(super) fn keep_initial(&self, manifest: &Manifest, theta: &[f32]) -> Result<(), ServerError> {
        if manifest.init.is_none() {
            return Ok(());
        }
        let layout = manifest.layout()?;
        let path = self.dir.join(INITIAL_FILE);
        let partial = temporary::partial(&path);
        let written =
            write_tensors(&partial, &layout, theta, Precision::F32).map_err(disk("write", &partial));
        or_remove(written.and_then(|()| publish(&partial, &path)), &partial)
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::Preset;

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

    #[test]
    fn a_model_of_tensors_is_shown_by_its_name_and_sizes() {
        let spec = Preset::Llama135m.model(300);
        assert_eq!(decoder(&Model::from(spec)).unwrap(), Some(spec));
        let own = Model { architecture: Architecture::default(), ..Model::from(spec) };
        assert_eq!(decoder(&own).unwrap(), None);
        assert_eq!(readable(&own)["context"], 512);
    }

    #[test]
    fn a_model_named_decoder_must_match_it() {
        let mut model = Model::from(Preset::Tiny.model(300));
        assert_eq!(readable(&model)["d_model"], 64);
        model.tensors.pop();
        assert!(decoder(&model).unwrap_err().to_string().contains("do not match the model's sizes"));
    }
}
