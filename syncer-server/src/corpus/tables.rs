//! Documents in Parquet files: each row of the columns that documents have becomes a line of JSON.

use std::fs::File;
use std::path::Path;

use super::foreign::{Unpacked, by_datasets, check_ratio, unpacked_max};
use super::memory::Budget;
use super::parquet::{Limits, MAGIC, Node, ParquetError, Table};
use super::records::KNOWN;
use crate::errors::ServerError;

/// Name of the format, as reports give it.
pub const PARQUET: &str = "Parquet";

/// Columns that documents have besides those of [`KNOWN`].
const OTHERS: [&str; 9] = [
    "input",
    "context",
    "response",
    "tools",
    "functions",
    "documents",
    "chat_template_kwargs",
    "label",
    "kto_tag",
];

/// Maximum number of columns that an error names.
const SHOWN: usize = 8;

/// Maximum length of their names in it, in characters.
const NAME_CHARS_MAX: usize = 40;

/// Returns true if `head` is the beginning of a Parquet file.
pub fn is_table(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Returns the rows of the Parquet file at `path` as lines of JSON, and counts them in `budget`. They have the column
/// `column`, or without it all columns of documents.
///
/// # Errors
/// - `DataUnreadable`: the file cannot be read.
/// - `DataForm`: it is damaged, has a feature that is not supported, or lacks these columns.
/// - `Memory`: the rows do not fit into `budget`.
pub fn lines(path: &Path, column: Option<&str>, budget: &mut Budget) -> Result<Unpacked, ServerError> {
    let unreadable = |source| ServerError::DataUnreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let file_bytes = file.metadata().map_err(unreadable)?.len();
    let failed = |error: Fault| match error {
        Fault::Server(error) => error,
        Fault::Parquet(ParquetError::Read(source)) => unreadable(source),
        Fault::Parquet(error) => ServerError::DataForm {
            path: path.to_owned(),
            found: format!("a Parquet file that cannot be read ({error})"),
            remedy: format!("download it again if its end is missing, or {}", by_datasets("parquet", path)),
        },
    };
    let mut table = Table::open(file).map_err(|error| failed(error.into()))?;
    let wanted = wanted(path, table.columns(), column)?;
    let wanted: Vec<(usize, &str)> = wanted.iter().map(|(at, name)| (*at, name.as_str())).collect();
    let mut leaves = 0;
    wanted.iter().for_each(|(at, _)| table.columns()[*at].leaves(&mut |_| leaves += 1));
    let (mut text, within) = (String::new(), &*budget);
    let fits = |bytes: u64| {
        within.check(bytes)?;
        check_ratio(path, PARQUET, file_bytes, bytes, || by_datasets("parquet", path))
    };
    let row_bytes = unpacked_max(file_bytes).min(within.left());
    let limits = Limits { row_bytes, page_bytes: within.left() };
    let read = table.rows(&wanted, limits, &mut |bytes| Ok(within.check(bytes)?), &mut |row| {
        fits((text.len() + row.len() + 1) as u64)?;
        text.push_str(row);
        text.push('\n');
        Ok(())
    });
    match read {
        Err(Fault::Parquet(ParquetError::Long { bytes_max })) => fits(bytes_max.saturating_add(1))?,
        Err(Fault::Parquet(ParquetError::Page { bytes })) => within.check(bytes.saturating_mul(leaves))?,
        _ => {}
    }
    read.map_err(failed)?;
    budget.take(text.len() as u64)?;
    Ok(Unpacked { text, packed_by: Some(PARQUET) })
}

/// Fault of a file, or of this machine.
enum Fault {
    Parquet(ParquetError),
    Server(ServerError),
}

impl From<ParquetError> for Fault {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

impl From<ServerError> for Fault {
    fn from(error: ServerError) -> Self {
        Self::Server(error)
    }
}

/// Returns the indices and names of the columns to read.
fn wanted(path: &Path, columns: &[Node], column: Option<&str>) -> Result<Vec<(usize, String)>, ServerError> {
    let is_wanted = |name: &str| match column {
        Some(column) => name == column,
        None => KNOWN.contains(&name) || OTHERS.contains(&name),
    };
    let is_enough = |name: &str| column.is_some() || KNOWN.contains(&name);
    let named = columns.iter().enumerate().map(|(at, node)| (at, node.name.clone()));
    let wanted: Vec<(usize, String)> = named.filter(|(_, name)| is_wanted(name)).collect();
    if wanted.iter().any(|(_, name)| is_enough(name)) {
        return Ok(wanted);
    }
    let lacks = match column {
        Some(column) => format!("without the column {column}"),
        None => "without a column that documents have, such as text, messages or prompt".to_owned(),
    };
    let short = |node: &Node| {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        node.name.chars().take(NAME_CHARS_MAX).map(plain).collect::<String>()
    };
    let mut names: Vec<String> = columns.iter().take(SHOWN).map(short).collect();
    if columns.len() > SHOWN {
        names.push("…".to_owned());
    }
    let found = format!("a Parquet file {lacks}; it has {}", names.join(", "));
    let remedy = "name the column of the text with --column".to_owned();
    Err(ServerError::DataForm { path: path.to_owned(), found, remedy })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Rows of each file of the same table.
    const EXPECTED: &str = include_str!("../../tests/parquet/expected.jsonl");

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet").join(format!("{name}.parquet"))
    }

    fn read(path: &Path, column: Option<&str>) -> Result<String, String> {
        let found = lines(path, column, &mut Budget::new(None));
        found.map(|found| found.text).map_err(|error| error.to_string())
    }

    fn parsed(lines: &str) -> Vec<serde_json::Value> {
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn each_form_of_a_table_has_the_same_rows() {
        let mut expected = parsed(EXPECTED);
        expected.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("id")));
        for name in ["snappy", "zstd", "gzip", "lz4", "plain", "delta"] {
            let found = read(&fixture(name), None).unwrap();
            assert_eq!(parsed(&found), expected, "{name}");
            assert!(found.starts_with("{\"text\":"), "the columns keep their order: {found}");
        }
        let texts = read(&fixture("snappy"), Some("text")).unwrap();
        assert_eq!(texts.lines().nth(4), Some("{\"text\":null}"));
        assert_eq!(texts.lines().count(), expected.len());
        assert_eq!(read(&fixture("empty"), None).unwrap(), "");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let refused = |path: &Path, column: Option<&str>, parts: &[&str]| {
            let error = read(path, column).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        let columns = ["it has id, body, lists", "name the column of the text with --column"];
        refused(&fixture("other"), None, &columns);
        refused(&fixture("other"), Some("text"), &["without the column text", columns[0]]);
        refused(&fixture("brotli"), None, &["packed by Brotli", "load_dataset('parquet'"]);
        refused(&fixture("binary"), None, &["a text is not UTF-8"]);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let whole = fs::read(fixture("snappy")).unwrap();
        for (bytes, part) in [
            (&whole[..whole.len() - 1], "its end is missing"),
            (&whole[..whole.len() / 2], "its end is missing"),
            (&whole[..9], "it is too short"),
            (&[&whole[..], b"PARE"].concat()[..], "it is encrypted"),
            (
                &[b"PAR1", &u32::MAX.to_le_bytes()[..], b"PAR1"].concat(),
                "its description has 4294967295 bytes",
            ),
            (&[b"PAR1", &999_u32.to_le_bytes()[..], b"PAR1"].concat(), "longer than the file"),
            (&[b"PAR1\x19\x7c", &2_u32.to_le_bytes()[..], b"PAR1"].concat(), "its description ends early"),
        ] {
            fs::write(&path, bytes).unwrap();
            refused(&path, None, &[part]);
        }
    }

    /// Goal: no content of a file causes a panic, or takes memory beyond the budget.
    #[test]
    fn damaged_files_are_refused_without_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.parquet");
        let mut refused = 0;
        for name in ["zstd", "delta", "lz4"] {
            let whole = fs::read(fixture(name)).unwrap();
            for at in (4..whole.len()).step_by(3) {
                let mut bytes = whole.clone();
                bytes[at] = if at % 2 == 0 { 0xff } else { bytes[at].wrapping_add(1) };
                fs::write(&path, &bytes).unwrap();
                let found = lines(&path, None, &mut Budget::new(Some(64 << 20)));
                refused += usize::from(found.is_err());
            }
        }
        assert!(refused > 500, "{refused}");
    }

    /// Goal: a small file cannot describe a large row or page.
    #[test]
    fn bombs_are_refused() {
        let refused = |name: &str, available: Option<u64>| {
            lines(&fixture(name), None, &mut Budget::new(available)).unwrap_err()
        };
        let error = refused("bomb", None);
        assert_eq!(error.exit_code(), 6, "{error}");
        assert!(error.to_string().contains("unpacks to more than 256 times its size"), "{error}");
        assert_eq!(refused("bomb", Some(4 << 20)).exit_code(), 18);
        assert_eq!(refused("page", Some(10 << 20)).exit_code(), 18);
    }

    #[test]
    fn rows_beyond_the_memory_are_refused() {
        let mut budget = Budget::new(Some(10 * EXPECTED.len() as u64 / 2));
        let error = lines(&fixture("zstd"), None, &mut budget).unwrap_err();
        assert_eq!(error.exit_code(), 18, "{error}");
        let mut budget = Budget::new(Some(20 * EXPECTED.len() as u64));
        let found = lines(&fixture("zstd"), None, &mut budget).unwrap();
        assert_eq!(budget.left(), 2 * EXPECTED.len() as u64 - found.text.len() as u64);
    }
}
