//! Text from a file, a folder, or a built-in source.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use archipelago_core::data::{grammar, pictures};

use super::documents::Lines;
use super::foreign::{self, Unpacked, is_called};
use super::memory::Budget;
use super::records::{TextKind, detect_kind};
use super::tables;
use crate::config::{BuiltIn, DataSource, ServeConfig};
use crate::errors::ServerError;

/// Text of a run before tokenisation.
pub enum Source {
    /// Plain text; all its tokens are targets.
    Text(Text),
    /// Files of documents.
    Lines(Vec<Lines>),
}

impl Source {
    /// Returns true if there are documents. Some of them may be conversations.
    #[must_use]
    pub fn has_documents(&self) -> bool {
        matches!(self, Self::Lines(_))
    }

    /// Returns the size of the unpacked text in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes: usize = match self {
            Self::Text(text) => text.text.len(),
            Self::Lines(files) => files.iter().map(|file| file.text.len()).sum(),
        };
        bytes as u64
    }
}

/// Plain text with its properties.
#[derive(Default)]
pub struct Text {
    /// The whole text.
    pub text: String,
    /// Entropy of the text's source in nats per byte, if known.
    pub entropy_floor: Option<f64>,
    /// Name of its compression, if any.
    pub packed_by: Option<&'static str>,
    /// Warnings for the owner, one sentence each.
    pub warnings: Vec<String>,
}

/// Built-in novel. Its origin and licence are documented next to the file.
const AUSTEN: &str = include_str!("../../assets/austen.txt");

/// Extensions of files whose lines are documents.
const LINES: [&str; 2] = ["jsonl", "ndjson"];

/// Returns true if the name of `file` says that its lines are documents.
fn is_of_lines(file: &Path) -> bool {
    is_called(&foreign::without_packing(file), &LINES)
}

/// Returns the file `path`, or the files below the folder `path`, sorted by path.
fn files(path: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let unreadable =
        |source| ServerError::DataUnreadable { path: path.to_owned(), source: explained(path, source) };
    let mut files = Vec::new();
    if fs::metadata(path).map_err(unreadable)?.is_dir() {
        list(path, &mut files)?;
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    files.iter().try_for_each(|file| check_kind(file))?;
    Ok(files)
}

/// Refuses pipes and devices, which may never end.
fn check_kind(path: &Path) -> Result<(), ServerError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let why = "it is a pipe or a device; write its content to a file, since a run reads its text again when \
                 it restarts";
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            Err(ServerError::DataUnreadable { path: path.to_owned(), source })
        }
        // A file that no longer exists causes an error when it is read.
        _ => Ok(()),
    }
}

/// Adds instructions for fetching a data set to `error`, if `path` looks like the name of one and no such file exists.
fn explained(path: &Path, error: io::Error) -> io::Error {
    let Some(name) = path.to_str().filter(|_| error.kind() == io::ErrorKind::NotFound) else { return error };
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '~'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let written = foreign::output(Path::new("data"), "jsonl");
    let written = written.display();
    let of_hub = name.strip_prefix("hf://datasets/").unwrap_or(name);
    let is_of_hub = of_hub.split_once('/').is_some_and(|(user, set)| part(user) && part(set));
    let why = match () {
        () if is_of_hub => format!(
            "there is no such file or folder; if it is a data set of the Hugging Face Hub, write it with `python -c \
             \"from datasets import load_dataset; load_dataset('{of_hub}', split='train').to_json('{written}')\"` \
             and give --data {written}"
        ),
        () if name.contains("://") => {
            "addresses are not fetched; download it, for example with `curl -LO --no-clobber`, and give --data the file"
                .to_owned()
        }
        () if name.starts_with("~/") => "~ is not expanded here; write the whole path".to_owned(),
        () => return error,
    };
    io::Error::new(io::ErrorKind::NotFound, why)
}

