//! `simulate run`: the loss over any settings of a run, with other settings chosen separately for each row.
//!
//! A plan is a file of settings, as in `tests/experiments/plans`: its grid makes the rows of a table, and each row is
//! compared with a baseline. Runs are cached as they end, so that a table may take several program starts.

mod attacks;
mod grid;
mod record;
mod report;
mod run_cache;
mod runner;
mod settings;

use std::sync::Arc;

use archipelago_cli::within;
use archipelago_core::rng::key;
use serde::Serialize;

use crate::lab::Trainers;
use crate::text::{Split, Text};
use crate::training::seeds_from;
use crate::{CommonArgs, SimulateError, SimulationReport};
use grid::{Grid, NamedSettings};
use record::RunKey;
pub use record::{RunRecord, TextSplit};
use run_cache::RunCache;
pub use run_cache::parse;
use runner::{Runner, TableRun, TimeBudgetArgs};
use settings::RunSettings;

/// Largest number of runs in a table.
const RUNS_MAX: f64 = 1e5;
/// Largest absolute percentage of `--trend`.
const TREND_MAX: f64 = 1e3;
/// Random stream of the fresh seeds. It differs from that of the choosing seeds.
const FRESH: u64 = 0x701d;

/// Settings of `simulate run`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlanArgs {
    /// Settings that make the rows, each named like its flag: sync-every=12,24/learners=4,8 makes four rows
    #[arg(long, value_name = "GRID", default_value = "")]
    pub vary: Grid,
    /// Settings that are chosen for each row, by the validation loss
    #[arg(long, value_name = "GRID", default_value = "")]
    pub choose: Grid,
    /// Settings that turn a row into its baseline; several values make several baselines [default: the first row]
    #[arg(long, value_name = "GRID", default_value = "")]
    pub beside: Grid,
    /// Runs of each candidate in --choose, with seeds from --seed on; the best one is run with --seeds fresh seeds.
    /// With 0, the candidates' runs are reported
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub choosing_seeds: u32,
    /// Held-out part of the text: whole documents, or the end
    #[arg(long, value_name = "SPLIT", value_enum, default_value = "documents")]
    pub held_out: Split,
    /// Held-out part whose loss is reported; an end that is held out has only validation
    #[arg(long, value_name = "PART", value_enum, default_value = "test")]
    pub part: TextSplit,
    /// The paper's figure of a row, by the row's name
    #[arg(long, value_name = "GRID", default_value = "")]
    pub paper: Grid,
    /// Also fit a line through the gaps over the logarithm of the first setting, and report where it reaches this
    /// percentage
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub trend: Option<f64>,
    /// Beginning of the names of plots [default: made from the text and --vary]
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    pub name: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub budget: TimeBudgetArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub settings: RunSettings,
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
pub fn run(args: &PlanArgs, progress: &mut dyn FnMut(&str)) -> Result<SimulationReport, SimulateError> {
    args.settings.check()?;
    within("choosing-seeds", args.choosing_seeds.into(), 0.0..=1e3)?;
    if let Some(percent) = args.trend {
        within("trend", percent, -TREND_MAX..=TREND_MAX)?;
    }
    if args.budget.minutes.is_some() && args.budget.keep.is_none() {
        return Err(SimulateError::refused(
            "--minutes loses what was made in them: give --keep FILE as well",
        ));
    }
    let table = Table::new(args)?;
    let text = Text::read(&args.settings.training, args.held_out)?;
    let trainers = args.settings.engine.trainers(progress)?;
    let mut cache = RunCache::open(args.budget.keep.as_deref())?;
    let mut runner = Runner::new(&args.settings, &args.budget, progress)?;
    let choosing = table.choosing(args, &text, trainers.as_ref())?;
    let mut left = runner.execute(&text.corpus, choosing, &mut cache)?;
    let fresh = table.fresh(args, &text, &cache, trainers.as_ref())?;
    left += runner.execute(&text.corpus, fresh, &mut cache)?;
    Ok(report::report(args, &text, &table, &cache, left))
}

