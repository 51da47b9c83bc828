//! The learner's command line: lends this machine to a run.
//!
//! A library so that tests can start a learner within their own process; the command is [`main`].

mod bench;
mod cli;
mod compute;
mod config;
mod doctor;
mod exit;
mod identity;
mod join;
mod machine;
mod show;
mod tunings;
mod units;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Verb};
pub use exit::{Exit, Failure};
pub use identity::{IdentityError, IdentityLock};
pub use units::{DurationError, parse_duration_ms};

/// Runs the command that the arguments ask for.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.verb.json();
    let done = match cli.verb {
        Verb::Join(args) => join::join(args),
        Verb::Bench(args) => bench::bench(args),
        Verb::Doctor(args) => doctor::doctor(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            show::failure(&failure, json);
            failure.exit.into()
        }
    }
}
