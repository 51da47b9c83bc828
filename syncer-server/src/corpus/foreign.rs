//! Detection of data formats by their first bytes. Compressed text is unpacked; other formats are refused, with a
//! command that converts them.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::memory::Budget;
use super::records::KNOWN;
use crate::errors::ServerError;

/// Largest ratio of unpacked to packed bytes. Text rarely exceeds 20; a decompression bomb reaches 1,000.
const UNPACK_RATIO_MAX: u64 = 256;

/// Unpacked bytes that are allowed at any ratio, since short files may be very repetitive.
const UNPACK_BYTES_MIN: u64 = 1 << 20;

/// Bytes at the start of a file that identify its format.
pub const HEAD_BYTES: usize = 512;

/// Extensions of downloaded data. A web page under such a name is an error; other files, such as program code, may
/// begin like a web page.
const DOWNLOADS: [&str; 10] =
    ["txt", "text", "json", "jsonl", "ndjson", "csv", "tsv", "parquet", "gz", "zst"];

/// Contents of files, in lower case, that servers send in place of a missing file.
const REFUSALS: [&str; 11] = [
    "entry not found",
    "repository not found",
    "invalid username or password.",
    "not found",
    "404 not found",
    "404: not found",
    "access denied",
    "forbidden",
    "403 forbidden",
    "unauthorized",
    "401 unauthorized",
];

/// Text of a file, and its compression.
#[derive(Debug)]
pub struct Unpacked {
    /// The whole text, without a byte order mark.
    pub text: String,
    /// Name of the compression, if there was one.
    pub packed_by: Option<&'static str>,
}

/// Refuses the file at `path` if `head`, its first [`HEAD_BYTES`] bytes, shows that it is neither text nor compressed.
///
/// # Errors
/// `DataForm`, `DataBinary`, as those of [`text`].
pub fn check_head(path: &Path, head: &[u8]) -> Result<(), ServerError> {
    match compression(head) {
        None => refuse_format(path, head, None).and_then(|()| refuse_zero(path, head)),
        Some(_) => Ok(()),
    }
}

/// Returns the text in `bytes`, the content of the file at `path`, and counts it in `budget`.
///
/// # Errors
/// - `DataForm`: its format is not supported, it is damaged, or it unpacks to more than [`UNPACK_RATIO_MAX`] times its
///   size.
/// - `DataBinary`: it is not UTF-8, or contains a zero byte.
/// - `Memory`: the text does not fit into `budget`.
pub fn text(path: &Path, bytes: Vec<u8>, budget: &mut Budget) -> Result<Unpacked, ServerError> {
    let (bytes, packed_by) = match compression(&bytes) {
        None => (bytes, None),
        Some(compression) => (compression.unpack(path, &bytes, budget)?, Some(compression.name())),
    };
    refuse_format(path, &bytes, packed_by)?;
    budget.take(bytes.len() as u64)?;
    let mut text = utf8(path, bytes)?;
    // A byte order mark is no part of the text.
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(Unpacked { text, packed_by })
}

/// Remedy for data that no conversion of characters makes text.
const BINARY_REMEDY: &str = "write the text that is in it to a UTF-8 file, or leave it out";

/// Returns true if `bytes` begin with control characters that no text has.
fn is_binary(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    head.iter().any(|&byte| byte < b'\t' || (0x0e..0x1a).contains(&byte))
}

/// Refuses `bytes`, packed by `packed_by`, if their format is not supported.
fn refuse_format(path: &Path, bytes: &[u8], packed_by: Option<&str>) -> Result<(), ServerError> {
    let name = packed_by.map_or_else(|| path.to_owned(), |_| without_packing(path));
    let Some((found, remedy)) = format(&name, bytes) else { return Ok(()) };
    let (found, remedy) = match packed_by {
        None => (found.to_owned(), remedy),
        Some(by) => (format!("{found}, packed by {by}"), format!("unpack it, and then {remedy}")),
    };
    Err(ServerError::DataForm { path: path.to_owned(), found, remedy })
}

fn refuse_zero(path: &Path, bytes: &[u8]) -> Result<(), ServerError> {
    let Some(offset) = bytes.iter().position(|&byte| byte == 0) else { return Ok(()) };
    let why = "is zero, which does not occur in text";
    Err(ServerError::DataBinary { path: path.to_owned(), offset: offset as u64, why, remedy: BINARY_REMEDY })
}

fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String, ServerError> {
    refuse_zero(path, &bytes)?;
    String::from_utf8(bytes).map_err(|error| ServerError::DataBinary {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to() as u64,
        why: "is not the start of a UTF-8 character",
        remedy: match is_binary(error.as_bytes()) {
            true => BINARY_REMEDY,
            false => "convert it to UTF-8 or leave it out",
        },
    })
}

/// First bytes of a zstd frame without content (RFC 8878, 3.1.2): one of these, and then [`SKIPPABLE_END`].
const SKIPPABLE: std::ops::RangeInclusive<u8> = 0x50..=0x5f;
const SKIPPABLE_END: [u8; 3] = [0x2a, 0x4d, 0x18];

/// Extensions that compression programs add to a file name.
const PACKED: [&str; 3] = ["gz", "zst", "zstd"];

/// Returns `path` without the extension of a compression.
pub fn without_packing(path: &Path) -> PathBuf {
    if is_called(path, &PACKED) { path.with_extension("") } else { path.to_owned() }
}

/// Extensions of zip archives that are documents.
const WORD_PROCESSOR: [&str; 3] = ["docx", "odt", "epub"];

/// Bytes that begin a block of bzip2 data, after the header.
const BZIP2_BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];

/// Supported compressions.
#[derive(Clone, Copy, Debug)]
enum Compression {
    Gzip,
    Zstd,
}

fn compression(bytes: &[u8]) -> Option<Compression> {
    match bytes {
        [0x1f, 0x8b, 0x08, ..] => Some(Compression::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstd),
        [first, rest @ ..] if SKIPPABLE.contains(first) && rest.starts_with(&SKIPPABLE_END) => {
            Some(Compression::Zstd)
        }
        _ => None,
    }
}

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// Unpacks `bytes`, the content of the file at `path`, and stops where their text no longer fits into `budget`.
    fn unpack(self, path: &Path, bytes: &[u8], budget: &Budget) -> Result<Vec<u8>, ServerError> {
        let bytes_max = unpacked_max(bytes.len() as u64);
        let unpack = match self {
            Self::Gzip => unpacked_by("gzip", path),
            Self::Zstd => unpacked_by("zstd --long=31", path),
        };
        let refused =
            |found: String, remedy: String| ServerError::DataForm { path: path.to_owned(), found, remedy };
        let (limit, mut rest) = (bytes_max.min(budget.left()), bytes);
        let unpacked = match self {
            Self::Gzip => take(MultiGzDecoder::new(&mut rest), limit),
            Self::Zstd => frames(&mut rest, limit),
        };
        let unpacked = unpacked.map_err(|error| {
            let remedy = format!("download it again if its end is missing, or {unpack}");
            refused(format!("{} data that cannot be unpacked ({error})", self.name()), remedy)
        })?;
        let found = unpacked.len() as u64;
        check_ratio(path, self.name(), bytes.len() as u64, found, || unpack)?;
        if found > limit {
            // The rest is taken to unpack to as many times its size as the part before.
            let share = (bytes.len() - rest.len()) as f64 / bytes.len() as f64;
            budget.check(found.max((found as f64 / share) as u64))?;
        }
        Ok(unpacked)
    }
}

/// Returns the maximum number of bytes to which `bytes` packed bytes may unpack.
pub fn unpacked_max(bytes: u64) -> u64 {
    UNPACK_RATIO_MAX.saturating_mul(bytes).max(UNPACK_BYTES_MIN)
}

/// Refuses a file of `bytes` bytes, packed by `packed_by`, that unpacks to `unpacked` bytes or more if that is too many
/// times its size.
pub fn check_ratio(
    path: &Path,
    packed_by: &str,
    bytes: u64,
    unpacked: u64,
    remedy: impl FnOnce() -> String,
) -> Result<(), ServerError> {
    if unpacked <= unpacked_max(bytes) {
        return Ok(());
    }
    let found = format!("{packed_by} data that unpacks to more than {UNPACK_RATIO_MAX} times its size");
    Err(ServerError::DataForm { path: path.to_owned(), found, remedy: remedy() })
}

