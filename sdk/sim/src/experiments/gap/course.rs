//! Results that follow from cached runs without their text: loss curves of the best of each side, and all rates tried.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::keep::Made;
use super::key::Key;
use crate::experiments::findings::percent_above;
use crate::experiments::kept::parse;
use crate::experiments::side::Side;
use crate::experiments::{Axis, Case, Mark, Plot, Scale, Series, SimulateError};

/// Runs for choosing settings, with the same text and settings as the first of them.
pub struct Course {
    /// Name of the text, which is the file's name.
    name: String,
    made: Vec<Made>,
}

/// A rate and a warm-up tried for a side, over all seeds.
struct Tried<'a> {
    lr: f64,
    warmup: &'a str,
    runs: Vec<&'a Made>,
}

impl Tried<'_> {
    /// Returns the mean loss of the last parameters in nats per byte; infinite if a run diverged.
    fn loss(&self) -> f64 {
        self.mean(|made| made.validation[0].map_or(f64::INFINITY, f64::from))
    }

    /// Returns the mean loss over trained tokens.
    fn course(&self) -> Vec<(f64, f64)> {
        let first = self.runs.first().map_or(&[][..], |made| &made.course);
        let loss = |i: usize| self.mean(|made| made.course.get(i).map_or(f64::NAN, |&(_, loss)| loss.into()));
        first.iter().enumerate().map(|(i, &(tokens, _))| (tokens as f64, loss(i))).collect()
    }

    fn mean(&self, of: impl Fn(&Made) -> f64) -> f64 {
        self.runs.iter().map(|made| of(made)).sum::<f64>() / self.runs.len() as f64
    }
}

impl Course {
    /// Reads the runs from the file at `path`. It skips runs with settings other than the first one's, and test runs.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `Refused`: a line is not a run.
    pub fn read(path: &Path) -> Result<Self, SimulateError> {
        let disk = |source| SimulateError::Disk { what: "read", path: path.to_owned(), source };
        let mut made: Vec<Made> = parse(&fs::read_to_string(path).map_err(disk)?, path)?;
        let first = made.first().map(|made| (made.key.text.clone(), made.key.settings.clone()));
        made.retain(|made| {
            let Made { key, .. } = made;
            !key.is_told
                && first.as_ref().is_some_and(|first| *first == (key.text.clone(), key.settings.clone()))
        });
        if made.is_empty() {
            return Err(SimulateError::refused(format!("{} holds no run to choose by", path.display())));
        }
        // A duplicate run counts once.
        let made: BTreeMap<Key, Made> = made.into_iter().map(|made| (made.key.clone(), made)).collect();
        let made = made.into_values().collect();
        let name = path.file_stem().map_or("text".into(), |stem| stem.to_string_lossy().into_owned());
        Ok(Self { name, made })
    }

    /// Returns the excess of decoupled training over another side in percent, each at its best settings: (M, percent).
    pub fn gaps(&self, side: &str) -> Vec<(f64, f64)> {
        let side = Side::ALL.into_iter().find(|one| word(*one) == side);
        let gap = |learners: u32| {
            let loss = |side| Some(self.best(side, learners)?.loss());
            let (ours, base) = (loss(Side::Decoupled)?, loss(side?)?);
            Some((f64::from(learners), percent_above(ours, base)))
        };
        self.learners().into_iter().filter_map(gap).collect()
    }

    /// Returns the same as rows.
    pub fn cases(&self) -> Vec<Case> {
        let beside = [Side::DataParallel, Side::Lookahead].map(word).into_iter();
        let rows = beside.flat_map(|side| self.gaps(side).into_iter().map(move |(m, gap)| (side, m, gap)));
        rows.map(|(side, m, gap)| {
            Case::new(format!("{}, M = {m} above {side}, by the part to choose by", self.name), gap, None)
        })
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
        let best = |side| {
            let best = self.best(side, learners)?;
            let warmup = match self.tried(side, learners).iter().all(|tried| tried.warmup == best.warmup) {
                true => String::new(),
                false => format!(", warm-up {}", best.warmup),
            };
            Some((format!("{} at {}{warmup}", word(side), best.lr), best.course()))
        };
        Plot {
            name: format!("gap-{}-{learners}", self.name),
            title: format!("{learners} learners beside data-parallel, each at its best rate"),
            x: Axis { label: "tokens of all learners".into(), scale: Scale::Linear },
            y: Axis { label: "loss, nats per byte".into(), scale: Scale::Linear },
            series: series(best),
        }
    }

    fn rates(&self, learners: u32) -> Plot {
        let all = |side| {
            let mut points: Vec<(f64, f64)> = Vec::new();
            for (lr, loss) in self.tried(side, learners).iter().map(|tried| (tried.lr, tried.loss())) {
                match points.last_mut().filter(|(before, _)| *before == lr) {
                    // The better of two warm-ups.
                    Some((_, least)) => *least = least.min(loss),
                    None => points.push((lr, loss)),
                }
            }
            (!points.is_empty()).then(|| (word(side).into(), points))
        };
        Plot {
            name: format!("gap-{}-{learners}-rates", self.name),
            title: format!("{learners} learners beside data-parallel, at each rate that was tried"),
            x: Axis { label: "highest inner learning rate".into(), scale: Scale::Log },
            y: Axis { label: "loss at the end, nats per byte".into(), scale: Scale::Linear },
            series: series(all),
        }
    }

