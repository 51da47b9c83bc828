//! `cargo xtask demo | test | bench`: the only build logic.

#![expect(clippy::print_stdout, reason = "a command line tool answers on standard output")]
#![expect(clippy::disallowed_methods, reason = "a shell: it may read the clock")]

mod cargo;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests and shows Archipelago.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs every check, cheapest first; stops at the first that fails.
    Test(test::Args),
}

fn main() -> ExitCode {
    match Cli::parse().verb {
        Verb::Test(args) => test::run(&args),
    }
}
