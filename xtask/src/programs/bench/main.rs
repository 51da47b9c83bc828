//! The figures that need the SDK itself: `cargo xtask bench` runs this and shows what it prints.

#![expect(clippy::print_stdout, reason = "a command line tool answers on standard output")]

mod exchange;
mod learner;

use std::process::ExitCode;

use serde_json::Value;

/// Prints the figures of the one that the first argument names, as one line of JSON.
fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let measure: fn() -> Value = match name.as_str() {
        "learner" => learner::learner,
        "merge" => exchange::merge,
        "codec" => exchange::codec,
        _ => {
            eprintln!("error: there is no bench `{name}`; choose learner, merge or codec");
            return ExitCode::from(2);
        }
    };
    println!("{}", measure());
    ExitCode::SUCCESS
}
