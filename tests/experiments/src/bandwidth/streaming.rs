//! Table 4 of Streaming DiLoCo (arXiv 2501.18512): 75 link rates.

use archipelago_sim::scale::bandwidth::{GRID, Method, Release, Training, grid_rate};

use super::{Axis, Case, GBIT, Plot, Scale, Series, SeriesStyle};

/// H of all methods except data-parallel training.
const SYNC_EVERY: u32 = 100;

/// Number of layers in a fragment.
const FRAGMENT_LAYERS: u32 = 3;

/// Compute utilisations of the table's columns.
const TARGETS: [f64; 5] = [0.5, 0.8, 0.9, 0.95, 0.99];

/// Note of a cell with the paper's rate.
pub(super) const SAME: &str = "same rate of the grid";

/// A model of the table with its published rates in Gbit/s, one row for each method.
struct PublishedModel {
    name: &'static str,
    params: f64,
    layers: u32,
    step_s: f64,
    paper: [[f64; 5]; 5],
}

const MODELS: [PublishedModel; 3] = [
    PublishedModel {
        name: "1B",
        params: 1e9,
        layers: 24,
        step_s: 0.1,
        paper: [
            [86.8, 152.6, 184.2, 222.3, 569.0],
            [1.4, 6.2, 13.3, 23.3, 86.8],
            [1.4, 5.2, 9.1, 16.0, 28.1],
            [1.4, 4.3, 6.2, 9.1, 11.0],
            [0.4, 0.9, 1.7, 2.0, 3.0],
        ],
    },
    PublishedModel {
        name: "10B",
        params: 10e9,
        layers: 48,
        step_s: 0.8,
        paper: [
            [104.8, 222.3, 222.3, 268.3, 471.5],
            [1.7, 7.5, 16.0, 33.9, 104.8],
            [1.7, 5.2, 9.1, 13.3, 19.3],
            [1.7, 3.6, 5.2, 6.2, 7.5],
            [0.4, 0.9, 1.4, 1.4, 1.7],
        ],
    },
    PublishedModel {
        name: "100B",
        params: 100e9,
        layers: 108,
        step_s: 4.9,
        paper: [
            [184.2, 323.8, 390.7, 390.7, 471.5],
            [3.0, 11.0, 23.3, 49.4, 184.2],
            [2.4, 6.2, 9.1, 11.0, 19.3],
            [1.7, 3.6, 4.3, 5.2, 5.2],
            [0.5, 0.9, 1.1, 1.1, 1.4],
        ],
    },
];

/// Returns the rows of a model: name, method, and bits per value.
fn methods(model: &PublishedModel) -> [(&'static str, Method, f64); 5] {
    let fragments = model.layers / FRAGMENT_LAYERS;
    let streaming = |overlap_steps| Method::Streaming { sync_every: SYNC_EVERY, fragments, overlap_steps };
    [
        ("data-parallel", Method::DataParallel, 16.0),
        ("DiLoCo", Method::DiLoCo { sync_every: SYNC_EVERY }, 16.0),
        ("Streaming", streaming(0), 16.0),
        ("Streaming, overlap", streaming(1), 16.0),
        ("Streaming, overlap, fp4", streaming(1), 4.0),
    ]
}

fn training(model: &PublishedModel, value_bits: f64, layer_share: f64) -> Training {
    Training {
        params: layer_share * model.params,
        value_bits,
        step_s: model.step_s,
        data_centres: 2,
        latency_s: 0.0,
        release: Release::Layers(model.layers),
    }
}

/// Returns all cells of the table.
pub(super) fn cases(layer_share: f64) -> Vec<Case> {
    let mut cases = Vec::new();
    for model in &MODELS {
        for ((name, method, bits), row) in methods(model).into_iter().zip(model.paper) {
            for (target, paper) in TARGETS.into_iter().zip(row) {
                let rate = training(model, bits, layer_share).grid_rate_for(method, target);
                let ours = rate.map_or(f64::INFINITY, |rate| rate / GBIT);
                let case = format!("{name}, {}, {:.0} %", model.name, 100.0 * target);
                let note = match steps_apart(ours, paper) {
                    0 => SAME.into(),
                    steps => format!("{steps:+} of the grid's steps, 20.7 % each"),
                };
                cases.push(Case::new(case, ours, Some(paper)).noted(note));
            }
        }
    }
    cases
}

/// Returns the number of grid steps from the paper's rate, which has one digit after the decimal point, to ours.
fn steps_apart(ours: f64, paper: f64) -> i32 {
    let printed = |rate: f64| (10.0 * rate).round() / 10.0;
    if printed(ours) == paper {
        return 0;
    }
    let off = |k: &u32| (grid_rate(*k) / GBIT / paper).ln().abs();
    let published = (0..GRID).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0);
    let found = (0..GRID).find(|k| grid_rate(*k) / GBIT >= ours * (1.0 - 1e-9)).unwrap_or(GRID);
    found as i32 - published as i32
}

/// Plots utilisation over the rate of the link, in one picture for each model.
pub(super) fn plots(layer_share: f64) -> Vec<Plot> {
    let axis = |label: &str, scale| Axis { label: label.into(), scale };
    let picture = |model: &PublishedModel| {
        let mut series = Vec::new();
        for (colour, ((name, method, bits), row)) in (0..).zip(methods(model).into_iter().zip(model.paper)) {
            let training = training(model, bits, layer_share);
            let points =
                (0..GRID).map(|k| (grid_rate(k) / GBIT, 100.0 * training.utilisation(method, grid_rate(k))));
            series.push(Series {
                name: name.into(),
                colour,
                mark: SeriesStyle::Line,
                points: points.collect(),
            });
            let points = row.into_iter().zip(TARGETS).map(|(rate, target)| (rate, 100.0 * target));
            series.push(Series {
                name: "paper".into(),
                colour,
                mark: SeriesStyle::Hollow,
                points: points.collect(),
            });
        }
        Plot {
            name: format!("bandwidth-streaming-{}", model.name.to_lowercase()),
            title: format!("Compute utilisation, {} model, {} s a step", model.name, model.step_s),
            x: axis("Gbit/s for each of 2 data centres", Scale::Log),
            y: axis("compute utilisation [%]", Scale::Linear),
            series,
        }
    };
    MODELS.iter().map(picture).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: most of the 75 cells have the paper's rate, and all are within one step of the grid.
    #[test]
    fn every_cell_is_met() {
        let cases = cases(0.83);
        assert_eq!(cases.len(), 75);
        let apart = |case: &Case| steps_apart(case.ours, case.paper.expect("all are published"));
        let off: Vec<&Case> = cases.iter().filter(|case| apart(case) != 0).collect();
        assert!(off.iter().all(|case| apart(case).abs() == 1) && off.len() <= 9, "{off:#?}");
    }

    #[test]
    fn steps_are_counted_as_printed() {
        // 0.45 is printed as 0.4 or as 0.5; both count as the same rate.
        assert_eq!(steps_apart(grid_rate(8) / GBIT, 0.4), 0);
        assert_eq!(steps_apart(grid_rate(7) / GBIT, 0.4), 0);
        assert_eq!(steps_apart(grid_rate(30) / GBIT, grid_rate(28) / GBIT), 2);
        assert_eq!(steps_apart(f64::INFINITY, 1.0), (GRID - 12) as i32);
    }
}
