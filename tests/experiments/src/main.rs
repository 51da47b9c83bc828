//! The program `simulate`: the paper's tables next to ours.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use archipelago_cli::{CliError, fail, parse};
use archipelago_experiments::{Cli, Exit, run};

fn main() -> ExitCode {
    let given = match parse::<Cli>(std::env::args_os()) {
        Ok(given) => given,
        Err(CliError::Usage(error)) => error.exit(),
        Err(CliError::File(error, _)) => return fail(&error, Exit::Settings),
    };
    match run(&given.cli, &mut |line| say(std::io::stderr().lock(), line)) {
        Ok(answer) => say(std::io::stdout().lock(), &answer),
        Err(error) => return fail(&error, error.exit()),
    }
    ExitCode::SUCCESS
}

/// The reader may close the pipe early, as `head` does; that is no failure.
fn say(mut to: impl Write, line: &str) {
    let _ = writeln!(to, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: runs continue if a log is full or has no reader.
    #[test]
    fn unwritable_output_does_not_stop_a_run() {
        let mut full = [0; 3];
        say(&mut full[..], "1 of 4");
        assert_eq!(&full, b"1 o");
    }
}
