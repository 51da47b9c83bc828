//! Settings stored in a run's folder, which are the defaults of later starts.

use std::collections::BTreeMap;
use std::path::Path;

use archipelago_cli::{Sources, key_of, with_key};
use clap::Args;
use serde_json::Value;

use super::{DataSource, OF_THE_SERVER, ServeConfig};

/// Name of the settings file in the run's folder.
pub const SETTINGS_FILE: &str = "settings.toml";

/// Heading of a new settings file.
const HEADING: &str = "\
# The settings of this run. The syncer keeps them here, so that `serve --dir` alone resumes the run.
# Settings that are given at a start override them, and are stored in their place.
";

/// Settings that define a run and cannot change. A change of the text is detected separately.
const FIXED: [&str; 18] = [
    "architecture",
    "architecture-settings",
    "corpus-bytes",
    "vocab",
    "held-out",
    "preset",
    "context",
    "seed",
    "batch",
    "inner",
    "lr",
    "lr-min-ratio",
    "total-tokens",
    "sync-every",
    "fragments",
    "code",
    "block",
    "apply",
];

/// Settings with paths, which later starts may resolve from another working directory.
pub const PATHS: [&str; 5] = ["chat-template", "data", "init", "params", "tokenizer"];

/// Settings that a start stores in the run's folder.
#[derive(Clone, Debug, Default)]
pub struct StoredSettings {
    /// Flags with their values, in the order of the help.
    given: Vec<(String, String)>,
    /// Current content of the settings file.
    before: Option<String>,
    /// Description of a given setting that contradicts the existing run.
    pub contradiction: Option<String>,
}

/// Returns true if the setting `key` is stored. The model folder or file of the first start is not stored, because the
/// run has its own copy and the source may disappear. The same holds for the chat template.
pub fn is_stored(key: &str) -> bool {
    !OF_THE_SERVER.contains(&key)
        && !["chat-template", "config", "admin-token", "init", "params"].contains(&key)
}

/// Returns true if the settings of the run in `dir` hide the learners' names.
#[must_use]
pub fn hides_names(dir: &Path) -> bool {
    let text = std::fs::read_to_string(dir.join(SETTINGS_FILE)).unwrap_or_default();
    key_of(&text, "hide-names").is_some_and(|value| value == "true")
}

impl StoredSettings {
    /// Collects the settings `given` for the run in `dir` by all layers; the folder's stored settings are the lowest
    /// layer. `contradiction` describes a conflict of the others with that layer.
    pub fn of(given: &Sources, dir: &Path, contradiction: Option<String>) -> Self {
        let command = ServeConfig::augment_args(clap::Command::new("serve"));
        let mut kept = Vec::new();
        for arg in command.get_arguments() {
            let (id, key) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
            if !is_stored(key) || given.is_default(id) && !FIXED.contains(&key) {
                continue;
            }
            kept.extend(
                given
                    .words(id)
                    .last()
                    .map(|value| (key.to_owned(), settled(key, value).unwrap_or_else(|| value.clone()))),
            );
        }
        let before = std::fs::read_to_string(dir.join(SETTINGS_FILE)).ok();
        Self { given: kept, before, contradiction }
    }

    /// Adds a value that another setting implies.
    pub fn imply(&mut self, key: &str, value: &str) {
        self.given.retain(|(known, _)| known != key);
        self.given.push((key.to_owned(), value.to_owned()));
    }

    /// Returns the new text of the file, or `None` if nothing changes.
    pub fn text(&self) -> Option<String> {
        let before = self.before.as_deref().unwrap_or(HEADING);
        let text =
            self.given.iter().fold(before.to_owned(), |text, (key, value)| with_key(&text, key, value));
        (self.before.as_ref() != Some(&text)).then_some(text)
    }
}

/// Returns the absolute path that `value` names, if the value of the setting `key` is a file.
pub(crate) fn settled(key: &str, value: &str) -> Option<String> {
    let is_built_in = key == "data" && DataSource::is_built_in(value);
    let path = (PATHS.contains(&key) && !is_built_in).then(|| std::path::absolute(value).ok()).flatten();
    path.map(|path| path.to_string_lossy().into_owned())
}

/// Describes, as part of a sentence, a conflict between the layers above the folder's settings and the run in `dir`.
pub fn contradiction(given: &Sources, dir: &Path) -> Option<String> {
    let text =
        std::fs::read_to_string(dir.join(SETTINGS_FILE)).ok().filter(|_| dir.join("run.json").exists())?;
    let command = ServeConfig::augment_args(clap::Command::new("serve"));
    command.get_arguments().find_map(|arg| {
        let (id, key) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        let kept = key_of(&text, key).filter(|_| FIXED.contains(&key) && !given.is_default(id))?;
        let value = given.words(id).pop()?;
        // Different texts may mean the same value, such as 64KiB and 65536.
        let means = |value: &str| {
            let read = archipelago_cli::from_toml::<ServeConfig>(&with_key("", key, value), &[]);
            read.ok().and_then(|config| serde_json::to_value(config).expect("plain data").get(key).cloned())
        };
        (means(&value) != means(&kept)).then(|| format!("it began with --{key} {kept}, not --{key} {value}"))
    })
}

impl ServeConfig {
    /// Logs the checked settings of a start: those that differ from their defaults, and with `RUST_LOG=debug` all of
    /// them. Secrets are left out.
    pub(crate) fn log_effective(&self) {
        tracing::info!("settings other than the defaults: {}", self.differing());
        tracing::debug!(settings = %serde_json::to_string(self).expect("plain data"), "effective settings");
    }

    /// Returns the settings that differ from their defaults, as `key=value` words in alphabetical order.
    fn differing(&self) -> String {
        let (ours, defaults) = (values(self), values(&Self::default()));
        let differing = ours.iter().filter(|(key, value)| defaults.get(*key) != Some(*value));
        let words: Vec<String> = differing.map(|(key, value)| format!("{key}={}", word(value))).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(" ") }
    }
}

fn values(config: &ServeConfig) -> BTreeMap<String, Value> {
    let json = serde_json::to_value(config).expect("plain data");
    serde_json::from_value(json).expect("settings have names")
}

/// Returns a value as a user would type it; a text with spaces keeps its quotes.
fn word(value: &Value) -> String {
    match value {
        Value::String(text)
            if !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control()) =>
        {
            text.clone()
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_told_nobody_the_names_goes_on_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(SETTINGS_FILE);
        assert!(!hides_names(dir.path()), "there is no file");
        for (text, hidden) in
            [("hide-names = true\n", true), ("hide-names = false\n", false), ("seed = 1", false)]
        {
            std::fs::write(&file, text).unwrap();
            assert_eq!(hides_names(dir.path()), hidden, "{text}");
        }
        assert!(is_stored("hide-names"), "it is what the run keeps");
    }

    #[test]
    fn only_what_differs_is_shown_and_no_secret() {
        assert_eq!(ServeConfig::default().differing(), "none");
        let config = ServeConfig {
            preset: "tiny".into(),
            licence: Some("two words".into()),
            stop_at_tokens: 9,
            no_eval: true,
            invite: Some("open-sesame".into()),
            admin_token: Some("a secret of the owner".into()),
            ..ServeConfig::default()
        };
        let expected = "licence=\"two words\" no-eval=true preset=tiny stop-at-tokens=9";
        assert_eq!(config.differing(), expected);
    }
}
