//! `simulate regions`: learners all over the world, over slow links with high latency.
//!
//! Decoupled training is measured on the real cores in virtual time. The toy parameters take as long on the links as
//! those of a model. Lockstep training follows the rules of [`archipelago_sim::scale::bandwidth`].

use archipelago_cli::within;
use archipelago_core::diloco::Layout;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::wire::RunId;
use archipelago_sim::scale::bandwidth::{Method, Release, Training};
use archipelago_sim::world::{LinkSpec, MachineSpec, ShellSpec, SyncerPace, Toy, World, WorldSpec};
use serde::Serialize;

use super::trial::{Drift, TrialError, merged};
use super::{Axis, Case, CommonArgs, Plot, Scale, Series, SeriesStyle, SimulationReport};
use crate::SimulateError;

/// Values of one toy fragment, which takes as long on a link as a fragment of the model.
const FRAGMENT_VALUES: u32 = 4_096;

/// Number of data shards.
const SHARDS: u32 = 256;
/// Number of windows in each shard.
const SHARD_WINDOWS: u32 = 60;

/// Numbers of rounds of each fragment before the measurement, and during it.
const ROUNDS: (u64, u64) = (3, 6);

/// Virtual time within which all learners must have joined, in steps: one day, with steps of 6 s.
const JOIN_STEPS_MAX: u64 = 14_400;

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
    /// Link of each of the eight learners of the world (Gbit/s); our own constant, the paper has 2 to 5
    #[arg(long, value_name = "GBIT/S", default_value_t = 3.5)]
    pub world_gbit_s: f64,
    /// Link of each of the four learners of the United States (Gbit/s); our own constant, the paper has 2 to 5
    #[arg(long, value_name = "GBIT/S", default_value_t = 2.0)]
    pub states_gbit_s: f64,
    /// P, the number of fragments; H equals it
    #[arg(long, value_name = "COUNT", default_value_t = Setting::default().fragments)]
    pub fragments: u16,
    /// τ, the number of rounds in flight at once
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
pub fn run(args: &RegionsArgs, progress: &mut dyn FnMut(&str)) -> Result<SimulationReport, SimulateError> {
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
        let decoupled = setting.decoupled(regions, args.common.seed)?;
        let lock_step = setting.lock_step_slowdown(regions);
        let case = Case::new(format!("decoupled, {place}"), decoupled.slowdown, None);
        cases.push(case.noted(format!(
            "steps {:.3}, rounds {:.3}; hardly any in the paper",
            decoupled.step_slowdown, decoupled.round_slowdown
        )));
        cases.push(Case::new(format!("data-parallel, {place}"), lock_step, None).noted(published));
    }
    let regions: Vec<String> =
        WORLD.iter().map(|region| format!("{} {} ms", region.name, region.latency_ms)).collect();
    Ok(SimulationReport {
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
        lock_step.push((gbit_s, setting.lock_step_slowdown(&WORLD)));
        if args.common.output.plots.is_some() {
            decoupled.push((gbit_s, setting.decoupled(&WORLD, args.common.seed)?.slowdown));
        }
    }
    let series =
        |name: &str, colour, points| Series { name: name.into(), colour, mark: SeriesStyle::Line, points };
    Ok(Plot {
        name: "regions".into(),
        title: "Slowdown of 8 learners world-wide by their links".into(),
        x: axis("Gbit/s for each", Scale::Log),
        y: axis("times the time without links", Scale::Log),
        series: vec![series("decoupled int4", 0, decoupled), series("data-parallel bf16", 1, lock_step)],
    })
}

/// A location with a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    /// Name of the location.
    name: &'static str,
    /// One-way latency to the syncer, in milliseconds.
    latency_ms: u64,
}

const fn region(name: &'static str, latency_ms: u64) -> Region {
    Region { name, latency_ms }
}

