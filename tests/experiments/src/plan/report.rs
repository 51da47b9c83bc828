//! Report on the cached runs of a plan.

use super::grid::{self, NamedSettings};
use super::record::{RunRecord, TextSplit};
use super::run_cache::RunCache;
use super::settings::RunSettings;
use super::{BestChoice, PlanArgs, Row, Table};
use crate::lab::{Cosines, TensorGroup as Tensors};
use crate::statistics::{by_seed, half_interval, mean, percent_above, trend};
use crate::text::Text;
use crate::{Axis, Case, Plot, Scale, Series, SeriesStyle, SimulationReport};

/// Bounds of plotted gaps to attacked runs, in percent. A logarithmic axis has no 0, smaller gaps are noise, and the
/// gap of a ruined run is infinite.
const ATTACKED_GAPS: (f64, f64) = (0.1, 1_000.0);

/// The runs of a row at its best choice.
struct Best<'a> {
    words: &'a NamedSettings,
    choice: &'a NamedSettings,
    cell: &'a RunSettings,
    records: Vec<&'a RunRecord>,
    /// Reported losses by seed, in nats per byte.
    losses: Vec<f64>,
}

/// Cached runs of a table, for the last or for the averaged parameters.
struct View<'a> {
    text: &'a Text,
    table: &'a Table,
    cache: &'a RunCache,
    part: TextSplit,
    is_averaged: bool,
    choices: Vec<BestChoice>,
    /// Reported seeds: those that all rows have.
    seeds: Vec<u64>,
}

impl<'a> View<'a> {
    fn new(
        args: &PlanArgs,
        text: &'a Text,
        table: &'a Table,
        cache: &'a RunCache,
        is_averaged: bool,
    ) -> Self {
        let has = |cell: &RunSettings, seed: u64| cache.get(&text.key(cell, seed)).is_some();
        let is_complete = |seed: &u64| table.cells().all(|cell| has(cell, *seed));
        let is_fresh = args.choosing_seeds > 0;
        let choosing: Vec<u64> = match is_fresh {
            true => args.choosing(),
            false => args.choosing().into_iter().filter(is_complete).collect(),
        };
        let choices = table.rows.iter().map(|row| row.choice(text, &choosing, is_averaged, cache));
        let choices: Vec<BestChoice> = choices.collect();
        let has_all = |seed: &u64| {
            let mut chosen = table.rows.iter().zip(&choices);
            chosen.all(|(row, choice)| match *choice {
                BestChoice::Cell(at) => has(&row.cells[at].1, *seed),
                BestChoice::Hopeless => true,
                BestChoice::Pending => false,
            })
        };
        let seeds = if is_fresh { args.reported().into_iter().filter(has_all).collect() } else { choosing };
        let part = if text.has_test() { args.part } else { TextSplit::Validation };
        Self { text, table, cache, part, is_averaged, choices, seeds }
    }

    /// Returns the reported runs of a row; `None` without a choice, or if a run has no loss.
    fn best(&self, row: usize) -> Option<Best<'a>> {
        let BestChoice::Cell(at) = self.choices[row] else { return None };
        let Row { words, cells, .. } = &self.table.rows[row];
        let (choice, cell) = &cells[at];
        let records = self.seeds.iter().map(|&seed| self.cache.get(&self.text.key(cell, seed)));
        let records: Vec<&RunRecord> = records.collect::<Option<_>>()?;
        let losses = records.iter().map(|record| record.loss(self.part, self.is_averaged));
        let losses = losses.collect::<Option<_>>()?;
        Some(Best { words, choice, cell, records, losses })
    }
}