/// Reads `reader` to its end, or until it has read one byte more than `bytes_max`.
fn take(reader: impl Read, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    reader.take(bytes_max.saturating_add(1)).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

/// Returns the content of all zstd frames in `bytes`; some programs write several. Stops as [`take`] does, and leaves
/// the unread rest in `bytes`.
fn frames(bytes: &mut &[u8], bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    while !bytes.is_empty() && unpacked.len() as u64 <= bytes_max {
        if let Some(rest) = after_skippable(bytes)? {
            *bytes = rest;
            continue;
        }
        let left = bytes_max - unpacked.len() as u64;
        let mut frame = StreamingDecoder::new(&mut *bytes).map_err(std::io::Error::other)?;
        frame.by_ref().take(left.saturating_add(1)).read_to_end(&mut unpacked)?;
    }
    Ok(unpacked)
}

/// Returns the bytes after the frame without content at the start of `bytes`; `None` if there is no such frame.
fn after_skippable(bytes: &[u8]) -> std::io::Result<Option<&[u8]>> {
    match bytes {
        [first, 0x2a, 0x4d, 0x18, rest @ ..] if SKIPPABLE.contains(first) => {
            let (length, rest) = rest.split_first_chunk().ok_or(std::io::ErrorKind::UnexpectedEof)?;
            let length = u32::from_le_bytes(*length) as usize;
            rest.get(length..).map(Some).ok_or(std::io::ErrorKind::UnexpectedEof.into())
        }
        _ => Ok(None),
    }
}

/// Returns the format of `bytes` and how to convert it, if the format is known but not supported.
fn format(path: &Path, bytes: &[u8]) -> Option<(&'static str, String)> {
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    let by_kind = archive(path, head).or_else(|| document(path, head)).or_else(|| binary(path, head));
    by_kind.or_else(|| text_form(path, head))
}

/// Returns the kind of an archive or of compressed data, and how to unpack it.
fn archive(path: &Path, head: &[u8]) -> Option<(&'static str, String)> {
    let begins = |magic: &[u8]| head.starts_with(magic);
    let unpack = |command: &str| format!("unpack it with `{command} {}`", quoted(path));
    let found = match () {
        () if compression(head).is_some() => ("compressed data", "unpack that as well".to_owned()),
        () if begins(b"BZh") && head.get(4..10) == Some(&BZIP2_BLOCK) => {
            ("bzip2 data", unpacked_by("bzip2", path))
        }
        () if begins(b"\xfd7zXZ\0") => ("xz data", unpacked_by("xz", path)),
        () if begins(b"\x5d\0\0") => ("lzma data", unpacked_by("xz --format=lzma", path)),
        () if begins(b"LZIP\x01") => ("lzip data", unpacked_by("lzip", path)),
        () if begins(b"\x04\x22\x4d\x18") || begins(b"\x02\x21\x4c\x18") => {
            ("lz4 data", unpacked_by("lz4", path))
        }
        () if begins(b"PK\x03\x04") && !is_called(path, &WORD_PROCESSOR) => {
            ("a zip archive", unpack("unzip"))
        }
        () if begins(b"\xff\x06\0\0sNaPpY") => ("snappy data", unpacked_by("snzip", path)),
        () if begins(b"7z\xbc\xaf\x27\x1c") => ("a 7-Zip archive", unpack("7z x")),
        () if begins(b"Rar!\x1a\x07") => ("a RAR archive", unpack("unrar x")),
        () if head.get(257..262) == Some(b"ustar") => ("a tar archive", unpack("tar xkf")),
        () => return None,
    };
    Some(found)
}

/// Returns the kind of a document or table in a binary format, and how to convert it.
fn document(path: &Path, head: &[u8]) -> Option<(&'static str, String)> {
    let begins = |magic: &[u8]| head.starts_with(magic);
    let found = match () {
        () if begins(b"PAR1") => ("a Parquet file", by_datasets("parquet", path)),
        () if begins(b"ARROW1") => ("an Arrow file", by_datasets("arrow", path)),
        () if begins(b"\xff\xff\xff\xff") => ("an Arrow stream", by_datasets("arrow", path)),
        () if begins(b"\xff\xfe\0\0") || begins(b"\0\0\xfe\xff") => ("UTF-32 text", recoded("UTF-32", path)),
        () if begins(b"\xff\xfe") || begins(b"\xfe\xff") => ("UTF-16 text", recoded("UTF-16", path)),
        () if begins(b"{\\rtf") => (
            "a document of a word processor",
            format!(
                "convert it with `pandoc -f rtf -t plain -o {} {}`",
                quoted(&output(path, "txt")),
                quoted(path)
            ),
        ),
        () if begins(b"%!PS") => (
            "a PostScript document",
            format!("extract its text with `ps2ascii {} {}`", quoted(path), quoted(&output(path, "txt"))),
        ),
        () if begins(b"%PDF-") => (
            "a PDF document",
            format!("extract its text with `pdftotext {} {}`", quoted(path), quoted(&output(path, "txt"))),
        ),
        () if begins(b"PK\x03\x04") && is_called(path, &WORD_PROCESSOR) => (
            "a document of a word processor",
            format!("convert it with `pandoc -t plain -o {} {}`", quoted(&output(path, "txt")), quoted(path)),
        ),
        () if begins(b"SQLite format 3\0") => (
            "an SQLite database",
            format!(
                "write one column as lines of JSON, as `sqlite3 -json {} 'SELECT text FROM …'`",
                quoted(path)
            ),
        ),
        () => return None,
    };
    Some(found)
}

/// Returns the kind of a file of a program, and what to do with it.
fn binary(path: &Path, head: &[u8]) -> Option<(&'static str, String)> {
    let begins = |magic: &[u8]| head.starts_with(magic) && is_binary(head);
    let by_pandas = |kind: &str| {
        format!(
            "convert it with `python -c \"import pandas; pandas.read_{kind}('{}').to_json('{}', orient='records', \
             lines=True)\"`",
            python(path),
            python(&output(path, "jsonl"))
        )
    };
    let found = match () {
        () if begins(b"Obj\x01") => (
            "an Avro file",
            format!(
                "convert it with `python -c \"import fastavro, json; [print(json.dumps(row)) for row in \
                 fastavro.reader(open('{}', 'rb'))]\" > {}`",
                python(path),
                quoted(&output(path, "jsonl"))
            ),
        ),
        () if begins(b"ORC") => ("an ORC file", by_pandas("orc")),
        () if begins(b"FEA1") => ("a Feather file", by_pandas("feather")),
        () if begins(b"\x93NUMPY") => {
            ("an array of NumPy", "give the text that the array was made from".to_owned())
        }
        () if begins(b"\x80") && head.get(1).is_some_and(|version| (2..=5).contains(version)) => {
            ("a Python pickle", "write its texts to lines of JSON with the program that made it".to_owned())
        }
        () if begins(b"\x89HDF\r\n\x1a\n") => {
            ("an HDF5 file", "write its texts to lines of JSON, for example with h5py".to_owned())
        }
        () if begins(b"GGUF") || head.get(8..10) == Some(b"{\"") && head.get(5..8) == Some(&[0; 3]) => {
            ("the weights of a model", "leave it out; --init begins a run with a model's folder".to_owned())
        }
        () if begins(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1") => (
            "a file of Microsoft Office, or of Windows",
            "save a document as UTF-8 text, or leave the file out".to_owned(),
        ),
        () => {
            let encoding = utf16(head)?;
            ("UTF-16 text without a byte order mark", recoded(encoding, path))
        }
    };
    Some(found)
}

/// Returns the name of the encoding if `head` is the beginning of UTF-16 text without a byte order mark. Such text has
/// no control characters, and at least one in sixteen characters is ASCII, such as a blank.
fn utf16(head: &[u8]) -> Option<&'static str> {
    const ASCII_SHARE: usize = 16;
    let ascii = |order: fn([u8; 2]) -> u16| {
        let units = head.chunks_exact(2).map(|pair| order([pair[0], pair[1]]));
        let chars: Vec<_> = char::decode_utf16(units).collect();
        // The limit may cut the last character in half.
        let whole = &chars[..chars.len().saturating_sub(1)];
        let is_text = |c: &Result<char, _>| c.as_ref().is_ok_and(|c| !c.is_control() || c.is_whitespace());
        let count = whole.iter().filter(|c| c.as_ref().is_ok_and(char::is_ascii)).count();
        if whole.iter().all(is_text) && count * ASCII_SHARE >= whole.len() { count } else { 0 }
    };
    match (ascii(u16::from_le_bytes), ascii(u16::from_be_bytes)) {
        (0, 0) => None,
        (little, big) if little > big => Some("UTF-16LE"),
        _ => Some("UTF-16BE"),
    }
}

