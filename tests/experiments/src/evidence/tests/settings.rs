//! Consistency of the tables of `SETTINGS.md` with the cached runs of `simulate run`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::super::page::{Table, numbers};
use super::ROOT;
use crate::plan::{RunRecord, TextSplit, parse};
use crate::statistics::{half_interval, mean, percent_above};

/// Test losses by seed, for the choice with the smallest validation loss.
type TestLosses = BTreeMap<u64, f64>;

fn runs(file: &str) -> Vec<RunRecord> {
    let path = Path::new(ROOT).join("tests/evidence/sweep").join(file);
    parse(&fs::read_to_string(&path).unwrap(), &path).unwrap()
}

/// Returns the losses of the best run among `row` with each of `choices`.
fn best(runs: &[RunRecord], row: &str, choices: &[&str]) -> TestLosses {
    let made = |choice: &&str| {
        let name = format!("{row}{choice}");
        let made: Vec<&RunRecord> = runs.iter().filter(|made| made.cell == name).collect();
        assert!(!made.is_empty(), "no run is called {name}");
        (mean(made.iter().map(|made| made.loss(TextSplit::Validation, false).unwrap())), made)
    };
    let (_, made) = choices.iter().map(made).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    made.into_iter().map(|made| (made.key.seed, made.loss(TextSplit::Test, false).unwrap())).collect()
}

/// Checks that `value` equals the stated number `said`, to this many decimals.
fn check(what: &str, said: f64, value: f64, decimals: i32) {
    assert!(
        (said - value).abs() <= 0.501 * 10_f64.powi(-decimals),
        "{what}: {said} is said, {value} measured"
    );
}

