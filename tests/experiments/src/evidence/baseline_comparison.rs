//! Comparison of cached runs of learners and of both baselines: loss curves of the best run of each side, and the
//! losses at all rates.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::plan::{RunRecord, TextSplit, parse};
use crate::statistics::percent_above;
use crate::{Axis, Case, Plot, Scale, Series, SeriesStyle, SimulateError};

/// Sides of the comparison, by their names in runs and in plots.
const SIDES: [(&str, &str); 3] =
    [("decoupled", "decoupled"), ("data-parallel", "data-parallel"), ("lookahead", "Lookahead")];

/// Cached runs that were made to choose settings.
pub struct Comparison {
    /// Name of the text, which is the file's name.
    name: String,
    runs: Vec<NamedRun>,
}

/// Run with the settings that its name contains: `learners 8, side decoupled, lr 0.002`.
struct NamedRun {
    side: String,
    learners: u32,
    lr: String,
    record: RunRecord,
}

impl NamedRun {
    fn of(record: RunRecord) -> Option<Self> {
        let word = |name: &str| {
            let mut words = record.cell.split(", ").filter_map(|setting| setting.split_once(' '));
            words.find(|(other, _)| *other == name).map(|(_, value)| value.to_owned())
        };
        let (side, learners, lr) = (word("side")?, word("learners")?.parse().ok()?, word("lr")?);
        Some(Self { side, learners, lr, record })
    }
}

/// Runs of a side at one learning rate, over all seeds.
struct RateTrial<'a> {
    lr: f64,
    runs: Vec<&'a RunRecord>,
}

impl RateTrial<'_> {
    /// Returns the mean validation loss in nats per byte; infinite if a run diverged.
    fn loss(&self) -> f64 {
        self.mean(|record| record.loss(TextSplit::Validation, false).unwrap_or(f64::INFINITY))
    }

    /// Returns pairs of trained tokens and mean loss.
    fn course(&self) -> Vec<(f64, f64)> {
        let first = self.runs.first().map_or(&[][..], |record| &record.course);
        let loss =
            |i: usize| self.mean(|record| record.course.get(i).map_or(f64::NAN, |&(_, loss)| loss.into()));
        first.iter().enumerate().map(|(i, &(tokens, _))| (tokens as f64, loss(i))).collect()
    }

    fn mean(&self, of: impl Fn(&RunRecord) -> f64) -> f64 {
        self.runs.iter().map(|record| of(record)).sum::<f64>() / self.runs.len() as f64
    }
}

impl Comparison {
    /// Reads the runs from the file at `path`, without those of fresh seeds.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `Refused`: a line is not a run.
    pub fn read(path: &Path) -> Result<Self, SimulateError> {
        let disk = |source| SimulateError::Disk { what: "read", path: path.to_owned(), source };
        let records = parse(&fs::read_to_string(path).map_err(disk)?, path)?;
        // Duplicate runs are read once.
        let records = records.into_iter().filter(|record| !record.is_fresh);
        let records: BTreeMap<_, RunRecord> = records.map(|record| (record.key.clone(), record)).collect();
        let runs: Vec<NamedRun> = records.into_values().filter_map(NamedRun::of).collect();
        if runs.is_empty() {
            return Err(SimulateError::refused(format!("{} holds no run to choose by", path.display())));
        }
        let name = path.file_stem().map_or("text".into(), |stem| stem.to_string_lossy().into_owned());
        Ok(Self { name, runs })
    }

    /// Returns the excess of decoupled training over another side in percent, each at its best rate: (M, percent).
    pub fn gaps(&self, side: &str) -> Vec<(f64, f64)> {
        let gap = |learners: u32| {
            let loss = |side: &str| Some(self.best(side, learners)?.loss());
            Some((f64::from(learners), percent_above(loss("decoupled")?, loss(side)?)))
        };
        self.learners().into_iter().filter_map(gap).collect()
    }

    /// Returns the gaps to both baselines as rows.
    pub fn cases(&self) -> Vec<Case> {
        let row = |name: &str, m: f64, gap: f64| {
            Case::new(format!("{}, M = {m} above {name}, by the part to choose by", self.name), gap, None)
        };
        let beside = SIDES[1..].iter();
        beside
            .flat_map(|(side, name)| self.gaps(side).into_iter().map(|(m, gap)| row(name, m, gap)))
            .collect()
    }

    /// Returns, for each M, the loss curves of the best of each side, and the losses at all rates.
    pub fn plots(&self) -> Vec<Plot> {
        self.learners()
            .into_iter()
            .flat_map(|learners| [self.curves(learners), self.rates(learners)])
            .collect()
    }

    fn curves(&self, learners: u32) -> Plot {
        let best = |side: &str, name: &str| {
            let best = self.best(side, learners)?;
            Some((format!("{name} at {}", best.lr), best.course()))
        };
        Plot {
            name: format!("gap-{}-{learners}", self.name),
            title: format!("{learners} learners compared with data-parallel, each at its best rate"),
            x: Axis { label: "tokens of all learners".into(), scale: Scale::Linear },
            y: Axis { label: "loss, nats per byte".into(), scale: Scale::Linear },
            series: series(best),
        }
    }

