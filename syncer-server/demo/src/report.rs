//! Figures of a run, and the verdict.

use serde_json::{Value, json};

use crate::{args::Args, error::DemoError, fall::Fall, status::Status};

/// Reason why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The user stopped it here.
    Asked,
    /// The owner finished the run on the page.
    Finished,
    /// The time is up.
    Time,
    /// The held-out loss is low enough.
    Loss,
}

/// Peak resident memory in bytes; 0 if the system does not report it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peak {
    pub syncer_bytes: u64,
    /// Peak of the largest learner.
    pub learner_bytes: u64,
}

/// Figures of a run.
pub struct Report {
    pub preset: String,
    pub learners: u32,
    /// Threads of each learner.
    pub threads: usize,
    /// Seconds from the first trained token to the decision to stop.
    pub seconds: f64,
    /// Planned tokens for the learning rate, if the run had a length.
    pub planned_tokens: Option<u64>,
    /// Killed learner, true if it was merged again, and figures.
    pub kill: Option<(String, bool, Value)>,
    pub peak: Peak,
    /// First fall of the loss.
    pub fall: Option<Fall>,
    /// Last status of the syncer.
    pub status: Status,
}

impl Report {
    /// Checks that the run did what `args` requested.
    ///
    /// # Errors
    /// The first goal that it missed.
    pub fn verdict(&self, args: &Args, stop: Stop) -> Result<(), DemoError> {
        let (first, last) = (self.status.val_loss_first, self.status.val_loss);
        if self.status.updates_without_fate > 0 {
            return Err(DemoError::WithoutFate(self.status.updates_without_fate));
        }
        if stop == Stop::Asked && (args.span.is_some() || args.until_loss.is_some() || args.headless) {
            return Err(DemoError::Interrupted);
        }
        if let Some(asked) = args.until_loss.filter(|asked| last.is_none_or(|last| last > *asked)) {
            return Err(DemoError::LossNotReached { asked, last });
        }
        if args.learners() == 0 && self.status.tokens_trained == 0 {
            // No learner came; the run is not at fault.
            return Ok(());
        }
        if !matches!((first, last), (Some(first), Some(last)) if last < first) {
            return Err(DemoError::LossDidNotFall { first, last });
        }
        match &self.kill {
            Some((name, false, _)) => Err(DemoError::NotMergedAgain(name.clone())),
            _ => Ok(()),
        }
    }

    /// Returns the figures as one object, with the verdict's sentence, if any.
    pub fn json(&self, verdict: &Result<(), DemoError>) -> Value {
        let status = &self.status;
        json!({
            "ok": verdict.is_ok(),
            "error": verdict.as_ref().err().map(ToString::to_string),
            "preset": self.preset,
            "params": status.params,
            "learners": self.learners,
            "threads_per_learner": self.threads,
            "seconds": self.seconds,
            "rounds": status.rounds,
            "tokens_planned": self.planned_tokens,
            "tokens_trained": status.tokens_trained,
            "tokens_merged": status.tokens_merged,
            "tokens_per_s": status.tokens_trained as f64 / self.seconds,
            "participation": status.participation,
            "updates_without_fate": status.updates_without_fate,
            "first_falling_loss_s": self.fall.as_ref().map(|fall| fall.after_s),
            "val_loss_first": status.val_loss_first,
            "val_loss_last": status.val_loss,
            "train_loss_last": status.train_loss,
            "entropy_floor": status.entropy_floor,
            "bytes_up": status.bytes_up,
            "bytes_down": status.bytes_down,
            "bits_per_param_up": status.bits_per_param_up,
            "bits_per_param_down": status.bits_per_param_down,
            "peak_rss_syncer_bytes": self.peak.syncer_bytes,
            "peak_rss_learner_bytes": self.peak.learner_bytes,
            "kill": self.kill.as_ref().map(|(_, _, figures)| figures),
        })
    }

    /// Returns the figures in one or two sentences.
    pub fn summary(&self) -> String {
        let status = &self.status;
        let loss = |loss: Option<f64>| loss.map_or("-".to_owned(), |loss| format!("{loss:.3}"));
        let bits = |bits: Option<f64>| bits.map_or("-".to_owned(), |bits| format!("{bits:.2}"));
        format!(
            "{} rounds in {:.0} s: held-out loss {} → {} nats per token, {:.0} tokens/s, participation {:.3}, \
             {} / {} bits per parameter up / down",
            status.rounds,
            self.seconds,
            loss(status.val_loss_first),
            loss(status.val_loss),
            status.tokens_trained as f64 / self.seconds,
            status.participation,
            bits(status.bits_per_param_up),
            bits(status.bits_per_param_down),
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// Checks the exit code of a run with these flags and this end.
    fn check(flags: &[&str], stop: Stop, change: impl Fn(&mut Report), code: u8) {
        let args = Cli::parse_from(["demo"].iter().chain(flags)).args;
        let status = Status { val_loss_first: Some(5.5), val_loss: Some(2.0), ..Status::default() };
        let mut report = Report {
            preset: args.preset().to_owned(),
            learners: args.learners(),
            threads: 1,
            seconds: 60.0,
            planned_tokens: None,
            kill: None,
            peak: Peak::default(),
            fall: None,
            status,
        };
        change(&mut report);
        let got = report.verdict(&args, stop).map_or_else(|error| error.exit_code(), |()| 0);
        assert_eq!(got, code, "{flags:?} {stop:?}");
    }

    #[test]
    fn each_thing_asked_for_has_its_code() {
        check(&["--for", "60s"], Stop::Time, |_| {}, 0);
        check(&[], Stop::Asked, |_| {}, 0);
        check(&[], Stop::Finished, |_| {}, 0);
        check(&["--for", "60s"], Stop::Finished, |_| {}, 0);
        check(&["--for", "60s"], Stop::Asked, |_| {}, 130);
        check(&["--until-loss", "2.5"], Stop::Loss, |_| {}, 0);
        check(&["--until-loss", "1.5"], Stop::Time, |_| {}, 22);
        check(&[], Stop::Time, |report| report.status.val_loss = Some(5.5), 21);
        check(&[], Stop::Time, |report| report.status.val_loss_first = None, 21);
        check(&[], Stop::Time, |report| report.status.val_loss = Some(f64::NAN), 21);
        check(&[], Stop::Time, |report| report.status.updates_without_fate = 1, 23);
        // A class without learners, and one that learnt nothing.
        check(&["--classroom"], Stop::Asked, |report| report.status.val_loss = None, 0);
        let learnt_nothing = |report: &mut Report| {
            (report.status.tokens_trained, report.status.val_loss) = (1, Some(5.5));
        };
        check(&["--classroom"], Stop::Asked, learnt_nothing, 21);
        check(&[], Stop::Time, |report| report.kill = Some(("a".into(), true, Value::Null)), 0);
        check(&[], Stop::Time, |report| report.kill = Some(("a".into(), false, Value::Null)), 25);
    }
}
