//! Chat format of a folder: its chat template, and the texts of its special tokens.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::LlamaError;
use super::small::placeholder;
use super::small::{bytes, object};

/// Maximum size of a chat template, in bytes. Templates of large models have some tens of thousands.
pub const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a token's text, in bytes. Longer ones are left out.
const TEXT_BYTES_MAX: usize = 256;

const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
/// Folder of named chat templates.
pub(super) const TEMPLATES: &str = "additional_chat_templates";

/// File with the texts of special tokens, in older folders.
pub(super) const SPECIAL: &str = "special_tokens_map.json";

/// Keys of the special tokens whose texts a template can use.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Chat format, as stored in a run's manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// Jinja template for conversations without tools, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Jinja template for conversations with tools, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use: Option<String>,
    /// Texts of special tokens by key, such as `bos_token`. Absent tokens have no entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, String>,
}

impl Chat {
    /// Name of the template for conversations without tools, in a folder with several templates.
    pub(super) const DEFAULT: &str = "default";
    /// Name of the template for conversations with tools.
    pub const TOOL_USE: &str = "tool_use";

    /// Reads the chat format of the folder at `path`. As in `transformers`, templates in separate files replace those
    /// in `tokenizer_config.json`. Without any of these files, the format is empty.
    ///
    /// # Errors
    /// - `Read`, `Long`: a file cannot be read, or is too long.
    /// - `Form`: the content of a file is invalid.
    pub fn read(path: &Path) -> Result<Self, LlamaError> {
        let config = if path.join(CONFIG).exists() { object(path, CONFIG)? } else { Map::new() };
        let mut tokens = tokens(&config);
        // Newer folders repeat the tokens in `special_tokens_map.json`; older ones have them only there.
        if !config.contains_key("added_tokens_decoder") && path.join(SPECIAL).exists() {
            tokens.extend(self::tokens(&object(path, SPECIAL)?));
        }
        let default = file(path, TEMPLATE)?;
        let tool_use = file(path, &format!("{TEMPLATES}/{}.jinja", Self::TOOL_USE))?;
        if default.is_some() || tool_use.is_some() {
            return Ok(Self { template: default, tool_use, tokens });
        }
        let (template, tool_use) = templates(&config)?;
        Ok(Self { template, tool_use, tokens })
    }

    /// Returns true if there is a chat template.
    #[must_use]
    pub fn has_template(&self) -> bool {
        self.template.is_some() || self.tool_use.is_some()
    }

    /// Returns true if there are neither templates nor special tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the texts of special tokens in `config`. Each is a string, or an object with the string as its `content`.
fn tokens(config: &Map<String, Value>) -> BTreeMap<String, String> {
    let text = |key: &str| {
        let value = config.get(key)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        (!text.is_empty() && text.len() <= TEXT_BYTES_MAX).then(|| text.to_owned())
    };
    TOKENS.iter().filter_map(|&key| Some((key.to_owned(), text(key)?))).collect()
}

/// Returns the template in the file `name` of the folder at `path`, if the file exists.
fn file(path: &Path, name: &str) -> Result<Option<String>, LlamaError> {
    if !path.join(name).exists() {
        return Ok(None);
    }
    let bytes = bytes(path, name, TEMPLATE_BYTES_MAX)?;
    if let Some(why) = placeholder(&bytes) {
        return Err(LlamaError::form(name, why));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| LlamaError::form(name, "it is not UTF-8 text"))
}

/// Returns the templates without and with tools in `config`. Its `chat_template` is one text or a list of named ones.
fn templates(config: &Map<String, Value>) -> Result<(Option<String>, Option<String>), LlamaError> {
    let found = match config.get("chat_template") {
        None | Some(Value::Null) => (None, None),
        Some(Value::String(template)) => (Some(template.as_str()), None),
        Some(Value::Array(several)) => {
            let called = |name: &str| several.iter().find(|one| one["name"] == name)?["template"].as_str();
            (called(Chat::DEFAULT), called(Chat::TOOL_USE))
        }
        Some(_) => return Err(LlamaError::form(CONFIG, "its chat_template is not a text")),
    };
    if config.get("chat_template").is_some_and(Value::is_array) && found == (None, None) {
        return Err(LlamaError::form(CONFIG, "none of its chat templates is named default"));
    }
    let length = [found.0, found.1].into_iter().flatten().map(str::len).max().unwrap_or(0) as u64;
    if length > TEMPLATE_BYTES_MAX {
        let why = format!("its chat template has {length} bytes, but at most {TEMPLATE_BYTES_MAX} are read");
        return Err(LlamaError::form(CONFIG, why));
    }
    Ok((found.0.map(str::to_owned), found.1.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reads_what_folders_of_all_ages_say() {
        let dir = tempfile::tempdir().unwrap();
        let read = |config: &str| {
            fs::write(dir.path().join(CONFIG), config).unwrap();
            Chat::read(dir.path())
        };
        assert!(Chat::read(dir.path()).unwrap().is_empty());
        let chat = read(
            r#"{"chat_template": "a", "eos_token": {"content": "</s>"}, "bos_token": "<s>", "pad_token": null}"#,
        )
        .unwrap();
        assert_eq!(chat.template.as_deref(), Some("a"));
        assert_eq!(
            chat.tokens,
            [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.into(), v.into())).into()
        );
        let several =
            r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(read(several).unwrap().template.as_deref(), Some("d"));
        let tools = r#"{"chat_template": [
            {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(read(tools).unwrap().tool_use.as_deref(), Some("t"));
        for (config, why) in [
            ("[]", "not a JSON object"),
            ("{", "EOF"),
            (r#"{"chat_template": 3}"#, "not a text"),
            (r#"{"chat_template": [{"name": "rag"}]}"#, "named default"),
        ] {
            let error = read(config).unwrap_err().to_string();
            assert!(error.contains(CONFIG) && error.contains(why), "{error}");
        }
        let long = "x".repeat(TEMPLATE_BYTES_MAX as usize + 1);
        assert!(read(&format!(r#"{{"chat_template": "{long}"}}"#)).is_err());

        // Older folders have tokens in a separate file.
        fs::write(dir.path().join(SPECIAL), r#"{"sep_token": "<sep>", "eos_token": "<e>"}"#).unwrap();
        let texts = |config: &str| read(config).unwrap().tokens.into_values().collect::<Vec<_>>();
        assert_eq!(texts(r#"{"eos_token": "</s>"}"#), ["<e>", "<sep>"]);
        assert_eq!(texts(r#"{"eos_token": "</s>", "added_tokens_decoder": {}}"#), ["</s>"]);

        // Newer folders have templates in separate files, which replace those of the settings.
        fs::write(dir.path().join(TEMPLATE), "file").unwrap();
        let chat = read(tools).unwrap();
        assert_eq!((chat.template.as_deref(), chat.tool_use), (Some("file"), None));
        fs::create_dir(dir.path().join(TEMPLATES)).unwrap();
        fs::write(dir.path().join(TEMPLATES).join("tool_use.jinja"), "tools").unwrap();
        assert_eq!(read(several).unwrap().tool_use.as_deref(), Some("tools"));
        fs::write(dir.path().join(TEMPLATE), [0xff]).unwrap();
        assert!(read(several).unwrap_err().to_string().contains("UTF-8"));
        fs::write(dir.path().join(TEMPLATE), "version https://git-lfs.github.com/spec/v1\n").unwrap();
        assert!(read(several).unwrap_err().to_string().contains("git lfs pull"));
    }
}
