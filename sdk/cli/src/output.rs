//! Standard output that may be closed, or go to a disk that is full.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// Why standard output could not be written first.
static FAULT: OnceLock<String> = OnceLock::new();

/// Writes a line to standard output. A program that trains or serves goes on if nobody reads it; one that was to print
/// its results asks [`output_fault`] at its end.
pub fn say(line: &impl Display) {
    drop(write(format_args!("{line}\n")));
}

/// Writes `text` to standard output, all of it before this returns.
///
/// # Errors
/// The errors of the operating system, after which there is no use in writing more.
pub fn write(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).inspect_err(|error| {
        // A reader that closes the pipe, as `head` does, has read enough.
        if error.kind() != ErrorKind::BrokenPipe {
            drop(FAULT.set(error.to_string()));
        }
    })
}

/// Returns why something could not be written to standard output, if it could not; a closed pipe is no fault.
#[must_use]
pub fn output_fault() -> Option<&'static str> {
    FAULT.get().map(String::as_str)
}
