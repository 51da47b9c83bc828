//! Session of one run, from the start of its processes to their end.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    args::Args,
    classroom::Classroom,
    error::DemoError,
    fall::{Fall, Since},
    history::History,
    kill::Kill,
    pages::Pages,
    process::{Process, http, interrupt::Interrupt},
    programs::{Programs, Started},
    report::{Peak, Report, Stop},
    status::Status,
    view::{Speed, View},
};

/// Interval between two checks of the run.
const TICK: Duration = Duration::from_millis(200);

/// Longest silence of a running syncer.
const SILENT: Duration = Duration::from_secs(30);

/// Longest wait for learners to join and train their first step.
const JOIN_WAIT: Duration = Duration::from_secs(300);

/// Longest wait for the syncer to collect, merge, measure and save the end of the run.
const FINISH_WAIT: Duration = Duration::from_secs(300);

/// Longest wait for a learner to leave after its goodbye.
const LEAVE_WAIT: Duration = Duration::from_secs(10);

/// Window of the displayed speeds, in seconds.
const SPEED_S: f64 = 5.0;

/// Syncer with its learners.
pub struct Session<'a> {
    programs: &'a Programs,
    interrupt: &'a Interrupt,
    syncer: Process,
    address: SocketAddr,
    /// Link for learners on this machine.
    join: String,
    classroom: Option<Classroom>,
    learners: Vec<(String, Process)>,
    run_s: Option<f64>,
    planned_tokens: Option<u64>,
    until_loss: Option<f64>,
    kill: Option<Kill>,
    history: History,
    status: Status,
    /// Time of the first trained token.
    began: Option<Instant>,
    ended: Option<Instant>,
    peak: Peak,
    /// First fall of the loss.
    fall: Option<Fall>,
}

impl<'a> Session<'a> {
    /// Starts the syncer, then the learners.
    ///
    /// # Errors
    /// - [`DemoError::System`]: a program could not be started.
    /// - [`DemoError::Ended`]: the syncer refused, with an explanation.
    /// - [`DemoError::Silent`]: the syncer never listened.
    pub fn start(
        args: &Args,
        programs: &'a Programs,
        interrupt: &'a Interrupt,
        run_s: Option<f64>,
        planned_tokens: Option<u64>,
    ) -> Result<Self, DemoError> {
        let Started { syncer, address, join, classroom } = programs.start_syncer(args, planned_tokens)?;
        let names = (1..=args.learners()).map(|number| format!("learner-{number}"));
        let start = |name: String| Ok((name.clone(), programs.start_learner(&name, &join)?));
        let learners = names.map(start).collect::<Result<Vec<_>, DemoError>>()?;
        let kill = args.kill_one.then(|| learners.last().map(|(name, _)| Kill::new(name, run_s))).flatten();
        Ok(Self {
            programs,
            interrupt,
            syncer,
            address,
            join,
            classroom,
            learners,
            run_s,
            planned_tokens,
            until_loss: args.until_loss,
            kill,
            history: History::default(),
            status: Status::default(),
            began: None,
            ended: None,
            peak: Peak::default(),
            fall: None,
        })
    }

    /// Returns the address of the page.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the join instructions, if the run is for a class.
    pub fn classroom(&self) -> Option<&Classroom> {
        self.classroom.as_ref()
    }

    /// Trains until there is a reason to stop. `since` is the start time of the command.
    ///
    /// # Errors
    /// - [`DemoError::Ended`]: a program ended on its own.
    /// - [`DemoError::Silent`]: the syncer stopped answering, or no learner ever trained.
    /// - [`DemoError::System`]: the killed learner could not be restarted.
    pub fn train(&mut self, view: &mut View, pages: &mut Pages, since: Since) -> Result<Stop, DemoError> {
        let start = Instant::now();
        let mut heard = start;
        loop {
            match self.fetch() {
                Ok(status) => {
                    let train_loss = status.train_loss.or(self.status.train_loss);
                    (self.status, heard) = (Status { train_loss, ..status }, Instant::now());
                }
                Err(why) if heard.elapsed() > SILENT => return Err(DemoError::Silent(why)),
                Err(_) => {}
            }
            if let Err(ended) = self.look_after_processes() {
                // Learners leave a complete run.
                self.status.finished = self.fetch().is_ok_and(|status| status.finished);
                if !self.status.finished {
                    return Err(ended);
                }
            }
            if self.began.is_none() && self.status.tokens_trained > 0 {
                self.began = Some(Instant::now());
            }
            // A class may take its time.
            if self.began.is_none() && !self.learners.is_empty() && start.elapsed() > JOIN_WAIT {
                return Err(DemoError::Silent("no learner trained a step; see their logs".to_owned()));
            }
            let now = self.now();
            self.history.push(now, &self.status);
            self.kill_if_due(now, view)?;
            pages.news().iter().for_each(|sentence| view.say(sentence));
            if self.fall.is_none() {
                self.fall = Fall::see(&self.status, since.seconds(), now);
                self.fall.iter().for_each(|fall| view.say(&fall.to_string()));
            }
            view.show(&self.status, &self.speed(now));
            if let Some(stop) = self.stop(now) {
                self.ended = Some(Instant::now());
                return Ok(stop);
            }
            thread::sleep(TICK);
        }
    }

