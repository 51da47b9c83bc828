//! The binary `archipelago-demo`: parses flags, runs a demo and returns its exit code.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use archipelago_demo::{Args, EXIT_CODES, Setup, guard, run};
use clap::{Parser, Subcommand};

/// Trains on this machine: a syncer and learners as processes, over WebSockets.
#[derive(Parser)]
#[command(name = "archipelago-demo", version, after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    args: Args,
    #[command(flatten)]
    setup: Setup,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// Starts a program that ends with the process which started this one.
    #[command(hide = true)]
    Guard(guard::Args),
}

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a shell: it may read the clock")]
    let start = Instant::now();
    let Cli { args, setup, verb } = Cli::parse();
    match verb {
        Some(Verb::Guard(args)) => guard::run(&args),
        None => run(&args, &setup, start),
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
