//! Small tables of poison: every attack has its cells, and the benefit of bounds exceeds their cost.

use super::*;
use archipelago_cli::defaults;

fn report(flags: &str) -> Report {
    let small = "--steps 60 --width 8 --context 8 --batch 2 --sync-every 6 --fragments 2 --learners 5";
    let flags: Vec<&str> = small.split_whitespace().chain(flags.split_whitespace()).collect();
    run(&defaults(&flags), &mut |_| {}).unwrap()
}

/// Returns the figure of the row or point with this name.
fn figure(report: &Report, name: &str) -> f64 {
    let mut all = report.cases.iter().chain(&report.points);
    let found = all.find(|case| case.case == name);
    found.unwrap_or_else(|| panic!("{name} in {report:#?}")).ours
}

/// Every attack is run against every way of merging, and none of them causes a refusal of an honest update.
#[test]
fn every_attack_has_its_cells() {
    let report = report("--hostile 20 --arms mean,rda,bounds,undo,checks,ours");
    let attacks = <Attack as clap::ValueEnum>::value_variants();
    assert_eq!(report.cases.len(), 6 + 6 * attacks.len());
    for attack in attacks {
        for arm in ["mean", "rda", "bounds", "undo", "checks", "ours"] {
            let cell = format!("{}, 20 %, {arm}", attack.name());
            assert!(!figure(&report, &cell).is_nan(), "{cell}");
            assert_eq!(figure(&report, &format!("{cell}, honest refused")), 0.0, "{cell}");
        }
    }
    for part in ["embedding", "attention", "feed-forward", "norms"] {
        let [p5, p50, p95] = ["p5", "p50", "p95"].map(|p| figure(&report, &format!("cosine, {part}, {p}")));
        assert!(-1.0 < p5 && p5 < p50 && p50 < p95 && p95 <= 1.0, "{part}: {p5} {p50} {p95}");
    }
    let plots: Vec<&str> = report.plots.iter().map(|plot| plot.name.as_str()).collect();
    assert_eq!(plots, ["mean", "rda", "bounds", "undo", "checks", "ours"].map(|arm| format!("poison-{arm}")));
}

/// Attacks that ruin a run without bounds do far less damage to one with bounds. Each figure is from one short run, so
/// that the thresholds are wide.
#[test]
fn bounds_hold_off_what_ruins_a_mean() {
    let report = report("--hostile 40 --attacks edge,identities");
    for attack in ["edge", "identities"] {
        let gap = |arm: &str| figure(&report, &format!("{attack}, 40 %, {arm}"));
        assert!(gap("mean") > 100.0 && gap("mean") > 3.0 * gap("bounds"), "{report:#?}");
    }
}

/// Values that are not finite are detected at once by any way of merging; a learner that only trains less is never
/// detected.
#[test]
fn what_is_noticed_and_what_is_not() {
    let report = report("--hostile 20,40 --attacks not-finite,sandbag --arms bounds");
    for percent in [20, 40] {
        let of = |attack: &str, what: &str| format!("{attack}, {percent} %, bounds, {what}");
        assert!(figure(&report, &of("not-finite", "noticed after rounds")) < 4.0);
        assert_eq!(figure(&report, &of("not-finite", "hostile in merges")), 0.0);
        let share = figure(&report, &of("sandbag", "hostile in merges"));
        assert!((share - f64::from(percent)).abs() < 8.0, "{share}");
        let noticed = of("sandbag", "noticed after rounds");
        assert!(report.points.iter().all(|point| point.case != noticed), "{report:#?}");
    }
}
