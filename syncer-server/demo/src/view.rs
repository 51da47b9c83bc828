//! Display of a run: a table in place on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};

use archipelago_cli::{plain, say, write};

use crate::status::{Learner, Status};

/// Seconds between two plain lines.
const LINE_S: f64 = 5.0;

/// Columns of a line of the table; a longer one would wrap and could not be erased.
const COLUMNS_MAX: usize = 79;

/// Learners in the table; more would scroll it.
const LEARNERS_MAX: usize = 12;

/// Display of a run.
pub struct View {
    /// Lines of the table on the terminal; `None` if there is no table.
    table: Option<usize>,
    line_due: f64,
}

/// Figures that are displayed next to the status.
pub struct Speed {
    /// Seconds since the run began.
    pub at: f64,
    /// Current tokens per second of all learners.
    pub tokens_per_s: f64,
    /// Current tokens per second of each learner, in the status's order.
    pub each: Vec<f64>,
}

impl View {
    /// Creates a table if `headless` is off and standard output is a terminal, otherwise plain lines.
    pub fn new(headless: bool) -> Self {
        let table = (!headless && io::stdout().is_terminal()).then_some(0);
        Self { table, line_due: 0.0 }
    }

    /// Prints a permanent sentence.
    pub fn say(&mut self, sentence: &str) {
        self.clear();
        say(&sentence);
    }

    /// Displays the current status.
    pub fn show(&mut self, status: &Status, speed: &Speed) {
        if self.table.is_none() {
            if speed.at >= self.line_due {
                say(&format_args!("{}  {}", counts(status, speed), losses(status)));
                self.line_due = speed.at + LINE_S;
            }
            return;
        }
        self.clear();
        let lines = table(status, speed);
        for line in &lines {
            say(line);
        }
        self.table = Some(lines.len());
    }

    /// Erases the table from the terminal.
    fn clear(&mut self) {
        if let Some(lines @ 1..) = self.table {
            // Move to the table's first line, then erase to the end of the screen.
            drop(write(format_args!("\x1b[{lines}A\x1b[J")));
            self.table = Some(0);
        }
    }
}

fn table(status: &Status, speed: &Speed) -> Vec<String> {
    let mut lines = vec![counts(status, speed), format!("      {}", losses(status))];
    let learners = status.learners.iter().zip(&speed.each).take(LEARNERS_MAX);
    lines.extend(learners.map(|(learner, tokens_per_s)| learner_line(learner, *tokens_per_s)));
    if let Some(more @ 1..) = status.learners.len().checked_sub(LEARNERS_MAX) {
        lines.push(format!("      and {more} more"));
    }
    lines.into_iter().map(|line| line.chars().take(COLUMNS_MAX).collect()).collect()
}

fn counts(status: &Status, speed: &Speed) -> String {
    let seconds = speed.at as u64;
    format!(
        "{:>2}:{:02} {:>5} rounds {:>6.0} tok/s, participation {:.3}, up {}, down {}",
        seconds / 60,
        seconds % 60,
        status.rounds,
        speed.tokens_per_s,
        status.participation,
        bytes(status.bytes_up),
        bytes(status.bytes_down),
    )
}

fn losses(status: &Status) -> String {
    let loss = |loss: Option<f64>| loss.map_or("-".to_owned(), |loss| format!("{loss:.3}"));
    let floor = status.entropy_floor.map(|floor| format!(", floor {floor:.3}")).unwrap_or_default();
    format!("loss train {}, held-out {}{floor}", loss(status.train_loss), loss(status.val_loss))
}

fn learner_line(learner: &Learner, tokens_per_s: f64) -> String {
    let share = 100.0 * learner.tokens_merged as f64 / learner.tokens_trained.max(1) as f64;
    format!(
        "      {:<12} {:<8} {tokens_per_s:>6.0} tok/s  loss {:<5}  {share:>3.0} % of {} merged",
        plain(&learner.name),
        learner.state.as_deref().unwrap_or("away"),
        learner.loss.map_or("-".to_owned(), |loss| format!("{loss:.3}")),
        learner.tokens_trained,
    )
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

    #[test]
    fn says_everything_even_before_anything_is_known() {
        let speed = Speed { at: 61.5, tokens_per_s: 12_345.6, each: Vec::new() };
        let empty = Status::default();
        assert_eq!(
            counts(&empty, &speed),
            " 1:01     0 rounds  12346 tok/s, participation 0.000, up 0 B, down 0 B"
        );
        assert_eq!(losses(&empty), "loss train -, held-out -");
        let known = Status { val_loss: Some(1.5), entropy_floor: Some(0.9), ..Status::default() };
        assert_eq!(losses(&known), "loss train -, held-out 1.500, floor 0.900");
    }

    #[test]
    fn a_large_run_fits_a_small_terminal() {
        let learner = Learner {
            name: "learner-12".to_owned(),
            state: Some("training".to_owned()),
            tokens_trained: 12_345_678,
            tokens_merged: 12_345_678,
            loss: Some(1.234_5),
        };
        let status = Status {
            rounds: 12_345,
            bytes_up: 999_900_000,
            bytes_down: 999_900_000,
            learners: vec![learner; 64],
            ..Status::default()
        };
        let lines = table(&status, &Speed { at: 5_999.0, tokens_per_s: 123_456.0, each: vec![12_345.0; 64] });
        assert_eq!(lines.len(), 2 + LEARNERS_MAX + 1);
        assert!(lines[0].ends_with("up 1000 MB, down 1000 MB"), "{}", lines[0]);
        assert!(lines[2].ends_with("100 % of 12345678 merged"), "{}", lines[2]);
    }
}
