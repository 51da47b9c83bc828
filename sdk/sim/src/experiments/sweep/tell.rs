//! Report on the cached runs.

use super::cell::CellArgs;
use super::grid::{self, Settings};
use super::run::{Key, Made};
use super::trend::{self, Points};
use super::{Row, Runs, SweepArgs, Table};
use crate::experiments::findings::{mean, percent_above};
use crate::experiments::sitting::left_words;
use crate::experiments::student;
use crate::experiments::text::Text;
use crate::experiments::{Axis, Case, Mark, Plot, Report, Scale, Series};

/// The runs of a row at its best choice.
struct Best<'a> {
    choice: &'a Settings,
    cell: &'a CellArgs,
    made: Vec<&'a Made>,
    /// Test losses by seed, in nats per byte.
    losses: Vec<f64>,
}

/// Returns the report on the cached runs.
pub(super) fn report(args: &SweepArgs, text: &Text, table: &Table, kept: &Runs, left: usize) -> Report {
    // Rows are compared by the seeds that all of them have.
    let all = |seed: &u64| cells(table).all(|cell| kept.get(&Key::new(&text.digest, cell, *seed)).is_some());
    let seeds: Vec<u64> = args.seeds().filter(all).collect();
    let best = |row| best(&text.digest, row, &seeds, kept);
    let best: Vec<Option<Best<'_>>> = table.rows.iter().map(best).collect();
    let (mut cases, mut lines, mut notes) =
        (Vec::new(), Lines(Vec::new()), notes(args, text, table, seeds.len()));
    for ((row, ours), &beside) in table.rows.iter().zip(&best).zip(&table.beside) {
        let name = grid::words(&row.settings);
        match (ours, &best[beside]) {
            _ if seeds.is_empty() => {}
            (None, _) => notes.push(format!("{name}: no choice led to a loss with all seeds.")),
            (_, None) => notes.push(format!("{name}: the row beside it led to no loss.")),
            (Some(ours), Some(base)) => {
                let gaps = gaps(ours, base);
                cases.push(case(args, &name, ours, &gaps));
                lines.add(&row.settings, gaps);
            }
        }
    }
    let first = args.vary.names().next().unwrap_or_default();
    if let Some(percent) = args.trend {
        let trends = lines.trends(first, percent);
        if trends.is_empty() {
            notes.push(format!(
                "There is no trend over {first}: that takes two values above 0, and rows beside others."
            ));
        }
        notes.extend(trends);
    }
    notes.extend(left_words(left));
    let name = format!("sweep-{}-{}", text.name, args.vary.names().collect::<Vec<_>>().join("-"));
    let plots = lines.plot(&name, first);
    Report {
        title: format!("Test loss above the row beside it, {}", text.name),
        unit: "%",
        plots: plots.into_iter().collect(),
        notes,
        cases,
        points: Vec::new(),
    }
}

fn cells(table: &Table) -> impl Iterator<Item = &CellArgs> {
    table.rows.iter().flat_map(|row| row.cells.iter().map(|(_, cell)| cell))
}