impl Best<'_> {
    fn mean(&self, of: impl Fn(&RunRecord) -> f64) -> f64 {
        mean(self.records.iter().map(|record| of(record)))
    }

    fn loss(&self) -> f64 {
        mean(self.losses.iter().copied())
    }

    /// Returns the excess of the loss over that of `base` in percent, by seed.
    fn gaps(&self, base: &Self) -> Vec<f64> {
        self.losses.iter().zip(&base.losses).map(|(ours, base)| percent_above(*ours, *base)).collect()
    }

    /// Returns pairs of trained tokens and mean validation loss during the runs.
    fn course(&self) -> Vec<(f64, f64)> {
        let count = self.records.iter().map(|record| record.course.len()).min().unwrap_or(0);
        let at = |k: usize| {
            (self.mean(|record| record.course[k].0 as f64), self.mean(|record| record.course[k].1.into()))
        };
        (0..count).map(at).collect()
    }

    /// Describes the settings that were chosen.
    fn choice_words(&self, args: &PlanArgs) -> String {
        let words = self.choice.iter().map(|(name, value)| {
            let edge = if args.choose.is_at_an_edge(name, value) { ", an edge" } else { "" };
            format!("; {name} {value}{edge}")
        });
        words.collect()
    }
}

/// Returns the report on the cached runs.
pub fn report(
    args: &PlanArgs,
    text: &Text,
    table: &Table,
    cache: &RunCache,
    left: usize,
) -> SimulationReport {
    let views = args.averages().map(|is_averaged| View::new(args, text, table, cache, is_averaged));
    let views: Vec<View<'_>> = views.collect();
    let (mut cases, mut points, mut lines) = (Vec::new(), Vec::new(), PlotLines(Vec::new()));
    let mut notes = notes(args, text, table, views[0].seeds.len());
    for view in &views {
        let best: Vec<Option<Best<'_>>> = (0..table.rows.len()).map(|row| view.best(row)).collect();
        for (ours, base, beside) in &table.comparisons {
            let mut name = grid::words(&table.rows[*ours].words);
            name.extend(beside.iter().map(|beside| format!(" above {beside}")));
            name.extend(view.is_averaged.then_some(", both averaged"));
            let is_pending = [ours, base].iter().any(|row| view.choices[**row] == BestChoice::Pending);
            match (&best[*ours], &best[*base]) {
                _ if view.seeds.is_empty() || is_pending => {}
                (None, _) => notes.push(format!("{name}: no choice led to a loss with all seeds.")),
                (_, None) => notes.push(format!("{name}: the row beside it led to no loss.")),
                (Some(ours), Some(base)) => {
                    let gaps = ours.gaps(base);
                    cases.push(case(args, &name, ours, base, &gaps));
                    points.extend(further_points(&name, ours, base));
                    notes.extend(course_words(&name, ours, base));
                    lines.add(ours, base, beside.as_deref(), view.is_averaged, gaps);
                }
            }
        }
    }
    let cosines = cosines(table, &views[0]);
    notes.extend(cosines.iter().map(|(tensors, [p5, p50, p95])| {
        let name = tensors.name();
        format!("Cosines between honest updates of one merge, {name}: {p5:.3} · {p50:.3} · {p95:.3} (5, 50, 95 %).")
    }));
    points.extend(cosines.iter().flat_map(|(tensors, figures)| {
        let of =
            |(p, figure): (&str, f64)| Case::new(format!("cosine, {}, {p}", tensors.name()), figure, None);
        ["p5", "p50", "p95"].into_iter().zip(*figures).map(of).collect::<Vec<Case>>()
    }));
    let first = args.vary.names().next().unwrap_or_default();
    notes.extend(args.trend.into_iter().flat_map(|percent| lines.trends(first, percent)));
    if left > 0 {
        notes.push(format!("Runs that are to be made yet: {left}. Call it again with the same --keep."));
    }
    let usual = || format!("sweep-{}-{}", text.name, args.vary.names().collect::<Vec<_>>().join("-"));
    let name = args.name.clone().unwrap_or_else(usual);
    let part = if views[0].part == TextSplit::Test { "Test loss" } else { "Validation loss" };
    SimulationReport {
        title: format!("{part} above the row beside it, {}", text.name),
        unit: "%",
        cases,
        points,
        notes,
        plots: lines.plots(&name, first),
    }
}

