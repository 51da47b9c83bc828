//! `cargo xtask demo`: a syncer and learners as processes of their own, on this machine.

mod args;
mod classroom;
mod error;
mod history;
mod kill;
mod programs;
mod report;
mod session;
mod status;
mod view;

use std::env;
use std::process::{Command, ExitCode, Stdio};

use serde_json::json;

pub use args::Args;
pub use error::EXIT_CODES;
use programs::Programs;
use report::Report;
use session::Session;
use view::View;

use crate::process::interrupt::Interrupt;
use error::DemoError;

/// Share of the calibrated speed that training beside a syncer keeps.
const SPEED_KEPT: f64 = 0.9;

/// Seconds that a headless run without another end lasts.
const HEADLESS_S: f64 = 60.0;

/// Runs a demo; its exit code says whether it did what was asked.
pub fn run(args: &Args) -> ExitCode {
    let done = Interrupt::catch().map_err(DemoError::from).and_then(|interrupt| {
        // Ctrl+C also ends a build or a measurement, which then fails for no fault of its own.
        let failed = |error| if interrupt.asked() { DemoError::Interrupted } else { error };
        demo(args, &interrupt).map_err(failed)
    });
    if args.json {
        let last = match &done {
            Ok((report, verdict)) => report.json(verdict),
            Err(error) => json!({ "ok": false, "error": error.to_string() }),
        };
        println!("{last}");
    }
    match done.and_then(|(_, verdict)| verdict) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// The whole run: what was measured, and whether that is what was asked.
fn demo(args: &Args, interrupt: &Interrupt) -> Result<(Report, Result<(), DemoError>), DemoError> {
    if args.headless && args.learners() == 0 {
        return Err(DemoError::System(
            "--learners 0 leaves nobody to train without a page: give 1 or more".into(),
        ));
    }
    let mut view = View::new(args.headless);
    let programs = Programs::build(args)?;
    let run_s = args.span.map(|span| span.0.as_secs_f64());
    let run_s = run_s.or((args.headless && args.until_loss.is_none()).then_some(HEADLESS_S));
    let planned_tokens = match run_s {
        Some(seconds) if args.learners() > 0 => {
            Some((programs.measure(args.learners(), args.preset())? * SPEED_KEPT * seconds) as u64)
        }
        _ => None,
    };
    let mut session = Session::start(args, &programs, interrupt, run_s, planned_tokens)?;
    let mut page = format!("http://{}/", session.address());
    if let Some(classroom) = session.classroom() {
        view.say(&classroom.to_string());
        page.clone_from(&classroom.dashboard);
    } else if !args.headless {
        view.say(&format!("open {page} in a browser and it trains along; {page}dashboard shows the run, {page}teach breaks one"));
    }
    if !args.headless {
        view.say(&format!(
            "the owner's token, to pause, finish and steer it there: {}",
            programs.admin_token()?
        ));
    }
    if args.open && !open(&page) {
        view.say("no browser could be opened from here");
    }
    view.say(&format!(
        "preset {}, {} learners here, threads of each: {}; run in {}; Ctrl+C finishes, a second one stops",
        args.preset(),
        args.learners(),
        programs.threads,
        programs.dir.display(),
    ));
    let stop = session.train(&mut view)?;
    view.say("finishing: the last updates are collected and merged");
    let report = session.finish(args)?;
    let verdict = report.verdict(args, stop).and_then(|()| match &args.export {
        Some(folder) => programs.export(folder),
        None => Ok(()),
    });
    view.say(&report.summary());
    Ok((report, verdict))
}

/// Asks the system to show `page`; false if it would not.
fn open(page: &str) -> bool {
    let opener = match env::consts::OS {
        "macos" => "open",
        "windows" => "explorer",
        _ => "xdg-open",
    };
    Command::new(opener).arg(page).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}