/// Returns the kind of a text that needs conversion before training, and how to convert it.
fn text_form(path: &Path, head: &[u8]) -> Option<(&'static str, String)> {
    let is_download = path.extension().is_none() || is_called(path, &DOWNLOADS);
    let found = match () {
        () if head.starts_with(b"version https://git-lfs.github.com/spec/") => (
            "a git-lfs pointer, which stands for a file that was not fetched",
            "fetch the file itself with `git lfs pull` in that folder".to_owned(),
        ),
        () if is_download && is_html(head) => (
            "an HTML page, as servers send in place of a file that needs a login",
            "download the file again, or convert the page with `pandoc -t plain`".to_owned(),
        ),
        () if is_download && is_refusal(head) => (
            "a server's error message in place of a file",
            "download the file again; it may have moved, or need a login".to_owned(),
        ),
        () if is_called(path, &["tsv"]) => ("a table", table(path, '\t')),
        () if is_called(path, &["csv"]) => ("a table", table(path, delimiter(head).unwrap_or(','))),
        () if delimiter(head).is_some() => ("a table", table(path, delimiter(head).unwrap_or(','))),
        () if all_lines(head, 0, |line| line.starts_with("data: {") || line == "data: [DONE]") => (
            "lines of an event stream",
            format!(
                "keep their JSON with `sed -n 's/^data: *{{/{{/p' {} > {}`",
                quoted(path),
                quoted(&output(path, "jsonl"))
            ),
        ),
        () if is_download && is_python_list(head) => (
            "a list of Python dictionaries, which are not JSON",
            from_python("row", "row in ast.literal_eval(FILE.read())", path),
        ),
        () if all_lines(head, 0, is_python_dict) || is_download && all_lines(head, 1, is_python_dict) => (
            "Python dictionaries, which are not JSON",
            from_python(
                "ast.literal_eval(line.strip().rstrip(','))",
                "line in FILE if line.lstrip().startswith('{')",
                path,
            ),
        ),
        () => return None,
    };
    Some(found)
}

