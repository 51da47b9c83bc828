//! Small files of a model folder, which are read as a whole.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::LlamaError;
use super::reader::open;

/// Maximum size of a `config.json` or of a file index, in bytes.
pub(super) const JSON_BYTES_MAX: u64 = 16 << 20;

/// Byte order marks of UTF-8 and of both forms of UTF-16.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

/// Reads a file of at most `bytes_max` bytes.
pub(super) fn bytes(path: &Path, name: &str, bytes_max: u64) -> Result<Vec<u8>, LlamaError> {
    let file = open(path, name)?;
    let mut bytes = Vec::new();
    let read = file.take(bytes_max + 1).read_to_end(&mut bytes);
    let read = read.map_err(|source| LlamaError::Read { file: name.to_owned(), source })?;
    check_len(name, read as u64, bytes_max)?;
    Ok(bytes)
}

/// Reads a small JSON file whose value is an object.
///
/// # Errors
/// - `Read`, `Long`: the file cannot be read, or is too large.
/// - `Form`: the file is no JSON object.
pub(super) fn object(path: &Path, name: &str) -> Result<Map<String, Value>, LlamaError> {
    let bytes = bytes(path, name, JSON_BYTES_MAX)?;
    check_json(name, &bytes)?;
    match serde_json::from_slice(&bytes).map_err(|error| LlamaError::form(name, error))? {
        Value::Object(object) => Ok(object),
        _ => Err(LlamaError::form(name, "it is not a JSON object")),
    }
}

/// Checks `bytes`, the beginning of a JSON file. Other kinds of files are refused, and files that Python would not
/// read.
///
/// # Errors
/// `Form`, with the kind of the file and a remedy.
pub fn check_json(name: &str, bytes: &[u8]) -> Result<(), LlamaError> {
    if let Some(why) = placeholder(bytes) {
        return Err(LlamaError::form(name, why));
    }
    match BYTE_ORDER_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
        true => Err(LlamaError::form(name, "it begins with a byte order mark: save it as UTF-8 without one")),
        false => Ok(()),
    }
}

/// Checks that a file has at most `bytes_max` bytes.
pub(super) fn check_len(name: &str, bytes: u64, bytes_max: u64) -> Result<(), LlamaError> {
    match bytes <= bytes_max {
        true => Ok(()),
        false => Err(LlamaError::Long { file: name.to_owned(), bytes, bytes_max }),
    }
}

/// First bytes of a git-lfs pointer.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// First bytes of a web page, in lower case.
const PAGE: [&[u8]; 2] = [b"<!doctype html", b"<html"];

/// Returns a description and a remedy if a file that begins with `bytes` is a placeholder. Returns `None` otherwise.
#[must_use]
pub fn placeholder(bytes: &[u8]) -> Option<&'static str> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let begins = |with: &[u8]| text.get(..with.len()).is_some_and(|first| first.eq_ignore_ascii_case(with));
    if begins(POINTER) {
        Some(
            "it is a git-lfs pointer and not the file itself: run `git lfs pull` in the folder, or download the \
             folder with `hf download`",
        )
    } else if PAGE.into_iter().any(begins) {
        Some(
            "it is a web page (HTML) and not the file itself: download it again, and log in first if it is not public",
        )
    } else {
        None
    }
}

/// Number of bytes at the start of a file that suffice for [`placeholder`], including leading blanks.
pub(super) const BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_pages_are_recognised() {
        let said = |bytes: &[u8]| placeholder(bytes).unwrap_or_default();
        assert!(
            said(b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n")
                .contains("git lfs pull")
        );
        assert!(said(b"\n<!DOCTYPE html><html>").contains("HTML") && said(b"<HTML>").contains("HTML"));
        for file in [&b"{}"[..], b"", b"\x10\0\0\0\0\0\0\0{}", b"version 1", b"<h1>"] {
            assert_eq!(placeholder(file), None, "{file:?}");
        }
    }
}