/// Returns the text that `config` names. Files with a JSON object per line, or with a list of them, are documents, and
/// so are all files called `….jsonl`, and the rows of Parquet files.
///
/// # Errors
/// - `Config`: the path is empty.
/// - `DataUnreadable`: the data is missing or cannot be read.
/// - `DataEmpty`: the data contains no text.
/// - `DataBinary`, `DataForm`: a file is not UTF-8 text, or its format is not supported.
/// - `DataMixed`: some files have documents, and others do not.
/// - `Memory`: the data is larger than the memory of this machine.
pub fn read(config: &ServeConfig) -> Result<Source, ServerError> {
    let corpus_bytes = usize::try_from(config.identity.corpus_bytes.0).unwrap_or(usize::MAX);
    if !matches!(config.data, Some(DataSource::BuiltIn(BuiltIn::Austen) | DataSource::Path(_))) {
        Budget::of_machine().check(config.identity.corpus_bytes.0)?;
    }
    let (text, entropy_floor) = match config.data.as_ref().unwrap_or(&DataSource::BuiltIn(BuiltIn::Grammar)) {
        DataSource::BuiltIn(BuiltIn::Grammar) => {
            (grammar::generate(config.identity.seed, corpus_bytes), Some(grammar::entropy_nats_per_byte()))
        }
        DataSource::BuiltIn(BuiltIn::Pictures) => {
            (pictures::generate(config.identity.seed, corpus_bytes), Some(pictures::entropy_nats_per_byte()))
        }
        DataSource::BuiltIn(BuiltIn::Austen) => (AUSTEN.to_owned(), None),
        DataSource::Path(path) => return read_path(path, config.identity.column.as_deref()),
    };
    Ok(Source::Text(Text { text, entropy_floor, ..Text::default() }))
}

fn read_path(path: &Path, column: Option<&str>) -> Result<Source, ServerError> {
    if path.as_os_str().is_empty() {
        let why = "--data is empty: give it a UTF-8 text file or a folder of them, or leave it out for built-in text";
        return Err(ServerError::Config { why: why.to_owned() });
    }
    let (mut read, files) = (Vec::new(), files(path)?);
    let are_tables = files.iter().map(|file| check_head(file)).collect::<Result<Vec<_>, _>>()?;
    // Packed files count by their own size here, and by that of their text while they are unpacked. Of tables only some
    // columns are read.
    let is_whole = files.iter().zip(&are_tables).filter(|(_, is_table)| !**is_table);
    let bytes = is_whole.filter_map(|(file, _)| fs::metadata(file).ok()).map(|file| file.len()).sum();
    let mut budget = Budget::of_machine();
    budget.check(bytes)?;
    for (path, is_table) in files.into_iter().zip(are_tables) {
        let (unpacked, kind) = match is_table {
            true => (tables::lines(&path, column, &mut budget)?, TextKind::Records { is_known: true }),
            false => {
                let unpacked = read_file(&path, &mut budget)?;
                let kind = detect_kind(&unpacked.text);
                (unpacked, kind)
            }
        };
        read.push((path, unpacked, kind));
    }
    if read.iter().all(|(_, Unpacked { text, .. }, _)| text.trim().is_empty()) {
        return Err(ServerError::DataEmpty { path: path.to_owned() });
    }
    let is_known =
        |path: &Path, kind: &TextKind| is_of_lines(path) || *kind == TextKind::Records { is_known: true };
    let is_record =
        |path: &Path, kind: &TextKind| is_of_lines(path) || matches!(kind, TextKind::Records { .. });
    let of_lines = || read.iter().filter(|(path, _, kind)| is_known(path, kind));
    // Data sets have parts for training and for tests.
    let is_train =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("train"));
    let first = of_lines().find(|(path, ..)| is_train(path)).or_else(|| of_lines().next());
    let other = read.iter().find(|(path, _, kind)| !is_record(path, kind));
    match (first, other) {
        (Some((lines, ..)), Some((other, ..))) => {
            Err(ServerError::DataMixed { lines: lines.clone(), other: other.clone() })
        }
        (None, Some(_)) => as_text(read).map(Source::Text),
        (_, None) => {
            let lines = |(path, Unpacked { text, packed_by }, _)| Lines { path, text, packed_by };
            Ok(Source::Lines(read.into_iter().map(lines).collect()))
        }
    }
}

