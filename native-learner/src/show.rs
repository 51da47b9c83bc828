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

/// Minimum time between two plain lines of progress while nothing changes, in milliseconds.
const PLAIN_MS: u64 = 5_000;
/// Minimum time between two JSON lines of progress, in milliseconds.
const JSON_MS: u64 = 1_000;
/// Maximum number of columns of a progress line. A longer line would wrap and could not be overwritten.
const COLUMNS_MAX: usize = 79;
/// Control sequence that erases the current line and returns to its beginning.
const ERASE: &str = "\r\x1b[2K";

/// Printer of events while the learner takes part in a run.
pub(crate) struct EventPrinter {
    output: OutputArgs,
    terminal: bool,
    /// True if a progress line is on the terminal.
    line: bool,
    /// Last sentence of a progress line, and the time at which it was shown.
    sentence: String,
    shown_ms: Option<u64>,
    loss: Option<f32>,
    /// Reason for the lost connection, and wait before the next attempt in milliseconds, until they are shown. After
    /// the end of a run there is no next attempt.
    lost: Option<(String, u64)>,
    /// True if the loss of the connection was shown, and not yet its return.
    is_missed: bool,
}

impl EventPrinter {
    pub(crate) fn new(output: OutputArgs) -> Self {
        let terminal = io::stdout().is_terminal() && !output.json;
        let (sentence, shown_ms, loss, lost) = (String::new(), None, None, None);
        Self { output, terminal, line: false, sentence, shown_ms, loss, lost, is_missed: false }
    }

    /// Shows the start of the learner with its settings.
    pub(crate) fn begin(&mut self, config: &RunConfig, identity: &Path) {
        if self.output.json {
            let (address, name, device) = (config.address.to_string(), &config.name, &config.device);
            print(
                &json!({"event": "start", "address": address, "name": name, "device": device, "identity": identity}),
            );
        } else {
            self.print_detail(format_args!(
                "joining {} as {:?} with {}",
                config.address, config.name, config.device
            ));
        }
    }

    pub(crate) fn event(&mut self, event: &Event) {
        if let Some(sentence) = self.lost_connection(event) {
            // With `--quiet`, only the first of several losses is shown until the connection is back.
            if self.output.quiet && !self.is_missed {
                self.print_line(sentence)
            } else {
                self.print_detail(sentence)
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
                self.print_detail("admitted: building the model and measuring which batch fits")
            }
            Event::Welcomed { run, learner, params, device, batch, .. } => {
                let params = short(*params as f64);
                self.is_missed = false;
                self.print_line(format_args!(
                    "welcome: learner {learner} of run {run}, {params} parameters on {device}, batch {batch}"
                ));
            }
            Event::FirstStep { elapsed_ms } => {
                self.print_detail(format_args!("first step after {:.1} s", *elapsed_ms as f64 / 1e3));
            }
            Event::Disconnected { reason, retry_ms } => self.lost = Some((reason.clone(), *retry_ms)),
            Event::Afresh { reason } => self.print_detail(format_args!("starting from scratch: {reason}")),
            Event::Trouble { reason } => self.print_detail(reason),
            Event::Receipt { fragment, fate } if self.output.verbose => match fate {
                Fate::Merged { version, weight, tokens } => self.print_detail(format_args!(
                    "fragment {fragment}: merged into version {version}, {tokens} tokens, \
                     weight {weight:.3}"
                )),
                Fate::Late(reason) => {
                    self.print_detail(format_args!("fragment {fragment}: late ({reason:?})"));
                }
                Fate::Refused(reason) => {
                    self.print_detail(format_args!("fragment {fragment}: refused ({reason:?})"));
                }
            },
            Event::Merged { fragment, version } if self.output.verbose => {
                self.print_detail(format_args!("fragment {fragment} is at version {version}"));
            }
            Event::Connecting { address } if self.output.verbose => {
                self.print_detail(format_args!("connecting to {address}"));
            }
            Event::Progress(_) | Event::Receipt { .. } | Event::Merged { .. } | Event::Connecting { .. } => {}
        }
    }

