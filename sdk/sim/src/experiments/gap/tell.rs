//! Report on the cached runs.

use std::collections::BTreeMap;

use super::GapArgs;
use super::Runs;
use super::key::Which;
use super::plan::Plan;
use crate::experiments::findings::{mean, percent_above};
use crate::experiments::side::Side;
use crate::experiments::sitting::left_words;
use crate::experiments::student;
use crate::experiments::text::Text;
use crate::experiments::{Axis, Case, Mark, Plot, Report, Scale, Series};

/// Test losses by seed, and the settings that led to them.
struct Told {
    at: (f32, f64),
    losses: BTreeMap<u64, f64>,
    /// Seeds of runs without a loss.
    blown: Vec<u64>,
}

/// Rows: the learners' set of parameters, the baseline, and the baseline's set of parameters.
const ROWS: [(&str, Which, Side, Which); 4] = [
    ("data-parallel", Which::Last, Side::DataParallel, Which::Last),
    ("data-parallel with Lookahead", Which::Last, Side::Lookahead, Which::Last),
    ("data-parallel, both averaged", Which::Averaged, Side::DataParallel, Which::Averaged),
    ("data-parallel with Lookahead, both averaged", Which::Averaged, Side::Lookahead, Which::Averaged),
];

/// Returns the report on the cached runs.
pub(super) fn report(args: &GapArgs, text: &Text, plan: &Plan<'_>, kept: &Runs, left: usize) -> Report {
    let told = |side, learners, which| told(plan, kept, side, learners, which);
    let (mut cases, mut notes) = (Vec::new(), notes(args, text));
    let mut gaps = vec![Vec::new(); ROWS.len()];
    for &learners in &args.learners {
        let hopeless = Side::ALL.into_iter().filter(|side| plan.is_hopeless(kept, *side, learners));
        notes.extend(hopeless.map(|side| format!("M = {learners}: {side:?} led to no loss at any rate.")));
        for ((name, ours, side, theirs), gaps) in ROWS.iter().zip(&mut gaps) {
            let beside = told(Side::Decoupled, learners, *ours).zip(told(*side, learners, *theirs));
            let Some((ours, base)) = beside else { continue };
            // The mean of the remaining seeds would flatter a side with diverged runs.
            if let Some(seed) = ours.blown.iter().chain(&base.blown).next() {
                notes.push(format!("M = {learners} above {name}: the run of seed {seed} led to no loss."));
                continue;
            }
            let Some((mean, case)) = case(plan, learners, name, &ours, &base) else { continue };
            gaps.push((f64::from(learners), mean));
            cases.push(case);
        }
    }
    notes.extend(left_words(left));
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
        notes,
        plots: if plot.series.is_empty() { Vec::new() } else { vec![plot] },
    }
}

fn told(plan: &Plan<'_>, kept: &Runs, side: Side, learners: u32, which: Which) -> Option<Told> {
    let at = plan.chosen(kept, side, learners, which)?;
    let (mut losses, mut blown) = (BTreeMap::new(), Vec::new());
    for key in plan.told(side, learners, at) {
        let Some(made) = kept.get(&key) else { continue };
        if let Some(loss) = made.test[which as usize] {
            losses.insert(key.seed, loss.into());
        } else if made.test[Which::Last as usize].is_none() {
            blown.push(key.seed);
        }
    }
    Some(Told { at, losses, blown })
}

/// Returns the excess of `ours` over `base` in percent, and its row; `None` without a common seed.
fn case(plan: &Plan<'_>, learners: u32, name: &str, ours: &Told, base: &Told) -> Option<(f64, Case)> {
    let both = ours.losses.iter().filter_map(|(seed, loss)| Some((*loss, *base.losses.get(seed)?)));
    let both: Vec<(f64, f64)> = both.collect();
    let gaps: Vec<f64> = both.iter().map(|(ours, base)| percent_above(*ours, *base)).collect();
    if gaps.is_empty() {
        return None;
    }
    let gap = mean(gaps.iter().copied());
    let words = |told: &Told, loss: f64| {
        let ((lr, warmup), edge) = (told.at, if plan.is_at_an_edge(told.at.0) { ", an edge" } else { "" });
        format!("{loss:.4} (rate {lr}{edge}, warm-up {warmup})")
    };
    let note = format!(
        "{}; {}, beside {}; {}",
        student::half(&gaps),
        words(ours, mean(both.iter().map(|(ours, _)| *ours))),
        words(base, mean(both.iter().map(|(_, base)| *base))),
        student::by_seed(&gaps),
    );
    Some((gap, Case::new(format!("M = {learners} above {name}"), gap, None).noted(note)))
}

fn notes(args: &GapArgs, text: &Text) -> Vec<String> {
    vec![
        text.words(),
        format!(
            "Each side chooses its rate and warm-up from the same {} by {} seeds, and is run with {} others; ± is half \
             of the 95 % interval of the mean gap (Student).",
            args.lr_factors.len() * args.warmup_factors.len(),
            args.choosing_seeds,
            args.training.seeds
        ),
        format!(
            "Averaged parameters are those of about the last {} of a run, of learners without what their last rounds \
             collect.",
            args.average
        ),
    ]
}