/// Table: its heading, its runs, and the columns to check.
struct TableSpec {
    heading: &'static str,
    file: &'static str,
    choices: &'static [&'static str],
    /// Column that names a row, and column with the gap.
    columns: [&'static str; 2],
    /// For each row, its name, the settings of its runs, and the settings of its baseline's runs.
    rows: Vec<(String, String, String)>,
    /// Columns with the loss, with the gap of each seed, and with the loss of the baseline; `None` if the table lacks
    /// one.
    others: [Option<&'static str>; 3],
}

impl TableSpec {
    fn check(&self, page: &str) {
        let Self { heading, columns: [name, gap], .. } = *self;
        let table =
            Table::find(page, heading, &[name, gap]).unwrap_or_else(|| panic!("{heading} has no table"));
        let runs = runs(self.file);
        for (row, ours, base) in &self.rows {
            let what = format!("{heading}, {row}");
            let said = |column: &str| {
                let cells = table.column(column, &[(name, row)]);
                let [cell] = cells[..] else { panic!("{what}: {cells:?}") };
                numbers(cell)
            };
            let [ours, base] = [ours, base].map(|row| best(&runs, row, self.choices));
            let gaps: Vec<f64> = ours.iter().map(|(seed, loss)| percent_above(*loss, base[seed])).collect();
            let figures = said(gap);
            check(&what, figures[0], mean(gaps.iter().copied()), 2);
            // A row that is its own baseline has no gaps.
            if gaps.iter().any(|gap| *gap != 0.0) {
                let half = half_interval(&gaps);
                assert_eq!(figures.get(1).copied(), numbers(&half).first().copied(), "{what}: {half}");
                if let Some(column) = self.others[1] {
                    let by_seed = said(column);
                    assert_eq!(by_seed.len(), gaps.len(), "{what}");
                    by_seed.iter().zip(&gaps).for_each(|(said, gap)| check(&what, *said, *gap, 2));
                }
            }
            if let Some(column) = self.others[0] {
                check(&what, said(column)[0], mean(ours.values().copied()), 3);
            }
            if let Some(column) = self.others[2] {
                check(&what, said(column)[0], mean(base.values().copied()), 3);
            }
        }
    }
}

/// Returns rows named by the value of their setting, compared with the row of `base`.
fn rows(setting: &str, words: &[&str], base: &str) -> Vec<(String, String, String)> {
    let row = |word: &&str| ((*word).to_owned(), format!("{setting} {word}"), format!("{setting} {base}"));
    words.iter().map(row).collect()
}

/// Returns a row for each number of steps in `words`: learners compared with `side`.
fn steps(words: &[&str], side: &str) -> Vec<(String, String, String)> {
    let row = |word: &&str| {
        let number = word.replace(',', "");
        let of = |side: &str| format!("steps {number}, side {side}");
        ((*word).to_owned(), of("decoupled"), of(side))
    };
    words.iter().map(row).collect()
}

/// Returns a row for each of the two baselines with `windows` windows in a batch, compared with `ours`.
fn beside(windows: u32, ours: &str) -> Vec<(String, String, String)> {
    let bare = format!("data-parallel, a batch of {windows} windows");
    let names = [(bare, "data-parallel"), ("the same with Lookahead".to_owned(), "lookahead")];
    names.map(|(name, side)| (name, ours.to_owned(), format!("side {side}"))).into()
}

const RATES: &[&str] = &[", lr 0.004", ", lr 0.008"];
const BOTH_ENDS: &[&str] = &[
    ", lr 0.004, lr-min-ratio 0.1",
    ", lr 0.008, lr-min-ratio 0.1",
    ", lr 0.004, lr-min-ratio 0.02",
    ", lr 0.008, lr-min-ratio 0.02",
];
const LOW_END: &[&str] = &[", lr 0.004, lr-min-ratio 0.02", ", lr 0.008, lr-min-ratio 0.02"];
const LOSS: Option<&str> = Some("loss");
const BY_SEED: Option<&str> = Some("by seed");

fn page() -> String {
    fs::read_to_string(format!("{ROOT}/tests/evidence/SETTINGS.md")).unwrap()
}

/// Goal: every figure of a table follows from its cached runs.
#[test]
fn the_tables_of_settings_are_what_their_runs_say() {
    let page = page();
    let said = |heading, file, choices, columns, rows, [loss, by_seed]: [_; 2]| {
        let others = [loss, by_seed, None];
        TableSpec { heading, file, choices, columns, rows, others }.check(&page);
    };
    let kills = [("never", 0), ("300", 300_000), ("60", 60_000), ("20", 20_000)];
    let kills =
        kills.map(|(word, ms)| (word.into(), format!("leave-every-ms {ms}"), "leave-every-ms 0".into()));
    let columns = ["a kill every, s", "above no kills, %"];
    said("Coming and going", "comings.jsonl", &[""], columns, kills.into(), [None, BY_SEED]);
    let joining = rows("extra", &["0", "1", "2", "4", "12"], "0");
    let columns = ["learners that join", "above no joiners, %"];
    said("Joining half-way", "extra.jsonl", &[""], columns, joining, [LOSS, BY_SEED]);
    let momenta = &[", outer-momentum 0.6", ", outer-momentum 0.8"];
    let turns = rows("sync-every", &["6", "12", "24", "48", "96"], "24");
    said("Steps of a turn", "turns.jsonl", momenta, ["H", "above H = 24, %"], turns, [LOSS, BY_SEED]);
    let parts = rows("fragments", &["1", "2", "4", "8", "12", "24"], "8");
    said("Fragments", "fragments.jsonl", &[""], ["P", "above P = 8, %"], parts, [LOSS, BY_SEED]);
}

/// Goal: every figure on texts and models follows from its cached runs, for learners compared with both baselines.
#[test]
fn the_tables_of_texts_and_models_are_what_their_runs_say() {
    let page = page();
    let said = |heading, file, choices, gap, rows| {
        let others = [None, BY_SEED, LOSS];
        TableSpec { heading, file, choices, columns: ["", gap], rows, others }.check(&page);
    };
    let (gap, both) = ("four learners above it", beside(32, "side decoupled"));
    let bare = both[..1].to_vec();
    said("Prose", "prose.jsonl", RATES, gap, both.clone());
    said("The grammar", "grammar.jsonl", BOTH_ENDS, gap, both);
    said("Experts", "experts.jsonl", RATES, gap, bare.clone());
    said("Pictures", "pictures.jsonl", RATES, gap, bare);
    let (gap, fresh) = ("eight learners above it", beside(64, "side decoupled"));
    said("Program code, fresh seeds", "code-fresh.jsonl", &[""], gap, fresh);
    let plays = beside(64, "side decoupled, sync-every 24");
    said("Eight learners on plays", "eight-end.jsonl", RATES, gap, plays);
}

/// Goal: every figure on longer runs follows from its cached runs.
#[test]
fn the_tables_of_steps_are_what_their_runs_say() {
    let page = page();
    let said = |heading, file, choices, name, gap, rows, [by_seed, base]: [_; 2]| {
        TableSpec { heading, file, choices, columns: [name, gap], rows, others: [LOSS, by_seed, base] }
            .check(&page);
    };
    let (bare, ahead) = ("above data-parallel, %", "above it with Lookahead, %");
    let others = [
        ("data-parallel", bare, [BY_SEED, Some("data-parallel")]),
        ("lookahead", ahead, [Some("by seed of Lookahead"), Some("Lookahead")]),
    ];
    for (side, gap, also) in others {
        let long = steps(&["366", "732", "2,928"], side);
        said("Steps", "steps.jsonl", RATES, "steps", gap, long, also);
        let ends: [(&str, &[&str], &[&str]); 2] = [
            ("0.1", RATES, &[", lr 0.008, lr-min-ratio 0.1"]),
            ("0.02", LOW_END, &[", lr 0.008, lr-min-ratio 0.02"]),
        ];
        for (end, choices, of_code) in ends {
            let [(_, ours, base)] = <[_; 1]>::try_from(steps(&["2,928"], side)).unwrap();
            let row = vec![(end.to_owned(), ours, base)];
            said("Where the rate ends", "steps.jsonl", choices, "ends at", gap, row, also);
            let row = vec![(end.to_owned(), "side decoupled".to_owned(), format!("side {side}"))];
            said("On program code", "code.jsonl", of_code, "ends at", gap, row, also);
        }
    }
    let low = &[", lr 0.002", ", lr 0.004"];
    let small = steps(&["366", "732", "1,464"], "data-parallel");
    let heading = "The same for a model seven times as large";
    said(heading, "small.jsonl", low, "steps of small", bare, small, [BY_SEED, Some("data-parallel")]);
}
