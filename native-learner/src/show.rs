//! Output for people and programs.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use archipelago::run::{Doing, Event, Report, RunConfig};
use archipelago_cli::{fail, plain};
use archipelago_core::wire::Fate;
use archipelago_runtime::engine::gpu::Trial;
use serde_json::json;

use crate::cli::OutputArgs;
use crate::exit::Failure;

/// Time between two plain lines of progress while nothing changes, in milliseconds.
const PLAIN_MS: u64 = 5_000;
/// Time between two JSON lines of progress, in milliseconds.
const JSON_MS: u64 = 1_000;
/// Maximum number of columns of a progress line; a longer one would wrap and could not be overwritten.
const COLUMNS_MAX: usize = 79;
/// Erases the current line and returns to its beginning.
const ERASE: &str = "\r\x1b[2K";

/// Printer of the events of one run.
pub(crate) struct EventPrinter {
    output: OutputArgs,
    terminal: bool,
    /// Whether a progress line is on the terminal.
    line: bool,
    /// The last sentence shown, and its time.
    sentence: String,
    shown_ms: Option<u64>,
    loss: Option<f32>,
    /// Reason for the lost connection and the wait before the next attempt in milliseconds, until they are shown. There
    /// is no next attempt after the end of the run.
    lost: Option<(String, u64)>,
    /// Whether the loss of the connection was shown, but not its return.
    is_missed: bool,
}

impl EventPrinter {
    pub(crate) fn new(output: OutputArgs) -> Self {
        let terminal = io::stdout().is_terminal() && !output.json;
        let (sentence, shown_ms, loss, lost) = (String::new(), None, None, None);
        Self { output, terminal, line: false, sentence, shown_ms, loss, lost, is_missed: false }
    }

    /// Shows the start of a run with its settings.
    pub(crate) fn begin(&mut self, config: &RunConfig, identity: &Path) {
        if self.output.json {
            let (address, name, device) = (config.address.to_string(), &config.name, &config.device);
            print(
                &json!({"event": "start", "address": address, "name": name, "device": device, "identity": identity}),
            );
        } else {
            self.say(format_args!("joining {} as {:?} with {}", config.address, config.name, config.device));
        }
    }

    pub(crate) fn event(&mut self, event: &Event) {
        if let Some(sentence) = self.loss_of_connection(event) {
            // With `--quiet`, only the first loss of a connection is printed until it is back.
            if self.output.quiet && !self.is_missed {
                self.tell(sentence)
            } else {
                self.say(sentence)
            }
            self.is_missed = true;
        }
        if let Event::Progress(report) = event {
            return self.progress(report);
        }
        if self.output.json {
            return match serde_json::to_value(event) {
                Ok(value) => print(&value),
                Err(error) => print(&json!({"event": "trouble", "reason": error.to_string()})),
            };
        }
        match event {
            Event::Preparing { .. } => {
                self.say("admitted: building the model and measuring which batch fits")
            }
            Event::Welcomed { run, learner, params, device, batch, .. } => {
                let params = short(*params as f64);
                self.is_missed = false;
                self.tell(format_args!(
                    "welcome: learner {learner} of run {run}, {params} parameters on {device}, batch {batch}"
                ));
            }
            Event::FirstStep { elapsed_ms } => {
                self.say(format_args!("first step after {:.1} s", *elapsed_ms as f64 / 1e3));
            }
            Event::Disconnected { reason, retry_ms } => self.lost = Some((reason.clone(), *retry_ms)),
            Event::Afresh { reason } => self.say(format_args!("starting from scratch: {reason}")),
            Event::Trouble { reason } => self.say(reason),
            Event::Receipt { fragment, fate } if self.output.verbose => match fate {
                Fate::Merged { version, weight, tokens } => self.say(format_args!(
                    "fragment {fragment}: merged into version {version}, {tokens} tokens, \
                     weight {weight:.3}"
                )),
                Fate::Late(reason) => {
                    self.say(format_args!("fragment {fragment}: late ({reason:?})"));
                }
                Fate::Refused(reason) => {
                    self.say(format_args!("fragment {fragment}: refused ({reason:?})"));
                }
            },
            Event::Merged { fragment, version } if self.output.verbose => {
                self.say(format_args!("fragment {fragment} is at version {version}"));
            }
            Event::Connecting { address } if self.output.verbose => {
                self.say(format_args!("connecting to {address}"));
            }
            Event::Progress(_) | Event::Receipt { .. } | Event::Merged { .. } | Event::Connecting { .. } => {}
        }
    }

