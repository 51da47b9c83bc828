//! How a program ends.

use std::fmt::Display;
use std::io::{Write, stderr};
use std::process::ExitCode;

use archipelago_core::text::plain;

/// A program's command line, with the exit codes that it promises.
pub trait Program: clap::Parser {
    /// Each exit code and what it means. The help of the program and of each verb lists them.
    const EXIT_CODES: &[(u8, &str)];
    /// Settings without a twin in the environment, as verb and id: they say what is looked at or done this once, and
    /// a variable that is set for another verb must not divert that.
    const WITHOUT_TWIN: &[(&str, &str)] = &[];

    /// Whether the setting `id` of `verb` has a twin in the environment.
    #[must_use]
    fn has_twin(verb: &str, id: &str) -> bool {
        !Self::WITHOUT_TWIN.contains(&(verb, id))
    }
}

/// Declares the exit codes of a program: an enum of them, and the table that its help shows.
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
            /// Each code and what it means, as the help shows them.
            $vis const TABLE: &'static [(u8, &'static str)] = &[$((Self::$code as u8, $meaning)),+];
        }

        impl From<$name> for u8 {
            fn from(exit: $name) -> Self {
                exit as Self
            }
        }
    };
}

/// The exit codes as the help shows them.
pub(crate) fn exit_help(codes: &[(u8, &str)]) -> String {
    let rows = codes.iter().map(|(code, meaning)| format!("\n{code:5}  {meaning}"));
    format!("Exit codes:{}", rows.collect::<String>())
}

/// Prints why a program failed to standard error and returns its exit code. Control characters in `why` are replaced,
/// so that they cannot steer a terminal.
pub fn fail(why: &impl Display, exit: impl Into<u8>) -> ExitCode {
    let why = why.to_string();
    let lines: Vec<String> = why.lines().map(plain).collect();
    // If standard error is closed, nobody can be told.
    let _told = writeln!(stderr(), "error: {}", lines.join("\n"));
    ExitCode::from(exit.into())
}
