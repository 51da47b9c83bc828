//! Figures of a run: the line about its state, the summary, and the verdict.

use std::fmt;

use archipelago_cli::DemoArgs;
use serde_json::{Value, json};

use super::DemoError;
use crate::inspect::as_json;
use crate::status::ServerStatus;

/// Reason why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The user stopped the demo in the terminal.
    Asked,
    /// The owner finished the run on the page.
    Finished,
    /// The time is up.
    Time,
    /// The held-out loss is low enough.
    Loss,
}

/// First held-out loss below that of the initial parameters. Losses are in nats per token.
#[derive(Clone, Debug, PartialEq)]
pub struct LossDrop {
    /// Seconds since the start of the command, including builds.
    after_s: f64,
    /// Seconds since the first trained token.
    trained_s: f64,
    from: f32,
    to: f32,
}

impl LossDrop {
    /// Returns the fall from `first` to `last`, if the loss has fallen.
    pub fn of(first: Option<f32>, last: Option<f32>, after_s: f64, trained_s: f64) -> Option<Self> {
        let (from, to) = first.zip(last)?;
        (to < from).then_some(Self { after_s, trained_s, from, to })
    }
}

impl fmt::Display for LossDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after_s, trained_s, from, to } = self;
        write!(
            f,
            "first falling loss after {after_s:.0} s, {trained_s:.0} s of them training: held-out {from:.3} → {to:.3}"
        )
    }
}

/// Figures that decide the verdict.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// First held-out loss, in nats per token.
    pub first: Option<f32>,
    /// Newest held-out loss, in nats per token.
    pub last: Option<f32>,
    /// Tokens that all learners trained.
    pub tokens_trained: u64,
    /// Updates without an outcome whose round is over; 0 in a sound run.
    pub without_outcome: u64,
    /// Name of the killed learner, and true if it was merged after its restart.
    pub merged_again: Option<(String, bool)>,
}

impl Outcome {
    /// Checks that the run did what `args` requested.
    fn verdict(&self, args: &DemoArgs, stop: Stop) -> Result<(), DemoError> {
        let &Self { first, last, .. } = self;
        if self.without_outcome > 0 {
            return Err(DemoError::WithoutOutcome(self.without_outcome));
        }
        if stop == Stop::Asked && !args.is_open_ended() {
            return Err(DemoError::Interrupted);
        }
        let is_above = |goal: &f64| last.is_none_or(|last| f64::from(last) > *goal);
        if let Some(goal) = args.until_loss.filter(is_above) {
            return Err(DemoError::LossNotReached { goal, last });
        }
        if args.learners() == 0 && self.tokens_trained == 0 {
            // No learner came, which is no fault of the run.
            return Ok(());
        }
        if !first.zip(last).is_some_and(|(first, last)| last < first) {
            return Err(DemoError::LossDidNotFall { first, last });
        }
        match &self.merged_again {
            Some((name, false)) => Err(DemoError::NotMergedAgain(name.clone())),
            _ => Ok(()),
        }
    }
}

/// Figures of a run.
pub struct Report {
    pub learners: u32,
    /// Threads of each learner.
    pub threads: usize,
    /// Seconds from the first trained token to the decision to stop.
    pub seconds: f64,
    /// Planned tokens for the learning rate, if the run had a length.
    pub planned_tokens: Option<u64>,
    pub outcome: Outcome,
    /// Peak resident memory in bytes; 0 if the system does not report it.
    pub rss_syncer_bytes: u64,
    /// Peak resident memory of the largest learner in bytes; 0 if the system does not report it.
    pub rss_learner_bytes: u64,
    /// First fall of the loss.
    pub fall: Option<LossDrop>,
    /// Last status of the syncer.
    pub status: ServerStatus,
}

impl Report {
    /// Checks that the run did what `args` requested.
    ///
    /// # Errors
    /// The first goal that it missed.
    pub fn verdict(&self, args: &DemoArgs, stop: Stop) -> Result<(), DemoError> {
        self.outcome.verdict(args, stop)
    }

    /// Returns the last status as one object, with the figures of the demo and the verdict's sentence, if any.
    pub fn json(&self, verdict: &Result<(), DemoError>) -> Value {
        let mut json = as_json(&self.status);
        let own = json!({
            "ok": verdict.is_ok(),
            "error": verdict.as_ref().err().map(ToString::to_string),
            "seconds": self.seconds,
            "learnersHere": self.learners,
            "threadsPerLearner": self.threads,
            "plannedTokens": self.planned_tokens,
            "meanTokensPerS": self.status.core.tokens_trained as f64 / self.seconds,
            "firstFallingLossS": self.fall.as_ref().map(|fall| fall.after_s),
            "peakRssSyncerBytes": self.rss_syncer_bytes,
            "peakRssLearnerBytes": self.rss_learner_bytes,
            "mergedAgain": self.outcome.merged_again.as_ref().map(|(_, merged_again)| merged_again),
        });
        if let (Value::Object(json), Value::Object(own)) = (&mut json, own) {
            json.extend(own);
        }
        json
    }