    /// Lets the syncer merge outstanding updates, waits for the end of all programs and returns the figures.
    ///
    /// # Errors
    /// - [`DemoError::Silent`]: the syncer did not end.
    /// - [`DemoError::Ended`]: it ended with an error.
    pub fn finish(mut self, args: &Args) -> Result<Report, DemoError> {
        if !self.status.finished {
            self.ask_to_finish()?;
        }
        // The syncer measures and saves the complete run before it ends.
        self.syncer.ask_to_end();
        let Some(code) = self.syncer.wait(FINISH_WAIT) else {
            return Err(DemoError::Silent(format!(
                "the syncer did not finish in {} s",
                FINISH_WAIT.as_secs()
            )));
        };
        if code != 0 && cfg!(unix) {
            return Err(DemoError::Ended {
                name: "syncer".to_owned(),
                code,
                words: self.syncer.last_words(),
            });
        }
        let last = self.syncer.stdout().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(last) = last {
            // No learner trains at the end, so the training loss is the last known one.
            let train_loss = self.status.train_loss;
            self.status = Status { train_loss, ..Status::read(&last)? };
        }
        // A learner that came back late may have been merged only by the last rounds.
        let now = self.now();
        if let Some(kill) = &mut self.kill {
            kill.look(now, &self.status);
        }
        for (_, learner) in &mut self.learners {
            learner.wait(LEAVE_WAIT);
        }
        let seconds = match (self.began, self.ended) {
            (Some(began), Some(ended)) => (ended - began).as_secs_f64(),
            _ => 0.0,
        };
        Ok(Report {
            preset: args.preset().to_owned(),
            learners: args.learners(),
            threads: self.programs.threads,
            seconds,
            planned_tokens: self.planned_tokens,
            kill: self
                .kill
                .as_ref()
                .map(|kill| (kill.name.clone(), kill.survived(), kill.report(&self.history))),
            peak: self.peak,
            fall: self.fall,
            status: self.status,
        })
    }

    /// Keeps the pages of a complete run up until Ctrl+C.
    pub fn linger(&mut self) {
        while !self.interrupt.asked() && self.syncer.exit_code().is_none() {
            thread::sleep(TICK);
        }
    }

    /// Requests the end of the run, and retries while a running syncer may be silent. A busy machine is no reason to
    /// lose a run.
    fn ask_to_finish(&mut self) -> Result<(), DemoError> {
        let (token, asked) = (self.programs.admin_token()?, Instant::now());
        while let Err(why) = http::post(self.address, "/v1/admin/finish", &token) {
            if self.syncer.exit_code().is_some() {
                break;
            }
            if asked.elapsed() > SILENT {
                return Err(DemoError::Silent(why));
            }
            thread::sleep(TICK);
        }
        let asked = Instant::now();
        while asked.elapsed() < FINISH_WAIT && self.syncer.exit_code().is_none() {
            if self.fetch().is_ok_and(|status| status.finished) {
                return Ok(());
            }
            thread::sleep(TICK);
        }
        Err(DemoError::Silent(format!("the run did not come to its end in {} s", FINISH_WAIT.as_secs())))
    }

    fn fetch(&self) -> Result<Status, String> {
        Status::read(&http::get(self.address, "/v1/status")?)
    }

    /// Returns the seconds since the first token, or 0 before it.
    fn now(&self) -> f64 {
        self.began.map_or(0.0, |began| began.elapsed().as_secs_f64())
    }

    /// Updates the memory peaks, and checks that no process ended unexpectedly.
    fn look_after_processes(&mut self) -> Result<(), DemoError> {
        let ended = |name: &str, process: &mut Process| match process.exit_code() {
            Some(code) => Err(DemoError::Ended { name: name.to_owned(), code, words: process.last_words() }),
            None => Ok(()),
        };
        ended("syncer", &mut self.syncer)?;
        self.peak.syncer_bytes = self.peak.syncer_bytes.max(self.syncer.rss_bytes_max());
        for (name, learner) in &mut self.learners {
            if self.kill.as_ref().is_some_and(|kill| kill.is_dead() && kill.name == *name) {
                continue;
            }
            ended(name, learner)?;
            self.peak.learner_bytes = self.peak.learner_bytes.max(learner.rss_bytes_max());
        }
        Ok(())
    }

    fn kill_if_due(&mut self, now: f64, view: &mut View) -> Result<(), DemoError> {
        let Some(kill) = &mut self.kill else { return Ok(()) };
        let Some((_, process)) = self.learners.iter_mut().find(|(name, _)| *name == kill.name) else {
            return Ok(());
        };
        if let Some(sentence) = kill.step(now, &self.status, process, self.programs, &self.join)? {
            view.say(&sentence);
        }
        Ok(())
    }

    fn speed(&self, now: f64) -> Speed {
        let of = |counts: &dyn Fn(&str) -> bool| self.history.tokens_per_s(now - SPEED_S, now, counts);
        let each = self.status.learners.iter().map(|learner| of(&|name| name == learner.name)).collect();
        Speed { at: now, tokens_per_s: of(&|_| true), each }
    }

    fn stop(&self, now: f64) -> Option<Stop> {
        let low = |asked: f64| self.status.val_loss.is_some_and(|loss| loss <= asked);
        if self.status.finished {
            Some(Stop::Finished)
        } else if self.interrupt.asked() {
            Some(Stop::Asked)
        } else if self.until_loss.is_some_and(low) {
            Some(Stop::Loss)
        } else {
            self.run_s.filter(|run_s| now >= *run_s).map(|_| Stop::Time)
        }
    }
}