    fn rates(&self, learners: u32) -> Plot {
        let all = |side: &str, name: &str| {
            let points: Vec<(f64, f64)> =
                self.tried(side, learners).iter().map(|tried| (tried.lr, tried.loss())).collect();
            (!points.is_empty()).then(|| (name.to_owned(), points))
        };
        Plot {
            name: format!("gap-{}-{learners}-rates", self.name),
            title: format!("{learners} learners compared with data-parallel, at each rate that was tried"),
            x: Axis { label: "highest inner learning rate".into(), scale: Scale::Log },
            y: Axis { label: "loss at the end, nats per byte".into(), scale: Scale::Linear },
            series: series(all),
        }
    }

    fn learners(&self) -> Vec<u32> {
        let mut learners: Vec<u32> = self.runs.iter().map(|run| run.learners).collect();
        learners.sort_unstable();
        learners.dedup();
        learners
    }

    /// Returns the rates of `side` tried with the most seeds, ascending.
    fn tried(&self, side: &str, learners: u32) -> Vec<RateTrial<'_>> {
        let mut tried: BTreeMap<&str, Vec<&RunRecord>> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| (&*run.side, run.learners) == (side, learners)) {
            tried.entry(&run.lr).or_default().push(&run.record);
        }
        let most = tried.values().map(Vec::len).max().unwrap_or(0);
        tried.retain(|_, runs| runs.len() == most);
        let tried = tried.into_iter().filter_map(|(lr, runs)| Some(RateTrial { lr: lr.parse().ok()?, runs }));
        let mut tried: Vec<RateTrial<'_>> = tried.collect();
        tried.sort_by(|a, b| a.lr.total_cmp(&b.lr));
        tried
    }

    fn best(&self, side: &str, learners: u32) -> Option<RateTrial<'_>> {
        let tried = self.tried(side, learners).into_iter().filter(|tried| tried.loss().is_finite());
        tried.min_by(|a, b| a.loss().total_cmp(&b.loss()))
    }
}

/// Returns a line for each side for which `of` has one: its name and its points.
fn series(of: impl Fn(&str, &str) -> Option<(String, Vec<(f64, f64)>)>) -> Vec<Series> {
    let lines = (0..).zip(SIDES).filter_map(|(colour, (side, name))| {
        let (name, points) = of(side, name)?;
        Some(Series { name, colour, mark: SeriesStyle::Line, points })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(side: &str, lr: &str, seed: u32, loss: &str, is_fresh: bool) -> String {
        let key = format!(r#""text":"a","settings":"{side} {lr}","seed":{seed}"#);
        let losses = format!(r#""validation":{loss},"test":null,"steps":1.0,"virtual_ms":0,"tokens":0"#);
        let course = format!(r#""tokens_merged":0,"course":[[64,4.0],[128,{loss}]],"is_fresh":{is_fresh}"#);
        format!(r#"{{{key},"cell":"learners 2, side {side}, lr {lr}",{losses},{course}}}"#)
    }

    /// Goal: each side is compared at its best rate over seeds, and runs of fresh seeds are left out.
    #[test]
    fn sides_are_compared_at_their_best_rates() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plays.jsonl");
        let runs = [
            line("data-parallel", "0.001", 1, "2.0", false),
            line("data-parallel", "0.001", 2, "2.0", false),
            line("data-parallel", "0.002", 1, "1.0", false),
            line("data-parallel", "0.002", 2, "4.0", false),
            // A duplicate run, one rate with a single seed, and a fresh seed.
            line("data-parallel", "0.001", 1, "2.0", false),
            line("data-parallel", "0.004", 1, "0.5", false),
            line("decoupled", "0.002", 7, "0.1", true),
            line("decoupled", "0.002", 1, "3.0", false),
        ];
        fs::write(&path, runs.join("\n") + "\n").unwrap();
        let comparison = Comparison::read(&path).unwrap();
        assert_eq!(comparison.gaps("data-parallel"), [(2.0, 50.0)]);
        assert!(comparison.gaps("lookahead").is_empty() && comparison.cases().len() == 1);
        let [curves, rates] = &comparison.plots()[..] else { panic!("one number of learners") };
        assert_eq!((&curves.name[..], &rates.name[..]), ("gap-plays-2", "gap-plays-2-rates"));
        assert_eq!(curves.series.len(), 2);
        assert_eq!(curves.series[1].name, "data-parallel at 0.001");
        assert_eq!(curves.series[0].name, "decoupled at 0.002");
        assert_eq!(curves.series[1].points, [(64.0, 4.0), (128.0, 2.0)]);
        assert_eq!(rates.series[1].points, [(0.001, 2.0), (0.002, 2.5)]);
    }
}