/// Returns the runs of `row` with the smallest validation loss. `None` if no choice has a loss with each seed, or if
/// the best one lacks a test loss.
fn best<'a>(text: &str, row: &'a Row, seeds: &[u64], kept: &'a Runs) -> Option<Best<'a>> {
    let mut best: Option<(f64, Option<Best<'_>>)> = None;
    for (choice, cell) in &row.cells {
        let made = seeds.iter().map(|&seed| kept.get(&Key::new(text, cell, seed)));
        let made: Vec<&Made> = made.collect::<Option<_>>()?;
        let losses = |of: fn(&Made) -> Option<f32>| {
            made.iter().map(|made| of(made).map(f64::from)).collect::<Option<Vec<f64>>>()
        };
        let Some(chosen) = losses(|made| made.validation) else { continue };
        let sum = chosen.iter().sum();
        if best.as_ref().is_none_or(|(least, _)| sum < *least) {
            best = Some((sum, losses(|made| made.test).map(|losses| Best { choice, cell, made, losses })));
        }
    }
    best?.1
}

/// Returns the excess of the loss over that of `base` in percent, by seed.
fn gaps(ours: &Best<'_>, base: &Best<'_>) -> Vec<f64> {
    ours.losses.iter().zip(&base.losses).map(|(ours, base)| percent_above(*ours, *base)).collect()
}

fn case(args: &SweepArgs, name: &str, ours: &Best<'_>, gaps: &[f64]) -> Case {
    let loss = mean(ours.losses.iter().copied());
    let mut note = format!("{}; {loss:.4}; {}", student::half(gaps), student::by_seed(gaps));
    // Training alone takes no virtual time.
    if ours.made.iter().all(|made| made.virtual_ms > 0) {
        let over = |of: &dyn Fn(&Made) -> f64| mean(ours.made.iter().map(|made| of(made)));
        note.push_str(&format!("; {:.1} s", over(&|made| made.virtual_ms as f64 / 1e3)));
        if ours.cell.extra == 0 {
            // The time ends with the requested number of steps; those of the last rounds come after it.
            let alone_ms = (ours.cell.steps * ours.cell.training.step_ms) as f64;
            let trained = over(&|made| alone_ms / made.virtual_ms as f64);
            note.push_str(&format!(", {:.1} % of the time trained", 100.0 * trained));
        }
        let merged = over(&|made| made.tokens_merged as f64 / made.tokens.max(1) as f64);
        note.push_str(&format!(", {:.1} % merged", 100.0 * merged));
    }
    for (name, value) in ours.choice {
        let edge = if args.choose.is_at_an_edge(name, value) { ", an edge" } else { "" };
        note.push_str(&format!("; {name} {value}{edge}"));
    }
    Case::new(name, mean(gaps.iter().copied()), None).noted(note)
}

/// Gaps over the first setting, one line for each combination of the others, with its name.
struct Lines(Vec<(String, Points)>);

impl Lines {
    /// Adds the gaps of a row, if its first setting is a number.
    fn add(&mut self, settings: &Settings, gaps: Vec<f64>) {
        let Some((first, rest)) = settings.split_first() else { return };
        let Ok(x) = first.1.parse::<f64>() else { return };
        let name = if rest.is_empty() { first.0.clone() } else { grid::words(rest) };
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some((_, points)) => points.push((x, gaps)),
            None => self.0.push((name, vec![(x, gaps)])),
        }
    }

    /// Returns a sentence for each line with a trend; a baseline has no trend.
    fn trends(&self, first: &str, percent: f64) -> Vec<String> {
        let is_beside = |points: &Points| points.iter().all(|(_, gaps)| gaps.iter().all(|gap| *gap == 0.0));
        let told = self.0.iter().filter(|(_, points)| !is_beside(points));
        told.filter_map(|(name, points)| trend::sentence(name, first, points, percent)).collect()
    }

    fn plot(self, name: &str, first: &str) -> Option<Plot> {
        let is_positive = self.0.iter().flat_map(|(_, points)| points).all(|(x, _)| *x > 0.0);
        let scale = if is_positive { Scale::Log } else { Scale::Linear };
        let y = Axis { label: "test loss above, percent".into(), scale: Scale::Linear };
        let series = |(i, (name, points)): (usize, (String, Points))| {
            let points = points.into_iter().map(|(x, gaps)| (x, mean(gaps.into_iter()))).collect();
            Series { name, colour: (i % 256) as u8, mark: Mark::Line, points }
        };
        (!self.0.is_empty()).then(|| Plot {
            title: format!("Loss over {first}"),
            name: name.to_owned(),
            x: Axis { label: first.to_owned(), scale },
            y,
            series: self.0.into_iter().enumerate().map(series).collect(),
        })
    }
}

fn notes(args: &SweepArgs, text: &Text, table: &Table, seeds: usize) -> Vec<String> {
    let tokens = || table.rows.iter().map(|row| row.tokens);
    let (least, most) = (tokens().min().unwrap_or(0), tokens().max().unwrap_or(0));
    let mut notes = vec![
        text.words(),
        format!(
            "Rows have {} tokens, beside those of the last rounds, however long they took, and {seeds} of {} seeds; \
             ± is half of the 95 % interval of the mean gap (Student).",
            if least == most { most.to_string() } else { format!("{least} to {most}") },
            args.cell.training.seeds
        ),
    ];
    if args.choose.count() > 1.0 {
        notes.push(
            "What was chosen was chosen by the same runs, on another part of the text: with few seeds that flatters \
             rows with many choices."
                .into(),
        );
    }
    notes
}
