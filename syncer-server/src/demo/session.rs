//! Session of one run, from the start of its processes to their end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use archipelago_cli::process::Process;
use archipelago_cli::{DemoArgs, say};
use axum::http::Method;

use super::DemoError;
use super::programs::{Programs, Syncer};
use super::report::{LossDrop, Outcome, Report, Stop, status_line};
use crate::config::DemoSetup;
use crate::inspect::Remote;
use crate::status::ServerStatus;

/// Interval between two checks of the run.
const TICK: Duration = Duration::from_millis(200);

/// Seconds between two lines about the state of the run.
const LINE_S: f64 = 5.0;

/// Longest time for which a running syncer may not answer.
const SILENT: Duration = Duration::from_secs(30);

/// Longest wait for learners to join and train their first step.
const JOIN_WAIT: Duration = Duration::from_secs(300);

/// Longest wait for the syncer to collect, merge, measure and save the end of the run.
const FINISH_WAIT: Duration = Duration::from_secs(300);

/// Longest wait for a learner to leave after its goodbye.
const LEAVE_WAIT: Duration = Duration::from_secs(10);

/// Duration of the run that the plan of a kill assumes if none is set, in seconds.
const RUN_S: f64 = 60.0;

/// Start time of the demo.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// Start time of this program.
    pub start: Instant,
    /// Time spent on the build before this program started.
    pub build: Duration,
}

/// Syncer with its learners.
pub struct Session<'a> {
    args: &'a DemoArgs,
    programs: &'a Programs,
    syncer: Syncer,
    learners: Vec<(String, Process)>,
    /// Process that builds the pages, while it runs.
    page_builder: Option<Process>,
    pages_failed: Option<String>,
    run_s: Option<f64>,
    planned_tokens: Option<u64>,
    kill: Option<Kill>,
    status: ServerStatus,
    /// Time of the first trained token.
    began: Option<Instant>,
    /// Seconds from the first trained token to the decision to stop.
    seconds: f64,
    rss_syncer_bytes: u64,
    rss_learner_bytes: u64,
    fall: Option<LossDrop>,
}

impl<'a> Session<'a> {
    /// Starts the syncer, then the learners and the build of the pages, if any.
    ///
    /// # Errors
    /// - [`DemoError::Failed`]: a program could not be started.
    /// - [`DemoError::Ended`]: the syncer refused, with an explanation.
    /// - [`DemoError::Silent`]: the syncer never listened.
    pub fn start(
        setup: &'a DemoSetup,
        programs: &'a Programs,
        run_s: Option<f64>,
        planned_tokens: Option<u64>,
    ) -> Result<Self, DemoError> {
        let args = &setup.run;
        let (syncer, status) = programs.start_syncer(args, planned_tokens)?;
        let names = (1..=args.learners()).map(|number| format!("learner-{number}"));
        let start = |name: String| Ok((name.clone(), programs.start_learner(&name, &syncer.join())?));
        let learners = names.map(start).collect::<Result<Vec<_>, DemoError>>()?;
        let page_builder = match setup.page_builder.split_first() {
            None => None,
            Some((program, words)) => {
                let log = programs.dir.join("pages");
                Some(Process::spawn_with_children(Path::new(program), words, &log)?)
            }
        };
        let kill = args.kill_one.then(|| learners.last().map(|(name, _)| Kill::new(name, run_s))).flatten();
        Ok(Self {
            args,
            programs,
            syncer,
            learners,
            page_builder,
            pages_failed: None,
            run_s,
            planned_tokens,
            kill,
            status,
            began: None,
            seconds: 0.0,
            rss_syncer_bytes: 0,
            rss_learner_bytes: 0,
            fall: None,
        })
    }

    /// Returns the syncer.
    pub fn syncer(&self) -> &Syncer {
        &self.syncer
    }

    /// Checks that the build of the pages did not fail.
    ///
    /// # Errors
    /// [`DemoError::Failed`]: it failed.
    pub fn pages(&self) -> Result<(), DemoError> {
        self.pages_failed.clone().map_or(Ok(()), |failed| Err(DemoError::Failed(failed)))
    }