/// A row: fixed settings, and the choices that complete them.
struct Row {
    words: NamedSettings,
    /// Tokens of all learners together.
    tokens: u64,
    /// Each choice with all settings of its runs.
    cells: Vec<(NamedSettings, RunSettings)>,
}

/// The best choice of a row, by its validation losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BestChoice {
    /// The index of a cell.
    Cell(usize),
    /// Runs are missing.
    Pending,
    /// No cell has a loss with each seed.
    Hopeless,
}

/// All rows.
struct Table {
    /// The rows of the grid, then baselines that are not in it.
    rows: Vec<Row>,
    /// Pairs of a row and its baseline, by index. With several baselines, also the settings that lead to this baseline.
    comparisons: Vec<(usize, usize, Option<String>)>,
}

impl Table {
    fn new(args: &PlanArgs) -> Result<Self, SimulateError> {
        let PlanArgs { vary, choose, settings, .. } = args;
        if vary.names().next().is_none() {
            return Err(SimulateError::refused("--vary names no setting: give NAME=VALUE,VALUE"));
        }
        for (flag, other) in [("vary", vary), ("beside", &args.beside)] {
            if let Some(name) = choose.names().find(|name| other.names().any(|other| other == *name)) {
                return Err(SimulateError::refused(format!("--choose {name}: --{flag} has it already")));
            }
        }
        let seeds = f64::from(settings.training.seeds.max(args.choosing_seeds));
        let count = vary.count() * choose.count() * args.beside.count() * seeds;
        within("vary", count, 1.0..=RUNS_MAX)?;
        let choices = choose.all();
        let rows = vary.all().into_iter().map(|words| Row::new(words, &choices, settings));
        let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
        let changes = args.beside.all();
        let mut comparisons = Vec::new();
        for ours in 0..rows.len() {
            for change in &changes {
                if change.is_empty() {
                    comparisons.push((ours, 0, None));
                    continue;
                }
                let wanted = replaced(&rows[ours].words, change);
                let base = match rows.iter().position(|row| row.words == wanted) {
                    Some(base) => base,
                    None => {
                        rows.push(Row::new(wanted, &choices, settings)?);
                        rows.len() - 1
                    }
                };
                let words = (changes.len() > 1).then(|| grid::words(change));
                if words.is_none() || base != ours {
                    comparisons.push((ours, base, words));
                }
            }
        }
        Ok(Self { rows, comparisons })
    }

    fn cells(&self) -> impl Iterator<Item = &RunSettings> {
        self.rows.iter().flat_map(|row| row.cells.iter().map(|(_, cell)| cell))
    }

    /// Returns the runs that choose settings.
    fn choosing(
        &self,
        args: &PlanArgs,
        text: &Text,
        trainers: Option<&Arc<dyn Trainers>>,
    ) -> Result<Vec<TableRun>, SimulateError> {
        let mut runs = Vec::new();
        let is_told = args.choosing_seeds == 0 && text.has_test();
        // Finish one seed before the next.
        for seed in args.choosing() {
            for row in &self.rows {
                for (choice, cell) in &row.cells {
                    let run = TableRun::new(text.key(cell, seed), &[&row.words[..], choice].concat(), cell)?;
                    runs.push(run.measured(trainers.cloned(), is_told, false));
                }
            }
        }
        Ok(runs)
    }

