//! Tests of the consistency of the evidence and of the report on it.

mod settings;

use std::fs;

use super::*;
use crate::Cli;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn args(from: PathBuf) -> EvidenceArgs {
    archipelago_cli::defaults(&["--from", from.to_str().unwrap()])
}

fn drawn() -> SimulationReport {
    run(&args(Path::new(ROOT).join("tests/evidence"))).unwrap()
}

/// Goal: every plot follows from the present tables and runs, and none was drawn by hand.
#[test]
fn the_plots_are_what_the_evidence_says() {
    for plot in drawn().plots {
        let file = format!("{ROOT}/tests/evidence/{}.svg", plot.name);
        let there = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            there == plot.svg(),
            "{file} differs from the evidence: draw it again with `simulate evidence --plots tests/evidence`"
        );
    }
}

/// Goal: a reader of the report sees each plot, finds its limits, and can reproduce each figure.
#[test]
fn the_report_shows_each_plot_and_its_commands_are_ours() {
    let page = fs::read_to_string(format!("{ROOT}/docs/evidence.md")).unwrap();
    for plot in drawn().plots {
        assert!(
            page.contains(&format!("(../tests/evidence/{}.svg)", plot.name)),
            "{} is not shown",
            plot.name
        );
    }
    // Plans are named as from the root of the repository.
    let commands = page.replace("\\\n", " ").replace("--config tests/", &format!("--config {ROOT}/tests/"));
    let commands: Vec<&str> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with("simulate "))
        .collect();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        let words = command.split(" #").next().unwrap_or_default().split_whitespace().map(Into::into);
        archipelago_cli::parse::<Cli>(words).unwrap_or_else(|error| panic!("{command}: {error:?}"));
    }
    let sections: Vec<&str> =
        page.split("\n## ").skip(1).filter(|section| section.contains("](../tests/evidence/")).collect();
    assert!(sections.len() > 5, "{}", sections.len());
    for section in sections.into_iter().filter(|section| section.contains("![")) {
        let at = |what: &str| section.find(what);
        let (plot, not) = (at("!["), at("**What it does not show.**"));
        assert!(plot < not && at("\n    ").is_some(), "{section}");
    }
}

/// Goal: a plot follows its page, and a page without the table causes an error instead of a plot.
#[test]
fn a_table_that_changes_changes_its_plot() {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(ROOT).join("tests/evidence");
    fs::create_dir(folder.path().join("gap")).unwrap();
    for file in fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    {
        fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    for (file, _) in KEPT {
        fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let draw = || run(&args(folder.path().to_owned()));
    assert_eq!(draw().unwrap(), drawn());

    let page = folder.path().join("EXPERTS.md");
    let text = fs::read_to_string(&page).unwrap();
    fs::write(&page, text.replace("| 0.7233 |", "| 0.8233 |")).unwrap();
    let changed: Vec<String> = draw()
        .unwrap()
        .plots
        .into_iter()
        .zip(drawn().plots)
        .filter(|(a, b)| a != b)
        .map(|(a, _)| a.name)
        .collect();
    assert_eq!(changed, ["experts"]);
    fs::write(&page, text.replace("data-parallel |", "another |")).unwrap();
    let error = draw().unwrap_err().to_string();
    assert!(
        error.contains("EXPERTS.md has no table with the columns `learners` and `data-parallel`"),
        "{error}"
    );
}