    fn learners(&self) -> Vec<u32> {
        let mut learners: Vec<u32> = self.made.iter().map(|made| made.key.learners).collect();
        learners.sort_unstable();
        learners.dedup();
        learners
    }

    /// Returns the settings of `side` tried with the most seeds, by ascending rate.
    fn tried(&self, side: Side, learners: u32) -> Vec<Tried<'_>> {
        let mut tried: BTreeMap<(&str, &str), Vec<&Made>> = BTreeMap::new();
        for made in self.made.iter().filter(|made| (made.key.side, made.key.learners) == (side, learners)) {
            tried.entry((&made.key.lr, &made.key.warmup)).or_default().push(made);
        }
        let most = tried.values().map(Vec::len).max().unwrap_or(0);
        tried.retain(|_, runs| runs.len() == most);
        let tried = tried
            .into_iter()
            .filter_map(|((lr, warmup), runs)| Some(Tried { lr: lr.parse().ok()?, warmup, runs }));
        let mut tried: Vec<Tried<'_>> = tried.collect();
        tried.sort_by(|a, b| a.lr.total_cmp(&b.lr));
        tried
    }

    fn best(&self, side: Side, learners: u32) -> Option<Tried<'_>> {
        let tried = self.tried(side, learners).into_iter().filter(|tried| tried.loss().is_finite());
        tried.min_by(|a, b| a.loss().total_cmp(&b.loss()))
    }
}

/// Returns a line for each side for which `of` has one: its name and its points.
fn series(of: impl Fn(Side) -> Option<(String, Vec<(f64, f64)>)>) -> Vec<Series> {
    let lines = (0..).zip(Side::ALL).filter_map(|(colour, side)| {
        let (name, points) = of(side)?;
        Some(Series { name, colour, mark: Mark::Line, points })
    });
    lines.collect()
}

fn word(side: Side) -> &'static str {
    match side {
        Side::Decoupled => "decoupled",
        Side::DataParallel => "data-parallel",
        Side::Lookahead => "Lookahead",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(side: &str, lr: &str, seed: u32, loss: &str, told: bool) -> String {
        let key =
            format!(r#""text":"a","settings":"b","side":"{side}","learners":2,"lr":"{lr}","warmup":"0.05""#);
        let losses = format!(r#""validation":[{loss},null],"test":[null,null]"#);
        let course = format!(r#""steps":1.0,"course":[[64,4.0],[128,{loss}]]"#);
        format!(r#"{{{key},"seed":{seed},"is_told":{told},{losses},{course}}}"#)
    }

    /// Goal: each side counts with its best rate over seeds, and test runs do not count.
    #[test]
    fn the_best_of_each_side_are_beside_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plays.jsonl");
        let runs = [
            line("data-parallel", "0.001", 1, "2.0", false),
            line("data-parallel", "0.001", 2, "2.0", false),
            line("data-parallel", "0.002", 1, "1.0", false),
            line("data-parallel", "0.002", 2, "4.0", false),
            // A worse warm-up, and a duplicate run.
            line("data-parallel", "0.002", 1, "3.0", false).replace("0.05", "0.1"),
            line("data-parallel", "0.002", 2, "4.0", false).replace("0.05", "0.1"),
            line("data-parallel", "0.001", 1, "2.0", false),
            // One with a single seed, and some of other tables.
            line("data-parallel", "0.004", 1, "0.5", false),
            line("decoupled", "0.002", 7, "0.1", true),
            line("decoupled", "0.002", 1, "2.5", false).replace(r#""settings":"b""#, r#""settings":"c""#),
            line("decoupled", "0.002", 1, "3.0", false),
        ];
        fs::write(&path, runs.join("\n") + "\n").unwrap();
        let course = Course::read(&path).unwrap();
        assert_eq!(course.gaps("data-parallel"), [(2.0, 50.0)]);
        assert!(course.gaps("Lookahead").is_empty() && course.cases().len() == 1);
        let [curves, rates] = &course.plots()[..] else { panic!("one number of learners") };
        assert_eq!((&curves.name[..], &rates.name[..]), ("gap-plays-2", "gap-plays-2-rates"));
        assert_eq!(curves.series.len(), 2);
        assert_eq!(curves.series[1].name, "data-parallel at 0.001, warm-up 0.05");
        assert_eq!(curves.series[0].name, "decoupled at 0.002");
        assert_eq!(curves.series[1].points, [(64.0, 4.0), (128.0, 2.0)]);
        assert_eq!(rates.series[1].points, [(0.001, 2.0), (0.002, 2.5)]);
    }
}