/// Returns a command that unpacks `path`. With `-c` the program accepts any name, and keeps the packed file.
fn unpacked_by(program: &str, path: &Path) -> String {
    let end = match path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase).as_deref() {
        Some("tgz" | "tbz2" | "txz" | "tzst") => "tar",
        Some("gz" | "bz2" | "xz" | "lzma" | "lz" | "lz4" | "zst" | "zstd" | "sz") => "",
        _ => "unpacked.txt",
    };
    format!("unpack it with `{program} -dc {} > {}`", quoted(path), quoted(&output(path, end)))
}

/// Returns a command that converts a text from `encoding` to UTF-8.
fn recoded(encoding: &str, path: &Path) -> String {
    let text = output(path, "utf8.txt");
    format!("convert it with `iconv -f {encoding} -t UTF-8 {} > {}`", quoted(path), quoted(&text))
}

/// Returns the beginning of a text in lower case, without the XML declaration and comments before the first element.
fn markup(head: &[u8]) -> String {
    let head = String::from_utf8_lossy(head).trim_start_matches('\u{feff}').to_ascii_lowercase();
    let mut rest = head.trim_start();
    for (begin, end) in [("<?xml", "?>"), ("<!--", "-->")] {
        while let Some((_, after)) = rest.strip_prefix(begin).and_then(|inside| inside.split_once(end)) {
            rest = after.trim_start();
        }
    }
    rest.to_owned()
}

/// Returns true if a text begins like a web page.
fn is_html(head: &[u8]) -> bool {
    let head = markup(head);
    ["<!doctype html", "<html", "<head>", "<head ", "<body>", "<body "]
        .iter()
        .any(|begin| head.starts_with(begin))
}

/// Returns true if a text is an error message of a file server or of object storage.
fn is_refusal(head: &[u8]) -> bool {
    let head = markup(head);
    REFUSALS.contains(&head.trim_end())
        || head.starts_with("<error>") && head.contains("<code>")
        || head.starts_with("access to ") && head.contains(" is restricted. you must ")
}

/// Returns true if the extension of `path` is one of `ends`, in upper or lower case.
pub fn is_called(path: &Path, ends: &[&str]) -> bool {
    path.extension().is_some_and(|end| ends.iter().any(|known| end.eq_ignore_ascii_case(known)))
}

/// Returns a command that converts a file with the library `datasets` to lines of JSON.
pub fn by_datasets(kind: &str, path: &Path) -> String {
    format!(
        "convert it with `python -c \"from datasets import load_dataset; load_dataset('{kind}', data_files='{}', \
         split='train').to_json('{}')\"`",
        python(path),
        python(&output(path, "jsonl"))
    )
}

