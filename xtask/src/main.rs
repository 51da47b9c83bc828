//! `cargo xtask demo | test | bench | fuzz | gpu | web`: the only build logic.

#![expect(clippy::print_stdout, reason = "a command line tool answers on standard output")]
#![expect(clippy::disallowed_methods, reason = "a shell: it may read the clock")]

mod bench;
mod cargo;
mod demo;
mod fuzz;
mod gpu;
mod http;
mod test;
mod tools;
mod web;

use std::process::ExitCode;

use archipelago_cli::process::{GuardArgs, guard};
use clap::{Parser, Subcommand};

/// Builds, tests and measures Archipelago.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Trains on this machine: builds the programs and runs `syncer-server demo`, whose exit codes it has.
    Demo(Box<demo::Args>),
    /// Runs all checks, cheapest first, until one fails.
    Test(test::Args),
    /// Runs benchmarks: of one learner, of merging and coding, and of whole runs with links, faults and load.
    Bench(bench::Args),
    /// Searches for inputs that make a program fail.
    Fuzz(fuzz::Args),
    /// Builds, tests and measures the GPU engine on this machine, without a network.
    Gpu(gpu::Args),
    /// Builds the files for browsers: the engine as WebAssembly, the npm package, the pages.
    Web(web::Args),
    /// Starts a program that ends with the process which started this one.
    #[command(hide = true)]
    Guard(GuardArgs),
}

fn main() -> ExitCode {
    match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Test(args) => test::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Gpu(args) => gpu::run(&args),
        Verb::Web(args) => web::run(&args),
        Verb::Guard(args) => guard(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