fn notes(args: &PlanArgs, text: &Text, table: &Table, seeds: usize) -> Vec<String> {
    let tokens = || table.rows.iter().map(|row| row.tokens);
    let (least, most) = (tokens().min().unwrap_or(0), tokens().max().unwrap_or(0));
    let mut notes = vec![
        text.words(),
        format!(
            "Rows have {} tokens, beside those of the last rounds, however long they took, and {seeds} of {} seeds; \
             ± is half of the 95 % interval of the mean gap (Student).",
            if least == most { most.to_string() } else { format!("{least} to {most}") },
            args.settings.training.seeds
        ),
    ];
    if args.choosing_seeds > 0 {
        notes.push(format!(
            "Each row chooses from the same {} by {} seeds, and is run with fresh ones.",
            args.choose.count(),
            args.choosing_seeds
        ));
    } else if args.choose.count() > 1.0 {
        notes.push(
            "What was chosen was chosen by the same runs, on another part of the text: with few seeds that flatters \
             rows with many choices."
                .into(),
        );
    }
    notes
}

fn case(args: &PlanArgs, name: &str, ours: &Best<'_>, base: &Best<'_>, gaps: &[f64]) -> Case {
    let mut note =
        format!("{}; {:.4} beside {:.4}; {}", half_interval(gaps), ours.loss(), base.loss(), by_seed(gaps));
    // A single trainer takes no virtual time.
    if ours.records.iter().all(|record| record.virtual_ms > 0) {
        note.push_str(&format!("; {:.1} s", ours.mean(|record| record.virtual_ms as f64 / 1e3)));
        if ours.cell.extra == 0 {
            // The time ends with the requested number of steps; those of the last rounds come after it.
            let steps = ours.cell.mean_steps().unwrap_or(0);
            let alone_ms = (steps * ours.cell.training.step_ms) as f64;
            let trained = ours.mean(|record| alone_ms / record.virtual_ms as f64);
            note.push_str(&format!(", {:.1} % of the time trained", 100.0 * trained));
        }
        let merged = ours.mean(|record| record.tokens_merged as f64 / record.tokens.max(1) as f64);
        note.push_str(&format!(", {:.1} % merged", 100.0 * merged));
    }
    if ours.cell.is_unequal() {
        let refused: u64 = ours.records.iter().map(|record| record.refused).sum();
        let share = 100.0 * ours.mean(RunRecord::last_share);
        note.push_str(&format!("; share of the last {share:.1} %, {refused} refused"));
    }
    note.push_str(&attack_words(ours));
    note.push_str(&ours.choice_words(args));
    let paper = args.paper.first(name).and_then(|figure| figure.parse().ok());
    Case::new(name, mean(gaps.iter().copied()), paper).noted(note)
}

/// Describes detection, the hostile share of merges, and the cost for honest learners; empty without an attack.
fn attack_words(ours: &Best<'_>) -> String {
    let stats: Vec<_> = ours.records.iter().filter_map(|record| record.attack_stats).collect();
    if stats.is_empty() {
        return String::new();
    }
    let noticed =
        stats.iter().map(|one| one.after_rounds.map_or("never".into(), |rounds| rounds.to_string()));
    let [hostile, honest] = [true, false].map(|is_hostile| {
        let of = stats.iter().map(|one| if is_hostile { one.hostile } else { one.honest });
        let sums =
            of.fold((0, 0, 0), |sum, one| (sum.0 + one.refused, sum.1 + one.closed, sum.2 + one.suspected));
        format!("refused {}, closed {}, suspected {}", sums.0, sums.1, sums.2)
    });
    let share = 100.0 * mean(stats.iter().map(|one| one.hostile_share()));
    let broken = ours.records.iter().filter_map(|record| record.broken.as_ref());
    format!(
        "; noticed after rounds: {}; hostile in merges {share:.1} %, {hostile}; honest {honest}{}",
        noticed.collect::<Vec<String>>().join(" · "),
        broken.map(|why| format!("; broke off: {why}")).collect::<String>()
    )
}

