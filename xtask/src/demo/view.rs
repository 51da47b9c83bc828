//! The run as people see it: a table in place on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};

use super::status::{Learner, Status};

/// Seconds between two plain lines.
const LINE_S: f64 = 5.0;

/// Where the run is shown.
pub struct View {
    /// Lines of the table that stand on the terminal now; `None` if there is no table.
    table: Option<usize>,
    line_due: f64,
}

/// What is shown beside the status itself.
pub struct Speed {
    /// Seconds since the run began.
    pub at: f64,
    /// Tokens a second now, of all learners.
    pub tokens_per_s: f64,
    /// And of each, in the status's order.
    pub each: Vec<f64>,
}

impl View {
    /// A table if `headless` is off and standard output is a terminal.
    pub fn new(headless: bool) -> Self {
        let table = (!headless && io::stdout().is_terminal()).then_some(0);
        Self { table, line_due: 0.0 }
    }

    /// A sentence that stays.
    pub fn say(&mut self, sentence: &str) {
        self.clear();
        println!("{sentence}");
    }

    /// The run as it is now.
    pub fn show(&mut self, status: &Status, speed: &Speed) {
        let line = line(status, speed);
        if self.table.is_none() {
            if speed.at >= self.line_due {
                println!("{line}");
                self.line_due = speed.at + LINE_S;
            }
            return;
        }
        self.clear();
        println!("{line}");
        for (learner, tokens_per_s) in status.learners.iter().zip(&speed.each) {
            println!("{}", learner_line(learner, *tokens_per_s));
        }
        self.table = Some(1 + status.learners.len());
        let _ = io::stdout().flush();
    }

    /// Takes the table off the terminal.
    fn clear(&mut self) {
        if let Some(lines @ 1..) = self.table {
            // Up to the table's first line, then erase to the end of the screen.
            print!("\x1b[{lines}A\x1b[J");
            self.table = Some(0);
        }
    }
}

fn line(status: &Status, speed: &Speed) -> String {
    let seconds = speed.at as u64;
    let loss = |loss: Option<f64>| loss.map_or("-".to_owned(), |loss| format!("{loss:.3}"));
    let floor = status.entropy_floor.map(|floor| format!(" (floor {floor:.3})")).unwrap_or_default();
    format!(
        "{:>2}:{:02}  rounds {:>5}  loss train {} held-out {}{floor}  {:>7.0} tokens/s  participation {:.3}  up {} down {}",
        seconds / 60,
        seconds % 60,
        status.rounds,
        loss(status.train_loss),
        loss(status.val_loss),
        speed.tokens_per_s,
        status.participation,
        bytes(status.bytes_up),
        bytes(status.bytes_down),
    )
}

fn learner_line(learner: &Learner, tokens_per_s: f64) -> String {
    format!(
        "       {:<12} {:<9} {tokens_per_s:>7.0} tokens/s  loss {}  merged {} of {} tokens",
        learner.name,
        learner.state.as_deref().unwrap_or("away"),
        learner.loss.map_or("-".to_owned(), |loss| format!("{loss:.3}")),
        learner.tokens_merged,
        learner.tokens_trained,
    )
}

/// A number of bytes as people read it.
fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_everything_even_before_anything_is_known() {
        let speed = Speed { at: 61.5, tokens_per_s: 12_345.6, each: Vec::new() };
        let empty = line(&Status::default(), &speed);
        assert!(empty.starts_with(" 1:01  rounds     0  loss train - held-out -  "), "{empty}");
        let status = Status {
            val_loss: Some(1.5),
            entropy_floor: Some(0.9),
            bytes_up: 2_500_000,
            ..Status::default()
        };
        let known = line(&status, &speed);
        for part in ["held-out 1.500 (floor 0.900)", "12346 tokens/s", "up 2.5 MB"] {
            assert!(known.contains(part), "{known}");
        }
    }
}
