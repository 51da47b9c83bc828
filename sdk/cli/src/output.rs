//! Writing to standard output, which may be closed or lead to a full disk.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// First error of writing to standard output.
static FAULT: OnceLock<String> = OnceLock::new();

/// Writes a line to standard output. Errors do not stop a program that trains or serves. A program whose purpose is to
/// print results calls [`output_fault`] at its end.
pub fn say(line: &impl Display) {
    drop(write(format_args!("{line}\n")));
}

/// Writes `text` to standard output and flushes it.
///
/// # Errors
/// The errors of the operating system. Writing more is useless after one.
pub fn write(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).inspect_err(|error| {
        // A reader that closes the pipe, as `head` does, is not an error.
        if error.kind() != ErrorKind::BrokenPipe {
            drop(FAULT.set(error.to_string()));
        }
    })
}

/// Returns the first error of writing to standard output. A closed pipe is not an error.
#[must_use]
pub fn output_fault() -> Option<&'static str> {
    FAULT.get().map(String::as_str)
}
