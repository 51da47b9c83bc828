//! `simulate goodput`: Table 1 of the paper.

use archipelago_cli::{SettingError, within};
use archipelago_sim::scale::goodput::{Cluster, Constants, Delay};
use serde::Serialize;

use super::{Axis, Case, CommonArgs, Plot, Scale, Series, SeriesStyle, SimulationReport};
use crate::SimulateError;

/// Seconds in a year, for the paper's MTBI.
const YEAR_S: f64 = 365.0 * 24.0 * 3_600.0;

/// Chips in the paper's columns.
const CHIPS: [u64; 5] = [150_000, 300_000, 600_000, 1_200_000, 2_400_000];

/// Goodput in the paper's table in percent, a row for each M; M = 0 stands for one inelastic learner.
const PAPER: [(u32, [f64; 5]); 6] = [
    (0, [72.0, 57.0, 38.0, 27.0, 18.0]),
    (1, [88.0, 80.0, 69.0, 58.0, 40.0]),
    (2, [94.0, 88.0, 80.0, 70.0, 54.0]),
    (4, [96.0, 93.0, 89.0, 82.0, 73.0]),
    (8, [98.0, 96.0, 94.0, 88.0, 80.0]),
    (16, [99.0, 98.0, 96.0, 93.0, 86.0]),
];

/// Settings of `simulate goodput`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct GoodputArgs {
    /// N, total number of chips; several values make several columns
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = CHIPS)]
    pub chips: Vec<u64>,
    /// M, learners that share the chips, compared with one learner without elasticity; several values make several rows
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    pub learners: Vec<u32>,
    /// Simulated time (hours)
    #[arg(long, value_name = "HOURS", default_value_t = 1_000.0)]
    pub hours: f64,
    /// Mean time between interruptions of one chip (years); from the paper, all values below are ours
    #[arg(long, value_name = "YEARS", default_value_t = 1.0)]
    pub mtbi_years: f64,
    /// Chips that leave and return together
    #[arg(long, value_name = "COUNT", default_value_t = Constants::default().slice_chips)]
    pub slice_chips: u32,
    /// Time of an inner step; an interruption stops its learner at the end of a step (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = Constants::default().step_s)]
    pub step_s: f64,
    /// Stop of an elastic learner that continues with fewer chips (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = Constants::default().down_scale_s)]
    pub down_scale_s: f64,
    /// Stop of an elastic learner that adds chips (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = Constants::default().up_scale_s)]
    pub up_scale_s: f64,
    /// Time that returned chips wait for another stop of their learner before they cause one (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = Constants::default().gather_s)]
    pub gather_s: f64,
    /// Stop of a learner without elasticity (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = Constants::default().restart_s)]
    pub restart_s: f64,
    /// Scale of the exponentiated Weibull delay until chips return (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = Delay::default().scale_s)]
    pub away_scale_s: f64,
    /// Shape of this delay's distribution
    #[arg(long, value_name = "NUMBER", default_value_t = Delay::default().shape)]
    pub away_shape: f64,
    /// Exponent of this delay's distribution
    #[arg(long, value_name = "NUMBER", default_value_t = Delay::default().exponent)]
    pub away_exponent: f64,
    /// Standard deviation of slice speeds relative to their mean; a learner is as fast as its slowest slice (0 to 0.25)
    #[arg(long, value_name = "SHARE", default_value_t = Constants::default().speed_spread)]
    pub speed_spread: f64,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Simulates every cell.
///
/// # Errors
/// `Setting`, `Refused`: a setting is out of range.
pub fn run(args: &GoodputArgs, progress: &mut dyn FnMut(&str)) -> Result<SimulationReport, SimulateError> {
    check(args)?;
    let (mut cases, mut series) = (Vec::new(), Vec::new());
    for (colour, learners) in (0..).zip(std::iter::once(0).chain(args.learners.iter().copied())) {
        let name = match learners {
            0 => "not elastic".to_owned(),
            learners => format!("M = {learners}"),
        };
        progress(&format!("{name}, {} machines", args.chips.len()));
        let (mut ours, mut papers) = (Vec::new(), Vec::new());
        for &chips in &args.chips {
            let cluster = cluster(args, chips, learners);
            let found = cluster.simulate(args.common.seed, args.hours).map_err(SimulateError::refused)?;
            let goodput = 100.0 * found.goodput;
            // The paper's figures assume one failure per chip and year.
            let paper = paper(chips, learners).filter(|_| args.mtbi_years == 1.0);
            let case = Case::new(format!("{name}, {} chips", chips_name(chips)), goodput, paper);
            cases.push(case.noted(format!("uptime {:.2} %", 100.0 * found.uptime)));
            ours.push((chips as f64, goodput));
            papers.extend(paper.map(|paper| (chips as f64, paper)));
        }
        series.push(Series { name: name.clone(), colour, mark: SeriesStyle::Line, points: ours });
        if !papers.is_empty() {
            series.push(Series {
                name: format!("{name}, paper"),
                colour,
                mark: SeriesStyle::Hollow,
                points: papers,
            });
        }
    }
    Ok(SimulationReport {
        title: "Goodput by learners M and chips".into(),
        unit: "%",
        notes: notes(&cases),
        cases,
        plots: vec![plot(series)],
        points: vec![],
    })
}