/// Joins `files` to one text, with a warning if any are JSON or markup. A single JSON object around documents is
/// refused.
fn as_text(mut files: Vec<(PathBuf, Unpacked, TextKind)>) -> Result<Text, ServerError> {
    if let [(path, _, TextKind::Object { holds: Some(holds) })] = &files[..] {
        let list = foreign::output(path, "jsonl");
        let remedy = format!(
            "write them in lines with `python -c \"import json; [print(json.dumps(row)) for row in \
             json.load(open('{}', \
             encoding='utf-8')){holds}]\" > {}`",
            foreign::python(path),
            foreign::quoted(&list)
        );
        let found = "one JSON object that contains the documents".to_owned();
        return Err(ServerError::DataForm { path: path.clone(), found, remedy });
    }
    let packed_by = files.iter().find_map(|(_, unpacked, _)| unpacked.packed_by);
    let mut unconverted = files.iter().filter(|(path, _, kind)| *kind != TextKind::Text || is_markup(path));
    let warnings = unconverted.next().map(|(path, _, kind)| {
        let (more, verb) = match unconverted.count() {
            0 => (String::new(), "is"),
            more => (format!(" and {more} more"), "are"),
        };
        let kind = match kind {
            TextKind::Text if is_called(path, &["json"]) => "no valid JSON",
            TextKind::Text => "markup",
            _ => "JSON",
        };
        format!(
            "{}{more} {verb} {kind} and trained on as plain text: to train on its content, write that to files that \
             end in .jsonl",
            path.display()
        )
    });
    let mut text = match &mut files[..] {
        [(_, only, _)] => std::mem::take(&mut only.text),
        _ => String::new(),
    };
    if files.len() > 1 {
        for (_, unpacked, _) in files {
            text.push_str(&unpacked.text);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
    }
    Ok(Text { text, entropy_floor: None, packed_by, warnings: warnings.into_iter().collect() })
}

/// Returns true if the name of `file` says that it is a web page or other text with markup.
fn is_markup(file: &Path) -> bool {
    is_called(file, &["html", "htm", "xhtml", "xml", "yaml", "yml", "json"])
}

/// Appends the files below `folder` to `files`, except hidden ones.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ServerError> {
    let unreadable = |source| ServerError::DataUnreadable { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        // Links to folders are not followed, because they may form a cycle.
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            list(&entry.path(), files)?;
        } else if !kind.is_symlink() || entry.path().is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Refuses a file that is no text by its first bytes, since it may be too large to be read whole. Returns true if it is
/// a table.
fn check_head(path: &Path) -> Result<bool, ServerError> {
    let mut head = Vec::new();
    let found =
        fs::File::open(path).and_then(|file| file.take(foreign::HEAD_BYTES as u64).read_to_end(&mut head));
    found.map_err(|source| ServerError::DataUnreadable { path: path.to_owned(), source })?;
    match tables::is_table(&head) {
        true => Ok(true),
        false => foreign::check_head(path, &head).map(|()| false),
    }
}

fn read_file(path: &Path, budget: &mut Budget) -> Result<Unpacked, ServerError> {
    let bytes = fs::read(path);
    let bytes = bytes.map_err(|source| ServerError::DataUnreadable { path: path.to_owned(), source })?;
    foreign::text(path, bytes, budget)
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
        let why = read_path(Path::new("")).unwrap_err().to_string();
        assert!(why.contains("--data is empty: give it"), "{why}");
    }

    /// Goal: tables are read alone and in a folder, and only text next to them is refused.
    #[test]
    fn tables_are_documents() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet");
        let dir = tempfile::tempdir().unwrap();
        let read = |path: &Path, column: Option<&str>| {
            let config = ServeConfig { data: Some(path.to_owned().into()), ..ServeConfig::default() };
            read(&config.with(|it| it.identity.column = column.map(str::to_owned)))
        };
        for (from, to) in [("zstd", "a"), ("snappy", "b")] {
            fs::copy(fixtures.join(format!("{from}.parquet")), dir.path().join(to)).unwrap();
        }
        let Ok(Source::Lines(files)) = read(dir.path(), None) else { panic!("these are documents") };
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|file| file.packed_by == Some("Parquet") && file.text == files[0].text));
        let Ok(Source::Lines(files)) = read(&fixtures.join("other.parquet"), Some("body")) else {
            panic!("these are documents")
        };
        assert_eq!(files[0].text, "{\"body\":\"one\"}\n{\"body\":\"two\"}\n");
        let error = read(&fixtures.join("empty.parquet"), None).map(|_| ()).unwrap_err();
        assert_eq!(error.exit_code(), 5, "{error}");
        let error = read(&fixtures.join("other.parquet"), None).map(|_| ()).unwrap_err();
        assert_eq!(error.exit_code(), 6, "{error}");
        fs::write(dir.path().join("notes.txt"), "plain words").unwrap();
        let error = read(dir.path(), None).map(|_| ()).unwrap_err();
        assert!(matches!(error, ServerError::DataMixed { .. }), "{error}");
    }

    #[test]
    fn builtin_texts_are_readable() {
        let text = |data| text(read(&ServeConfig { data, ..ServeConfig::default() }).unwrap());
        let novel = text(Some(DataSource::BuiltIn(BuiltIn::Austen)));
        assert!(novel.text.is_ascii() && novel.entropy_floor.is_none());
        assert!(novel.text.lines().any(|line| line.starts_with("It is a truth universally acknowledged")));
        let grammar = text(Some(DataSource::BuiltIn(BuiltIn::Grammar)));
        assert!(grammar.text == text(None).text && grammar.entropy_floor.is_some());
    }

    /// Goal: pipes and devices, which may never end, are not read.
    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe.txt");
        fs::write(dir.path().join("a.txt"), "one").unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&pipe, dir.path(), Path::new("/dev/zero")] {
            let why = read_path(path).unwrap_err().to_string();
            assert!(why.contains("it is a pipe or a device; write"), "{why}");
        }
    }

    #[test]
    fn text_beyond_memory_is_refused() {
        let config =
            ServeConfig::default().with(|it| it.identity.corpus_bytes = archipelago_cli::Bytes(u64::MAX));
        assert!(matches!(read(&config).map(|_| ()), Err(ServerError::Memory { .. })));
    }

    #[test]
    fn files_that_are_no_text_are_refused_before_they_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.arrow");
        fs::write(&path, b"ARROW1").unwrap();
        // A sparse file: reading it whole would fail for lack of memory.
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let why = read_path(&path).unwrap_err().to_string();
        assert!(why.contains("is an Arrow file"), "{why}");
        fs::write(&path, b"").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let why = read_path(&path).unwrap_err().to_string();
        assert!(why.contains("byte 0 is zero"), "{why}");
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

    fn read_named(name: &str, text: &str) -> Result<Source, ServerError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        read(&ServeConfig { data: Some(path.into()), ..ServeConfig::default() })
    }

    #[test]
    fn json_is_documents_under_any_name() {
        let line = r#"{"messages": []}"#;
        let list = "[\n  {\"instruction\": \"a\", \"output\": \"b\"}\n]";
        let between = format!("{line},\n{line},\n");
        let headed = format!("// exported\n{}", format!("{line}\n").repeat(20));
        let texts = [
            &format!("\u{feff}{line}\n\n{line}\n"),
            line,
            list,
            "{\"q\": 1}\n{\"q\": 2}\n",
            &between,
            &headed,
        ];
        for text in texts {
            for name in ["chats.json", "chats.txt", "chats", "chats.jsonl", "chats.ndjson"] {
                assert!(read_named(name, text).unwrap().has_documents(), "{name}: {text}");
            }
        }
        assert!(is_of_lines(Path::new("a.jsonl.gz")) && is_of_lines(Path::new("a.JSONL.ZST")));
        assert!(!is_of_lines(Path::new("a.json.gz")) && !is_of_lines(Path::new("jsonl")));
    }

    #[test]
    fn json_read_as_plain_text_is_warned_of() {
        let warnings = |name: &str, bytes: &str| text(read_named(name, bytes).unwrap()).warnings;
        assert_eq!(warnings("poem.txt", "[Verse 1]\nthe lamp\n"), [""; 0]);
        assert_eq!(warnings("prose.txt", "{\"messages\": []}\nsaid he\n"), [""; 0]);
        let found = warnings("package.json", "{\"name\": \"lamp\"}").remove(0);
        assert!(found.contains("package.json is JSON and trained on as plain text"), "{found}");
        let found = warnings("list.json", "// mine\n[{\"text\": \"a\"}]").remove(0);
        assert!(found.contains("list.json is no valid JSON and trained on as plain text"), "{found}");
        let found = warnings("page.html", "<!doctype html>").remove(0);
        assert!(found.contains("page.html is markup and trained on as plain text"), "{found}");
        let why =
            read_named("all.json", "{\"data\": [{\"text\": \"a\"}]}").map(|_| ()).unwrap_err().to_string();
        assert!(
            why.contains("that contains the documents") && why.contains("encoding='utf-8'))['data']]"),
            "{why}"
        );
    }

    /// Goal: program code with a file of settings is read as text.
    #[test]
    fn a_folder_of_code_may_have_json_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let files =
            [("a.py", "print(1)\n"), ("b.json", "[{\"q\": 1}]"), ("c.json", "{\"q\": 1}"), ("d.json", "[1]")];
        let code = format!("export default [\n{}];\n", "{\"text\": \"the lamp is lit\"},\n".repeat(20));
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let data = Some(dir.path().to_owned().into());
        let found = text(read(&ServeConfig { data, ..ServeConfig::default() }).unwrap());
        assert_eq!(found.text, "print(1)\n[{\"q\": 1}]\n{\"q\": 1}\n[1]\n");
        assert!(found.warnings[0].contains("b.json and 2 more are JSON"), "{:?}", found.warnings);
        fs::write(dir.path().join("e.js"), code).unwrap();
        let data = Some(dir.path().to_owned().into());
        let found = text(read(&ServeConfig { data, ..ServeConfig::default() }).unwrap());
        assert!(found.warnings[0].contains("b.json and 3 more are JSON"), "{:?}", found.warnings);
    }

    #[test]
    fn names_that_are_no_files_are_explained() {
        let why = |path: &str| read_path(Path::new(path)).unwrap_err().to_string();
        let hub = why("lamp-keepers/ships");
        assert!(
            hub.contains("load_dataset('lamp-keepers/ships', split='train').to_json('data.jsonl')"),
            "{hub}"
        );
        assert!(why("hf://datasets/a/b").contains("load_dataset('a/b'"));
        assert!(why("https://example.org/a.txt").contains("addresses are not fetched"));
        assert!(why("~/a.txt").contains("~ is not expanded"));
        assert!(!why("none/of/these.txt").contains("load_dataset"));
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
        fs::write(dir.path().join("z-train.jsonl"), "3\n").unwrap();
        let train = dir.path().join("z-train.jsonl");
        let why = read_dir().map(|_| ()).unwrap_err().to_string();
        assert!(why.contains(&format!("give --data {}, or", train.display())), "{why}");
        fs::remove_file(train).unwrap();
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
