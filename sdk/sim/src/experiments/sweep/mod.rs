//! `simulate sweep`: the loss over any settings, with other settings chosen separately for each row.
//!
//! The documents of a text are divided into parts: one for choosing settings, another for reporting. Runs are cached as
//! they end, so that a table may take several sittings.

mod cell;
mod grid;
mod run;
mod tell;
mod trend;

use archipelago_cli::within;
use serde::Serialize;

use super::kept::Kept;
use super::sitting::{Sitting, SittingArgs};
use super::text::Text;
use super::training::seeds_from;
use super::{CommonArgs, Report, SimulateError};
use cell::CellArgs;
use grid::{Grid, Settings};
use run::{Made, Run};

/// Largest number of runs in a table.
const RUNS_MAX: f64 = 1e5;
/// Largest absolute percentage of `--trend`.
const TREND_MAX: f64 = 1e3;

/// The cached runs.
type Runs = Kept<Made>;

/// Settings of `simulate sweep`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SweepArgs {
    /// Settings that make the rows, each named like its flag: sync-every=12,24/learners=4,8 makes four rows
    #[arg(long, value_name = "GRID")]
    pub vary: Grid,
    /// Settings that are chosen separately for each row, on the part of the text that is reserved for choosing
    #[arg(long, value_name = "GRID", default_value = "")]
    pub choose: Grid,
    /// Baseline of each row: the row itself with these settings in place of its own [default: the first row]
    #[arg(long, value_name = "GRID", default_value = "")]
    pub beside: Grid,
    /// Also fit a straight line through the gaps over the doublings of the first setting, and report where it reaches
    /// this percentage
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub trend: Option<f64>,
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

/// Executes all runs that are not cached yet, and compares the losses.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Refused`: a row is invalid, a run is impossible, or the text is too short.
/// - `Disk`: a text or a file cannot be read or written.
pub fn run(args: &SweepArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    args.cell.check()?;
    if let Some(percent) = args.trend {
        within("trend", percent, -TREND_MAX..=TREND_MAX)?;
    }
    let table = Table::new(args)?;
    let text = Text::read(&args.cell.training)?;
    let trainers = args.cell.engine.trainers(progress)?;
    let trainers = trainers.as_ref();
    let mut runs = Vec::new();
    // Finish one seed before the next.
    for seed in args.seeds() {
        for row in &table.rows {
            for (choice, cell) in &row.cells {
                let settings = [&row.settings[..], choice].concat();
                runs.push(Run::new(&text.digest, &settings, cell, seed, trainers.cloned())?);
            }
        }
    }
    let mut kept = Runs::open(args.sitting.keep.as_deref())?;
    let mut sitting = Sitting::new(&args.cell.training, &args.cell.engine, &args.sitting, progress)?;
    let left = sitting.make(&text.corpus, runs, &mut kept)?;
    Ok(tell::report(args, &text, &table, &kept, left))
}

/// A row: fixed settings, and the choices that complete them.
struct Row {
    settings: Settings,
    /// Tokens of all learners together.
    tokens: u64,
    /// The cells, each with its choice.
    cells: Vec<(Settings, CellArgs)>,
}

/// All rows, and the index of the baseline of each.
struct Table {
    rows: Vec<Row>,
    beside: Vec<usize>,
}

impl Table {
    fn new(args: &SweepArgs) -> Result<Self, SimulateError> {
        let SweepArgs { vary, choose, cell, .. } = args;
        if vary.names().next().is_none() {
            return Err(SimulateError::refused("--vary names no setting: give NAME=VALUE,VALUE"));
        }
        if let Some(name) = choose.names().find(|name| vary.names().any(|other| other == *name)) {
            return Err(SimulateError::refused(format!("--choose {name}: --vary has it already")));
        }
        within("vary", vary.count() * choose.count() * f64::from(cell.training.seeds), 1.0..=RUNS_MAX)?;
        let choices = choose.all();
        let row = |settings: Settings| {
            let cell = |choice: &Settings| {
                Ok::<_, SimulateError>((choice.clone(), cell.with(settings.iter().chain(choice))?))
            };
            let cells = choices.iter().map(cell).collect::<Result<Vec<_>, _>>()?;
            let tokens = cells[0].1.tokens()?;
            for (choice, cell) in &cells {
                if cell.tokens()? != tokens {
                    return Err(SimulateError::refused(format!(
                        "--choose {}: choices of a row must train on as many tokens",
                        grid::words(choice)
                    )));
                }
            }
            Ok(Row { settings, tokens, cells })
        };
        let rows = vary.all().into_iter().map(row).collect::<Result<Vec<_>, _>>()?;
        let beside = rows.iter().map(|row| args.beside_of(row, &rows)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { rows, beside })
    }
}

