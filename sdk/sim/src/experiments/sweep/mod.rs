//! `simulate sweep`: the loss over any settings, with others chosen anew for each of them.
//!
//! A text is parted by document. What is chosen is chosen by the loss on one part, and told of by another. Runs are
//! kept as they end, so that a table may take several sittings.

mod cell;
mod grid;
mod run;
mod tell;

use archipelago_sim::lab::Trainers;
use serde::Serialize;

use super::kept::Kept;
use super::sitting::{Run as _, Sitting, SittingArgs};
use super::text::Text;
use super::{CommonArgs, Report, SimulateError};
use cell::CellArgs;
use grid::Grid;
use run::{Made, Run};

/// The runs that were made.
type Runs = Kept<Made>;

/// Settings of `simulate sweep`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SweepArgs {
    /// Settings that make the rows, each named like its flag: NAME=VALUE,VALUE/NAME=VALUE,VALUE
    #[arg(long, value_name = "GRID")]
    pub vary: Grid,
    /// Settings that are chosen anew for each row, by the part of the text to choose by
    #[arg(long, value_name = "GRID", default_value = "")]
    pub choose: Grid,
    /// The row that each row is set beside: itself, but for these settings [default: the first row]
    #[arg(long, value_name = "GRID", default_value = "")]
    pub beside: Grid,
    #[command(flatten)]
    #[serde(skip)]
    pub sitting: SittingArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub cell: CellArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Trains what is not kept yet, and sets the losses beside each other.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Refused`: a row is none, a run is impossible, or the text is too short.
/// - `Disk`: a text or a file cannot be read or written.
pub fn run(args: &SweepArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    args.cell.check()?;
    let text = Text::read(&args.cell.training)?;
    let trainers = args.cell.engine.trainers(progress)?;
    let trainers = trainers.as_ref();
    let table = Table::new(args, &text.digest)?;
    let mut runs: Vec<Run> = Vec::new();
    // All of one seed, before the next one.
    for seed in args.seeds() {
        for row in &table.rows {
            for (choice, cell) in &row.cells {
                let settings = [&row.settings[..], choice].concat();
                let run = Run::new(&text.digest, &settings, cell, seed, trainers.cloned())?;
                if runs.iter().all(|other| other.key() != run.key()) {
                    runs.push(run);
                }
            }
        }
    }
    let mut kept = Runs::open(args.sitting.keep.as_deref())?;
    let mut sitting = Sitting::new(&args.cell.training, &args.cell.engine, &args.sitting, progress)?;
    let left = sitting.make(&text.corpus, runs, &mut kept)?;
    Ok(tell::report(args, &text, &table, &kept, left))
}

impl SweepArgs {
    fn seeds(&self) -> impl Iterator<Item = u64> {
        let first = self.common.seed;
        (0..self.cell.training.seeds).map(move |i| first.wrapping_add(i.into()))
    }
}

/// A row: settings that are given, and what they may be completed to.
struct Row {
    settings: grid::Settings,
    /// By what is chosen.
    cells: Vec<(grid::Settings, CellArgs)>,
}

/// All rows, and the index of the one that each is set beside.
struct Table {
    text: String,
    rows: Vec<Row>,
    beside: Vec<usize>,
}

impl Table {
    fn new(args: &SweepArgs, text: &str) -> Result<Self, SimulateError> {
        let choices = args.choose.all();
        let row = |settings: grid::Settings| {
            let cell = |choice: &grid::Settings| {
                Ok::<_, SimulateError>((choice.clone(), args.cell.with(settings.iter().chain(choice))?))
            };
            let cells = choices.iter().map(cell).collect::<Result<Vec<_>, _>>()?;
            Ok::<_, SimulateError>(Row { settings, cells })
        };
        let rows = args.vary.all().into_iter().map(row).collect::<Result<Vec<_>, _>>()?;
        let beside = rows.iter().map(|row| args.beside_of(row, &rows)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { text: text.to_owned(), rows, beside })
    }
}

impl SweepArgs {
    /// The index of the row that `row` is set beside.
    fn beside_of(&self, row: &Row, rows: &[Row]) -> Result<usize, SimulateError> {
        let changes = self.beside.all();
        let [change] = &changes[..] else {
            return Err(SimulateError::refused("--beside gives each setting one value: give a row"));
        };
        if change.is_empty() {
            return Ok(0);
        }
        let mut wanted = row.settings.clone();
        for (name, value) in change {
            let found = wanted.iter_mut().find(|(other, _)| other == name);
            let Some(setting) = found else {
                return Err(SimulateError::refused(format!("--beside {name}: --vary does not have it")));
            };
            setting.1.clone_from(value);
        }
        rows.iter().position(|other| other.settings == wanted).ok_or_else(|| {
            SimulateError::refused(format!("--beside: --vary makes no row of {}", grid::words(&wanted)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn sit(flags: &str) -> Result<(Report, Vec<String>), SimulateError> {
        let few = "--steps 16 --learners 2 --batch 1 --context 16 --sync-every 4 --fragments 2 --seeds 2";
        let flags: Vec<&str> = few.split(' ').chain(flags.split(' ')).collect();
        let mut lines = Vec::new();
        let report = run(&defaults(&flags), &mut |line| lines.push(line.to_owned()))?;
        Ok((report, lines))
    }

    /// Goal: each row is told of at what is best for it, beside the row that was asked for, and no run is made twice.
    #[test]
    fn rows_are_told_of_at_their_best_beside_another() {
        let folder = tempfile::tempdir().unwrap();
        let keep = folder.path().join("runs.jsonl");
        let keep = keep.to_str().unwrap();
        let flags = format!(
            "--vary sync-every=4,8/side=data-parallel,decoupled --choose lr=0.000001,0.01 --beside side=data-parallel \
             --keep {keep}"
        );
        let (report, lines) = sit(&flags).unwrap();
        assert_eq!(lines.len(), 2 * 2 * 2 * 2, "{lines:#?}");
        let cases: Vec<&str> = report.cases.iter().map(|case| &case.case[..]).collect();
        assert_eq!(
            cases,
            [
                "sync-every 4, side data-parallel",
                "sync-every 4, side decoupled",
                "sync-every 8, side data-parallel",
                "sync-every 8, side decoupled"
            ]
        );
        for case in &report.cases {
            let note = case.note.as_deref().unwrap();
            assert!(note.contains("lr 0.01") && !note.contains("lr 0.000001"), "{note}");
            assert_eq!(case.ours == 0.0, case.case.ends_with("data-parallel"), "{case:?}");
        }
        assert_eq!(report.plots[0].series.len(), 2, "{:#?}", report.plots);
        let (again, lines) = sit(&flags).unwrap();
        assert_eq!((again, lines), (report, Vec::new()));
        // Rows that were asked for before are there, whatever stands beside them.
        let (_, lines) = sit(&format!("--vary sync-every=8,16 --choose lr=0.01 --keep {keep}")).unwrap();
        assert_eq!(lines.len(), 2, "{lines:#?}");
    }

    /// Goal: learners that come and go train less in the same time, and are merged all the same.
    #[test]
    fn learners_come_and_go() {
        let (report, _) = sit("--vary leave-every-ms=0,600 --away-ms 400").unwrap();
        let goodput = |at: usize| report.points[at].ours;
        assert!(goodput(0) > 90.0, "{report:#?}");
        assert!((30.0..70.0).contains(&goodput(1)), "{report:#?}");
    }

    #[test]
    fn what_is_no_row_is_a_sentence() {
        let check = |flags: &str, part: &str| {
            let error = sit(flags).unwrap_err();
            assert!(error.to_string().contains(part), "{flags}: {error}");
        };
        check("--vary no-such=1", "no-such");
        check("--vary data=1", "data");
        check("--vary seeds=1", "seeds");
        check("--vary sync-every=0", "--sync-every 0 is out of range");
        check("--vary sync-every=x", "sync-every");
        check("--vary sync-every=4 --beside lr=1", "--vary does not have it");
        check("--vary sync-every=4 --beside sync-every=8", "makes no row of sync-every 8");
        check("--vary sync-every=4 --beside sync-every=4,8", "one value");
        check("--vary steps=0", "--steps 0 is out of range");
        check("--vary leave-every-ms=100 --away-ms 1000", "--away-ms 1000 is out of range");
    }
}