/// Returns the delimiter of the table that `head` begins with; `None` unless its first line names a column of
/// [`KNOWN`].
fn delimiter(head: &[u8]) -> Option<char> {
    let head = String::from_utf8_lossy(head);
    let first = head.trim_start_matches('\u{feff}').lines().next().filter(|line| line.len() < head.len())?;
    let is_name =
        |cell: &str| !cell.is_empty() && cell.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
    [',', '\t', ';'].into_iter().find(|&delimiter| {
        let cells: Vec<_> = first.split(delimiter).map(|cell| cell.trim().trim_matches('"')).collect();
        cells.len() > 1
            && cells.iter().all(|cell| is_name(cell))
            && cells.iter().any(|cell| KNOWN.contains(cell))
    })
}

/// Returns true if `wanted` holds for each line of `head` that is not blank, after the first `skipped` lines, and there
/// is such a line.
fn all_lines(head: &[u8], skipped: usize, wanted: impl Fn(&str) -> bool) -> bool {
    let head_text = String::from_utf8_lossy(head);
    let mut lines =
        head_text.trim_start_matches('\u{feff}').split('\n').map(str::trim_end).skip(skipped).peekable();
    // The limit may cut off the last line. It is then ignored, unless it is the only one.
    let mut found = 0;
    while let Some(line) = lines.next() {
        let is_cut = lines.peek().is_none() && head.len() == HEAD_BYTES && found > 0;
        match line.is_empty() || is_cut {
            true => {}
            false if wanted(line) => found += 1,
            false => return false,
        }
    }
    found > 0
}

/// Returns true if `line` begins like the dictionary of a document, as Python prints it.
fn is_python_dict(line: &str) -> bool {
    let key = line.strip_prefix("{'").and_then(|rest| rest.split_once("': "));
    key.is_some_and(|(key, _)| !key.contains('\''))
}

/// Returns true if a text begins like a list of such dictionaries.
fn is_python_list(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    head.trim_start_matches('\u{feff}')
        .trim_start()
        .strip_prefix('[')
        .is_some_and(|rest| is_python_dict(rest.trim_start()))
}

/// Returns a command that writes `row` as JSON for each of `rows`, in which `FILE` stands for the opened file.
fn from_python(row: &str, rows: &str, path: &Path) -> String {
    let file = format!("open('{}', encoding='utf-8-sig')", python(path));
    format!(
        "convert them with `python -c \"import ast, json; [print(json.dumps({row})) for {}]\" > {}`",
        rows.replace("FILE", &file),
        quoted(&output(path, "jsonl"))
    )
}

/// Returns a command that converts a table to lines of JSON, one for each row.
fn table(path: &Path, delimiter: char) -> String {
    let delimiter = match delimiter {
        ',' => String::new(),
        other => format!(", delimiter='{}'", other.escape_default()),
    };
    format!(
        "convert it with `python -c \"import csv, json; [print(json.dumps(row)) for row in csv.DictReader(open('{}', \
         newline='', encoding='utf-8-sig'){delimiter})]\" > {}`, with a column named text, or prompt and completion",
        python(path),
        quoted(&output(path, "jsonl"))
    )
}

/// Returns a path for a command's result: `path` with the extension `end`, and with a number if a file of that name
/// exists or is `path` itself. A shell empties the file behind `>` before the command reads its input.
pub fn output(path: &Path, end: &str) -> PathBuf {
    let is_free = |result: &PathBuf| result != path && result.symlink_metadata().is_err();
    let numbered =
        (2_u64..).map(|number| path.with_extension(format!("{number}.{end}").trim_end_matches('.')));
    let mut names = std::iter::once(path.with_extension(end)).chain(numbered);
    names.find(is_free).unwrap_or_else(|| path.with_extension("converted"))
}

/// Escapes `path` for a Python string literal inside `python -c "…"`. The literal's own quotes are not included.
pub fn python(path: &Path) -> String {
    let escaped = |c: char| match c {
        '\'' | '"' | '\\' | '$' | '`' | '!' | '\n' => format!("\\x{:02x}", u32::from(c)),
        _ => c.to_string(),
    };
    path.display().to_string().chars().map(escaped).collect()
}

/// Returns `path` quoted for a shell.
pub fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:@%".contains(c);
    match path.chars().all(plain) {
        true => path,
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests;
