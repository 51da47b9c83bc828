//! The verb `demo`: a whole run on this machine, with a syncer and learners as separate processes.
//!
//! | file | concept |
//! |---|---|
//! | `programs` | start of syncer and learners |
//! | `session` | one run from its start to its end, with the kill of a learner |
//! | `report` | figures of the run, and its verdict |

#![expect(clippy::disallowed_methods, reason = "a demo runs by the real clock")]

mod programs;
mod report;
mod session;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use archipelago_cli::say;
use serde_json::json;

use crate::config::DemoSetup;
use crate::errors::Exit;
use programs::Programs;
use report::{Report, Stop};
use session::{Session, Since};

/// Fraction of the benchmarked speed that learners reach while the syncer runs.
const SPEED_KEPT: f64 = 0.9;

/// Duration of a headless run without any other end, in seconds.
const HEADLESS_S: f64 = 60.0;

/// Reason why a demo failed. Each message is one sentence with the cause and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The machine or a build failed.
    #[error("{0}")]
    Failed(String),
    /// A program ended on its own.
    #[error("{name} ended with code {code}: {}", .words.trim_start_matches("error: "))]
    Ended {
        /// Name of the program.
        name: String,
        /// Its exit code.
        code: i32,
        /// Its last message.
        words: String,
    },
    /// A program does not answer.
    #[error("{0}")]
    Silent(String),
    /// The demo was stopped before it reached its goal.
    #[error("stopped by hand before the end")]
    Interrupted,
    /// The held-out loss did not fall below its first value.
    #[error("the held-out loss did not fall: first {}, last {}; train longer", loss(*.first), loss(*.last))]
    LossDidNotFall {
        /// First loss, in nats per token.
        first: Option<f32>,
        /// Newest loss, in nats per token.
        last: Option<f32>,
    },
    /// The held-out loss stayed above `--until-loss`.
    #[error("the held-out loss is {}, not at most {goal}; train longer", loss(*.last))]
    LossNotReached {
        /// Requested loss, in nats per token.
        goal: f64,
        /// Newest loss, in nats per token.
        last: Option<f32>,
    },
    /// Updates without an outcome remain.
    #[error("{0} updates have no outcome; that is a bug, please report it")]
    WithoutOutcome(u64),
    /// The killed learner took part in no merge after its restart.
    #[error("{0} was killed and restarted, and was not merged after that; train longer")]
    NotMergedAgain(String),
}

/// Formats a loss for a message.
fn loss(loss: Option<f32>) -> String {
    loss.map_or_else(|| "never measured".to_owned(), |loss| format!("{loss:.3}"))
}

impl DemoError {
    /// Returns the exit code of the process. The code of a program that ended becomes the demo's.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let exit = match self {
            Self::Ended { code, .. } => {
                return u8::try_from(*code).ok().filter(|code| *code != 0).unwrap_or(1);
            }
            Self::Failed(_) => Exit::Failed,
            Self::Silent(_) => Exit::NoSyncer,
            Self::LossDidNotFall { .. } => Exit::LossDidNotFall,
            Self::LossNotReached { .. } => Exit::LossNotReached,
            Self::WithoutOutcome(_) => Exit::WithoutOutcome,
            Self::NotMergedAgain(_) => Exit::NotMergedAgain,
            Self::Interrupted => Exit::Stopped,
        };
        exit.into()
    }
}

impl From<std::io::Error> for DemoError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<String> for DemoError {
    fn from(what: String) -> Self {
        Self::Failed(what)
    }
}