/// Eight regions of the world around a syncer in Iowa, with half the usual round trips between the regions of public
/// clouds. Our own constants.
const WORLD: [Region; 8] = [
    region("Iowa", 1),
    region("Oregon", 18),
    region("Belgium", 50),
    region("Tokyo", 65),
    region("Sao Paulo", 72),
    region("Sydney", 88),
    region("Singapore", 100),
    region("Mumbai", 120),
];

/// Four regions of the United States around the same syncer.
const UNITED_STATES: [Region; 4] =
    [region("Iowa", 1), region("South Carolina", 16), region("Texas", 12), region("Oregon", 18)];

/// Training over several regions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Setting {
    /// Parameters of the model, 10⁶ to 10¹³.
    params: f64,
    /// Time of an inner step, in milliseconds, 10 to 600,000.
    step_ms: u64,
    /// Rate of each learner's link in each direction, in bit/s, 10⁶ to 10¹⁵.
    link_bits_per_s: f64,
    /// P, the number of fragments, 1 to 256. H equals it.
    fragments: u16,
    /// τ, the number of rounds in flight, 1 to 64.
    rounds_in_flight: u32,
}

impl Default for Setting {
    fn default() -> Self {
        Self { params: 12e9, step_ms: 6_000, link_bits_per_s: 3.5e9, fragments: 24, rounds_in_flight: 2 }
    }
}

/// The result of decoupled training.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decoupled {
    /// Merged tokens per second without links, divided by those with links; 1 means no slowdown.
    slowdown: f64,
    /// Steps of all learners per second without links, divided by those with links.
    step_slowdown: f64,
    /// Merged rounds per second without links, divided by those with links. Links that are too slow show here first:
    /// fragments are exchanged less often.
    round_slowdown: f64,
}

impl Setting {
    /// Returns the ratio of the time of a data-parallel step over these links, with 16-bit gradients, to that of a step
    /// without links.
    fn lock_step_slowdown(&self, regions: &[Region]) -> f64 {
        let one_way_ms = regions.iter().map(|region| region.latency_ms).max().unwrap_or(0);
        let training = Training {
            params: self.params,
            value_bits: 16.0,
            step_s: self.step_ms as f64 / 1e3,
            data_centres: regions.len() as u32,
            // There and back through the central node.
            latency_s: 2.0 * one_way_ms as f64 / 1e3,
            release: Release::Even(128),
        };
        1.0 / training.utilisation(Method::DataParallel, self.link_bits_per_s)
    }

    /// Compares decoupled training over these links, with int4 both ways, with the same training without links.
    ///
    /// # Errors
    /// Each variant of [`TrialError`].
    fn decoupled(&self, regions: &[Region], seed: u64) -> Result<Decoupled, TrialError> {
        let near = vec![LinkSpec { latency_ms: 0, jitter_ms: 0, ..LinkSpec::default() }; regions.len()];
        // Casting drops the fraction of a byte.
        let bytes_per_s = (self.link_bits_per_s / 8.0) as u64;
        let far = |region: &Region| {
            // Ten percent of the latency, a typical jitter of packets.
            let jitter_ms = region.latency_ms / 10;
            LinkSpec {
                latency_ms: region.latency_ms,
                jitter_ms,
                bytes_per_s: Some(bytes_per_s),
                ..LinkSpec::default()
            }
        };
        let ideal = self.measure(&near, seed)?;
        let real = self.measure(&regions.iter().map(far).collect::<Vec<_>>(), seed)?;
        Ok(Decoupled {
            slowdown: ideal.merged / real.merged,
            step_slowdown: ideal.steps / real.steps,
            round_slowdown: ideal.rounds / real.rounds,
        })
    }

    /// Returns the number of model bytes that a byte of a toy fragment stands for.
    fn weight(&self) -> u32 {
        // Casting saturates, and drops a fraction that is negligible for the sizes of models.
        (self.params / f64::from(self.fragments) / f64::from(FRAGMENT_VALUES)).max(1.0) as u32
    }

    fn layout(&self) -> Layout {
        Drift::layout(self.fragments, FRAGMENT_VALUES)
    }