impl SweepArgs {
    fn seeds(&self) -> impl Iterator<Item = u64> {
        seeds_from(self.common.seed, self.cell.training.seeds)
    }

    /// Returns the index of the baseline of `row`.
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
    use crate::experiments::Case;
    use archipelago_cli::defaults;

    fn sit(flags: &str) -> Result<(Report, Vec<String>), SimulateError> {
        sit_for(16, flags)
    }

    fn sit_for(steps: u64, flags: &str) -> Result<(Report, Vec<String>), SimulateError> {
        let few = format!(
            "--steps {steps} --learners 2 --batch 1 --context 16 --sync-every 4 --fragments 2 --seeds 2"
        );
        let flags: Vec<&str> = few.split(' ').chain(flags.split(' ')).collect();
        let mut lines = Vec::new();
        let report = run(&defaults(&flags), &mut |line| lines.push(line.to_owned()))?;
        Ok((report, lines))
    }

    /// Goal: each row is reported at its best choice, compared with the requested row, and no run is repeated.
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
        // Training alone is executed only once for both values of sync-every.
        assert_eq!(lines.len(), 2 * 2 * 2 + 2 * 2, "{lines:#?}");
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
            assert!(note.ends_with("lr 0.01, an edge"), "{note}");
            assert_eq!(note.contains("% of the time trained"), case.case.ends_with("decoupled"), "{note}");
            assert_eq!(case.ours == 0.0, case.case.ends_with("data-parallel"), "{case:?}");
        }
        assert_eq!(report.plots[0].series.len(), 2, "{:#?}", report.plots);
        let (again, lines) = sit(&flags).unwrap();
        assert_eq!((again, lines), (report, Vec::new()));
        // Training alone has no trend compared with itself.
        let (report, _) = sit(&format!("{flags} --trend 1")).unwrap();
        let trends: Vec<&String> =
            report.notes.iter().filter(|note| note.contains("each doubling of sync-every")).collect();
        assert!(matches!(trends[..], [one] if one.starts_with("side decoupled: ")), "{report:#?}");
        // Cached runs serve any table, whatever its baselines are.
        let (_, lines) = sit(&format!("--vary sync-every=8,16 --choose lr=0.01 --keep {keep}")).unwrap();
        assert_eq!(lines.len(), 2, "{lines:#?}");
    }

    /// Goal: learners that are killed and restarted train less in the same time, and are still merged.
    #[test]
    fn learners_come_and_go() {
        let (report, _) = sit("--vary leave-every-ms=0,600 --away-ms 400").unwrap();
        let figures = |at: usize| {
            let words = report.cases[at].note.as_deref().unwrap().split(' ');
            let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
            let [.., goodput, merged] = numbers[..] else { panic!("{report:#?}") };
            (goodput, merged)
        };
        let ((calm, _), (goodput, merged)) = (figures(0), figures(1));
        assert!(calm > 80.0 && calm <= 100.0 && (30.0..75.0).contains(&goodput), "{report:#?}");
        assert!((60.0..100.0).contains(&merged), "{report:#?}");
    }

    /// Goal: a run that continues after its last kill is not reported as one with kills.
    #[test]
    fn a_run_that_outlasts_its_kills_comes_to_nothing() {
        let (report, _) = sit("--vary leave-every-ms=0,100 --away-ms 100").unwrap();
        let is_said = |note: &String| note.starts_with("leave-every-ms 100: no choice led to a loss");
        assert!(report.cases.len() == 1 && report.notes.iter().any(is_said), "{report:#?}");
    }

    /// Goal: joiners contribute from halfway on: the same tokens take three quarters of the time.
    #[test]
    fn extra_learners_shorten_a_run() {
        let (report, _) = sit_for(64, "--vary extra=0,2 --latency-ms 0").unwrap();
        let [alone, joined] = &report.cases[..] else { panic!("{report:#?}") };
        let seconds = |case: &Case| -> f64 {
            let note = case.note.as_deref().unwrap();
            note.split("; ").find_map(|part| part.split_once(" s,")?.0.parse().ok()).unwrap()
        };
        let share = seconds(joined) / seconds(alone);
        assert!((0.72..0.95).contains(&share), "{report:#?}");
    }

    /// Goal: a diverged row is reported and stops no other, and a sitting reports the seeds that are complete.
    #[test]
    fn what_is_there_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let keep = folder.path().join("runs.jsonl");
        let flags = format!("--vary lr=0.01,1000 --keep {}", keep.display());
        let (report, lines) = sit(&format!("{flags} --minutes 0")).unwrap();
        assert!(lines.is_empty() && report.cases.is_empty() && report.plots.is_empty(), "{report:#?}");
        let has = |report: &Report, part: &str| report.notes.iter().any(|note| note.contains(part));
        assert!(
            has(&report, "Runs that are to be made yet: 4.") && has(&report, "0 of 2 seeds"),
            "{report:#?}"
        );
        let (report, lines) = sit(&flags).unwrap();
        assert_eq!((lines.len(), report.cases.len()), (4, 1), "{report:#?}");
        assert!(has(&report, "lr 1000: no choice led to a loss"), "{report:#?}");
        let runs = std::fs::read_to_string(&keep).unwrap();
        // Two runs train at once, and end in any order.
        let first = runs.lines().filter(|line| line.contains("\"seed\":1,"));
        std::fs::write(&keep, first.map(|line| line.to_owned() + "\n").collect::<String>()).unwrap();
        let (report, _) = sit(&format!("{flags} --minutes 0")).unwrap();
        assert!(report.cases.len() == 1 && has(&report, "1 of 2 seeds"), "{report:#?}");
    }

    #[test]
    fn what_is_no_row_is_a_sentence() {
        let check = |flags: &str, part: &str| {
            let error = sit(flags).unwrap_err();
            assert!(error.to_string().contains(part), "{flags}: {error}");
        };
        check("--vary no-such=1", "a row has no setting `no-such`");
        check("--vary seed=1,2", "a row has no setting `seed`");
        check("--vary data=1", "same for all rows");
        check("--vary seeds=1", "seeds");
        check("--vary sync-every=0", "--sync-every 0 is out of range");
        check("--vary sync-every=x", "sync-every");
        check("--vary sync-every=4 --beside lr=1", "--vary does not have it");
        check("--vary sync-every=4 --beside sync-every=8", "makes no row of sync-every 8");
        check("--vary sync-every=4 --beside sync-every=4,8", "one value");
        check("--vary steps=0", "--steps 0 is out of range");
        check("--vary extra=99999", "--extra 99999 is out of range");
        check("--vary leave-every-ms=100 --away-ms 1000", "--away-ms 1000 is out of range");
        check("--vary leave-every-ms=50", "--leave-every-ms 50 is out of range");
        check(
            "--vary leave-every-ms=1000/learners=1",
            "--leave-every-ms 1000 is out of range: give 0, or two",
        );
        check(
            "--vary leave-every-ms=1000/side=lookahead",
            "--leave-every-ms 1000 is out of range: give 0, or two",
        );
        check("--vary engine=gpu", "same for all rows");
        check("--vary lr=1 --choose lr=2", "--vary has it already");
        check(
            "--vary sync-every=4,8 --choose steps=16,32",
            "--choose steps 32: choices of a row must train on",
        );
        check("--vary sync-every=4,8 --trend inf", "--trend inf is out of range");
        check("--vary=", "--vary names no setting");
    }
}