    /// Shows sentences about the device and engine.
    pub(crate) fn notes(&mut self, sentences: Vec<String>) {
        for sentence in sentences {
            if self.output.json {
                print(&json!({"event": "note", "sentence": sentence}));
            } else {
                self.say(sentence);
            }
        }
    }

    /// Shows the result of the run.
    pub(crate) fn end(&mut self, report: &Report) {
        if self.output.json {
            return print(&with_event("end", report));
        }
        // The reason in the syncer's goodbye.
        if let Some((reason, _)) = self.lost.take() {
            self.tell(reason);
        }
        self.tell(summary(report));
    }

    /// Returns a sentence about the lost connection, once `event` shows that the learner continues without it.
    fn loss_of_connection(&mut self, event: &Event) -> Option<String> {
        if matches!(event, Event::Progress(report) if report.doing == Doing::Leaving) {
            return None;
        }
        let (reason, retry_ms) = self.lost.take()?;
        Some(format!("no connection: {reason}; next attempt in {:.1} s", retry_ms as f64 / 1e3))
    }

    fn progress(&mut self, report: &Report) {
        self.loss = report.loss.or(self.loss);
        let sentence = report.to_string();
        let period_ms = if self.output.json { JSON_MS } else { PLAIN_MS };
        let due = self.shown_ms.is_none_or(|shown_ms| report.elapsed_ms >= shown_ms + period_ms);
        if self.output.json {
            if due {
                self.shown_ms = Some(report.elapsed_ms);
                print(&with_event("progress", report));
            }
            return;
        }
        if self.output.quiet {
            return;
        }
        let line = self.line(&sentence, report);
        if self.terminal {
            let line: String = line.chars().take(COLUMNS_MAX).collect();
            self.line = true;
            write(format_args!("{ERASE}{}", plain(&line)));
        } else if due || word(&sentence) != word(&self.sentence) {
            self.shown_ms = Some(report.elapsed_ms);
            write(format_args!("{}\n", plain(&line)));
        }
        self.sentence = sentence;
    }

    fn line(&self, sentence: &str, report: &Report) -> String {
        if report.steps == 0 {
            return sentence.to_owned();
        }
        let loss = self.loss.map_or_else(|| "–".to_owned(), |loss| format!("{loss:.3}"));
        format!(
            "{sentence} · step {} · loss {loss} · {} tok/s · {} merged · sync {:.1} % · up {}B down {}B",
            report.steps,
            short(report.tokens_per_s),
            share(report),
            100.0 * report.sync_ratio,
            short(report.sent_bytes as f64),
            short(report.received_bytes as f64),
        )
    }

    /// Prints a permanent line, unless the user asked for milestones only.
    fn say(&mut self, text: impl Display) {
        if !self.output.quiet {
            self.tell(text);
        }
    }

    /// Prints a permanent line. Parts of `text` may come from an untrusted peer.
    fn tell(&mut self, text: impl Display) {
        let erase = if std::mem::take(&mut self.line) { ERASE } else { "" };
        write(format_args!("{erase}{}\n", plain(&text.to_string())));
    }
}

/// Prints the reason for a failure, and returns its exit code.
pub(crate) fn failure(failure: &Failure, json: bool) -> ExitCode {
    if json {
        print(&json!({"event": "error", "code": u8::from(failure.exit), "message": failure.message}));
    }
    fail(&failure.message, failure.exit)
}

/// Describes the speed of one kernel for matrix products.
pub(crate) fn trial(trial: &Trial) -> String {
    let Trial { variant, form, m, n, k, gflops } = trial;
    format!("{form:?} [{m}, {n}, {k}] {variant:?} {gflops:.1} GFLOP/s")
}