    /// Returns the runs with fresh seeds of the chosen settings.
    fn fresh(
        &self,
        args: &PlanArgs,
        text: &Text,
        cache: &RunCache,
        trainers: Option<&Arc<dyn Trainers>>,
    ) -> Result<Vec<TableRun>, SimulateError> {
        let mut runs = Vec::new();
        let seeds = if args.choosing_seeds > 0 { args.reported() } else { Vec::new() };
        for seed in seeds {
            for row in &self.rows {
                for is_averaged in args.averages() {
                    let choice = row.choice(text, &args.choosing(), is_averaged, cache);
                    let BestChoice::Cell(at) = choice else { continue };
                    let (choice, cell) = &row.cells[at];
                    let run = TableRun::new(text.key(cell, seed), &[&row.words[..], choice].concat(), cell)?;
                    runs.push(run.measured(trainers.cloned(), text.has_test(), true));
                }
            }
        }
        Ok(runs)
    }
}

impl Row {
    fn new(
        words: NamedSettings,
        choices: &[NamedSettings],
        settings: &RunSettings,
    ) -> Result<Self, SimulateError> {
        let cell = |choice: &NamedSettings| {
            Ok::<_, SimulateError>((choice.clone(), settings.with(words.iter().chain(choice))?))
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
        Ok(Self { words, tokens, cells })
    }

    /// Returns the cell with the smallest mean validation loss over `seeds`.
    fn choice(&self, text: &Text, seeds: &[u64], is_averaged: bool, cache: &RunCache) -> BestChoice {
        let mut best: Option<(f64, usize)> = None;
        for (at, (_, cell)) in self.cells.iter().enumerate() {
            let records: Option<Vec<&RunRecord>> =
                seeds.iter().map(|&seed| cache.get(&text.key(cell, seed))).collect();
            let Some(records) = records else { return BestChoice::Pending };
            let losses = records.iter().map(|record| record.loss(TextSplit::Validation, is_averaged));
            let Some(sum) = losses.sum::<Option<f64>>() else { continue };
            if best.is_none_or(|(least, _)| sum < least) {
                best = Some((sum, at));
            }
        }
        best.map_or(BestChoice::Hopeless, |(_, at)| BestChoice::Cell(at))
    }
}

impl Text {
    fn key(&self, cell: &RunSettings, seed: u64) -> RunKey {
        RunKey { text: self.digest.clone(), settings: cell.digest(), seed }
    }
}

impl PlanArgs {
    /// Returns the seeds of runs that choose settings.
    fn choosing(&self) -> Vec<u64> {
        match self.choosing_seeds {
            0 => self.reported(),
            count => seeds_from(self.common.seed, count).collect(),
        }
    }

    /// Returns the seeds of runs that are reported.
    fn reported(&self) -> Vec<u64> {
        let count = self.settings.training.seeds;
        match self.choosing_seeds {
            0 => seeds_from(self.common.seed, count).collect(),
            _ => (0..count).map(|i| key(&[FRESH, self.common.seed, i.into()]) >> 32).collect(),
        }
    }

