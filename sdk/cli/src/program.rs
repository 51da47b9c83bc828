//! Exit codes of programs, and writing to standard output, which may be closed or lead to a full disk.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write, stderr};
use std::process::ExitCode;
use std::sync::OnceLock;

use archipelago_core::text::plain;

/// A program's command line, with its documented exit codes.
pub trait Program: clap::Parser {
    /// Exit codes and their meanings. The help of the program and of each verb lists them.
    const EXIT_CODES: &[(u8, &str)];
    /// Settings without an environment variable, as verb and id. They name the object of a single call, so a variable
    /// that was set for another verb must not change them.
    const WITHOUT_TWIN: &[(&str, &str)] = &[];

    /// Returns true if the setting `id` of `verb` has an environment variable.
    #[must_use]
    fn has_twin(verb: &str, id: &str) -> bool {
        !Self::WITHOUT_TWIN.contains(&(verb, id))
    }
}

/// Declares the exit codes of a program: an enum, and the table in its help.
///
/// ```
/// archipelago_cli::exit_codes! {
///     /// How the program ends.
///     pub enum Exit {
///         Done = 0, "all went well";
///         Lost = 12, "the way was not found";
///     }
/// }
/// assert_eq!(Exit::TABLE[1], (12, "the way was not found"));
/// assert_eq!(u8::from(Exit::Lost), 12);
/// ```
#[macro_export]
macro_rules! exit_codes {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($code:ident = $number:literal, $meaning:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        $vis enum $name {
            $(#[doc = $meaning] $code = $number,)+
        }

        impl $name {
            /// Exit codes and their meanings, as in the help.
            $vis const TABLE: &'static [(u8, &'static str)] = &[$((Self::$code as u8, $meaning)),+];
        }

        impl From<$name> for u8 {
            fn from(exit: $name) -> Self {
                exit as Self
            }
        }
    };
}

/// Returns the exit codes and their meanings as text for the help.
pub(crate) fn exit_help(codes: &[(u8, &str)]) -> String {
    let rows = codes.iter().map(|(code, meaning)| format!("\n{code:5}  {meaning}"));
    format!("Exit codes:{}", rows.collect::<String>())
}

/// Prints the reason of a failure to standard error and returns its exit code. Characters in `why` that could control
/// a terminal are replaced.
pub fn fail(why: &impl Display, exit: impl Into<u8>) -> ExitCode {
    let why = why.to_string();
    let lines: Vec<String> = why.lines().map(plain).collect();
    // If standard error is closed, the failure cannot be reported.
    let _told = writeln!(stderr(), "error: {}", lines.join("\n"));
    ExitCode::from(exit.into())
}

/// First error in writing to standard output.
static FAULT: OnceLock<String> = OnceLock::new();

/// Writes a line to standard output. Errors are ignored, so that they do not stop a program that trains or serves. A
/// program whose purpose is its output calls [`output_fault`] at the end.
pub fn say(line: &impl Display) {
    drop(write(format_args!("{line}\n")));
}

/// Writes `text` to standard output and flushes it.
///
/// # Errors
/// Those of the operating system. Further writing is useless after one.
pub fn write(text: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).inspect_err(|error| {
        // It is not an error if the reader closes the pipe, as `head` does.
        if error.kind() != ErrorKind::BrokenPipe {
            drop(FAULT.set(error.to_string()));
        }
    })
}

/// Returns the first error in writing to standard output. A closed pipe is not an error.
#[must_use]
pub fn output_fault() -> Option<&'static str> {
    FAULT.get().map(String::as_str)
}
