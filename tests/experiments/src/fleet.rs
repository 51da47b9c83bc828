//! `simulate fleet`: a run of real processes, compared with a simulation of the same run.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;

use crate::lab::{Budget, Corpus, Recipe, TrainingResult};
use archipelago_cli::plot::figure;
use archipelago_cli::{defaults, within};
use archipelago_core::data::grammar;
use archipelago_core::model::{InnerSpec, Preset};
use archipelago_sim::world::{Fault, LinkSpec, MachineSpec};
use serde::{Deserialize, Serialize};

use super::statistics::{mean, percent_above};
use super::training::{TrainingArgs, failed, seeds_from};
use super::{Axis, Case, OutputArgs, Plot, Scale, Series, SeriesStyle, SimulationReport, pool};
use crate::SimulateError;

/// Random variation of a step's duration, as a share of it. Our own constant.
const STEP_JITTER: f64 = 0.1;
/// Longest simulated run, in milliseconds.
const LENGTH_MS_MAX: f64 = 3_600_000.0;
/// Longest text, in bytes.
const CORPUS_BYTES_MAX: f64 = 1e9;
/// Time between two loss measurements, in milliseconds, as in the real syncer.
const SAMPLE_MS: u64 = 5_000;

/// Settings of `simulate fleet`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct FleetArgs {
    /// File with the last line that `cargo xtask bench fleet --json` printed, a JSON object
    #[arg(long, value_name = "FILE")]
    pub observed: PathBuf,
    /// Number of runs; their seeds begin with that of the real run
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub seeds: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub output: OutputArgs,
}

/// A run of real processes: its settings, and its results from the time when all learners took part.
#[derive(Clone, Debug, Deserialize)]
struct ObservedRun {
    preset: String,
    seed: u64,
    corpus_bytes: u32,
    total_tokens: u64,
    length_ms: u64,
    kills: Vec<KillTimes>,
    machines: Vec<Machine>,
    tokens_trained: f64,
    tokens_merged: f64,
    rounds: f64,
    updates_merged: f64,
    /// Time in milliseconds and held-out loss of each measurement.
    losses: Vec<(u64, f64)>,
}

