//! `cargo xtask test`: every check of the repository, in order of cost.

mod api;
mod apt;
mod bare;
mod browsers;
mod cluster;
mod commands;
mod deploy;
mod deps;
mod docs;
mod documents;
mod limits;
mod newcomer;
mod package;
mod python;
mod stages;
mod tidy;
mod transformers;
mod vulkan;

use std::{process::ExitCode, time::Instant};

pub use cluster::servers;

use self::stages::{QUICK, STAGES, Stage, When};

/// What to check.
#[derive(clap::Args)]
pub struct Args {
    /// Runs only these stages (repeat, or separate by commas); `quick` is those of a few minutes, for every day.
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    only: Vec<String>,
    /// Names the stages and ends.
    #[arg(long)]
    list: bool,
    /// Goes on after a stage that failed.
    #[arg(long)]
    keep_going: bool,
}

/// Result of one stage.
struct Ran {
    stage: &'static Stage,
    seconds: f64,
    /// Remark or error message.
    outcome: Result<String, String>,
}

/// Runs the stages. The exit code is 0 only if all of them passed, and 2 for an unknown stage.
pub fn run(args: &Args) -> ExitCode {
    if args.list {
        for stage in STAGES {
            let quick = match stage.when {
                When::Both | When::Quick => QUICK,
                When::Asked => "asked",
                When::All => "",
            };
            println!("{:<12} {quick:<6} {}", stage.name, stage.what);
        }
        return ExitCode::SUCCESS;
    }
    let known = |name: &str| name == QUICK || STAGES.iter().any(|stage| stage.name == name);
    if let Some(unknown) = args.only.iter().find(|name| !known(name)) {
        eprintln!("error: there is no stage `{unknown}`; `cargo xtask test --list` names them");
        return ExitCode::from(2);
    }
    let mut ran = Vec::new();
    for stage in STAGES.iter().filter(|stage| stage.is_in(&args.only)) {
        println!("── {}: {}", stage.name, stage.what);
        let start = Instant::now();
        let outcome = (stage.run)();
        ran.push(Ran { stage, seconds: start.elapsed().as_secs_f64(), outcome });
        if ran.last().is_some_and(|ran| ran.outcome.is_err()) && !args.keep_going {
            break;
        }
    }
    report(&ran)
}

/// Prints the final table.
fn report(ran: &[Ran]) -> ExitCode {
    println!("\n{:<12} {:>8}  result", "stage", "seconds");
    for Ran { stage, seconds, outcome } in ran {
        let result = match outcome {
            Ok(remark) if remark.is_empty() => "ok".to_owned(),
            Ok(remark) => format!("ok ({remark})"),
            Err(_) => "FAILED".to_owned(),
        };
        println!("{:<12} {seconds:>8.1}  {result}", stage.name);
    }
    println!("{:<12} {:>8.1}", "total", ran.iter().map(|ran| ran.seconds).sum::<f64>());
    let mut code = ExitCode::SUCCESS;
    for Ran { stage, outcome, .. } in ran {
        if let Err(reason) = outcome {
            eprintln!(
                "\nerror: {}: {reason}\nrerun it with: cargo xtask test --only {}",
                stage.name, stage.name
            );
            code = ExitCode::FAILURE;
        }
    }
    code
}
