//! Text from a file, a folder, or one that the program brings along.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::data::{grammar, pictures};

use super::documents::{self, Lines};
use crate::config::{BuiltIn, DataSource, ServeConfig};
use crate::errors::ServerError;

/// What a run trains on, before it is cut into tokens.
pub enum Source {
    /// One text that is learnt whole.
    Text(Text),
    /// Files whose lines are documents.
    Lines(Vec<Lines>),
}

/// A text and what is known of it.
pub struct Text {
    /// All of it.
    pub text: String,
    /// Entropy of its source in nats per byte, where that is known.
    pub entropy_floor: Option<f64>,
    /// A file that is learnt as plain text, and looks as if its lines were documents.
    pub like_lines: Option<PathBuf>,
}

/// What it is and why anybody may have it stands beside it.
const AUSTEN: &str = include_str!("../../assets/austen.txt");

/// How the name of a file ends whose lines are documents.
const LINES: &str = "jsonl";

/// Whether `config` names files whose lines are documents, as far as the names tell.
pub fn has_lines(config: &ServeConfig) -> bool {
    let Some(DataSource::Path(path)) = &config.data else { return false };
    files(path).is_ok_and(|files| files.iter().any(|file| is_of_lines(file)))
}

fn is_of_lines(file: &Path) -> bool {
    file.extension().is_some_and(|end| end.eq_ignore_ascii_case(LINES))
}

/// The files that `path` is, or that are below it, in order.
fn files(path: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let unreadable = |source| ServerError::DataUnreadable { path: path.to_owned(), source };
    let mut files = Vec::new();
    if fs::metadata(path).map_err(unreadable)?.is_dir() {
        list(path, &mut files)?;
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    Ok(files)
}

/// The text that `config` names. A file called `….jsonl` has documents in its lines, and so has a folder of such files.
///
/// # Errors
/// - `DataUnreadable`: it is not there, or may not be read.
/// - `DataEmpty`: there is no text in it.
/// - `DataBinary`: a file is not UTF-8, or holds a zero byte.
/// - `DataMixed`: some files have documents in their lines, and others do not.
pub fn read(config: &ServeConfig) -> Result<Source, ServerError> {
    let path = match config.data.as_ref().unwrap_or(&DataSource::BuiltIn(BuiltIn::Grammar)) {
        DataSource::BuiltIn(BuiltIn::Grammar) => {
            let bytes = usize::try_from(config.corpus_bytes.0).unwrap_or(usize::MAX);
            let entropy_floor = Some(grammar::entropy_nats_per_byte());
            let text = grammar::generate(config.seed, bytes);
            return Ok(Source::Text(Text { text, entropy_floor, like_lines: None }));
        }
        DataSource::BuiltIn(BuiltIn::Pictures) => {
            let bytes = usize::try_from(config.corpus_bytes.0).unwrap_or(usize::MAX);
            let entropy_floor = Some(pictures::entropy_nats_per_byte());
            let text = pictures::generate(config.seed, bytes);
            return Ok(Source::Text(Text { text, entropy_floor, like_lines: None }));
        }
        DataSource::BuiltIn(BuiltIn::Austen) => {
            let text = AUSTEN.to_owned();
            return Ok(Source::Text(Text { text, entropy_floor: None, like_lines: None }));
        }
        DataSource::Path(path) => path,
    };
    let files = files(path)?;
    if let Some(first) = files.iter().find(|file| is_of_lines(file)) {
        if let Some(other) = files.iter().find(|file| !is_of_lines(file)) {
            return Err(ServerError::DataMixed { lines: first.clone(), other: other.clone() });
        }
        return lines(path, files).map(Source::Lines);
    }
    let (mut text, mut like_lines) = (String::new(), None);
    for file in &files {
        let read = read_file(file)?;
        if like_lines.is_none() && documents::look_like(&read) {
            like_lines = Some(file.clone());
        }
        text.push_str(&read);
        if files.len() > 1 && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if text.trim().is_empty() {
        return Err(ServerError::DataEmpty { path: path.clone() });
    }
    Ok(Source::Text(Text { text, entropy_floor: None, like_lines }))
}

fn lines(path: &Path, files: Vec<PathBuf>) -> Result<Vec<Lines>, ServerError> {
    let mut read = Vec::with_capacity(files.len());
    for path in files {
        let text = read_file(&path)?;
        // Some programs write a mark of the order of bytes first, which is no part of the first line.
        read.push(Lines { text: text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text), path });
    }
    match read.iter().all(|file| file.text.trim().is_empty()) {
        true => Err(ServerError::DataEmpty { path: path.to_owned() }),
        false => Ok(read),
    }
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
        read(&config).map(|source| text(source).text)
    }

    fn text(source: Source) -> Text {
        match source {
            Source::Text(text) => text,
            Source::Lines(_) => panic!("these are lines"),
        }
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
        let text = |data| text(read(&ServeConfig { data, ..ServeConfig::default() }).unwrap());
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

    #[test]
    fn a_file_of_lines_under_another_name_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let like_lines = |name: &str, bytes: &str| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            let data = Some(path.clone().into());
            let found = text(read(&ServeConfig { data, ..ServeConfig::default() }).unwrap()).like_lines;
            assert!(found.as_ref().is_none_or(|found| *found == path));
            found.is_some()
        };
        let line = r#"{"messages": []}"#;
        assert!(like_lines("chats.json", &format!("\u{feff}{line}\n\n{line}\n")));
        assert!(like_lines("a.txt", "{\"text\": \"a\"}\n{\"prompt\": \"b\", \"completion\": \"\"}\n"));
        // One line is not enough to tell, and neither are other objects, nor one line that is something else.
        assert!(!like_lines("one.txt", line));
        assert!(!like_lines("other.json", "{\"a\": 1}\n{\"a\": 2}\n"));
        assert!(!like_lines("prose.txt", &format!("{line}\n{line}\nsaid he\n")));
        assert!(!like_lines("list.json", "[1]\n[2]\n"));
    }

    #[test]
    fn a_folder_has_documents_in_all_files_or_in_none() {
        let dir = tempfile::tempdir().unwrap();
        let read_dir = || {
            let data = Some(dir.path().to_owned().into());
            read(&ServeConfig { data, ..ServeConfig::default() })
        };
        fs::write(dir.path().join("b.jsonl"), "2\n").unwrap();
        fs::write(dir.path().join("a.JSONL"), "1\n").unwrap();
        let Source::Lines(files) = read_dir().unwrap() else { panic!("a text") };
        assert_eq!(files.iter().map(|file| file.text.as_str()).collect::<String>(), "1\n2\n");
        fs::write(dir.path().join("c.txt"), "three\n").unwrap();
        let error = read_dir().map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("a.JSONL") && error.to_string().contains("c.txt"), "{error}");
        for name in ["a.JSONL", "b.jsonl"] {
            fs::write(dir.path().join(name), "\n").unwrap();
        }
        fs::remove_file(dir.path().join("c.txt")).unwrap();
        assert_eq!(read_dir().map(|_| ()).unwrap_err().exit_code(), 5);
        fs::write(dir.path().join("a.JSONL"), "\u{feff}1\n").unwrap();
        let Source::Lines(files) = read_dir().unwrap() else { panic!("a text") };
        assert_eq!(files[0].text, "1\n", "a mark of the order of bytes is no part of a line");
    }
}