/// Killed learner, and the times of its kill and its restart.
#[derive(Clone, Copy, Debug, Deserialize)]
struct KillTimes {
    machine: u32,
    at_ms: u64,
    back_ms: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Machine {
    place: String,
    round_trip_ms: u64,
    mbit_per_s: Option<f64>,
    /// Training rate before the first kill.
    tokens_per_s: f64,
    tokens_merged: f64,
}

/// Simulates the observed run, and compares the two.
///
/// # Errors
/// - `Disk`: the file cannot be read.
/// - `Refused`: the file does not come from `cargo xtask bench fleet`, or training failed.
/// - `Setting`, `Preset`: a number in the file is out of range.
pub fn run(args: &FleetArgs, progress: &mut dyn FnMut(&str)) -> Result<SimulationReport, SimulateError> {
    within("seeds", args.seeds.into(), 1.0..=1e3)?;
    let observed = ObservedRun::read(&args.observed)?;
    let recipe = observed.recipe()?;
    let text = grammar::generate(observed.seed, observed.corpus_bytes as usize);
    let corpus = Corpus::new(text.as_bytes()).map_err(|error| failed(&error))?;
    // With the first seed, the text and the parameters are those of the real run.
    let seeds: Vec<u64> = seeds_from(observed.seed, args.seeds).collect();
    let jobs = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut outcomes: Vec<Option<TrainingResult>> = vec![None; seeds.len()];
    let work = |seed: &u64| Some(Recipe { seed: *seed, ..recipe.clone() }.train(&corpus));
    pool::each(jobs, &seeds, work, |index, result| {
        let outcome = result.map_err(|error| failed(&error))?;
        progress(&format!("seed {}: {:.4}", seeds[index], outcome.spent.loss));
        outcomes[index] = Some(outcome);
        Ok::<(), SimulateError>(())
    })?;
    let outcomes: Vec<TrainingResult> = outcomes.into_iter().flatten().collect();
    Ok(report(&observed, &outcomes))
}

impl ObservedRun {
    fn read(path: &Path) -> Result<Self, SimulateError> {
        let disk = |source| SimulateError::Disk { what: "read", path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(disk)?;
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let observed: Self = serde_json::from_str(last).map_err(|error| {
            let path = path.display();
            SimulateError::refused(format!(
                "the last line of {path} is not what `cargo xtask bench fleet --json` prints: {error}"
            ))
        })?;
        observed.check()
    }

    fn check(self) -> Result<Self, SimulateError> {
        within("length_ms", self.length_ms as f64, 1.0..=LENGTH_MS_MAX)?;
        within("machines", self.machines.len() as f64, 1.0..=256.0)?;
        within("rounds", self.rounds, 1.0..=1e12)?;
        within("losses", self.losses.len() as f64, 1.0..=1e6)?;
        within("corpus_bytes", self.corpus_bytes.into(), 1.0..=CORPUS_BYTES_MAX)?;
        let last = self.machines.len() - 1;
        for kill in &self.kills {
            within("machine", kill.machine.into(), 0.0..=last as f64)?;
        }
        for machine in &self.machines {
            within("tokens_per_s", machine.tokens_per_s, 1.0..=1e9)?;
            within("mbit_per_s", machine.mbit_per_s.unwrap_or(1.0), 1e-3..=1e6)?;
            within("round_trip_ms", machine.round_trip_ms as f64, 0.0..=60_000.0)?;
        }
        Ok(self)
    }

    /// Returns the recipe of the same run in virtual time. Of the real run's results, it uses only the speed of the
    /// machines.
    fn recipe(&self) -> Result<Recipe, SimulateError> {
        let preset: Result<Preset, _> = self.preset.parse();
        let preset = preset.map_err(|error| SimulateError::Preset { why: error.to_string() })?;
        let training = TrainingArgs { preset: self.preset.clone(), ..defaults(&[]) };
        let usual = training.recipe(self.machines.len() as u32, self.total_tokens)?;
        let InnerSpec { total_tokens, warmup_tokens, .. } = usual.inner;
        let inner = InnerSpec { total_tokens, warmup_tokens, ..preset.inner() };
        let step_tokens = f64::from(inner.batch) * f64::from(usual.model.context);
        let (mut machines, mut faults) = (Vec::new(), Vec::new());
        for (index, machine) in (0..).zip(&self.machines) {
            let step_ms = 1e3 * step_tokens / machine.tokens_per_s;
            let whole_ms = step_ms.ceil();
            // A machine's step takes whole milliseconds. The fault restores the observed time; its product is rounded
            // down.
            faults.push((0, Fault::Crawl(index, (step_ms + 0.5) / whole_ms)));
            machines.push(MachineSpec {
                step_ms: whole_ms as u64,
                jitter: STEP_JITTER,
                link: machine.link(),
                ..MachineSpec::default()
            });
        }
        for kill in &self.kills {
            faults.push((kill.at_ms, Fault::Kill(kill.machine)));
            faults.push((kill.back_ms, Fault::Restart(kill.machine)));
        }
        faults.sort_by_key(|(at_ms, _)| *at_ms);
        Ok(Recipe {
            inner,
            machines,
            faults,
            budget: Budget::Ms(self.length_ms),
            seed: self.seed,
            samples: (self.length_ms / SAMPLE_MS) as u32,
            loss_checks: true,
            trainers: None,
            ..usual
        })
    }

    /// Returns the last measured loss.
    fn loss(&self) -> f64 {
        self.losses.last().map_or(f64::NAN, |(_, loss)| *loss)
    }
}

impl Machine {
    fn link(&self) -> LinkSpec {
        let bytes_per_s = self.mbit_per_s.map(|rate| (rate * 1e6 / 8.0) as u64);
        LinkSpec { latency_ms: self.round_trip_ms / 2, jitter_ms: 0, bytes_per_s, loss: 0.0 }
    }
}

fn report(observed: &ObservedRun, outcomes: &[TrainingResult]) -> SimulationReport {
    let over = |of: &dyn Fn(&TrainingResult) -> f64| mean(outcomes.iter().map(of));
    let (mut cases, mut none) = (Vec::new(), Vec::new());
    let mut compare = |name: String, real: f64, of: &dyn Fn(&TrainingResult) -> f64| {
        if real == 0.0 {
            none.push(format!("{name}: there were none in the real run."));
            return;
        }
        let each: Vec<String> = outcomes.iter().map(|outcome| figure(of(outcome))).collect();
        let note = format!("real {}, simulated {}", figure(real), each.join(" · "));
        cases.push(Case::new(name, percent_above(over(of), real), None).noted(note));
    };
    compare("tokens trained".into(), observed.tokens_trained, &|outcome| outcome.spent.tokens as f64);
    compare("tokens merged".into(), observed.tokens_merged, &|outcome| outcome.spent.tokens_merged as f64);
    compare("rounds".into(), observed.rounds, &|outcome| outcome.rounds as f64);
    compare("updates merged".into(), observed.updates_merged, &|outcome| outcome.updates_merged as f64);
    compare("learners in a merge".into(), observed.updates_merged / observed.rounds, &|outcome| {
        outcome.updates_merged as f64 / outcome.rounds as f64
    });
    compare("loss at the end".into(), observed.loss(), &|outcome| outcome.spent.loss.into());
    for (index, machine) in observed.machines.iter().enumerate() {
        let name = format!("tokens merged, {} {}", machine.place, index + 1);
        compare(name, machine.tokens_merged, &|outcome| outcome.merged_by[index] as f64);
    }
    let mut notes = vec![
        "How fast each machine trains was measured before the first was killed. Links, kills and settings are those of \
         the real run; everything else is the simulator's word."
            .to_owned(),
    ];
    notes.extend(none);
    SimulationReport {
        title: format!(
            "{} learners for {:.0} s, simulated, above what became of real ones",
            observed.machines.len(),
            observed.length_ms as f64 / 1e3
        ),
        unit: "%",
        cases,
        points: vec![],
        notes,
        plots: vec![plot(observed, outcomes)],
    }
}

fn plot(observed: &ObservedRun, outcomes: &[TrainingResult]) -> Plot {
    let line = |colour, name: String, points| Series { name, colour, mark: SeriesStyle::Line, points };
    let real = observed.losses.iter().map(|(ms, loss)| (*ms as f64 / 1e3, *loss)).collect();
    let mut series = vec![line(0, "real".into(), real)];
    for (colour, outcome) in (1..).zip(outcomes) {
        let samples = outcome.samples.iter();
        let points = samples.map(|sample| (sample.at_ms as f64 / 1e3, sample.loss.into())).collect();
        series.push(line(
            colour,
            format!("simulated, seed {}", observed.seed.wrapping_add(u64::from(colour) - 1)),
            points,
        ));
    }
    Plot {
        name: "fleet".into(),
        title: "Held-out loss of real processes, and as simulated".into(),
        x: Axis { label: "seconds".into(), scale: Scale::Linear },
        y: Axis { label: "nats per byte".into(), scale: Scale::Log },
        series,
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::data::BYTE_VOCAB;
    use serde_json::json;

    use super::*;
    use crate::Exit;

    /// Returns a report on two machines that run for 30 s with steps of 100 ms; the second one is dead for a third of
    /// the time.
    fn observed(
        name: &str,
        change: impl FnOnce(&mut serde_json::Value),
    ) -> Result<SimulationReport, SimulateError> {
        let step_tokens = Preset::Tiny.inner().batch * Preset::Tiny.model(BYTE_VOCAB).context;
        let machine = |place: &str, seconds: f64| {
            let tokens_per_s = 10.0 * f64::from(step_tokens);
            json!({ "place": place, "round_trip_ms": 20, "mbit_per_s": null, "tokens_per_s": tokens_per_s,
                "tokens_merged": seconds * tokens_per_s })
        };
        let steps = 500.0;
        let mut run = json!({
            "preset": "tiny", "seed": 1, "corpus_bytes": 50_000, "total_tokens": 1_000_000, "length_ms": 30_000,
            "kills": [{ "machine": 1, "at_ms": 10_000, "back_ms": 20_000 }],
            "machines": [machine("near", 30.0), machine("dead", 20.0)],
            "tokens_trained": steps * f64::from(step_tokens), "tokens_merged": steps * f64::from(step_tokens),
            "rounds": 30.0 * 10.0 / 24.0 * 8.0, "updates_merged": 500.0 / 24.0 * 8.0, "losses": [[30_000, 2.0]],
        });
        change(&mut run);
        let path = std::env::temp_dir().join(format!("archipelago-fleet-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("what else is printed\n{run}\n")).unwrap();
        let flags = ["--observed", path.to_str().unwrap(), "--seeds", "1"];
        let report = run_with(&flags);
        std::fs::remove_file(&path).unwrap();
        report
    }

    fn run_with(flags: &[&str]) -> Result<SimulationReport, SimulateError> {
        run(&defaults(flags), &mut |_| {})
    }

    /// Goal: the report has the values computed by hand. Machines keep their speed, and are dead for the same time.
    #[test]
    fn an_observed_run_is_simulated_with_the_same_speeds_and_kills() {
        let report = observed("again", |_| {}).unwrap();
        let of = |name: &str| report.cases.iter().find(|case| case.case == name).unwrap().ours;
        assert!(of("tokens trained").abs() < 5.0, "{report:#?}");
        assert!(of("rounds").abs() < 15.0, "{report:#?}");
        assert!(of("tokens merged, near 1").abs() < 8.0, "{report:#?}");
        assert!(of("tokens merged, dead 2").abs() < 12.0, "{report:#?}");
        let alive = observed("alive", |run| run["kills"] = json!([])).unwrap();
        let merged = alive.cases.iter().find(|case| case.case == "tokens merged, dead 2").unwrap().ours;
        assert!((merged - 50.0).abs() < 12.0, "{alive:#?}");
    }

    #[test]
    fn what_is_no_such_run_is_refused() {
        let error = run_with(&["--observed", "nowhere"]).unwrap_err();
        assert_eq!(error.exit(), Exit::Disk);
        let error = observed("slow", |run| run["machines"][0]["tokens_per_s"] = json!(0.0)).unwrap_err();
        assert!(error.to_string().contains("tokens_per_s"), "{error}");
        let error = observed("unknown", |run| run["kills"][0]["machine"] = json!(2)).unwrap_err();
        assert!(error.to_string().contains("machine 2 is out of range"), "{error}");
        let error = observed("none", |run| *run = json!({ "storm": 1 })).unwrap_err();
        assert!(
            error.exit() == Exit::Settings && error.to_string().contains("bench fleet --json"),
            "{error}"
        );
    }
}
