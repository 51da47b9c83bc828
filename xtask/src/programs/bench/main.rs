//! Benchmarks that need the SDK: `cargo xtask bench` runs this program and shows its output.

#![expect(clippy::print_stdout, reason = "a command line tool answers on standard output")]

mod exchange;
mod learner;

use std::process::ExitCode;

use serde_json::Value;

/// Runs the benchmark named by the first argument, and prints its figures as one line of JSON.
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
