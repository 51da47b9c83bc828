//! What the runs that were made say.

use std::collections::BTreeMap;

use super::GapArgs;
use super::Runs;
use super::key::Which;
use super::plan::Plan;
use crate::experiments::side::Side;
use crate::experiments::sitting::left_words;
use crate::experiments::student;
use crate::experiments::text::Text;
use crate::experiments::{Axis, Case, Mark, Plot, Report, Scale, Series};

/// Losses on what is told of, by seed, and the settings that led to them.
struct Told {
    at: (f32, f64),
    losses: BTreeMap<u64, f64>,
}

/// A row: which parameters of learners together, beside which of whom.
const ROWS: [(&str, Which, Side, Which); 4] = [
    ("data-parallel", Which::Last, Side::DataParallel, Which::Last),
    ("data-parallel with Lookahead", Which::Last, Side::Lookahead, Which::Last),
    ("data-parallel, both averaged", Which::Averaged, Side::DataParallel, Which::Averaged),
    ("data-parallel with Lookahead, both averaged", Which::Averaged, Side::Lookahead, Which::Averaged),
];

/// The table of what is there.
pub(super) fn report(args: &GapArgs, text: &Text, plan: &Plan<'_>, kept: &Runs, left: usize) -> Report {
    let told = |side, learners, which| told(plan, kept, side, learners, which);
    let mut cases = Vec::new();
    let mut gaps = vec![Vec::new(); ROWS.len()];
    for &learners in &args.learners {
        for ((name, ours, side, theirs), gaps) in ROWS.iter().zip(&mut gaps) {
            let beside = told(Side::Decoupled, learners, *ours).zip(told(*side, learners, *theirs));
            let Some((mean, case)) = beside.and_then(|(ours, base)| case(plan, learners, name, &ours, &base))
            else {
                continue;
            };
            gaps.push((f64::from(learners), mean));
            cases.push(case);
        }
    }
    let series = (0..).zip(ROWS.iter().zip(gaps)).filter(|(_, (_, points))| !points.is_empty());
    let series = series.map(|(colour, ((name, ..), points))| Series {
        name: format!("above {name}"),
        colour,
        mark: Mark::Line,
        points,
    });
    let series: Vec<Series> = series.collect();
    let plot = Plot {
        name: format!("gap-{}", text.name),
        title: format!("Learners together on {}, each side at its best settings", text.name),
        x: Axis { label: "M, learners".into(), scale: Scale::Log },
        y: Axis { label: "test loss above, percent".into(), scale: Scale::Linear },
        series,
    };
    Report {
        title: format!("Test loss of learners together above what stands beside it, {}", text.name),
        unit: "%",
        cases,
        points: Vec::new(),
        notes: notes(args, text, left),
        plots: if plot.series.is_empty() { Vec::new() } else { vec![plot] },
    }
}

fn told(plan: &Plan<'_>, kept: &Runs, side: Side, learners: u32, which: Which) -> Option<Told> {
    let at = plan.chosen(kept, side, learners, which)?;
    let losses = plan.told(side, learners, at).into_iter().filter_map(|key| {
        let loss = kept.get(&key)?.test[which as usize]?;
        Some((key.seed, loss.into()))
    });
    Some(Told { at, losses: losses.collect() })
}

/// By how many percent `ours` is above `base`, and the row that says so; `None` without a seed that both have.
fn case(plan: &Plan<'_>, learners: u32, name: &str, ours: &Told, base: &Told) -> Option<(f64, Case)> {
    let both = ours.losses.iter().filter_map(|(seed, loss)| Some((*loss, *base.losses.get(seed)?)));
    let both: Vec<(f64, f64)> = both.collect();
    let gaps: Vec<f64> = both.iter().map(|(ours, base)| 100.0 * (ours / base - 1.0)).collect();
    let count = gaps.len();
    if count == 0 {
        return None;
    }
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count as f64;
    let gap = mean(&mut gaps.iter().copied());
    let words = |told: &Told, loss: f64| {
        let ((lr, warmup), edge) = (told.at, if plan.is_at_an_edge(told.at.0) { ", an edge" } else { "" });
        format!("{loss:.4} (rate {lr}{edge}, warm-up {warmup})")
    };
    let note = format!(
        "{}; {}, beside {}; {}",
        student::half(&gaps),
        words(ours, mean(&mut both.iter().map(|(ours, _)| *ours))),
        words(base, mean(&mut both.iter().map(|(_, base)| *base))),
        student::by_seed(&gaps),
    );
    Some((gap, Case::new(format!("M = {learners} above {name}"), gap, None).noted(note)))
}

fn notes(args: &GapArgs, text: &Text, left: usize) -> Vec<String> {
    let mut notes = vec![
        text.words(),
        format!(
            "Each side chose its rate and warm-up from the same {} by {} seeds, and was run with {} others; ± is half \
             of the 95 % interval of the mean gap (Student).",
            args.lr_factors.len() * args.warmup_factors.len(),
            args.choosing_seeds,
            args.training.seeds
        ),
        format!("Averaged parameters are those of about the last {} of a run.", args.average),
    ];
    notes.extend(left_words(left));
    notes
}
