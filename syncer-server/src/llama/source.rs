//! Settings of the folder that a run starts from, beyond the shape of its model. Exports repeat them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::card::CardKeys;
use super::chat::{SPECIAL, TEMPLATES};
use super::small::{bytes, object};
use super::{Chat, LlamaError, TEMPLATE_BYTES_MAX};

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer_config.json";

/// Maximum number of named chat templates. Further ones are left out.
const TEMPLATES_MAX: usize = 16;

/// Key of `config.json` with the name or path from which the model was loaded.
const NAME: &str = "_name_or_path";

/// Keys that exports do not repeat. They name code and files that an export lacks, or describe how a file was made.
const NOT_REPEATED: [&str; 9] = [
    "_from_model_config",
    "_commit_hash",
    "auto_map",
    "name_or_path",
    "quantization_config",
    "rope_scaling",
    "special_tokens_map_file",
    "tokenizer_file",
    "vocab_file",
];

/// Settings of a folder that do not affect training, as stored in a run's manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSettings {
    /// Absolute path of the folder.
    pub path: String,
    /// Name of the model on the Hugging Face Hub, as `user/model`, if the folder reveals it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Content of `config.json`, without keys that exports do not repeat.
    pub config: Map<String, Value>,
    /// Content of `generation_config.json`; empty if the folder has no such file.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub generation: Map<String, Value>,
    /// Content of `tokenizer_config.json` without chat templates, with additions from `special_tokens_map.json`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub tokenizer: Map<String, Value>,
    /// Chat templates by name, without the default one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, String>,
    /// Header keys of the folder's model card.
    pub card: CardKeys,
}

impl SourceSettings {
    /// Reads the settings of the folder at `path`. An unusable `tokenizer_config.json` is ignored here; [`Chat::read`]
    /// reports it to runs that need it.
    ///
    /// # Errors
    /// - `Read`, `Long`: a file cannot be read, or is too large.
    /// - `Form`: `config.json` or `generation_config.json` is not a JSON object.
    pub fn read(path: &Path) -> Result<Self, LlamaError> {
        let optional = |name: &str| match path.join(name).exists() {
            true => object(path, name).map(Some),
            false => Ok(None),
        };
        let config = object(path, CONFIG)?;
        let generation = optional(GENERATION)?.unwrap_or_default();
        let mut tokenizer = optional(TOKENIZER).ok().flatten().unwrap_or_default();
        for (key, value) in optional(SPECIAL).ok().flatten().unwrap_or_default() {
            tokenizer.entry(key).or_insert(value);
        }
        let mut templates = named_templates(tokenizer.remove("chat_template"));
        templates.extend(template_files(path));
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let saved_as = config.get(NAME).and_then(Value::as_str).filter(|name| is_id(name));
        let mut card = CardKeys::read(path);
        if card.base_model.is_empty() {
            card.base_model.extend(saved_as.map(str::to_owned));
        }
        Ok(Self {
            id: cached_id(&whole).or_else(|| same_name(saved_as?, &whole)),
            path: whole.to_string_lossy().into_owned(),
            config: repeated(config),
            generation: repeated(generation),
            tokenizer: repeated(tokenizer),
            templates,
            card,
        })
    }
}

/// Returns `id` if the folder at `path` has the model's name. `config.json` names the model as it was loaded, so the
/// folder of a fine-tuned model names its parent.
fn same_name(id: &str, path: &Path) -> Option<String> {
    let (_, name) = id.split_once('/')?;
    path.file_name()?.to_str()?.eq_ignore_ascii_case(name).then(|| id.to_owned())
}

fn repeated(mut settings: Map<String, Value>) -> Map<String, Value> {
    // A path on another machine is useless here, so only a name on the hub is repeated.
    let is_id = |value: &Value| value.as_str().is_some_and(is_id);
    settings.retain(|key, value| !NOT_REPEATED.contains(&key.as_str()) && (key != NAME || is_id(value)));
    settings
}

/// Returns the templates in a list of `tokenizer_config.json`, except the default one.
fn named_templates(value: Option<Value>) -> BTreeMap<String, String> {
    let Some(Value::Array(several)) = value else { return BTreeMap::new() };
    let named = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["template"].as_str()?.to_owned()));
    several.iter().filter_map(named).filter(|(name, _)| name != Chat::DEFAULT).take(TEMPLATES_MAX).collect()
}

/// Returns the templates in separate files. Unreadable files are left out.
fn template_files(path: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(path.join(TEMPLATES)) else { return BTreeMap::new() };
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let file = entry.ok()?.file_name().into_string().ok()?;
        let name = file.strip_suffix(".jinja")?.to_owned();
        let text = bytes(&path.join(TEMPLATES), &file, TEMPLATE_BYTES_MAX).ok()?;
        Some((name, String::from_utf8(text).ok()?))
    };
    entries.filter_map(read).take(TEMPLATES_MAX).collect()
}

