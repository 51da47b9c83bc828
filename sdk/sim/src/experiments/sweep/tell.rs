//! What the runs that were made say.

use super::grid::{self, Settings};
use super::run::{Key, Made};
use super::{Row, Runs, SweepArgs, Table};
use crate::experiments::findings::mean;
use crate::experiments::student::interval;
use crate::experiments::text::Text;
use crate::experiments::{Axis, Case, Mark, Plot, Report, Scale, Series};

/// The runs of a row at what is best for it, by seed.
struct Best<'a> {
    choice: &'a Settings,
    made: Vec<&'a Made>,
}

impl Best<'_> {
    fn losses(&self) -> impl Iterator<Item = f64> {
        self.made.iter().filter_map(|made| made.test.map(f64::from))
    }
}

/// The table of what is there.
pub(super) fn report(args: &SweepArgs, text: &Text, table: &Table, kept: &Runs, left: usize) -> Report {
    let best: Vec<Option<Best<'_>>> = table.rows.iter().map(|row| best(args, table, row, kept)).collect();
    let (mut cases, mut points) = (Vec::new(), Vec::new());
    for ((row, ours), &beside) in table.rows.iter().zip(&best).zip(&table.beside) {
        let (Some(ours), Some(base)) = (ours, &best[beside]) else { continue };
        let name = grid::words(&row.settings);
        cases.push(case(&name, ours, base));
        if let Some(goodput) = goodput(row, ours) {
            points.push(Case::new(format!("{name}, goodput"), goodput, None));
        }
    }
    let series = lines(table, &cases);
    let plot = Plot {
        name: format!("sweep-{}", text.name),
        title: format!("Loss over settings on {}", text.name),
        x: Axis { label: args.vary.first().unwrap_or("").to_owned(), scale: Scale::Log },
        y: Axis { label: "test loss above, percent".into(), scale: Scale::Linear },
        series,
    };
    Report {
        title: format!("Test loss above the row beside it, {}", text.name),
        unit: "%",
        plots: if plot.series.is_empty() { Vec::new() } else { vec![plot] },
        notes: notes(args, text, left),
        cases,
        points,
    }
}

/// The runs of `row` with the least loss on what is chosen by; `None` before all are there that it takes.
fn best<'a>(args: &SweepArgs, table: &Table, row: &'a Row, kept: &'a Runs) -> Option<Best<'a>> {
    let mut best: Option<(f64, Best<'_>)> = None;
    for (choice, cell) in &row.cells {
        let made = args.seeds().map(|seed| kept.get(&Key::new(&table.text, cell, seed)));
        let made = made.collect::<Option<Vec<_>>>()?;
        let sum: f64 = made.iter().map(|made| made.validation.map_or(f64::INFINITY, f64::from)).sum();
        if sum.is_finite() && best.as_ref().is_none_or(|(least, _)| sum < *least) {
            best = Some((sum, Best { choice, made }));
        }
    }
    best.map(|(_, best)| best)
}

fn case(name: &str, ours: &Best<'_>, base: &Best<'_>) -> Case {
    let gaps: Vec<f64> =
        ours.losses().zip(base.losses()).map(|(ours, base)| 100.0 * (ours / base - 1.0)).collect();
    let by_seed = gaps.iter().map(|gap| format!("{gap:+.2}")).collect::<Vec<String>>().join(" · ");
    let half = interval(&gaps).map_or("unknown".into(), |half| format!("{half:.2}"));
    let merged = mean(ours.made.iter().map(|made| made.tokens_merged as f64 / made.tokens.max(1) as f64));
    let mut note =
        format!("± {half}; {:.4}; by seed {by_seed}; {:.1} % merged", mean(ours.losses()), 100.0 * merged);
    if !ours.choice.is_empty() {
        note.push_str(&format!("; {}", grid::words(ours.choice)));
    }
    Case::new(name, mean(gaps.iter().copied()), None).noted(note)
}

/// Steps that learners made, in percent of those that they had time for; `None` in training alone.
fn goodput(row: &Row, ours: &Best<'_>) -> Option<f64> {
    let step_ms = row.cells.first()?.1.training.step_ms as f64;
    let share = |made: &&Made| 100.0 * made.steps * step_ms / made.virtual_ms as f64;
    let found = mean(ours.made.iter().map(share));
    found.is_finite().then_some(found)
}

/// A line for each combination of all settings but the first, over that, if it is a number.
fn lines(table: &Table, cases: &[Case]) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for row in &table.rows {
        let name = grid::words(&row.settings);
        let (Some(case), Some((first, rest))) =
            (cases.iter().find(|case| case.case == name), row.settings.split_first())
        else {
            continue;
        };
        let Ok(x) = first.1.parse::<f64>() else { return Vec::new() };
        let name = if rest.is_empty() { first.0.clone() } else { grid::words(rest) };
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((x, case.ours)),
            None => {
                let colour = series.len() as u8;
                series.push(Series { name, colour, mark: Mark::Line, points: vec![(x, case.ours)] });
            }
        }
    }
    series
}

fn notes(args: &SweepArgs, text: &Text, left: usize) -> Vec<String> {
    let (documents, [train, validation, test]) = text.sizes;
    let mut notes = vec![
        format!(
            "{} has {documents} documents: {train} bytes to train on, {validation} to choose settings by, {test} to \
             tell of. Losses are in nats per byte, the mean of {} seeds; ± is half of the 95 % interval of the mean \
             gap (Student).",
            text.name, args.cell.training.seeds
        ),
        "Points of --json are the steps that learners made in percent of those that they had time for, the last \
         rounds included."
            .into(),
    ];
    if left > 0 {
        notes.push(format!("{left} runs are to be made yet: call it again with the same --keep."));
    }
    notes
}