    /// Shows sentences about device and engine.
    pub(crate) fn notes(&mut self, sentences: Vec<String>) {
        for sentence in sentences {
            if self.output.json {
                print(&json!({"event": "note", "sentence": sentence}));
            } else {
                self.print_detail(sentence);
            }
        }
    }

    /// Shows the result at the end.
    pub(crate) fn end(&mut self, report: &Report) {
        if self.output.json {
            return print(&with_event("end", report));
        }
        // This is the reason in the syncer's goodbye.
        if let Some((reason, _)) = self.lost.take() {
            self.print_line(reason);
        }
        self.print_line(summary(report));
    }

    /// Returns a sentence about a lost connection, once `event` shows that the learner continues without it.
    fn lost_connection(&mut self, event: &Event) -> Option<String> {
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
        } else if due || activity(&sentence) != activity(&self.sentence) {
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

    /// Prints a permanent line, unless only milestones are wanted.
    fn print_detail(&mut self, text: impl Display) {
        if !self.output.quiet {
            self.print_line(text);
        }
    }

    /// Prints a permanent line. `text` may contain parts from an untrusted peer.
    fn print_line(&mut self, text: impl Display) {
        let erase = if std::mem::take(&mut self.line) { ERASE } else { "" };
        write(format_args!("{erase}{}\n", plain(&text.to_string())));
    }
}

/// Prints the reason for a failure. Returns its exit code.
pub(crate) fn failure(failure: &Failure, json: bool) -> ExitCode {
    if json {
        print(&json!({"event": "error", "code": u8::from(failure.exit), "message": failure.message}));
    }
    fail(&failure.message, failure.exit)
}

/// Describes the measured speed of one kernel.
pub(crate) fn trial(trial: &Trial) -> String {
    let Trial { variant, form, m, n, k, gflops } = trial;
    format!("{form:?} [{m}, {n}, {k}] {variant:?} {gflops:.1} GFLOP/s")
}

/// Prints one JSON object on its own line.
pub(crate) fn print(value: &impl Display) {
    archipelago_cli::say(value);
}

/// Writes to standard output. If its reader has gone, training continues.
pub(crate) fn write(text: impl Display) {
    drop(archipelago_cli::write(text));
}

fn with_event(event: &str, report: &Report) -> serde_json::Value {
    let mut value = json!(report);
    value["event"] = json!(event);
    value["sentence"] = json!(report.to_string());
    value
}

/// Returns the activity in a progress sentence, without the numbers after it, which change all the time.
fn activity(sentence: &str) -> &str {
    sentence.split(',').next().unwrap_or_default()
}

/// Summarises the learner's work in one line.
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

/// Formats the merged share of the trained tokens.
fn share(report: &Report) -> String {
    if report.tokens_trained == 0 {
        return "–".to_owned();
    }
    format!("{:.0} %", 100.0 * report.tokens_merged as f64 / report.tokens_trained as f64)
}

/// Formats a number with a short unit: `950`, `12.3 k`, `4.5 M`.
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
    fn the_summary_lists_delivered_tokens_apart() {
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
    fn the_end_of_a_run_is_not_shown_as_a_lost_connection() {
        let mut show = EventPrinter::new(OutputArgs { json: false, quiet: true, verbose: false });
        let lost = Event::Disconnected { reason: "thank you".into(), retry_ms: 100 };
        let progress = |doing| Event::Progress(Box::new(report(doing)));
        show.event(&lost);
        assert_eq!(show.lost_connection(&progress(Doing::Leaving)), None);
        assert_eq!(show.lost, Some(("thank you".to_owned(), 100)), "what is left to be said at the end");
        let said = show.lost_connection(&progress(Doing::Training));
        assert_eq!(said.as_deref(), Some("no connection: thank you; next attempt in 0.1 s"));
        assert_eq!(show.lost_connection(&progress(Doing::Training)), None, "it is said once");
    }
}
