//! `simulate regions`: learners all over the world.

use archipelago_cli::within;
use archipelago_sim::paper::regions::{Region, Setting, UNITED_STATES, WORLD};
use serde::Serialize;

use super::scavenging::trial;
use super::{Axis, Case, CommonArgs, Mark, Plot, Report, Scale, Series};
use crate::experiments::SimulateError;

/// Settings of `simulate regions`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RegionsArgs {
    /// Parameters of the model (billions)
    #[arg(long, value_name = "BILLIONS", default_value_t = 12.0)]
    pub params_billions: f64,
    /// Time of an inner step (milliseconds); our own constant
    #[arg(long, value_name = "MS", default_value_t = Setting::default().step_ms)]
    pub step_ms: u64,
    /// Link of each of the eight learners of the world (Gbit/s); ours, the paper has 2 to 5
    #[arg(long, value_name = "GBIT/S", default_value_t = 3.5)]
    pub world_gbit_s: f64,
    /// Link of each of the four learners of the United States (Gbit/s); ours, the paper has 2 to 5
    #[arg(long, value_name = "GBIT/S", default_value_t = 2.0)]
    pub states_gbit_s: f64,
    /// P, fragments; H is the same
    #[arg(long, value_name = "COUNT", default_value_t = Setting::default().fragments)]
    pub fragments: u16,
    /// τ, rounds in flight at once
    #[arg(long, value_name = "COUNT", default_value_t = Setting::default().rounds_in_flight)]
    pub rounds_in_flight: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Measures decoupled training on the real cores, and computes lockstep training.
///
/// # Errors
/// - `Setting`: a setting is out of range.
/// - `Broken`: the simulated run broke an invariant.
pub fn run(args: &RegionsArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    within("params-billions", args.params_billions, 1e-3..=1e4)?;
    within("step-ms", args.step_ms as f64, 10.0..=600_000.0)?;
    for (flag, gbit_s) in [("world-gbit-s", args.world_gbit_s), ("states-gbit-s", args.states_gbit_s)] {
        within(flag, gbit_s, 1e-3..=1e6)?;
    }
    within("fragments", args.fragments.into(), 1.0..=256.0)?;
    within("rounds-in-flight", args.rounds_in_flight.into(), 1.0..=64.0)?;
    let mut cases = Vec::new();
    let places: [(&str, &[Region], f64, &str); 2] = [
        ("8 learners world-wide", &WORLD, args.world_gbit_s, "10 to 20 in the paper"),
        ("4 learners in the United States", &UNITED_STATES, args.states_gbit_s, "above 20 in the paper"),
    ];
    for (place, regions, gbit_s, published) in places {
        progress(&format!("{place}: the real cores in virtual time"));
        let setting = setting(args, gbit_s);
        let decoupled = setting.decoupled(regions, args.common.seed).map_err(trial)?;
        let lock_step = setting.lock_step_slowdown(regions).map_err(trial)?;
        let case = Case::new(format!("decoupled, {place}"), decoupled.slowdown, None);
        cases.push(case.noted(format!(
            "steps {:.3}, rounds {:.3}; hardly any in the paper",
            decoupled.step_slowdown, decoupled.round_slowdown
        )));
        cases.push(Case::new(format!("data-parallel, {place}"), lock_step, None).noted(published));
    }
    let regions: Vec<String> =
        WORLD.iter().map(|region| format!("{} {} ms", region.name, region.latency_ms)).collect();
    Ok(Report {
        title: format!("Slowdown by links, {} billion parameters", args.params_billions),
        unit: "times the time without links",
        plots: vec![plot(args)?],
        points: vec![],
        cases,
        notes: vec![
            "decoupled: tokens merged in a second, int4 both ways, measured on the real cores.".into(),
            "data-parallel: gradients in bf16 over the same links, partly behind the backward pass.".into(),
            format!("one way to the syncer, ours: {}", regions.join(", ")),
        ],
    })
}

fn setting(args: &RegionsArgs, gbit_s: f64) -> Setting {
    Setting {
        params: args.params_billions * 1e9,
        step_ms: args.step_ms,
        link_bits_per_s: gbit_s * 1e9,
        fragments: args.fragments,
        rounds_in_flight: args.rounds_in_flight,
    }
}

/// Plots the slowdown of eight learners over the rate of their links.
fn plot(args: &RegionsArgs) -> Result<Plot, SimulateError> {
    let axis = |label: &str, scale| Axis { label: label.into(), scale };
    let rates = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 200.0];
    let (mut decoupled, mut lock_step) = (Vec::new(), Vec::new());
    for gbit_s in rates {
        let setting = setting(args, gbit_s);
        lock_step.push((gbit_s, setting.lock_step_slowdown(&WORLD).map_err(trial)?));
        if args.common.output.plots.is_some() {
            decoupled.push((gbit_s, setting.decoupled(&WORLD, args.common.seed).map_err(trial)?.slowdown));
        }
    }
    let series = |name: &str, colour, points| Series { name: name.into(), colour, mark: Mark::Line, points };
    Ok(Plot {
        name: "regions".into(),
        title: "Slowdown of 8 learners world-wide by their links".into(),
        x: axis("Gbit/s for each", Scale::Log),
        y: axis("times the time without links", Scale::Log),
        series: vec![series("decoupled int4", 0, decoupled), series("data-parallel bf16", 1, lock_step)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Exit;
    use archipelago_cli::defaults;

    #[test]
    fn lock_step_is_slow_and_decoupled_is_not() {
        let parse = |flags: &[&str]| defaults::<RegionsArgs>(flags);
        let report = run(&parse(&[]), &mut |_| ()).unwrap();
        let ours: Vec<f64> = report.cases.iter().map(|case| case.ours).collect();
        assert!(
            ours[0] < 1.05 && ours[2] < 1.05 && (10.0..=20.0).contains(&ours[1]) && ours[3] > 20.0,
            "{ours:?}"
        );
        assert_eq!(run(&parse(&["--world-gbit-s", "0"]), &mut |_| ()).unwrap_err().exit(), Exit::Settings);
        assert_eq!(run(&parse(&["--fragments", "0"]), &mut |_| ()).unwrap_err().exit(), Exit::Settings);
    }
}
