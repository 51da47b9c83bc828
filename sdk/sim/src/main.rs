//! The program `simulate`: the paper's tables beside ours.

#![forbid(unsafe_code)]

mod experiments;

use std::io::Write;
use std::process::ExitCode;

use archipelago_cli::{CliError, fail, parse};

use experiments::{Cli, Exit, run};

fn main() -> ExitCode {
    let given = match parse::<Cli>(std::env::args_os()) {
        Ok(given) => given,
        Err(CliError::Usage(error)) => error.exit(),
        Err(CliError::File(error, _)) => return fail(&error, Exit::Settings),
    };
    match run(&given.cli, &mut |line| eprintln!("{line}")) {
        Ok(answer) => say(&answer),
        Err(error) => return fail(&error, error.exit()),
    }
    ExitCode::SUCCESS
}

/// Who reads may have had enough, as `head` has; that is no failure of ours.
fn say(answer: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{answer}");
}
