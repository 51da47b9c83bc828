//! Where a run's text comes from.

use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;

/// What the names of built-in texts begin with.
const PREFIX: &str = "builtin:";

/// Where a run's text comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum DataSource {
    /// One that the program brings along.
    BuiltIn(BuiltIn),
    /// A file, or a folder of them.
    Path(PathBuf),
}

/// A text that the program brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltIn {
    /// Sentences of a grammar whose entropy is known.
    Grammar,
    /// Volume one of Jane Austen's *Pride and Prejudice*.
    Austen,
    /// Captions and the small pictures that they describe.
    Pictures,
}

impl BuiltIn {
    /// All of them, with the names by which they are asked for.
    const NAMES: [(&str, Self); 3] =
        [("grammar", Self::Grammar), ("austen", Self::Austen), ("pictures", Self::Pictures)];

    /// Its name, for people.
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
    /// The file or folder, if it is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::BuiltIn(_) => None,
            Self::Path(path) => Some(path),
        }
    }

    /// Its name, for people.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::BuiltIn(text) => text.title().to_owned(),
            Self::Path(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// Whether `given` names a text that the program brings along.
    pub(super) fn is_built_in(given: &str) -> bool {
        given.starts_with(PREFIX)
    }

    /// What `given` names.
    ///
    /// # Errors
    /// A sentence: there is no built-in text of that name.
    fn of(given: OsString) -> Result<Self, String> {
        if given == "-" {
            return Err(
                "standard input is not taken, since a run reads its text again at each start: write it to a \
                        file"
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

    /// Reads it from a flag, a variable or a key.
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
