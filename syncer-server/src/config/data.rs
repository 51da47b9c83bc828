//! Source of a run's text.

use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;

/// Prefix of the names of built-in texts.
const PREFIX: &str = "builtin:";

/// Source of a run's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum DataSource {
    /// Built-in text.
    BuiltIn(BuiltIn),
    /// File, or folder of files.
    Path(PathBuf),
}

/// Built-in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    /// Sentences of a grammar with known entropy.
    Grammar,
    /// Volume one of Jane Austen's *Pride and Prejudice*.
    Austen,
    /// Captions and the small pictures that they describe.
    Pictures,
}

impl BuiltIn {
    /// All built-in texts, with their names in settings.
    const NAMES: [(&str, Self); 3] =
        [("grammar", Self::Grammar), ("austen", Self::Austen), ("pictures", Self::Pictures)];

    /// Returns the display name.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Grammar => "built-in grammar",
            Self::Austen => "Pride and Prejudice, volume one",
            Self::Pictures => "built-in pictures and captions",
        }
    }
}

impl DataSource {
    /// Returns the path of the file or folder; `None` for a built-in text.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::BuiltIn(_) => None,
            Self::Path(path) => Some(path),
        }
    }

    /// Returns the display name.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::BuiltIn(text) => text.title().to_owned(),
            Self::Path(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// Returns true if `given` names a built-in text.
    pub(super) fn is_built_in(given: &str) -> bool {
        given.starts_with(PREFIX)
    }

    /// Parses the source `given`.
    ///
    /// # Errors
    /// A sentence: `given` is standard input or an unknown built-in text.
    fn of(given: OsString) -> Result<Self, String> {
        if given == "-" {
            return Err(
                "standard input is not accepted, since a run reads its text again at each start: write it to a file"
                    .into(),
            );
        }
        let Some(name) = given.to_str().and_then(|given| given.strip_prefix(PREFIX)) else {
            return Ok(Self::Path(given.into()));
        };
        let found = BuiltIn::NAMES.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| Self::BuiltIn(text)).ok_or_else(|| {
            let known = BuiltIn::NAMES.map(|(known, _)| format!("{PREFIX}{known}")).join(", ");
            format!(
                "there is no built-in text of that name: give one of {known}, or a file or folder of yours"
            )
        })
    }

    /// Returns the parser for the value of a flag, an environment variable or a key.
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(Self::of)
    }
}

impl Display for DataSource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(text) => {
                let names = BuiltIn::NAMES.into_iter().filter(|(_, known)| known == text);
                names.into_iter().try_for_each(|(name, _)| write!(f, "{PREFIX}{name}"))
            }
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl From<DataSource> for String {
    fn from(source: DataSource) -> Self {
        source.to_string()
    }
}

impl From<PathBuf> for DataSource {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, text) in BuiltIn::NAMES {
            let source = DataSource::of(format!("{PREFIX}{name}").into()).unwrap();
            assert_eq!(source, DataSource::BuiltIn(text));
            assert_eq!(DataSource::of(source.to_string().into()), Ok(source));
        }
        assert!(DataSource::of("-".into()).unwrap_err().contains("write it to a file"));
        assert_eq!(DataSource::of("builtin".into()), Ok(DataSource::Path("builtin".into())));
        assert_eq!(DataSource::of("a/my.txt".into()).unwrap().title(), "my.txt");
        let error = DataSource::of("builtin:bronte".into()).unwrap_err();
        assert!(error.contains("one of builtin:grammar, builtin:austen, builtin:pictures"), "{error}");
    }
}