/// Runs a demo to its end, or until `stop` is set. `start` is the start time of the program.
///
/// # Errors
/// The first goal that the run missed, or the reason why it failed.
pub fn demo(args: &DemoSetup, start: Instant, stop: &AtomicBool) -> Result<(), DemoError> {
    let since = Since { start, build: Duration::try_from_secs_f64(args.build_s).unwrap_or_default() };
    // Ctrl+C also ends a build or a measurement. Its failure is then an interruption.
    let failed = |error| if stop.load(Ordering::Relaxed) { DemoError::Interrupted } else { error };
    let ended = run(args, since, stop).map_err(failed);
    if args.run.json {
        say(&match &ended {
            Ok((report, verdict)) => report.json(verdict),
            Err(error) => json!({ "ok": false, "error": error.to_string() }),
        });
    }
    ended.and_then(|(_, verdict)| verdict)
}

/// Runs the demo, and returns its figures and its verdict.
fn run(
    setup: &DemoSetup,
    since: Since,
    stop: &AtomicBool,
) -> Result<(Report, Result<(), DemoError>), DemoError> {
    let args = &setup.run;
    if args.headless && args.learners() == 0 {
        return Err(DemoError::Failed(
            "--headless serves no page, and --learners 0 starts no learner: give --learners 1 or more".into(),
        ));
    }
    let programs = Programs::find(setup)?;
    let run_s = args.span.map(|span| span.0.as_secs_f64());
    let run_s = run_s.or((args.headless && args.until_loss.is_none()).then_some(HEADLESS_S));
    let planned_tokens = match run_s {
        Some(seconds) if args.learners() > 0 => {
            Some((programs.measure(args.learners(), args.preset())? * SPEED_KEPT * seconds) as u64)
        }
        _ => None,
    };
    let mut session = Session::start(setup, &programs, run_s, planned_tokens)?;
    introduce(setup, &programs, &session)?;
    let end = session.train(since, stop)?;
    if end == Stop::Finished {
        say(&format!("the run is complete; its model is in {}", programs.dir.display()));
        if args.is_open_ended() {
            say(&"the pages stay, with the last text and the model to download; Ctrl+C ends them");
            session.keep_visible(stop);
        }
    } else {
        say(&"finishing: the last updates are collected and merged");
    }
    let pages = session.pages();
    let report = session.finish()?;
    let verdict = report.verdict(args, end).and_then(|()| match &args.export {
        Some(folder) => programs.export(folder),
        None => Ok(()),
    });
    say(&report.summary());
    Ok((report, verdict.and(pages)))
}

/// Prints the addresses and the description of the run.
fn introduce(setup: &DemoSetup, programs: &Programs, session: &Session<'_>) -> Result<(), DemoError> {
    let args = &setup.run;
    let syncer = session.syncer();
    let page = format!("{}/", syncer.url());
    let dashboard =
        syncer.classroom.as_ref().map_or(format!("{page}dashboard"), |class| class.dashboard.clone());
    if let Some(classroom) = &syncer.classroom {
        say(classroom);
    } else if !args.headless {
        say(&format!(
            "open {page} in a browser to train along; {page}dashboard shows the run, {page}teach is the lesson"
        ));
    }
    if !setup.page_builder.is_empty() {
        say(&"the pages are being built during the run; until they are ready, the link says so and waits");
    }
    if !args.headless {
        let link = owner_link(&dashboard, &programs.admin_token()?);
        say(&format!("to pause, finish and steer it, for the owner alone: {link}"));
    }
    if args.open && !open(if args.classroom { &dashboard } else { &page }) {
        say(&"cannot open a browser here: open the link by hand");
    }
    say(&format!(
        "preset {}, {} learners here with {} threads each; run in {}; Ctrl+C finishes, a second one stops at once",
        args.preset(),
        args.learners(),
        programs.threads,
        programs.dir.display(),
    ));
    Ok(())
}

/// Returns the link to `dashboard` with the owner's token after `#`. Browsers send that part to no server.
fn owner_link(dashboard: &str, token: &str) -> String {
    let joint = if dashboard.contains('#') { '&' } else { '#' };
    format!("{dashboard}{joint}token={token}")
}

/// Asks the system to open `page`. Returns false if that fails.
fn open(page: &str) -> bool {
    let opener = match std::env::consts::OS {
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
