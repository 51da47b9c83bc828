//! `simulate bandwidth`: link rates that training across data centres needs.

mod streaming;

use archipelago_cli::within;
use archipelago_sim::scale::bandwidth::{LATENCY_S, Method, Release, Training};
use serde::Serialize;

use super::{Axis, Case, OutputArgs, Plot, Scale, Series, SeriesStyle, SimulationReport};
use crate::SimulateError;

/// Bit/s in a Gbit/s.
const GBIT: f64 = 1e9;

/// The fastest link tried, in bit/s.
const RATE_MAX: f64 = 1e15;

/// Note of a row for a link that all fragments in flight share.
const SHARED: &str = "first in, first out; not in the paper";

/// Settings of `simulate bandwidth`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BandwidthArgs {
    /// Parameters of the model (billions)
    #[arg(long, value_name = "BILLIONS", default_value_t = 5.0)]
    pub params_billions: f64,
    /// Computing time of one inner step (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub step_s: f64,
    /// Share of the time that must remain for computing (0.01 to 0.999)
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub utilisation: f64,
    /// P of decoupled training, fragments
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    pub fragments: u32,
    /// τ of decoupled training, steps that the exchange of a fragment may take
    #[arg(long, value_name = "STEPS", default_value_t = 2)]
    pub rounds_in_flight: u32,
    /// Time that each data centre adds to a fragment's exchange (milliseconds); our own constant
    #[arg(long, value_name = "MS", default_value_t = 1e3 * LATENCY_S)]
    pub latency_ms: f64,
    /// Share of a model's parameters that its layers exchange in the table of Streaming DiLoCo (0.01 to 1); our own
    /// constant
    #[arg(long, value_name = "SHARE", default_value_t = 0.83)]
    pub layer_share: f64,
    #[command(flatten)]
    #[serde(flatten)]
    pub output: OutputArgs,
}

/// Computes the link rates of all methods.
///
/// # Errors
/// `Setting`: a setting is out of range. `Refused`: no link is fast enough.
pub fn run(args: &BandwidthArgs, progress: &mut dyn FnMut(&str)) -> Result<SimulationReport, SimulateError> {
    within("params-billions", args.params_billions, 1e-6..=1e6)?;
    within("step-s", args.step_s, 1e-3..=1e6)?;
    within("utilisation", args.utilisation, 0.01..=0.999)?;
    within("fragments", args.fragments.into(), 1.0..=4_096.0)?;
    within("rounds-in-flight", args.rounds_in_flight.into(), 1.0..=1e3)?;
    within("latency-ms", args.latency_ms, 0.0..=1e6)?;
    within("layer-share", args.layer_share, 0.01..=1.0)?;
    let mut cases = Vec::new();
    let decoupled = decoupled(args);
    for (data_centres, rates) in
        [(2, [Some(104.0), Some(1.7), Some(0.43)]), (8, [Some(198.0), None, Some(0.84)])]
    {
        let ways = [
            ("data-parallel bf16", Method::DataParallel, 16.0),
            ("decoupled bf16", decoupled, 16.0),
            ("decoupled int4", decoupled, 4.0),
        ];
        for ((name, method, bits), paper) in ways.into_iter().zip(rates) {
            let case = format!("{name}, {data_centres} data centres");
            let Some(rate) =
                training(args, data_centres, method, bits).rate_for(method, args.utilisation, RATE_MAX)
            else {
                let why = format!(
                    "{case}: no link is fast enough: give a smaller --latency-ms or a larger --step-s"
                );
                return Err(SimulateError::Refused { why });
            };
            cases.push(Case::new(case, rate / GBIT, paper.filter(|_| is_published(args, method))));
        }
        for (name, bits) in [("bf16", 16.0), ("int4", 4.0)] {
            let training = training(args, data_centres, decoupled, bits);
            let rate = training.shared_rate(args.fragments, args.rounds_in_flight);
            let case = format!("decoupled {name}, one shared link, {data_centres} data centres");
            // The rows above found a link, which implies that the latency fits into τ steps.
            cases.push(Case::new(case, rate.map_or(f64::INFINITY, |rate| rate / GBIT), None).noted(SHARED));
        }
    }
    progress("the table of Streaming DiLoCo, 75 cells");
    let table = streaming::cases(args.layer_share);
    let same = table.iter().filter(|case| case.note.as_deref() == Some(streaming::SAME)).count();
    let together = format!("{same} of its {} cells lie on the paper's own rate of the grid.", table.len());
    cases.extend(table);
    let mut plots = vec![plot(args)];
    if args.output.plots.is_some() {
        plots.extend(streaming::plots(args.layer_share));
    }
    Ok(SimulationReport {
        cases,
        title: format!("Link of each data centre at {:.0} % compute utilisation", 100.0 * args.utilisation),
        unit: "Gbit/s",
        plots,
        points: vec![],
        notes: vec![
            "data-parallel: gradients in 128 buckets as the backward pass frees them, without latency."
                .into(),
            "decoupled: the rate at which a fragment's exchange fits into its τ steps if it has the link for itself, \
             as the paper counts; nobody waits for it."
                .into(),
            "one shared link: all fragments over one link, one after the other; with less they are exchanged less \
             often."
                .into(),
            "table of Streaming DiLoCo: two data centres, H = 100, the first rate 10^(-1 + 4k/49) that will do."
                .into(),
            together,
        ],
    })
}

