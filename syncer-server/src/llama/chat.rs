//! How a folder writes conversations: its chat template, and the texts of its tokens with a meaning of their own.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::LlamaError;
use super::small::{bytes, object};

/// Bytes of a chat template at most; those of large models have some tens of thousands.
pub const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a token's text at most; longer ones are left out.
const TEXT_BYTES_MAX: usize = 256;

const CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";

/// The keys of tokens' texts that templates ask for.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// How conversations are written, as a run remembers it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// The template, in Jinja's language, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Texts of tokens by their keys: `bos_token`, `eos_token`, `pad_token` and `unk_token`, those that there are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<String, String>,
}

impl Chat {
    /// Name of the template that is used if a folder has several.
    pub(super) const DEFAULT: &str = "default";

    /// What the folder at `path` says; nothing if it has neither `tokenizer_config.json` nor `chat_template.jinja`.
    ///
    /// # Errors
    /// - `Read`, `Long`: a file cannot be read, or is too long.
    /// - `Form`: it is not what its name promises.
    pub fn read(path: &Path) -> Result<Self, LlamaError> {
        let mut chat = Self::default();
        if path.join(CONFIG).exists() {
            let config = object(path, CONFIG)?;
            chat.tokens = tokens(&config);
            chat.template = template(&config)?;
        }
        if path.join(TEMPLATE).exists() {
            let text = String::from_utf8(bytes(path, TEMPLATE, TEMPLATE_BYTES_MAX)?);
            chat.template = Some(text.map_err(|_| LlamaError::form(TEMPLATE, "it is not UTF-8 text"))?);
        }
        Ok(chat)
    }

    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A token's text is a string, or an object with it as its content.
fn tokens(config: &Map<String, Value>) -> BTreeMap<String, String> {
    let text = |key: &str| {
        let value = config.get(key)?;
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        (!text.is_empty() && text.len() <= TEXT_BYTES_MAX).then(|| text.to_owned())
    };
    TOKENS.iter().filter_map(|&key| Some((key.to_owned(), text(key)?))).collect()
}

/// The template is a string, or one of several with names; then the one called `default` counts.
fn template(config: &Map<String, Value>) -> Result<Option<String>, LlamaError> {
    let found = match config.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(template)) => template,
        Some(Value::Array(several)) => {
            let default = several.iter().find(|one| one["name"] == Chat::DEFAULT);
            let template = default.and_then(|one| one["template"].as_str());
            template
                .ok_or_else(|| LlamaError::form(CONFIG, "none of its chat templates is called default"))?
        }
        Some(_) => return Err(LlamaError::form(CONFIG, "its chat_template is no text")),
    };
    let length = found.len() as u64;
    if length > TEMPLATE_BYTES_MAX {
        let why = format!("its chat template has {length} bytes, at most {TEMPLATE_BYTES_MAX} are read");
        return Err(LlamaError::form(CONFIG, why));
    }
    Ok(Some(found.to_owned()))
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
        for (config, why) in [
            ("[]", "no JSON object"),
            ("{", "EOF"),
            (r#"{"chat_template": 3}"#, "no text"),
            (r#"{"chat_template": [{"name": "rag"}]}"#, "called default"),
        ] {
            let error = read(config).unwrap_err().to_string();
            assert!(error.contains(CONFIG) && error.contains(why), "{error}");
        }
        let long = "x".repeat(TEMPLATE_BYTES_MAX as usize + 1);
        assert!(read(&format!(r#"{{"chat_template": "{long}"}}"#)).is_err());

        // Newer folders have the template in a file of its own, which counts.
        fs::write(dir.path().join(TEMPLATE), "file").unwrap();
        assert_eq!(read(several).unwrap().template.as_deref(), Some("file"));
        fs::write(dir.path().join(TEMPLATE), [0xff]).unwrap();
        assert!(read(several).unwrap_err().to_string().contains("UTF-8"));
    }
}