    /// Trains until there is a reason to stop.
    ///
    /// # Errors
    /// - [`DemoError::Ended`]: a program ended on its own.
    /// - [`DemoError::Silent`]: the syncer stopped answering, or no learner ever trained.
    /// - [`DemoError::Failed`]: the killed learner could not be restarted.
    pub fn train(&mut self, since: Since, stop: &AtomicBool) -> Result<Stop, DemoError> {
        let start = Instant::now();
        let (mut answered, mut line_due_s) = (start, 0.0);
        loop {
            match self.syncer.status() {
                Ok(status) => {
                    self.update(status);
                    answered = Instant::now();
                }
                Err(error) if answered.elapsed() > SILENT => {
                    return Err(DemoError::Silent(error.to_string()));
                }
                Err(_) => {}
            }
            if let Err(ended) = self.check_processes() {
                // Learners may leave a complete run.
                if !self.is_finished() {
                    return Err(ended);
                }
            }
            if self.began.is_none() && self.status.core.tokens_trained > 0 {
                self.began = Some(Instant::now());
            }
            // Without learners of its own, as in a class, the demo waits without limit.
            if self.began.is_none() && !self.learners.is_empty() && start.elapsed() > JOIN_WAIT {
                return Err(DemoError::Silent("no learner trained a step; see their logs".to_owned()));
            }
            let now_s = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
            self.step_kill(now_s)?;
            self.check_page_builder();
            if self.fall.is_none() {
                let after_s = (since.build + since.start.elapsed()).as_secs_f64();
                self.fall =
                    LossDrop::of(self.status.val_loss_first, self.status.val_loss_last, after_s, now_s);
                self.fall.iter().for_each(say);
            }
            if now_s >= line_due_s {
                say(&status_line(&self.status, now_s));
                line_due_s = now_s + LINE_S;
            }
            if let Some(stop) = self.stop(now_s, stop) {
                self.seconds = now_s;
                return Ok(stop);
            }
            thread::sleep(TICK);
        }
    }