fn training(args: &BandwidthArgs, data_centres: u32, method: Method, value_bits: f64) -> Training {
    let latency_s = method.latency_s(data_centres, args.latency_ms / 1e3);
    let (params, step_s) = (args.params_billions * 1e9, args.step_s);
    Training { params, value_bits, step_s, data_centres, latency_s, release: Release::Even(128) }
}

fn decoupled(args: &BandwidthArgs) -> Method {
    Method::Decoupled { fragments: args.fragments, overlap_steps: args.rounds_in_flight }
}

/// Returns true if the paper's figures for `method` apply to these settings.
fn is_published(args: &BandwidthArgs, method: Method) -> bool {
    let same = (args.params_billions, args.step_s, args.utilisation) == (5.0, 1.0, 0.9);
    // Data-parallel training has neither fragments nor, in this table, latency.
    let own = (args.fragments, args.rounds_in_flight, args.latency_ms) == (24, 2, 1e3 * LATENCY_S);
    same && (own || method == Method::DataParallel)
}

fn plot(args: &BandwidthArgs) -> Plot {
    let decoupled = decoupled(args);
    let ours = |name: &str, colour, method, bits| {
        let points = (2..=16).filter_map(|data_centres| {
            let rate =
                training(args, data_centres, method, bits).rate_for(method, args.utilisation, RATE_MAX)?;
            Some((f64::from(data_centres), rate / GBIT))
        });
        Series { name: name.into(), colour, mark: SeriesStyle::Line, points: points.collect() }
    };
    let mut series = vec![
        ours("data-parallel bf16", 0, Method::DataParallel, 16.0),
        ours("decoupled bf16", 1, decoupled, 16.0),
        ours("decoupled int4", 2, decoupled, 4.0),
    ];
    let papers = [
        (0, Method::DataParallel, vec![(2.0, 104.0), (8.0, 198.0)]),
        (1, decoupled, vec![(2.0, 1.7)]),
        (2, decoupled, vec![(2.0, 0.43), (8.0, 0.84)]),
    ];
    for (colour, _, points) in papers.into_iter().filter(|(_, method, _)| is_published(args, *method)) {
        series.push(Series { name: "paper".into(), colour, mark: SeriesStyle::Hollow, points });
    }
    let axis = |label: &str, scale| Axis { label: label.into(), scale };
    Plot {
        name: "bandwidth".into(),
        title: format!("Link needed at {:.0} % compute utilisation", 100.0 * args.utilisation),
        x: axis("data centres", Scale::Linear),
        y: axis("Gbit/s for each", Scale::Log),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn cases(flags: &[&str]) -> Vec<Case> {
        run(&defaults(flags), &mut |_| ()).unwrap().cases
    }

    /// Goal: the paper's figures appear only with the paper's settings.
    #[test]
    fn figures_of_the_paper_need_its_settings() {
        let papers = |flags: &[&str]| {
            let cases = cases(flags);
            let of = |way: &str| {
                let of_way = cases.iter().filter(|case| case.case.starts_with(way));
                of_way.filter(|case| case.case.ends_with("data centres") && case.paper.is_some()).count()
            };
            (of("data-parallel"), of("decoupled"))
        };
        assert_eq!(papers(&[]), (2, 3));
        for flags in [["--fragments", "8"], ["--rounds-in-flight", "3"], ["--latency-ms", "0"]] {
            assert_eq!(papers(&flags), (2, 0), "{flags:?}");
        }
        for flags in [["--params-billions", "1"], ["--step-s", "2"], ["--utilisation", "0.5"]] {
            assert_eq!(papers(&flags), (0, 0), "{flags:?}");
        }
    }

    /// Goal: a link shared by all fragments needs 3.33 Gbit/s, compared with 1.72 by the paper's assumption.
    #[test]
    fn a_shared_link_has_rows_of_its_own() {
        let shared: Vec<Case> = cases(&[]).into_iter().filter(|case| case.case.contains("shared")).collect();
        let ours = shared.iter().map(|case| (1e3 * case.ours).round()).collect::<Vec<f64>>();
        assert_eq!(ours, [3_333.0, 833.0, 5_833.0, 1_458.0]);
        assert!(shared.iter().all(|case| case.paper.is_none()), "{shared:#?}");
    }
}
