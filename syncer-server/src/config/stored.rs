//! Settings stored in a run's folder, which are the defaults of later starts.

use std::collections::BTreeMap;
use std::path::Path;

use archipelago_cli::{Sources, key_of, keys, with_key};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::flags::{absolute_path, is_among, stored_flags};
use super::{RunIdentity, ServeConfig};

/// Name of the settings file in the run's folder.
pub const SETTINGS_FILE: &str = "settings.toml";

/// Heading of a new settings file.
const HEADING: &str = "\
# The settings of this run. The syncer keeps them here, so that `serve --dir` alone resumes the run.
# Settings that are given at a start override them, and are stored in their place.
";

/// Settings that a start stores in the run's folder.
#[derive(Clone, Debug, Default)]
pub struct StoredSettings {
    /// Flags with their values, in the order of the help.
    given: Vec<(String, String)>,
    /// Current content of the settings file; `None` if it cannot be read.
    before: Option<String>,
    /// Description of a given setting that contradicts the existing run.
    pub contradiction: Option<String>,
}

/// Returns true if the settings of the run in `dir` hide the learners' names.
#[must_use]
pub fn hides_names(dir: &Path) -> bool {
    let text = std::fs::read_to_string(dir.join(SETTINGS_FILE)).unwrap_or_default();
    key_of(&text, "hide-names").is_some_and(|value| value == "true")
}

impl StoredSettings {
    /// Collects the settings `given` for the run in `dir` by all layers. The settings stored in the folder are the
    /// lowest layer. `contradiction` describes a conflict between a higher layer and that one.
    pub fn of(given: &Sources, dir: &Path, contradiction: Option<String>) -> Self {
        let identity = keys::<RunIdentity>();
        let mut kept = Vec::new();
        for flag in stored_flags() {
            let (id, key) = (flag.get_id().as_str(), flag.get_long().unwrap_or_default());
            if given.is_default(id) && !is_among(&flag, &identity) {
                continue;
            }
            let value = given.words(id).pop();
            kept.extend(value.map(|value| (key.to_owned(), absolute_path(&flag, &value).unwrap_or(value))));
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

/// Returns a description of a conflict between the run in `dir` and the layers above its folder's settings. The
/// description is part of a sentence.
pub fn contradiction(given: &Sources, dir: &Path) -> Option<String> {
    let text =
        std::fs::read_to_string(dir.join(SETTINGS_FILE)).ok().filter(|_| dir.join("run.json").exists())?;
    let identity = RunIdentity::augment_args(clap::Command::new("run"));
    identity.get_arguments().find_map(|arg| {
        let (id, key) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        let kept = key_of(&text, key).filter(|_| !given.is_default(id))?;
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

/// Returns the values of the settings in `group`, by key.
pub(super) fn values(group: &impl Serialize) -> BTreeMap<String, Value> {
    let json = serde_json::to_value(group).expect("plain data");
    serde_json::from_value(json).expect("settings have names")
}

/// Returns a value as a user would type it. An empty text and a text with spaces keep their quotes.
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
        assert!(stored_flags().any(|flag| flag.get_long() == Some("hide-names")), "the run stores it");
    }

    #[test]
    fn only_what_differs_is_shown_and_no_secret() {
        assert_eq!(ServeConfig::default().differing(), "none");
        let config = ServeConfig::default().with(|it| {
            it.identity.preset = "tiny".into();
            it.licence = Some("two words".into());
            it.live.stop_at_tokens = 9;
            it.no_eval = true;
            it.invite = Some("open-sesame".into());
            it.start.admin_token = Some("a secret of the owner".into());
        });
        let expected = "licence=\"two words\" no-eval=true preset=tiny stop-at-tokens=9";
        assert_eq!(config.differing(), expected);
    }
}
