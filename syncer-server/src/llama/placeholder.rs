//! Detection of placeholder files: pointers of git-lfs, and web pages of a server that refused a download.

/// First bytes of a git-lfs pointer.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// First bytes of a web page, in lower case.
const PAGE: [&[u8]; 2] = [b"<!doctype html", b"<html"];

/// Returns the kind of a placeholder file that begins with `bytes`, and a remedy. Returns `None` for other files.
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

/// Bytes at the start of a file that suffice for [`placeholder`], including leading blanks.
pub(super) const BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_pages_are_told_from_files() {
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
