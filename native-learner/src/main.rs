//! The program `native-learner`: lends this machine to a run.
//!
//! | file | concept |
//! |---|---|
//! | `cli`, `exit` | commands and their settings; exit codes |
//! | `join` | participation in a run |
//! | `bench`, `doctor` | training speed of this machine; checks of its setup |
//! | `compute`, `tunings` | the training engine; stored measurements of GPU kernels |
//! | `keys` | the learner's key: display, export and import |
//! | `show` | output for people and programs |

#![forbid(unsafe_code)]

mod bench;
mod cli;
mod compute;
mod doctor;
mod exit;
mod join;
mod keys;
mod show;
mod tunings;

use std::process::ExitCode;

use archipelago_cli::{CliError, fail, output_fault, parse};
use archipelago_runtime::platform::silence_display;

use cli::{Cli, Verb};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    let given = match parse::<Cli>(std::env::args_os()) {
        Ok(given) => given,
        Err(CliError::Usage(error)) => error.exit(),
        Err(CliError::File(error, sources)) => {
            return show::failure(&Failure::usage(error), sources.is_on("json"));
        }
    };
    let json = given.cli.verb.json();
    let joins = matches!(given.cli.verb, Verb::Join(_));
    if given.cli.verb.may_take_gpu() {
        silence_display();
    }
    let done = match given.cli.verb {
        Verb::Join(args) => join::join(&args),
        Verb::Bench(args) => bench::bench(&args),
        Verb::Doctor(args) => doctor::doctor(&args),
        Verb::Identity(args) => keys::identity(&args),
    };
    match done {
        Ok(()) => match output_fault().filter(|_| !joins) {
            Some(error) => fail(&format!("cannot write to standard output: {error}"), Exit::Failed),
            None => ExitCode::SUCCESS,
        },
        Err(failure) => show::failure(&failure, json),
    }
}
