//! The settings that a run keeps in its folder: a start that gives none goes on with them.

use std::path::Path;

use archipelago_cli::{Sources, key_of, with_key};
use clap::Args;

use super::{DataSource, OF_THE_SERVER, ServeConfig};

/// The file in the run's folder.
pub const SETTINGS_FILE: &str = "settings.toml";

/// How it begins where the syncer makes it.
const HEADING: &str = "\
# The settings of this run. The syncer keeps them here, so that `serve --dir` alone goes on with the run.
# What is given when it is started wins over them, and is kept in their place.
";

/// What a run is: it cannot become another one. That the text is another one is seen by itself.
const FIXED: [&str; 17] = [
    "architecture",
    "architecture-settings",
    "corpus-bytes",
    "vocab",
    "held-out",
    "preset",
    "context",
    "seed",
    "batch",
    "lr",
    "lr-min-ratio",
    "total-tokens",
    "sync-every",
    "fragments",
    "code",
    "block",
    "apply",
];

/// Settings that name files, which need not be found from where the next start is.
pub const PATHS: [&str; 5] = ["chat-template", "data", "init", "params", "tokenizer"];

/// What a start keeps in the run's folder.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Flags with their values, in the order of the help.
    given: Vec<(String, String)>,
    /// What is in the run's folder by now.
    before: Option<String>,
    /// What was given that the run cannot take, in words.
    pub contradiction: Option<String>,
}

/// Whether `key` is a setting that a run keeps. The folder or the file that it began with is none: the run has its
/// model and its chat template by then, and that may go.
pub fn is_kept(key: &str) -> bool {
    !OF_THE_SERVER.contains(&key)
        && !["chat-template", "config", "admin-token", "init", "params"].contains(&key)
}

/// Whether the run in `dir` was begun or gone on with to tell nobody the learners' names.
#[must_use]
pub fn hides_names(dir: &Path) -> bool {
    let text = std::fs::read_to_string(dir.join(SETTINGS_FILE)).unwrap_or_default();
    key_of(&text, "hide-names").is_some_and(|value| value == "true")
}

impl Kept {
    /// What was `given` for the run in `dir` by all layers, of which the folder's is the lowest; `contradiction` is
    /// what the others say against that.
    pub fn of(given: &Sources, dir: &Path, contradiction: Option<String>) -> Self {
        let command = ServeConfig::augment_args(clap::Command::new("serve"));
        let mut kept = Vec::new();
        for arg in command.get_arguments() {
            let (id, key) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
            if !is_kept(key) || given.is_default(id) && !FIXED.contains(&key) {
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

    /// Adds what another setting implies.
    pub fn imply(&mut self, key: &str, value: &str) {
        self.given.retain(|(known, _)| known != key);
        self.given.push((key.to_owned(), value.to_owned()));
    }

    /// The file's text; `None` if it says so already.
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

/// What was given by the layers above the folder's against what the run in `dir` is, as part of a sentence.
pub fn contradiction(given: &Sources, dir: &Path) -> Option<String> {
    let text =
        std::fs::read_to_string(dir.join(SETTINGS_FILE)).ok().filter(|_| dir.join("run.json").exists())?;
    let command = ServeConfig::augment_args(clap::Command::new("serve"));
    command.get_arguments().find_map(|arg| {
        let (id, key) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        let kept = key_of(&text, key).filter(|_| FIXED.contains(&key) && !given.is_default(id))?;
        let value = given.words(id).pop()?;
        // The same may be written in two ways: 64KiB and 65536.
        let means = |value: &str| {
            let read = archipelago_cli::from_toml::<ServeConfig>(&with_key("", key, value), &[]);
            read.ok().and_then(|config| serde_json::to_value(config).expect("plain data").get(key).cloned())
        };
        (means(&value) != means(&kept))
            .then(|| format!("it was begun with --{key} {kept}, not --{key} {value}"))
    })
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
        assert!(is_kept("hide-names"), "it is what the run keeps");
    }
}