    /// Returns the figures in one sentence.
    pub fn summary(&self) -> String {
        let core = &self.status.core;
        let bits = |bits: Option<f64>| bits.map_or("-".to_owned(), |bits| format!("{bits:.2}"));
        format!(
            "{} rounds in {:.0} s: held-out loss {} → {} nats per token, {:.0} tokens/s, participation {:.3}, \
             {} / {} bits per parameter up / down",
            core.rounds,
            self.seconds,
            nats(self.outcome.first),
            nats(self.outcome.last),
            core.tokens_trained as f64 / self.seconds,
            core.participation,
            bits(self.status.bits_per_param_up),
            bits(self.status.bits_per_param_down),
        )
    }
}

/// Returns a line about the state of the run, `now_s` seconds after the first trained token.
pub fn status_line(status: &ServerStatus, now_s: f64) -> String {
    let (seconds, core) = (now_s as u64, &status.core);
    let floor = status.facts.entropy_floor.map(|floor| format!(", floor {floor:.3}")).unwrap_or_default();
    format!(
        "{:>2}:{:02} {:>5} rounds {:>6.0} tok/s, participation {:.3}, up {}, down {}  loss train {}, \
         held-out {}{floor}",
        seconds / 60,
        seconds % 60,
        core.rounds,
        status.tokens_per_s,
        core.participation,
        bytes(status.traffic.bytes_up),
        bytes(status.traffic.bytes_down),
        nats(core.train_loss),
        nats(status.val_loss_last),
    )
}

fn nats(loss: Option<f32>) -> String {
    loss.map_or("-".to_owned(), |loss| format!("{loss:.3}"))
}

/// Formats a number of bytes for people.
fn bytes(bytes: u64) -> String {
    let (value, unit) = match bytes {
        0..1_000 => return format!("{bytes} B"),
        1_000..1_000_000 => (bytes as f64 / 1e3, "kB"),
        1_000_000..1_000_000_000 => (bytes as f64 / 1e6, "MB"),
        _ => (bytes as f64 / 1e9, "GB"),
    };
    let decimals = usize::from(value < 100.0);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the exit code of a run with `flags` that ended by `stop`. `change` alters the outcome of a good run.
    fn check(flags: &[&str], stop: Stop, change: impl Fn(&mut Outcome), code: u8) {
        let mut outcome =
            Outcome { first: Some(5.5), last: Some(2.0), tokens_trained: 9, ..Outcome::default() };
        change(&mut outcome);
        let verdict = outcome.verdict(&archipelago_cli::defaults(flags), stop);
        let found = verdict.map_or_else(|error| error.exit_code(), |()| 0);
        assert_eq!(found, code, "{flags:?} {stop:?}");
    }

    #[test]
    fn each_goal_has_its_code() {
        check(&["--for", "60s"], Stop::Time, |_| {}, 0);
        check(&[], Stop::Asked, |_| {}, 0);
        check(&["--for", "60s"], Stop::Finished, |_| {}, 0);
        check(&["--for", "60s"], Stop::Asked, |_| {}, 130);
        check(&["--until-loss", "2.5"], Stop::Loss, |_| {}, 0);
        check(&["--until-loss", "1.5"], Stop::Time, |_| {}, 25);
        check(&[], Stop::Time, |outcome| outcome.last = Some(5.5), 24);
        check(&[], Stop::Time, |outcome| outcome.first = None, 24);
        check(&[], Stop::Time, |outcome| outcome.last = Some(f32::NAN), 24);
        check(&[], Stop::Time, |outcome| outcome.without_outcome = 1, 26);
        // A class without learners, and one whose loss did not fall.
        let alone = |outcome: &mut Outcome| (outcome.tokens_trained, outcome.last) = (0, None);
        check(&["--classroom"], Stop::Asked, alone, 0);
        check(&["--classroom"], Stop::Asked, |outcome| outcome.last = Some(5.5), 24);
        check(&[], Stop::Time, |outcome| outcome.merged_again = Some(("a".into(), true)), 0);
        check(&[], Stop::Time, |outcome| outcome.merged_again = Some(("a".into(), false)), 27);
    }

    #[test]
    fn only_a_lower_loss_is_a_fall() {
        let fall = |first, last| LossDrop::of(first, last, 95.0, 9.0).map(|fall| fall.to_string());
        assert_eq!(fall(None, None), None);
        assert_eq!(fall(Some(5.5), Some(5.5)), None);
        assert_eq!(fall(Some(5.5), Some(f32::NAN)), None);
        let said = "first falling loss after 95 s, 9 s of them training: held-out 5.552 → 4.910";
        assert_eq!(fall(Some(5.552), Some(4.91)).unwrap(), said);
    }

    #[test]
    fn a_run_without_figures_has_a_line() {
        let mut status = ServerStatus::default();
        status.traffic.bytes_up = 999_900_000;
        let line = " 1:01     0 rounds      0 tok/s, participation 0.000, up 1000 MB, down 0 B  \
                    loss train -, held-out -";
        assert_eq!(status_line(&status, 61.5), line);
    }
}
