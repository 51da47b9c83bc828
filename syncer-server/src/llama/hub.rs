//! Names of models on the Hugging Face Hub.

use std::path::Path;

/// Largest length of a name in characters, as on the hub.
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

/// Returns the name of the model in a folder of the hub's cache, `…/models--user--model/snapshots/REVISION`.
pub(super) fn cached_id(path: &Path) -> Option<String> {
    let snapshots = path.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let name = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    Some(name.replacen("--", "/", 1)).filter(|id| is_id(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_from_a_path() {
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
