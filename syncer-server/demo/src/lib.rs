//! Demo of a whole run on one machine: a syncer and learners as separate processes, over WebSockets.
//!
//! | file | concept |
//! |---|---|
//! | `args`, `setup` | user settings; locations of the programs |
//! | `programs` | start of syncer and learners |
//! | `session` | one run from its start to its end |
//! | `pages` | build of the pages during the run |
//! | `kill` | deliberate kill of a learner |
//! | `status`, `history`, `fall` | the syncer's status, and figures from it |
//! | `view`, `classroom`, `report` | display, and the verdict |
//! | `process` | child processes that never outlive this one |
//!
//! The binary `archipelago-demo` is [`run`] with its flags. It needs neither source nor toolchain.

#![forbid(unsafe_code)]
#![warn(clippy::print_stderr)]
#![expect(clippy::disallowed_methods, reason = "a shell: it may read the clock")]

mod args;
mod classroom;
mod error;
mod fall;
mod history;
mod kill;
mod pages;
mod process;
mod programs;
mod report;
mod session;
mod setup;
mod status;
mod view;

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

pub use args::Args;
pub use error::EXIT_CODES;
pub use process::{Process, guard, http};
pub use setup::Setup;

use archipelago_cli::{fail, say};
use error::DemoError;
use fall::Since;
use pages::Pages;
use process::interrupt::Interrupt;
use programs::Programs;
use report::{Report, Stop};
use session::Session;
use view::View;

/// Fraction of the benchmarked speed that remains next to a syncer.
const SPEED_KEPT: f64 = 0.9;

/// Duration of a headless run without another end, in seconds.
const HEADLESS_S: f64 = 60.0;

/// Runs a demo. The exit code, one of [`EXIT_CODES`], states whether it reached its goal. `start` is the start time of
/// the program.
pub fn run(args: &Args, setup: &Setup, start: Instant) -> ExitCode {
    let since = Since { start, build: Duration::try_from_secs_f64(setup.build_s).unwrap_or_default() };
    let done = Interrupt::catch().map_err(DemoError::from).and_then(|interrupt| {
        // Ctrl+C also ends a build or a measurement, which then fails through no fault of its own.
        let failed = |error| if interrupt.asked() { DemoError::Interrupted } else { error };
        demo(args, setup, since, &interrupt).map_err(failed)
    });
    if args.json {
        let last = match &done {
            Ok((report, verdict)) => report.json(verdict),
            Err(error) => json!({ "ok": false, "error": error.to_string() }),
        };
        say(&last);
    }
    match done.and_then(|(_, verdict)| verdict) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit_code()),
    }
}

/// Runs the demo, and returns its figures and verdict.
fn demo(
    args: &Args,
    setup: &Setup,
    since: Since,
    interrupt: &Interrupt,
) -> Result<(Report, Result<(), DemoError>), DemoError> {
    if args.headless && args.learners() == 0 {
        return Err(DemoError::System(
            "--learners 0 leaves nobody to train without a page: give 1 or more".into(),
        ));
    }
    let mut view = View::new(args.headless);
    let programs = Programs::find(args, setup)?;
    let run_s = args.span.map(|span| span.0.as_secs_f64());
    let run_s = run_s.or((args.headless && args.until_loss.is_none()).then_some(HEADLESS_S));
    let planned_tokens = match run_s {
        Some(seconds) if args.learners() > 0 => {
            Some((programs.measure(args.learners(), args.preset())? * SPEED_KEPT * seconds) as u64)
        }
        _ => None,
    };
    let mut session = Session::start(args, &programs, interrupt, run_s, planned_tokens)?;
    let mut pages = Pages::build(setup, &programs.dir)?;
    introduce(args, &programs, &session, &pages, &mut view)?;
    let stop = session.train(&mut view, &mut pages, since)?;
    let built = pages.verdict();
    drop(pages);
    if stop == Stop::Finished {
        view.say(&format!("the run is complete, and its model lies in {}", programs.dir.display()));
        if args.stays() {
            view.say("the pages stay, with the last text and the model to download; Ctrl+C ends them");
            session.linger();
        }
    } else {
        view.say("finishing: the last updates are collected and merged");
    }
    let report = session.finish(args)?;
    let verdict = report.verdict(args, stop).and_then(|()| match &args.export {
        Some(folder) => programs.export(folder),
        None => Ok(()),
    });
    view.say(&report.summary());
    Ok((report, verdict.and(built)))
}

/// Prints the addresses and the description of the run.
fn introduce(
    args: &Args,
    programs: &Programs,
    session: &Session,
    pages: &Pages,
    view: &mut View,
) -> Result<(), DemoError> {
    let mut page = format!("http://{}/", session.address());
    if let Some(classroom) = session.classroom() {
        view.say(&classroom.to_string());
        page.clone_from(&classroom.dashboard);
    } else if !args.headless {
        view.say(&format!(
            "open {page} in a browser and it trains along; {page}dashboard shows the run, {page}teach breaks one"
        ));
    }
    if pages.are_built() {
        view.say(
            "the pages are being built beside the run; until they are there, the link says so and waits",
        );
    }
    if !args.headless {
        let dashboard =
            session.classroom().map_or_else(|| format!("{page}dashboard"), |class| class.dashboard.clone());
        view.say(&format!(
            "to pause, finish and steer it, for the owner alone: {}",
            owner_link(&dashboard, &programs.admin_token()?)
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
    Ok(())
}

/// Returns the link to `dashboard` with the owner's token after `#`, which is sent to no server.
fn owner_link(dashboard: &str, token: &str) -> String {
    let joint = if dashboard.contains('#') { '&' } else { '#' };
    format!("{dashboard}{joint}token={token}")
}

/// Asks the system to open `page`. Returns false if that fails.
fn open(page: &str) -> bool {
    let opener = match env::consts::OS {
        "macos" => "open",
        "windows" => "explorer",
        _ => "xdg-open",
    };
    Command::new(opener).arg(page).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owners_link_keeps_the_invite() {
        assert_eq!(owner_link("http://a/dashboard", "t"), "http://a/dashboard#token=t");
        assert_eq!(owner_link("http://a/dashboard#invite=i", "t"), "http://a/dashboard#invite=i&token=t");
    }
}
