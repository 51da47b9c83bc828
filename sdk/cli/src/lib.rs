//! Command line, settings files and exit codes of our programs.
//!
//! A program declares its settings once, as `clap` structs. This crate adds what all programs have in common: an
//! environment variable for each flag, a TOML file with the same settings, and exit codes in the help.
//!
//! | file | concept |
//! |---|---|
//! | `layers` | flag over environment over file over default |
//! | `file` | a TOML file whose keys are flags |
//! | `program` | exit codes, the sentence that a program ends with, and standard output that may be closed or full |
//! | `units` | durations, sizes and counts of tokens as people write them, and settings out of range |
//! | `memory` | available memory, on the machine and in a container |
//! | `method` | the settings of the method itself and of a mixture of experts |
//! | `demo` | the flags of the demo |
//! | `process` | child processes that never outlive their parent |
//! | `plot` | plots as SVG, and numbers as people read them |

#![forbid(unsafe_code)]

mod demo;
mod file;
mod layers;
mod memory;
mod method;
pub mod plot;
pub mod process;
mod program;
mod units;

use std::convert::Infallible;

use archipelago_core::text::link_of;

pub use archipelago_core::text::plain;
pub use demo::DemoArgs;
pub use file::{FileError, key_of, with_key};
pub use layers::{CliError, ParsedCommand, Sources, command, defaults, from_toml, keys, parse, parse_over};
pub use memory::available_bytes;
pub use method::{ExchangeArgs, ExpertArgs, OuterArgs, RoundArgs, as_written, one_of};
pub use program::{Program, fail, output_fault, say, write};
pub use units::{Bytes, SettingError, Span, UnitError, range, some_time, some_tokens, tokens, within};

/// Parses a secret: removes surrounding blanks and the newline that an editor or `echo` adds.
///
/// # Errors
/// None.
pub fn secret(text: &str) -> Result<String, Infallible> {
    Ok(text.trim().to_owned())
}

/// Parses a link or an invite: removes surrounding blanks, newlines, quotes, brackets and punctuation.
///
/// # Errors
/// None.
pub fn link(text: &str) -> Result<String, Infallible> {
    Ok(link_of(text).to_owned())
}