    fn world(&self, links: &[LinkSpec], seed: u64) -> WorldSpec {
        let (mut run_spec, shards) = Toy::run(seed, SHARDS, SHARD_WINDOWS);
        run_spec.exchange.fragments = self.fragments;
        run_spec.exchange.sync_every = self.fragments.into();
        run_spec.exchange.block = 256;
        let mut syncer = SyncerConfig { learners_start: links.len() as u32, ..SyncerConfig::default() };
        syncer.quorum.rounds_in_flight = self.rounds_in_flight;
        let machine = |&link| MachineSpec { step_ms: self.step_ms, link, ..MachineSpec::default() };
        WorldSpec {
            run: RunId(seed),
            run_spec,
            syncer,
            theta: vec![0.0; self.layout().len()],
            shards,
            machines: links.iter().map(machine).collect(),
            // Text does not shrink with the fragments, and is not the subject here.
            shell: ShellSpec {
                encode: false,
                shards_at_hand: true,
                weight: self.weight(),
                // The modelled syncer spreads its work over many machines.
                pace: SyncerPace::NONE,
                queue_bytes_max: u64::MAX,
                ..ShellSpec::default()
            },
        }
    }

    /// Measures merged tokens, steps and rounds once all learners take part.
    fn measure(&self, links: &[LinkSpec], seed: u64) -> Result<Rates, TrialError> {
        let layout = self.layout();
        let trainer = Drift::new(layout.clone());
        let make = move |_| Box::new(trainer.clone()) as Box<_>;
        let mut world = World::new(seed, self.world(links, seed), layout, Box::new(make))?;
        let all = links.len() as u32;
        let live = |world: &World| world.status().is_some_and(|status| status.live == all);
        let ms_max = JOIN_STEPS_MAX * self.step_ms;
        if !world.run_until(ms_max, self.step_ms, live) {
            let what = "not all learners had joined";
            return Err(TrialError::Unfinished { what, ms: ms_max });
        }
        let round_ms = u64::from(self.fragments) * self.step_ms;
        world.run_for(ROUNDS.0 * round_ms);
        let before = Rates::of(&world);
        world.run_for(ROUNDS.1 * round_ms);
        world.check()?;
        let after = Rates::of(&world);
        Ok(Rates {
            merged: after.merged - before.merged,
            steps: after.steps - before.steps,
            rounds: after.rounds - before.rounds,
        })
    }
}

/// Amounts of work, over all learners.
struct Rates {
    merged: f64,
    steps: f64,
    rounds: f64,
}

impl Rates {
    fn of(world: &World) -> Self {
        let steps = world.machines().iter().map(|machine| machine.steps).sum::<u64>() as f64;
        let rounds = world.status().map_or(0, |status| status.rounds) as f64;
        Self { merged: merged(world) as f64, steps, rounds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;
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

    #[test]
    fn decoupled_learners_do_not_wait_for_slow_links() {
        let setting = Setting::default();
        let decoupled = setting.decoupled(&WORLD, 1).unwrap();
        let Decoupled { slowdown, step_slowdown, round_slowdown } = decoupled;
        assert!(slowdown < 1.03 && step_slowdown < 1.005 && round_slowdown < 1.03, "{decoupled:?}");
        let lock_step = setting.lock_step_slowdown(&WORLD);
        assert!((10.0..=20.0).contains(&lock_step), "{lock_step}");
        let states = Setting { link_bits_per_s: 2e9, ..setting };
        assert!(states.lock_step_slowdown(&UNITED_STATES) > 20.0);
    }

    /// Goal: a fragment that takes longer than τ steps is exchanged less often. A learner that lags fetches whole
    /// fragments instead of changes, which costs some steps.
    #[test]
    fn links_that_are_too_slow_show() {
        // 258 MB: 21 s up and 21 s down again, instead of 6 s between two rounds.
        let slow = Setting { link_bits_per_s: 0.1e9, ..Setting::default() }.decoupled(&WORLD, 1).unwrap();
        assert!(slow.round_slowdown > 1.5 && slow.step_slowdown < 1.5, "{slow:?}");
    }
}