/// Returns further figures of a row: of unequal learners, of attacks, and of the samples during its runs.
fn further_points(name: &str, ours: &Best<'_>, base: &Best<'_>) -> Vec<Case> {
    let of = |what: &str, figure: f64| Case::new(format!("{name}, {what}"), figure, None);
    let mut points = Vec::new();
    if ours.cell.is_unequal() {
        points.push(of("share of the last", 100.0 * ours.mean(RunRecord::last_share)));
    }
    let stats: Vec<_> = ours.records.iter().filter_map(|record| record.attack_stats).collect();
    if !stats.is_empty() {
        let refused: u64 = stats.iter().map(|one| one.honest.refused).sum();
        let merged: u64 = stats.iter().map(|one| one.honest.merged).sum();
        points.push(of("honest refused", 100.0 * refused as f64 / (refused + merged).max(1) as f64));
        points.push(of("hostile in merges", 100.0 * mean(stats.iter().map(|one| one.hostile_share()))));
        let broken = ours.records.iter().filter(|record| record.broken.is_some());
        points.push(of("broken off", broken.count() as f64));
        let rounds: Option<Vec<u64>> = stats.iter().map(|one| one.after_rounds).collect();
        points.extend(
            rounds.map(|all| of("noticed after rounds", mean(all.iter().map(|&rounds| rounds as f64)))),
        );
    }
    points
        .extend(gaps_on_the_way(ours, base).map(|(steps, gap)| of(&format!("after {steps:.0} steps"), gap)));
    points
}

/// Returns, for each sample during a run, the steps of a learner and the excess of the loss over that of `base` in
/// percent.
fn gaps_on_the_way(ours: &Best<'_>, base: &Best<'_>) -> impl Iterator<Item = (f64, f64)> {
    let step_tokens = ours.cell.training.step_tokens().unwrap_or(1) as f64 * f64::from(ours.cell.learners);
    let gaps = ours.course().into_iter().zip(base.course());
    gaps.map(move |((tokens, loss), (_, base))| (tokens / step_tokens, percent_above(loss, base)))
}

fn course_words(name: &str, ours: &Best<'_>, base: &Best<'_>) -> Option<String> {
    let gaps: Vec<(f64, f64)> = gaps_on_the_way(ours, base).collect();
    let list = |of: fn(&(f64, f64)) -> String| gaps.iter().map(of).collect::<Vec<String>>().join(" · ");
    let (steps, percent) = (list(|gap| format!("{:.0}", gap.0)), list(|gap| format!("{:+.2}", gap.1)));
    (!gaps.is_empty()).then(|| format!("{name}: on the way, after {steps} steps: {percent} %"))
}

/// Returns the 5th, 50th and 95th percentile of cosines by kind of tensor, as means over the reported runs.
fn cosines(table: &Table, view: &View<'_>) -> Vec<(Tensors, [f64; 3])> {
    let best = (0..table.rows.len()).filter_map(|row| view.best(row));
    let found: Vec<Cosines> =
        best.flat_map(|best| best.records).flat_map(|record| record.cosines.iter().copied()).collect();
    let of = |tensors: Tensors| {
        let figures: Vec<[f32; 3]> =
            found.iter().filter(|one| one.part == tensors).map(|one| [one.p5, one.p50, one.p95]).collect();
        let at = |i: usize| mean(figures.iter().map(|figures| figures[i].into()));
        (!figures.is_empty()).then(|| (tensors, [at(0), at(1), at(2)]))
    };
    Tensors::ALL.into_iter().filter_map(of).collect()
}

/// Value of the first setting, gap of each seed in percent, loss, and loss of the baseline.
type Point = (f64, Vec<f64>, f64, f64);

/// Losses over the progress of the decoupled run, and those of its baseline.
type Curves = [Vec<(f64, f64)>; 2];

/// One line of a plot: rows that differ in the first setting only.
struct PlotLine {
    name: String,
    is_attacked: bool,
    points: Vec<Point>,
    /// Curves at each value of the setting.
    courses: Vec<(String, Curves)>,
}

/// Lines over the first setting, one for each combination of the others.
struct PlotLines(Vec<PlotLine>);

impl PlotLines {
    /// Adds a row, if its first setting is a number.
    fn add(
        &mut self,
        ours: &Best<'_>,
        base: &Best<'_>,
        beside: Option<&str>,
        is_averaged: bool,
        gaps: Vec<f64>,
    ) {
        let Some((first, rest)) = ours.words.split_first() else { return };
        let Ok(x) = first.1.parse::<f64>() else { return };
        let mut name = if rest.is_empty() { first.0.clone() } else { grid::words(rest) };
        name.extend(beside.map(|beside| format!(" above {beside}")));
        name.extend(is_averaged.then_some(", averaged"));
        let at = self.0.iter().position(|line| line.name == name).unwrap_or_else(|| {
            self.0.push(PlotLine { name, is_attacked: false, points: Vec::new(), courses: Vec::new() });
            self.0.len() - 1
        });
        let line = &mut self.0[at];
        line.is_attacked |= ours.cell.attacks.hostile > 0;
        line.points.push((x, gaps, ours.loss(), base.loss()));
        let courses = [ours.course(), base.course()];
        if !courses[0].is_empty() && !is_averaged {
            line.courses.push((format!("{} {}", first.0, first.1), courses));
        }
    }