/// Checks all settings.
///
/// # Errors
/// [`SettingError`]: a setting is out of range.
fn check(args: &GoodputArgs) -> Result<(), SettingError> {
    for &learners in &args.learners {
        within("learners", learners.into(), 1.0..=65_536.0)?;
    }
    for &chips in &args.chips {
        within("chips", chips as f64, 1.0..=1e8)?;
    }
    within("slice-chips", args.slice_chips.into(), 1.0..=1e8)?;
    for (flag, value) in [
        ("hours", args.hours),
        ("mtbi-years", args.mtbi_years),
        ("away-scale-s", args.away_scale_s),
        ("away-shape", args.away_shape),
        ("away-exponent", args.away_exponent),
    ] {
        within(flag, value, 1e-6..=1e9)?;
    }
    for (flag, seconds) in [
        ("step-s", args.step_s),
        ("down-scale-s", args.down_scale_s),
        ("up-scale-s", args.up_scale_s),
        ("gather-s", args.gather_s),
        ("restart-s", args.restart_s),
    ] {
        within(flag, seconds, 0.0..=1e9)?;
    }
    within("speed-spread", args.speed_spread, 0.0..=0.25)
}

fn cluster(args: &GoodputArgs, chips: u64, learners: u32) -> Cluster {
    let away = Delay { scale_s: args.away_scale_s, shape: args.away_shape, exponent: args.away_exponent };
    let constants = Constants {
        mtbi_s: args.mtbi_years * YEAR_S,
        slice_chips: args.slice_chips,
        step_s: args.step_s,
        down_scale_s: args.down_scale_s,
        up_scale_s: args.up_scale_s,
        gather_s: args.gather_s,
        restart_s: args.restart_s,
        away,
        speed_spread: args.speed_spread,
    };
    Cluster { chips, learners: learners.max(1), elastic: learners > 0, constants }
}

fn paper(chips: u64, learners: u32) -> Option<f64> {
    let column = CHIPS.iter().position(|&column| column == chips)?;
    let row = PAPER.iter().find(|(row, _)| *row == learners)?;
    Some(row.1[column])
}

fn chips_name(chips: u64) -> String {
    match chips {
        chips if chips >= 1_000_000 => format!("{} M", chips as f64 / 1e6),
        chips if chips >= 1_000 => format!("{} k", chips as f64 / 1e3),
        chips => chips.to_string(),
    }
}

fn notes(cases: &[Case]) -> Vec<String> {
    let worst = cases.iter().filter_map(|case| Some((case, (case.ours - case.paper?).abs())));
    let Some((case, points)) = worst.max_by(|a, b| a.1.total_cmp(&b.1)) else { return vec![] };
    vec![format!("largest difference: {points:.1} points ({})", case.case)]
}

fn plot(series: Vec<Series>) -> Plot {
    let axis = |label: &str, scale| Axis { label: label.into(), scale };
    Plot {
        name: "goodput".into(),
        title: "Goodput: ours (filled) and the paper's (hollow)".into(),
        x: axis("chips", Scale::Log),
        y: axis("goodput [%]", Scale::Linear),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;
    use archipelago_cli::defaults;

    fn args(flags: &[&str]) -> GoodputArgs {
        defaults(flags)
    }

    #[test]
    fn every_published_cell_has_its_neighbour() {
        let report = run(&args(&["--hours", "5"]), &mut |_| ()).unwrap();
        assert_eq!(report.cases.len(), 30);
        assert!(report.cases.iter().all(|case| case.paper.is_some()), "{report:#?}");
        assert_eq!(report.plots[0].series.len(), 12);
        let other = run(&args(&["--hours", "5", "--chips", "1000", "--learners", "3"]), &mut |_| ()).unwrap();
        assert!(other.cases.iter().all(|case| case.paper.is_none() && case.ours > 99.0), "{other:#?}");
    }

    #[test]
    fn defaults_are_those_of_the_model() {
        assert_eq!(cluster(&args(&[]), 1_000, 4), Cluster::new(1_000, 4));
        assert_eq!(cluster(&args(&[]), 1_000, 0), Cluster::rigid(1_000));
    }

    #[test]
    fn a_constant_out_of_range_is_a_setting_out_of_range() {
        let error = run(&args(&["--mtbi-years", "0"]), &mut |_| ()).unwrap_err();
        assert_eq!(error.exit(), Exit::Settings);
        assert!(error.to_string().contains("--mtbi-years"), "{error}");
    }
}
