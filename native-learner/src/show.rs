//! What people and programs get to see.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use archipelago::run::{Event, Report, RunConfig};
use archipelago_cli::fail;
use archipelago_core::wire::Fate;
use archipelago_runtime::engine::gpu::Trial;
use serde_json::json;

use crate::cli::OutputArgs;
use crate::exit::Failure;

/// Time between two plain lines of progress while nothing changes, in milliseconds.
const PLAIN_MS: u64 = 5_000;
/// Time between two JSON lines of progress, in milliseconds.
const JSON_MS: u64 = 1_000;
/// The most columns of a progress line: a longer one would wrap, and could not be overwritten.
const COLUMNS_MAX: usize = 79;
/// Erases the line that the cursor is in and goes to its beginning.
const ERASE: &str = "\r\x1b[2K";

/// Prints the events of one run.
pub(crate) struct Show {
    output: OutputArgs,
    terminal: bool,
    /// A progress line stands on the terminal.
    line: bool,
    /// The sentence shown last, and when.
    sentence: String,
    shown_ms: Option<u64>,
    loss: Option<f32>,
}

impl Show {
    pub(crate) fn new(output: OutputArgs) -> Self {
        let terminal = io::stdout().is_terminal() && !output.json;
        Self { output, terminal, line: false, sentence: String::new(), shown_ms: None, loss: None }
    }

    /// Says who joins what.
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
            Event::Preparing { .. } => {}
            Event::Proving { bits } => {
                self.say(format_args!(
                    "the run asks newcomers for some work first: about {} tries",
                    1_u64 << bits.min(&63)
                ));
            }
            Event::Welcomed { run, learner, params, device, batch, .. } => {
                let params = short(*params as f64);
                self.say(format_args!(
                    "welcome: learner {learner} of run {run}, {params} parameters on {device}, batch {batch}"
                ));
            }
            Event::FirstStep { elapsed_ms } => {
                self.say(format_args!("first step after {:.1} s", *elapsed_ms as f64 / 1e3));
            }
            Event::Disconnected { reason, retry_ms } => {
                let retry_s = *retry_ms as f64 / 1e3;
                self.say(format_args!("no connection: {reason}; next attempt in {retry_s:.1} s"));
            }
            Event::Afresh { reason } => self.say(format_args!("starting afresh: {reason}")),
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

    /// Sentences about what it computes with.
    pub(crate) fn notes(&mut self, sentences: Vec<String>) {
        for sentence in sentences {
            if self.output.json {
                print(&json!({"event": "note", "sentence": sentence}));
            } else {
                self.say(sentence);
            }
        }
    }

    /// Says how it went.
    pub(crate) fn end(&mut self, report: &Report) {
        if self.output.json {
            return print(&with_event("end", report));
        }
        self.say(format_args!(
            "done: {} steps, {} tokens trained, {} merged ({}), {:.2} % of the time for syncing",
            report.steps,
            report.tokens_trained,
            report.tokens_merged,
            share(report),
            100.0 * report.sync_ratio,
        ));
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
            write(format_args!("{ERASE}{line}"));
        } else if due || word(&sentence) != word(&self.sentence) {
            self.shown_ms = Some(report.elapsed_ms);
            write(format_args!("{line}\n"));
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

    /// A line that stays.
    fn say(&mut self, text: impl Display) {
        if self.output.quiet {
            return;
        }
        let erase = if std::mem::take(&mut self.line) { ERASE } else { "" };
        write(format_args!("{erase}{text}\n"));
    }
}

/// Says why the command failed, and gives its exit code.
pub(crate) fn failure(failure: &Failure, json: bool) -> ExitCode {
    if json {
        print(&json!({"event": "error", "code": u8::from(failure.exit), "message": failure.message}));
    }
    fail(&failure.message, failure.exit)
}

/// How one kernel multiplied matrices.
pub(crate) fn trial(trial: &Trial) -> String {
    let Trial { variant, form, m, n, k, gflops } = trial;
    format!("{form:?} [{m}, {n}, {k}] {variant:?} {gflops:.1} GFLOP/s")
}

/// One JSON object on a line of its own.
pub(crate) fn print(value: &impl Display) {
    write(format_args!("{value}\n"));
}

/// Writes to standard output. If its reader has gone away, that is no reason to stop training.
pub(crate) fn write(text: impl Display) {
    let mut stdout = io::stdout().lock();
    let _gone = write!(stdout, "{text}").and_then(|()| stdout.flush());
}

fn with_event(event: &str, report: &Report) -> serde_json::Value {
    let mut value = json!(report);
    value["event"] = json!(event);
    value["sentence"] = json!(report.to_string());
    value
}

/// What the learner is doing, without the figures that follow, which change all the time.
fn word(sentence: &str) -> &str {
    sentence.split(',').next().unwrap_or_default()
}

/// The share of the tokens trained that was merged.
fn share(report: &Report) -> String {
    if report.tokens_trained == 0 {
        return "–".to_owned();
    }
    format!("{:.0} %", 100.0 * report.tokens_merged as f64 / report.tokens_trained as f64)
}

/// A count with a unit that keeps it short: `950`, `12.3 k`, `4.5 M`.
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
}