    /// Returns the kinds of parameters that are compared: false for the last ones and, if requested, true for the
    /// averaged ones.
    fn averages(&self) -> impl Iterator<Item = bool> {
        [false, true].into_iter().filter(move |is_averaged| !is_averaged || self.settings.average > 0.0)
    }
}

/// Returns `settings` with some of them replaced, and others added.
fn replaced(settings: &NamedSettings, change: &NamedSettings) -> NamedSettings {
    let mut wanted = settings.clone();
    for (name, value) in change {
        match wanted.iter_mut().find(|(other, _)| other == name) {
            Some(setting) => setting.1.clone_from(value),
            None => wanted.push((name.clone(), value.clone())),
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Case;
    use archipelago_cli::defaults;

    fn sit(flags: &str) -> Result<(SimulationReport, Vec<String>), SimulateError> {
        sit_for(16, flags)
    }

    fn sit_for(steps: u64, flags: &str) -> Result<(SimulationReport, Vec<String>), SimulateError> {
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
    fn rows_are_compared_at_their_best_choice() {
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
    fn a_run_that_outlasts_its_kills_fails() {
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

    /// Goal: a diverged row is reported and stops no other, and an interrupted table reports the seeds that are
    /// complete.
    #[test]
    fn an_interrupted_table_reports_complete_seeds() {
        let folder = tempfile::tempdir().unwrap();
        let keep = folder.path().join("runs.jsonl");
        let flags = format!("--vary lr=0.01,1000 --keep {}", keep.display());
        let (report, lines) = sit(&format!("{flags} --minutes 0")).unwrap();
        assert!(lines.is_empty() && report.cases.is_empty() && report.plots.is_empty(), "{report:#?}");
        let has = |report: &SimulationReport, part: &str| report.notes.iter().any(|note| note.contains(part));
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
    fn an_invalid_row_is_one_sentence() {
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
        check("--vary sync-every=4 --beside no-such=1", "a row has no setting `no-such`");
        check("--vary sync-every=4 --choose lr=1 --beside lr=2", "--beside has it already");
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
        check("--vary sync-every=4 --minutes 1", "give --keep FILE");
    }

    /// Goal: the settings of each row are chosen by some seeds and reported by others, next to two baselines that are
    /// not in the grid. Diverged runs are not chosen.
    #[test]
    fn fresh_seeds_report_what_others_chose() {
        let folder = tempfile::tempdir().unwrap();
        let keep = folder.path().join("runs.jsonl");
        let flags = format!(
            "--vary side=decoupled --beside side=data-parallel,lookahead --choose lr=0.000001,0.01,1000 \
             --choosing-seeds 1 --average 0.1 --samples 2 --keep {}",
            keep.display()
        );
        let (report, lines) = sit(&format!("{flags} --minutes 0")).unwrap();
        assert!(report.cases.is_empty() && lines.is_empty(), "{report:#?}");
        let (report, lines) = sit(&flags).unwrap();
        assert_eq!(lines.len(), 3 * 3 + 3 * 2, "{lines:#?}");
        let cases: Vec<&str> = report.cases.iter().map(|case| &case.case[..]).collect();
        let above = |side: &str, end: &str| format!("side decoupled above side {side}{end}");
        assert_eq!(
            cases,
            [
                above("data-parallel", ""),
                above("lookahead", ""),
                above("data-parallel", ", both averaged"),
                above("lookahead", ", both averaged"),
            ]
        );
        for case in &report.cases {
            let note = case.note.as_deref().unwrap();
            assert!(note.contains("lr 0.01") && note.matches(" · ").count() == 1, "{note}");
        }
        assert_eq!(report.points.len(), 4 * 2, "{:#?}", report.points);
        let runs = std::fs::read_to_string(&keep).unwrap();
        assert_eq!((runs.matches("\"failed\"").count(), runs.matches("\"is_fresh\":true").count()), (3, 6));
        let (again, lines) = sit(&flags).unwrap();
        assert_eq!((again.cases, lines), (report.cases, Vec::<String>::new()));
        // After a diverged run, the other seeds must not be reported alone.
        let blown = |line: &str| {
            let mut run: serde_json::Value = serde_json::from_str(line).unwrap();
            if run["is_fresh"] == true && run["cell"].as_str().unwrap().contains("decoupled") {
                (run["failed"], run["test"]) = ("it blew up".into(), serde_json::Value::Null);
                run["averaged"] = serde_json::json!([null, null]);
            }
            run.to_string() + "\n"
        };
        std::fs::write(&keep, runs.lines().map(blown).collect::<String>()).unwrap();
        let (report, _) = sit(&flags).unwrap();
        let said =
            report.notes.iter().filter(|note| note.ends_with("no choice led to a loss with all seeds."));
        assert!(report.cases.is_empty() && said.count() == 4, "{report:#?}");
    }

    fn small(flags: &str) -> SimulationReport {
        let few =
            "--width 8 --context 8 --fragments 2 --text-at-hand --step-jitter 0.02 --held-out end --seeds 1";
        let flags: Vec<&str> = few.split_whitespace().chain(flags.split_whitespace()).collect();
        run(&defaults(&flags), &mut |_| {}).unwrap()
    }

    fn figure(report: &SimulationReport, name: &str) -> f64 {
        let mut all = report.cases.iter().chain(&report.points);
        let found = all.find(|case| case.case == name);
        found.unwrap_or_else(|| panic!("{name} in {report:#?}")).ours
    }

    const HOSTILE: &str =
        "--steps 60 --learners 5 --batch 2 --sync-every 6 --beside attack=none --lr-min-ratio 1";

    /// Goal: every attack runs against every way of merging, and none of them causes a refusal of an honest update.
    #[test]
    fn every_attack_has_its_row() {
        let attacks = "not-finite,times-100,edge,flip,noise,stale,copy,tokens,sandbag,drift,scale,identities";
        let arms = "mean,rda,bounds,undo,checks,ours";
        let report = small(&format!(
            "{HOSTILE} --vary hostile=20/arm={arms}/attack={attacks} --cosines --name poison"
        ));
        assert_eq!(report.cases.len(), 6 * 12);
        for attack in attacks.split(',') {
            for arm in arms.split(',') {
                let row = format!("hostile 20, arm {arm}, attack {attack}");
                assert!(!figure(&report, &row).is_nan(), "{row}");
                assert_eq!(figure(&report, &format!("{row}, honest refused")), 0.0, "{row}");
            }
        }
        assert_eq!(report.plots[0].name, "poison");
        let clean = small("--steps 60 --learners 5 --batch 2 --sync-every 6 --vary arm=ours --cosines");
        for tensors in ["embedding", "attention", "feed-forward", "norms"] {
            let [p5, p50, p95] =
                ["p5", "p50", "p95"].map(|p| figure(&clean, &format!("cosine, {tensors}, {p}")));
            assert!(-1.0 < p5 && p5 < p50 && p50 < p95 && p95 <= 1.0, "{tensors}: {p5} {p50} {p95}");
        }
    }

    /// Goal: attacks that ruin a run without bounds do far less damage to one with bounds. Each figure is from one
    /// short run, so that the thresholds are wide.
    #[test]
    fn bounds_hold_off_what_ruins_a_mean() {
        let report = small(&format!("{HOSTILE} --vary hostile=40/arm=mean,bounds/attack=edge,identities"));
        for attack in ["edge", "identities"] {
            let gap = |arm: &str| figure(&report, &format!("hostile 40, arm {arm}, attack {attack}"));
            assert!(gap("mean") > 100.0 && gap("mean") > 3.0 * gap("bounds"), "{report:#?}");
        }
    }

    /// Goal: values that are not finite are detected at once by any way of merging; a learner that only trains less is
    /// never detected.
    #[test]
    fn invalid_updates_are_detected_and_free_riders_are_not() {
        let report = small(&format!("{HOSTILE} --vary hostile=20,40/attack=not-finite,sandbag"));
        for percent in [20, 40] {
            let of = |attack: &str, what: &str| format!("hostile {percent}, attack {attack}, {what}");
            assert!(figure(&report, &of("not-finite", "noticed after rounds")) < 4.0);
            assert_eq!(figure(&report, &of("not-finite", "hostile in merges")), 0.0);
            let share = figure(&report, &of("sandbag", "hostile in merges"));
            assert!((share - f64::from(percent)).abs() < 8.0, "{share}");
            let noticed = of("sandbag", "noticed after rounds");
            assert!(report.points.iter().all(|point| point.case != noticed), "{report:#?}");
        }
    }

    /// Goal: distance, absence, joining, batches and samples each affect the loss. A learner that was away delivers its
    /// progress, and the progress is merged once.
    #[test]
    fn unequal_learners_change_the_loss() {
        let check = |flags: &str, count: usize| {
            let report = small(&format!("--steps 64 --sync-every 4 --batch 1 {flags}"));
            assert_eq!(report.cases.len(), count, "{report:#?}");
            for case in &report.cases {
                assert!(case.ours.is_finite() && case.ours != 0.0, "{case:#?}");
                let same = report.cases.iter().filter(|other| other.ours == case.ours).count();
                assert_eq!(same, 1, "{case:#?} of {report:#?}");
            }
            report
        };
        let eight = "--learners 8";
        let far = "--far-ms 480 --start-learners 7 --vary rule=none,cap,decay --beside far-ms=0/rule=default";
        check(&format!("{eight} {far}"), 3);
        let away = "--cut-from-steps 12 --vary cut-steps=24/rule=none,cap,decay,no-bound \
                    --beside cut-steps=0/rule=default";
        let away = check(&format!("{eight} {away}"), 4);
        let shares: Vec<f64> = away
            .points
            .iter()
            .filter(|point| point.case.ends_with("share of the last"))
            .map(|point| point.ours)
            .collect();
        assert!(shares.len() == 4 && shares.iter().all(|share| (10.0..14.0).contains(share)), "{away:#?}");
        let joining = "--learners 4 --extra 4 --ramp-steps 12 --samples 3 \
                       --vary joining=ramp,donor --beside joining=zero";
        assert_eq!(check(joining, 2).points.len(), 2 * 3);
        let batches = "--rule none --vary batches=1,4,1+2+4 --beside batches=2";
        check(&format!("{eight} {batches}"), 3);
        check("--learners 32 --vary cohort-max=4 --beside cohort-max=32", 1);
        let thin = "--equal-time --link-kbit 50 --vary fragments=2 --beside fragments=1";
        check(thin, 1);
        check("--vary trial-code=int4,e3m0,int2,int1 --beside trial-code=f32", 4);
    }

    /// Goal: in lockstep, a single learner with a neutral outer step equals a single trainer, however often it merges.
    /// Two learners differ from it.
    #[test]
    fn one_learner_in_lockstep_is_a_single_trainer() {
        let plain =
            "--outer-lr 1 --outer-momentum 0 --momentum-warmup 0 --side lockstep --beside side=data-parallel";
        let report =
            small(&format!("{plain} --learners 1 --steps 32 --vary sync-every=1,4/merge=mean,radial-all"));
        assert!(report.cases.iter().all(|case| case.ours.abs() < 0.01), "{report:#?}");
        let apart = small(&format!("{plain} --learners 2 --steps 64 --vary sync-every=1,32 --merge mean"));
        assert!((apart.cases[0].ours - apart.cases[1].ours).abs() > 0.1, "{apart:#?}");
    }

    /// Goal: every plan of the repository is a table, and its cached runs are those of the plan.
    #[test]
    fn every_plan_is_a_table_whose_runs_are_kept() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let mut count = 0;
        for file in std::fs::read_dir(format!("{root}/tests/experiments/plans")).unwrap() {
            let path = file.unwrap().path();
            let plan = std::fs::read_to_string(&path).unwrap();
            let args: PlanArgs =
                archipelago_cli::from_toml(&plan, &[]).unwrap_or_else(|why| panic!("{path:?}: {why}"));
            args.settings.check().unwrap_or_else(|why| panic!("{path:?}: {why}"));
            let table = Table::new(&args).unwrap_or_else(|why| panic!("{path:?}: {why}"));
            count += 1;
            let Some(keep) = &args.budget.keep else { continue };
            let runs = std::fs::read_to_string(format!("{root}/{}", keep.display())).unwrap();
            let kept = parse(&runs, keep).unwrap();
            for digest in table.cells().map(RunSettings::digest) {
                for seed in args.choosing() {
                    let is_kept =
                        kept.iter().any(|record| record.key.settings == digest && record.key.seed == seed);
                    assert!(is_kept, "{path:?}: no run of seed {seed} is kept of {digest}");
                }
            }
        }
        assert!(count > 25, "{count}");
    }
}