    /// Returns a sentence for each line with a trend; a baseline has no trend.
    fn trends(&self, first: &str, percent: f64) -> Vec<String> {
        let is_base =
            |line: &&PlotLine| line.points.iter().all(|(_, gaps, ..)| gaps.iter().all(|gap| *gap == 0.0));
        let sentence = |line: &PlotLine| {
            let points = line.points.iter().map(|(x, gaps, ..)| (*x, gaps.clone())).collect();
            trend(&line.name, first, &points, percent)
        };
        let trends: Vec<String> = self.0.iter().filter(|line| !is_base(line)).filter_map(sentence).collect();
        match trends.is_empty() {
            false => trends,
            true => vec![format!(
                "There is no trend over {first}: that takes two values above 0, and rows beside others."
            )],
        }
    }

    /// Returns plots of the gaps and of the losses over the first setting and, if measured, of losses on the way.
    fn plots(&self, name: &str, first: &str) -> Vec<Plot> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let is_positive = self.0.iter().flat_map(|line| &line.points).all(|(x, ..)| *x > 0.0);
        let scale = if is_positive { Scale::Log } else { Scale::Linear };
        let is_attacked = self.0.iter().all(|line| line.is_attacked);
        let axis = |label: &str, scale| Axis { label: label.into(), scale };
        let bounded = |gap: f64| if is_attacked { gap.clamp(ATTACKED_GAPS.0, ATTACKED_GAPS.1) } else { gap };
        let gaps = self.0.iter().enumerate().map(|(i, line)| {
            let points = line.points.iter().map(|(x, gaps, ..)| (*x, bounded(mean(gaps.iter().copied()))));
            series(i, &line.name, points.collect())
        });
        let losses = self.0.iter().enumerate().flat_map(|(i, line)| {
            let of = |of: fn(&Point) -> f64| -> Vec<(f64, f64)> {
                let points = line.points.iter().map(|point| (point.0, of(point)));
                points.filter(|(_, loss)| loss.is_finite()).collect()
            };
            let base = series(2 * i + 1, &format!("beside {}", line.name), of(|point| point.3));
            [series(2 * i, &line.name, of(|point| point.2)), base]
        });
        let y = if is_attacked {
            ("loss above, 0.1 % or less to 1,000 or more", Scale::Log)
        } else {
            ("loss above, %", Scale::Linear)
        };
        let mut plots = vec![
            Plot {
                name: name.to_owned(),
                title: format!("Loss over {first}"),
                x: axis(first, scale.clone()),
                y: axis(y.0, y.1),
                series: gaps.collect(),
            },
            Plot {
                name: format!("{name}-loss"),
                title: format!("Loss over {first}"),
                x: axis(first, scale),
                y: axis("loss, nats per byte", Scale::Linear),
                series: losses.collect(),
            },
        ];
        let courses =
            self.0.iter().flat_map(|line| &line.courses).enumerate().flat_map(|(i, (of, courses))| {
                let [ours, base] = courses.clone();
                let base = series(i, &format!("beside {of}"), base);
                [series(i, of, ours), Series { mark: SeriesStyle::Hollow, ..base }]
            });
        let courses: Vec<Series> = courses.collect();
        if !courses.is_empty() {
            plots.push(Plot {
                name: format!("{name}-course"),
                title: "Loss on the way".into(),
                x: axis("tokens of all learners", Scale::Log),
                y: axis("validation loss, nats per byte", Scale::Linear),
                series: courses,
            });
        }
        plots
    }
}

fn series(index: usize, name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), colour: (index % 256) as u8, mark: SeriesStyle::Line, points }
}