/// Prints one JSON object on its own line.
pub(crate) fn print(value: &impl Display) {
    archipelago_cli::say(value);
}

/// Writes to standard output. A closed reader does not stop training.
pub(crate) fn write(text: impl Display) {
    drop(archipelago_cli::write(text));
}

fn with_event(event: &str, report: &Report) -> serde_json::Value {
    let mut value = json!(report);
    value["event"] = json!(event);
    value["sentence"] = json!(report.to_string());
    value
}

/// Returns the learner's activity, without the subsequent figures, which change all the time.
fn word(sentence: &str) -> &str {
    sentence.split(',').next().unwrap_or_default()
}

/// Summarises the run in a line.
fn summary(report: &Report) -> String {
    let unsettled = match report.tokens_unsettled {
        0 => String::new(),
        tokens => format!(", {tokens} more delivered and not merged yet"),
    };
    format!(
        "done: {} steps, {} tokens trained, {} merged ({}){unsettled}, {:.2} % of the time for communication",
        report.steps,
        report.tokens_trained,
        report.tokens_merged,
        share(report),
        100.0 * report.sync_ratio,
    )
}

/// Returns the share of the trained tokens that was merged.
fn share(report: &Report) -> String {
    if report.tokens_trained == 0 {
        return "–".to_owned();
    }
    format!("{:.0} %", 100.0 * report.tokens_merged as f64 / report.tokens_trained as f64)
}

/// Formats a count with a short unit: `950`, `12.3 k`, `4.5 M`.
pub(crate) fn short(count: f64) -> String {
    match count {
        c if c < 1e3 => format!("{c:.0}"),
        c if c < 1e6 => format!("{:.1} k", c / 1e3),
        c if c < 1e9 => format!("{:.1} M", c / 1e6),
        c => format!("{:.1} G", c / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_short() {
        assert_eq!([950.0, 12_345.0, 4.5e6].map(short), ["950", "12.3 k", "4.5 M"]);
    }

    fn report(doing: Doing) -> Report {
        Report {
            elapsed_ms: 9_000,
            doing,
            offline: None,
            share: 1.0,
            steps: 4,
            tokens_trained: 4_096,
            tokens_merged: 1_280,
            tokens_unsettled: 2_816,
            updates_merged: 3,
            updates_late: 0,
            updates_refused: 0,
            clock_tokens: 1_280,
            loss: None,
            learning_rate: 1e-3,
            tokens_per_s: 1.0,
            step_ms: 1.0,
            sync_ratio: 0.05,
            train_ms: 1,
            exchange_ms: 1,
            starved_ms: 0,
            sent_bytes: 1,
            received_bytes: 1,
            fetched_bytes: 1,
            frozen_bytes: 0,
            frozen_bytes_total: 0,
        }
    }

    #[test]
    fn what_is_handed_in_is_no_loss() {
        let mut report = report(Doing::Leaving);
        assert_eq!(
            summary(&report),
            "done: 4 steps, 4096 tokens trained, 1280 merged (31 %), 2816 more delivered and not merged yet, 5.00 % of \
             the time for communication"
        );
        report.tokens_unsettled = 0;
        assert!(summary(&report).contains("1280 merged (31 %), 5.00 %"));
    }

    #[test]
    fn the_end_of_a_run_is_no_loss_of_its_connection() {
        let mut show = EventPrinter::new(OutputArgs { json: false, quiet: true, verbose: false });
        let lost = Event::Disconnected { reason: "thank you".into(), retry_ms: 100 };
        let progress = |doing| Event::Progress(Box::new(report(doing)));
        show.event(&lost);
        assert_eq!(show.loss_of_connection(&progress(Doing::Leaving)), None);
        assert_eq!(show.lost, Some(("thank you".to_owned(), 100)), "what is left to be said at the end");
        let said = show.loss_of_connection(&progress(Doing::Training));
        assert_eq!(said.as_deref(), Some("no connection: thank you; next attempt in 0.1 s"));
        assert_eq!(show.loss_of_connection(&progress(Doing::Training)), None, "it is said once");
    }
}
