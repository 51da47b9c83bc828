//! Command line, settings files and exit codes of our programs.
//!
//! A program declares its settings once, as structs of `clap`. This crate adds what all programs share: an environment
//! variable for each flag, a TOML file with the same settings, and exit codes in the help.
//!
//! | file | concept |
//! |---|---|
//! | `layers` | flag over environment over file over default |
//! | `file` | a TOML file whose keys are flags |
//! | `program` | exit codes, and the sentence that a program ends with |
//! | `units` | durations, sizes and counts of tokens as people write them |
//! | `memory` | available memory, on the machine and in a container |
//! | `range` | settings that are out of range |
//! | `copied` | secrets and links as people copy them |
//! | `experts` | a mixture of experts |
//! | `method` | the settings of the method itself |
//! | `demo` | the flags of the demo |
//! | `process` | child processes that never outlive their parent |
//! | `output` | standard output that may be closed or full |
//! | `plot` | plots as SVG, and numbers as people read them |

#![forbid(unsafe_code)]

mod copied;
mod demo;
mod experts;
mod file;
mod layers;
mod memory;
mod method;
mod output;
pub mod plot;
pub mod process;
mod program;
mod range;
mod units;

pub use archipelago_core::text::plain;
pub use copied::{link, secret};
pub use demo::DemoArgs;
pub use experts::ExpertArgs;
pub use file::{FileError, key_of, with_key};
pub use layers::{CliError, Given, Sources, command, defaults, from_toml, parse, parse_over};
pub use memory::available_bytes;
pub use method::{MethodArgs, as_written, one_of};
pub use output::{output_fault, say, write};
pub use program::{Program, fail};
pub use range::{SettingError, range, within};
pub use units::{Bytes, Span, UnitError, some_time, some_tokens, tokens};