    /// Keeps a complete run visible until `stop` is set.
    pub fn keep_visible(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) && self.syncer.process.exit_code().is_none() {
            thread::sleep(TICK);
        }
    }

    /// Lets the syncer merge outstanding updates, waits for the end of all programs and returns the figures.
    ///
    /// # Errors
    /// - [`DemoError::Silent`]: the syncer did not end.
    /// - [`DemoError::Ended`]: it ended with an error.
    pub fn finish(mut self) -> Result<Report, DemoError> {
        if !self.status.core.finished {
            self.order_finish()?;
        }
        // The syncer measures and saves the complete run before it ends.
        self.syncer.process.ask_to_end();
        let Some(code) = self.syncer.process.wait(FINISH_WAIT) else {
            let seconds = FINISH_WAIT.as_secs();
            return Err(DemoError::Silent(format!("the syncer did not end within {seconds} s; see its log")));
        };
        if code != 0 && cfg!(unix) {
            return Err(ended("syncer", code, &self.syncer.process));
        }
        let last = self.syncer.process.stdout().pop();
        if let Some(status) = last.and_then(|line| serde_json::from_str::<ServerStatus>(&line).ok()) {
            self.update(status);
        }
        // A learner that came back late may have been merged only by the last rounds.
        let merged_again = self.kill.as_mut().map(|kill| {
            kill.step(f64::NAN, tokens(&self.status, &kill.name));
            (kill.name.clone(), matches!(kill.phase, KillPhase::Merged))
        });
        for (_, learner) in &mut self.learners {
            learner.wait(LEAVE_WAIT);
        }
        Ok(Report {
            learners: self.args.learners(),
            threads: self.programs.threads,
            seconds: self.seconds,
            planned_tokens: self.planned_tokens,
            outcome: Outcome {
                first: self.status.val_loss_first,
                last: self.status.val_loss_last,
                tokens_trained: self.status.core.tokens_trained,
                without_outcome: self.status.core.updates_pending,
                merged_again,
            },
            rss_syncer_bytes: self.rss_syncer_bytes,
            rss_learner_bytes: self.rss_learner_bytes,
            fall: self.fall,
            status: self.status,
        })
    }

    /// Replaces the status by a newer one. If no learner trains, the last known training loss is kept.
    fn update(&mut self, mut status: ServerStatus) {
        status.core.train_loss = status.core.train_loss.or(self.status.core.train_loss);
        self.status = status;
    }

    /// Asks the syncer again whether the run is complete.
    fn is_finished(&mut self) -> bool {
        self.syncer.status().into_iter().for_each(|status| self.update(status));
        self.status.core.finished
    }

    /// Requests the end of the run, and waits for it. A failed request is retried for up to [`SILENT`], because a busy
    /// machine must not lose a run.
    fn order_finish(&mut self) -> Result<(), DemoError> {
        let (token, url, asked) = (self.programs.admin_token()?, self.syncer.url(), Instant::now());
        let syncer = Remote { url: &url, ca: None, token: Some(&token) };
        let order = || syncer.order(Method::POST, "/v1/admin/finish", String::new());
        while let Err(error) = order() {
            if self.syncer.process.exit_code().is_some() {
                break;
            }
            if asked.elapsed() > SILENT {
                return Err(DemoError::Silent(error.to_string()));
            }
            thread::sleep(TICK);
        }
        let asked = Instant::now();
        while asked.elapsed() < FINISH_WAIT && self.syncer.process.exit_code().is_none() {
            if self.is_finished() {
                return Ok(());
            }
            thread::sleep(TICK);
        }
        let seconds = FINISH_WAIT.as_secs();
        Err(DemoError::Silent(format!("the run was not complete within {seconds} s; see the syncer's log")))
    }

    /// Updates the memory peaks, and checks that no process ended unexpectedly.
    fn check_processes(&mut self) -> Result<(), DemoError> {
        let alive = |name: &str, process: &mut Process| match process.exit_code() {
            Some(code) => Err(ended(name, code, process)),
            None => Ok(process.rss_bytes_max()),
        };
        self.rss_syncer_bytes = self.rss_syncer_bytes.max(alive("syncer", &mut self.syncer.process)?);
        for (name, learner) in &mut self.learners {
            if self.kill.as_ref().is_some_and(|kill| kill.is_dead() && kill.name == *name) {
                continue;
            }
            self.rss_learner_bytes = self.rss_learner_bytes.max(alive(name, learner)?);
        }
        Ok(())
    }

    /// Kills or restarts a learner if that is due.
    fn step_kill(&mut self, now_s: f64) -> Result<(), DemoError> {
        let Some(kill) = &mut self.kill else { return Ok(()) };
        let Some((name, process)) = self.learners.iter_mut().find(|(name, _)| *name == kill.name) else {
            return Ok(());
        };
        match kill.step(now_s, tokens(&self.status, name)) {
            None => {}
            Some(KillStep::Kill) => {
                process.kill();
                say(&format!("{name} killed (SIGKILL)"));
            }
            Some(KillStep::Restart { others }) => {
                *process = self.programs.start_learner(name, &self.syncer.join())?;
                say(&format!("{name} restarted; meanwhile the others trained {others} tokens"));
            }
            Some(KillStep::Merged { after_s }) => {
                say(&format!("{name} merged again {after_s:.1} s after its restart"));
            }
        }
        Ok(())
    }

    /// Reports the end of the build of the pages, once.
    fn check_page_builder(&mut self) {
        let Some(builder) = &mut self.page_builder else { return };
        let Some(code) = builder.exit_code() else { return };
        if code == 0 {
            say(&"the pages are ready");
        } else {
            let words = builder.last_words();
            let failed = format!("the pages could not be built: {}", words.trim_start_matches("error: "));
            say(&failed);
            self.pages_failed = Some(failed);
        }
        self.page_builder = None;
    }

    fn stop(&self, now_s: f64, stop: &AtomicBool) -> Option<Stop> {
        let is_low = |goal: f64| self.status.val_loss_last.is_some_and(|loss| f64::from(loss) <= goal);
        if self.status.core.finished {
            Some(Stop::Finished)
        } else if stop.load(Ordering::Relaxed) {
            Some(Stop::Asked)
        } else if self.args.until_loss.is_some_and(is_low) {
            Some(Stop::Loss)
        } else {
            self.run_s.filter(|run_s| now_s >= *run_s).map(|_| Stop::Time)
        }
    }
}