/// Maximum length of a model's name in characters, as on the hub.
const CHARS_MAX: usize = 96;

/// Returns true if `text` has the form `user/model`.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let is_name = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && part.chars().all(plain)
    };
    text.len() <= CHARS_MAX
        && text.split_once('/').is_some_and(|(user, model)| is_name(user) && is_name(model))
}

/// Returns the model's name if `path` is in the hub's cache, `…/models--user--model/snapshots/REVISION`.
pub(super) fn cached_id(path: &Path) -> Option<String> {
    let snapshots = path.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let name = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    Some(name.replacen("--", "/", 1)).filter(|id| is_id(id))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn folder(name: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::create_dir_all(path.join(TEMPLATES)).unwrap();
        files.iter().for_each(|(name, text)| fs::write(path.join(name), text).unwrap());
        (dir, path)
    }

    #[test]
    fn reads_all_that_exports_repeat_and_nothing_that_they_cannot() {
        let (_dir, path) = folder(
            "Tiny",
            &[
                (
                    CONFIG,
                    r#"{"initializer_range": 0.1, "_name_or_path": "lab/tiny", "auto_map": {"A": "b"}}"#,
                ),
                (GENERATION, r#"{"top_p": 0.9, "_from_model_config": true}"#),
                (
                    TOKENIZER,
                    r#"{"padding_side": "left", "eos_token": "a", "vocab_file": "/x",
                        "chat_template": [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]}"#,
                ),
                (SPECIAL, r#"{"eos_token": "b", "additional_special_tokens": ["<x>"]}"#),
                ("additional_chat_templates/tool_use.jinja", "t"),
            ],
        );
        let found = SourceSettings::read(&path).unwrap();
        assert_eq!(json!(found.config), json!({"initializer_range": 0.1, "_name_or_path": "lab/tiny"}));
        assert_eq!(json!(found.generation), json!({"top_p": 0.9}));
        let tokenizer =
            json!({"padding_side": "left", "eos_token": "a", "additional_special_tokens": ["<x>"]});
        assert_eq!(json!(found.tokenizer), tokenizer);
        assert_eq!(
            found.templates,
            [("rag", "r"), ("tool_use", "t")].map(|(k, v)| (k.into(), v.into())).into()
        );
        assert_eq!(
            (found.id.as_deref(), &*found.card.base_model),
            (Some("lab/tiny"), &["lab/tiny".to_owned()][..])
        );
    }

    #[test]
    fn a_name_that_may_be_the_parents_is_not_the_folders() {
        let (_dir, path) = folder("tuned", &[(CONFIG, r#"{"_name_or_path": "lab/tiny"}"#)]);
        let found = SourceSettings::read(&path).unwrap();
        assert_eq!((found.id, &*found.card.base_model), (None, &["lab/tiny".to_owned()][..]));
        let (_dir, path) = folder("tuned", &[(CONFIG, r#"{"_name_or_path": "/models/tiny"}"#)]);
        let found = SourceSettings::read(&path).unwrap();
        assert!(
            found.config.is_empty()
                && found.card.base_model.is_empty()
                && Path::new(&found.path).is_absolute()
        );
        let (_dir, path) = folder("models--lab--tiny/snapshots/0a1b", &[(CONFIG, "{}")]);
        assert_eq!(SourceSettings::read(&path).unwrap().id.as_deref(), Some("lab/tiny"));
    }

    #[test]
    fn a_damaged_file_is_named() {
        let (_dir, path) = folder("a", &[(CONFIG, "{}"), (GENERATION, "[]")]);
        assert!(SourceSettings::read(&path).unwrap_err().to_string().contains(GENERATION));
        let (_dir, path) = folder("a", &[(CONFIG, "{}"), (TOKENIZER, "{")]);
        assert!(SourceSettings::read(&path).unwrap().tokenizer.is_empty());
    }

    #[test]
    fn hub_names_are_distinguished_from_paths() {
        for id in ["HuggingFaceTB/SmolLM2-135M", "a/b.c_d"] {
            assert!(is_id(id), "{id}");
        }
        for path in
            ["gpt2", "./model", "../model", "/a/b", "~/model", "a/b/c", "a/", "/b", "a b/c", "a/b\n", ""]
        {
            assert!(!is_id(path), "{path:?}");
        }
        let cached = |path: &str| cached_id(Path::new(path));
        assert_eq!(cached("/h/models--a--b--c/snapshots/12").as_deref(), Some("a/b--c"));
        assert_eq!(cached("/h/models--gpt2/snapshots/12"), None);
        assert_eq!(cached("/h/models--a--b/other/12"), None);
    }
}
