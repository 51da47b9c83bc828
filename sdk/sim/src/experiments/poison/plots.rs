//! Plots of the loss over the share of hostile learners, one for each way of merging.

use clap::ValueEnum;

use super::plan::{Arm, Attack, Cell};
use crate::experiments::lines::Found;
use crate::experiments::{Axis, Mark, Plot, Scale, Series};

/// Lower bound of plotted gaps, in percent: a logarithmic axis has no 0, and smaller gaps are noise.
const GAP_MIN: f64 = 0.1;
/// Upper bound of plotted gaps, in percent: the gap of a ruined run is infinite.
const GAP_MAX: f64 = 1_000.0;

/// Returns a plot for each way of merging with results.
pub(super) fn plots(cells: &[Cell], found: &Found) -> Vec<Plot> {
    let plot = |arm: Arm| {
        let cells: Vec<&Cell> =
            cells.iter().filter(|cell| cell.arm == arm && cell.attack.is_some()).collect();
        let mut attacks: Vec<Attack> = cells.iter().filter_map(|cell| cell.attack).collect();
        attacks.dedup();
        (!attacks.is_empty()).then(|| Plot {
            name: format!("poison-{}", arm.name()),
            title: title(arm).into(),
            x: Axis { label: "hostile learners, %".into(), scale: Scale::Linear },
            y: Axis {
                label: "loss above honest ones alone, 0.1 % or less to 1,000 or more".into(),
                scale: Scale::Log,
            },
            series: (0..).zip(attacks).map(|(i, attack)| series(i, attack, &cells, found)).collect(),
        })
    };
    Arm::value_variants().iter().copied().filter_map(plot).collect()
}

fn title(arm: Arm) -> &'static str {
    match arm {
        Arm::Mean => "Weighted mean, no bounds",
        Arm::Rda => "Radial averaging as published, no bounds",
        Arm::Bounds => "Bounds alone",
        Arm::Undo => "Bounds, and harm undone",
        Arm::Checks => "Bounds, and single updates looked at",
        Arm::Ours => "As by default: bounds, harm undone, single updates looked at",
    }
}

/// There are six colours; the following six series have hollow marks.
fn series(index: u8, attack: Attack, cells: &[&Cell], found: &Found) -> Series {
    let its = cells.iter().filter(|cell| cell.attack == Some(attack));
    let points = its.map(|cell| (f64::from(cell.percent), cell.gap(found).clamp(GAP_MIN, GAP_MAX)));
    let mark = if index < 6 { Mark::Line } else { Mark::Hollow };
    Series { name: attack.name(), colour: index % 6, mark, points: points.collect() }
}