/// Returns the error for a process that ended with `code`.
fn ended(name: &str, code: i32, process: &Process) -> DemoError {
    DemoError::Ended { name: name.to_owned(), code, words: process.last_words() }
}

/// Plan of `--kill-one`: a learner is killed after a third of the run and restarted after half of it.
struct Kill {
    /// Name of the learner.
    name: String,
    kill_s: f64,
    restart_s: f64,
    phase: KillPhase,
}

enum KillPhase {
    Waiting,
    Dead {
        /// Tokens that the other learners had trained at the kill.
        others: u64,
    },
    Back {
        /// Tokens of the killed learner that were merged at its restart.
        merged: u64,
        since_s: f64,
    },
    Merged,
}

/// Step of the plan: an action to carry out, or an event to report.
#[derive(Debug, PartialEq)]
enum KillStep {
    Kill,
    Restart {
        /// Tokens that the other learners trained meanwhile.
        others: u64,
    },
    Merged {
        /// Seconds since the restart.
        after_s: f64,
    },
}

impl Kill {
    fn new(name: &str, run_s: Option<f64>) -> Self {
        let run_s = run_s.unwrap_or(RUN_S);
        Self { name: name.to_owned(), kill_s: run_s / 3.0, restart_s: run_s / 2.0, phase: KillPhase::Waiting }
    }

    /// Returns true if the learner's process is expected to be dead.
    fn is_dead(&self) -> bool {
        matches!(self.phase, KillPhase::Dead { .. })
    }

    /// Returns the action that is due at `now_s` seconds after the first trained token, or the event that the learner
    /// was merged again.
    fn step(&mut self, now_s: f64, tokens: Tokens) -> Option<KillStep> {
        let (phase, step) = match self.phase {
            KillPhase::Waiting if now_s >= self.kill_s => {
                (KillPhase::Dead { others: tokens.others_trained }, KillStep::Kill)
            }
            KillPhase::Dead { others } if now_s >= self.restart_s => (
                KillPhase::Back { merged: tokens.merged, since_s: now_s },
                KillStep::Restart { others: tokens.others_trained.saturating_sub(others) },
            ),
            KillPhase::Back { merged, since_s } if tokens.merged > merged => {
                (KillPhase::Merged, KillStep::Merged { after_s: now_s - since_s })
            }
            _ => return None,
        };
        self.phase = phase;
        Some(step)
    }
}

/// Tokens of one learner and of the others.
#[derive(Clone, Copy)]
struct Tokens {
    /// Merged tokens of the learner.
    merged: u64,
    /// Trained tokens of all others.
    others_trained: u64,
}

/// Returns the tokens of the learner `name` and of the others.
fn tokens(status: &ServerStatus, name: &str) -> Tokens {
    let own = || status.learners.iter().filter(|learner| learner.name == name);
    let trained: u64 = own().map(|learner| learner.tokens_trained).sum();
    Tokens {
        merged: own().map(|learner| learner.tokens_merged).sum(),
        others_trained: status.core.tokens_trained.saturating_sub(trained),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_learner_is_back_once_more_is_merged_than_at_its_restart() {
        let mut kill = Kill::new("bert", Some(60.0));
        let mut step =
            |now_s: f64, others_trained, merged| kill.step(now_s, Tokens { merged, others_trained });
        assert_eq!(step(19.0, 1, 99), None, "it is not due");
        assert_eq!(step(20.0, 5, 10), Some(KillStep::Kill));
        assert_eq!(step(29.0, 6, 10), None);
        assert_eq!(step(30.0, 9, 10), Some(KillStep::Restart { others: 4 }));
        assert_eq!(step(31.0, 9, 10), None);
        assert_eq!(step(32.5, 9, 11), Some(KillStep::Merged { after_s: 2.5 }));
        assert_eq!(step(33.0, 9, 12), None, "once is enough");
    }
}
