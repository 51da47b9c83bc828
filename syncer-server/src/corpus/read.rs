//! Text from a file, a folder, or one that the program brings along.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::data::grammar;

use crate::config::{BuiltIn, DataSource, ServeConfig};
use crate::errors::ServerError;

/// A text and what is known of it.
pub struct Text {
    /// All of it.
    pub text: String,
    /// Entropy of its source in nats per byte, where that is known.
    pub entropy_floor: Option<f64>,
}

/// What it is and why anybody may have it stands beside it.
const AUSTEN: &str = include_str!("../../assets/austen.txt");

/// The text that `config` names.
///
/// # Errors
/// - `DataUnreadable`: it is not there, or may not be read.
/// - `DataEmpty`: there is no text in it.
/// - `DataBinary`: a file is not UTF-8, or holds a zero byte.
pub fn read(config: &ServeConfig) -> Result<Text, ServerError> {
    let path = match config.data.as_ref().unwrap_or(&DataSource::BuiltIn(BuiltIn::Grammar)) {
        DataSource::BuiltIn(BuiltIn::Grammar) => {
            let bytes = usize::try_from(config.corpus_bytes.0).unwrap_or(usize::MAX);
            let entropy_floor = Some(grammar::entropy_nats_per_byte());
            return Ok(Text { text: grammar::generate(config.seed, bytes), entropy_floor });
        }
        DataSource::BuiltIn(BuiltIn::Austen) => {
            return Ok(Text { text: AUSTEN.to_owned(), entropy_floor: None });
        }
        DataSource::Path(path) => path,
    };
    let unreadable = |source| ServerError::DataUnreadable { path: path.clone(), source };
    let mut files = Vec::new();
    if fs::metadata(path).map_err(unreadable)?.is_dir() {
        list(path, &mut files)?;
        files.sort();
    } else {
        files.push(path.clone());
    }
    let mut text = String::new();
    for file in &files {
        text.push_str(&read_file(file)?);
        if files.len() > 1 && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if text.trim().is_empty() {
        return Err(ServerError::DataEmpty { path: path.clone() });
    }
    Ok(Text { text, entropy_floor: None })
}

/// Adds the files below `folder`, hidden ones left out.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ServerError> {
    let unreadable = |source| ServerError::DataUnreadable { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        // A link to a folder is not followed: it may lead back here.
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            list(&entry.path(), files)?;
        } else if !kind.is_symlink() || entry.path().is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<String, ServerError> {
    let unreadable = |source| ServerError::DataUnreadable { path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(unreadable)?;
    if let Some(offset) = bytes.iter().position(|&byte| byte == 0) {
        let why = "is zero, which text does not have";
        return Err(ServerError::DataBinary { path: path.to_owned(), offset: offset as u64, why });
    }
    String::from_utf8(bytes).map_err(|error| ServerError::DataBinary {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to() as u64,
        why: "starts no UTF-8 character",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_path(path: &Path) -> Result<String, ServerError> {
        let config = ServeConfig { data: Some(path.to_owned().into()), ..ServeConfig::default() };
        read(&config).map(|text| text.text)
    }

    #[test]
    fn names_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let check = |name: &str, bytes: &[u8], code| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            let error = read_path(&path).unwrap_err();
            assert_eq!(error.exit_code(), code, "{error}");
            assert!(error.to_string().contains(name), "{error}");
        };
        check("empty.txt", b"", 5);
        check("blank.txt", b" \n\n", 5);
        check("zero.bin", b"ab\0c", 6);
        check("latin1.txt", b"caf\xe9", 6);
        assert_eq!(read_path(&dir.path().join("none.txt")).unwrap_err().exit_code(), 4);
    }

    #[test]
    fn a_class_has_a_text_that_it_can_read() {
        let text = |data| read(&ServeConfig { data, ..ServeConfig::default() }).unwrap();
        let novel = text(Some(DataSource::BuiltIn(BuiltIn::Austen)));
        assert!(novel.text.is_ascii() && novel.entropy_floor.is_none());
        assert!(novel.text.lines().any(|line| line.starts_with("It is a truth universally acknowledged")));
        let grammar = text(Some(DataSource::BuiltIn(BuiltIn::Grammar)));
        assert!(grammar.text == text(None).text && grammar.entropy_floor.is_some());
    }

    #[test]
    fn reads_a_folder_in_order() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("b")).unwrap();
        for (name, text) in [("c.txt", "three\n"), ("b/x.txt", "two"), ("a.txt", "one"), (".hidden", "\0")] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(read_path(dir.path()).unwrap(), "one\ntwo\nthree\n");
    }
}
