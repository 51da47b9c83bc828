//! Worlds with toy models: thousands of whole runs in seconds.

use std::num::NonZeroU32;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_core::diloco::syncer::{Event, LearnerStatus, Status, SyncerConfig};
use archipelago_core::diloco::{FragmentId, QuorumPolicy};
use archipelago_core::driver::{Doubling, Waits};
use archipelago_core::wire::{Fate, LearnerId, Millis, RunId, RunSpec};
use archipelago_sim::world::{LinkSpec, MachineSpec, Rng, ShellSpec, Toy, World, WorldSpec};

use crate::processes::{SyncerProcess, export, number};

/// Configuration of a world of toys. Each test changes the part that it is about.
#[derive(Clone, Debug)]
pub struct Toys {
    /// Machines of the world.
    pub machines: Vec<MachineSpec>,
    /// Configuration of the syncer.
    pub syncer: SyncerConfig,
    /// Configuration of the shells.
    pub shell: ShellSpec,
    /// Number of shards, and windows in each.
    pub data: (u32, u32),
}

impl Toys {
    /// Returns a world of `count` machines with 100 ms a step on a good network, and more data than they can use.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            machines: vec![MachineSpec::default(); count],
            syncer: SyncerConfig::default(),
            shell: ShellSpec { sync_ms: 2, ..ShellSpec::default() },
            data: (4, 4_000),
        }
    }

    /// Creates the world.
    #[must_use]
    pub fn world(self, seed: u64) -> World {
        self.world_with(seed, |_| {})
    }

    /// Creates the world, after `change` has changed its run.
    ///
    /// # Panics
    /// If the run is invalid.
    #[must_use]
    pub fn world_with(self, seed: u64, change: impl FnOnce(&mut RunSpec)) -> World {
        let (mut run_spec, shards) = Toy::run(seed, self.data.0, self.data.1);
        change(&mut run_spec);
        let spec = WorldSpec {
            run: RunId(seed),
            run_spec,
            syncer: self.syncer,
            theta: vec![0.0; Toy::layout().len()],
            shards,
            machines: self.machines,
            shell: self.shell,
        };
        World::new(seed, spec, Toy::layout(), Box::new(|_| Box::new(Toy::new()))).expect("a run of toys")
    }
}

/// Returns a random group of fast and slow machines with short and long latencies.
///
/// # Panics
/// Never, for any seed.
#[must_use]
pub fn crowd(seed: u64) -> Toys {
    let mut rng = Rng::stream(seed, 77);
    let count = rng.between(1, 6);
    let mut toys = Toys::new(0);
    toys.data = (4, 1_000);
    for _ in 0..count {
        let bytes_per_s = rng.chance(0.3).then(|| rng.between(20_000, 200_000));
        let (latency_ms, jitter_ms) = (rng.between(1, 200), rng.between(0, 100));
        let link = LinkSpec { latency_ms, jitter_ms, bytes_per_s, loss: 0.0 };
        let (step_ms, jitter) = (rng.between(40, 400), 0.5 * rng.unit());
        let starts_ms = if rng.chance(0.3) { rng.between(0, 15_000) } else { 0 };
        toys.machines.push(MachineSpec { step_ms, jitter, link, starts_ms, ..MachineSpec::default() });
    }
    let updates_min = NonZeroU32::new(rng.between(1, 3) as u32).expect("at least 1");
    toys.syncer.quorum =
        QuorumPolicy { updates_min, rounds_in_flight: rng.between(1, 3) as u32, ..QuorumPolicy::default() };
    toys.syncer.silent_ms_max = rng.between(2_000, 10_000);
    toys.syncer.lease_ms = rng.between(2_000, 10_000);
    toys.syncer.lease_idle_ms_max = rng.between(5_000, 20_000);
    let snapshot_ms = rng.between(500, 5_000);
    let (sync_ms, start_ms) = (rng.between(0, 20), rng.between(0, 100));
    toys.shell = ShellSpec {
        merge_ms: rng.between(0, 150),
        ping_ms: 500,
        waits: Waits {
            backoff: Doubling { first_ms: 100, longest_ms: 2_000 },
            patience: Doubling { first_ms: rng.between(2_000, 10_000), longest_ms: 20_000 },
            ..Waits::default()
        },
        snapshot_ms,
        sync_ms,
        start_ms,
        ..ShellSpec::default()
    };
    toys
}

/// Runs `world` for `ms` milliseconds of virtual time in steps of one second, and checks every invariant after each
/// step.
///
/// # Panics
/// With the seed, if an invariant is broken.
pub fn watch(world: &mut World, seed: u64, ms: u64) {
    let end = world.now().after(ms);
    while world.now() < end {
        world.run_for(1_000.min(end.since(world.now())));
        check(world, seed);
    }
}

/// Checks every invariant.
///
/// # Panics
/// With the seed, if one is broken.
pub fn check(world: &World, seed: u64) {
    if let Err(violation) = world.check() {
        panic!("seed {seed} at {} ms: {violation}", world.now());
    }
}

/// Returns the syncer's status.
///
/// # Panics
/// If the syncer is down.
#[must_use]
pub fn status(world: &World) -> Status {
    world.status().expect("the syncer is up")
}

/// Returns the syncer's status of each learner.
///
/// # Panics
/// If the syncer is down.
pub fn learners(world: &World) -> impl Iterator<Item = LearnerStatus<'_>> {
    world.syncer().expect("the syncer is up").learners()
}

/// Returns the syncer's status in one line, for a failed assertion.
#[must_use]
pub fn brief(world: &World) -> String {
    let status = status(world);
    let learners = learners(world).map(|learner| {
        let (trained, merged, fates) = (learner.tokens_trained, learner.tokens_merged, learner.fates);
        format!("{}: live {}, {merged} of {trained} tokens, {fates:?}", learner.name, learner.live)
    });
    let learners: Vec<String> = learners.collect();
    let (rounds, open, participation) = (status.rounds, status.rounds_open, status.participation);
    format!("{rounds} rounds, {open} open, participation {participation}, {learners:#?}")
}

/// Returns the steps of each machine so far.
#[must_use]
pub fn steps(world: &World) -> Vec<u64> {
    world.machines().iter().map(|machine| machine.steps).collect()
}

/// Returns the learner on machine `machine`, found by its name.
#[must_use]
pub fn learner(world: &World, machine: usize) -> Option<LearnerId> {
    let name = format!("machine {machine}");
    learners(world).find(|learner| learner.name == name).map(|learner| learner.learner)
}

/// Returns the loss of Θ.
///
/// # Panics
/// If merges are in progress for a whole second.
pub fn loss(world: &mut World) -> f32 {
    let quiet = |world: &World| world.syncer().is_some_and(|syncer| syncer.theta().is_some());
    assert!(world.run_until(1_000, 1, quiet), "no moment without a merge");
    Toy::loss(&world.syncer().and_then(|syncer| syncer.theta()).expect("waited for"))
}

/// Returns the fates in `events`, with time, learner and fragment.
pub fn fates(events: &[(Millis, Event)]) -> impl Iterator<Item = (Millis, LearnerId, FragmentId, Fate)> {
    events.iter().filter_map(|(at, event)| match event {
        Event::Settled { learner, fragment, fate, .. } => Some((*at, *learner, *fragment, *fate)),
        _ => None,
    })
}

/// Returns the seeds that `cargo xtask test --seeds` gave, or the first `count`.
///
/// # Panics
/// If they are not FROM..UNTIL.
#[must_use]
pub fn seeds(count: u64) -> Range<u64> {
    let Ok(asked) = std::env::var("ARCHIPELAGO_TEST_SEEDS") else { return 0..count };
    let range =
        asked.split_once("..").and_then(|(from, until)| Some(from.parse().ok()?..until.parse().ok()?));
    range.unwrap_or_else(|| panic!("seeds are FROM..UNTIL, not {asked}"))
}

/// Runs `test` for each seed in `0..count` on two threads, and prints the seeds that fail.
///
/// # Panics
/// If `test` panics for a seed.
pub fn for_seeds(count: u64, test: impl Fn(u64) + Sync) {
    for_seeds_in(0..count, test);
}

/// Runs `test` for each of `seeds` on two threads, also after a failure, and prints the first ten that fail.
///
/// # Panics
/// If `test` panics for a seed.
pub fn for_seeds_in(seeds: Range<u64>, test: impl Fn(u64) + Sync) {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let work = || {
        let mut last = None;
        while failed.load(Ordering::Relaxed) < 10 {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
                eprintln!("failed with seed {seed}");
                failed.fetch_add(1, Ordering::Relaxed);
                last = Some(panic);
            }
        }
        if let Some(panic) = last {
            resume_unwind(panic);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let ours = catch_unwind(AssertUnwindSafe(work));
        for ended in [ours, other.join()] {
            if let Err(panic) = ended {
                resume_unwind(panic);
            }
        }
    });
}

/// Trains a small model on the built-in grammar, and exports it to `folder`.
///
/// # Panics
/// If it does not learn in time, or cannot be exported.
pub fn pretrained(folder: &Path) {
    let small = ["--preset", "tiny", "--corpus-bytes", "512KiB", "--sync-every", "8", "--fragments", "4"];
    let mut syncer = SyncerProcess::start(&small);
    let mut learner = syncer.learner("first");
    syncer.wait_until("it has learnt something", |status| number(status, "tokensMerged") >= 50_000.0);
    assert!(learner.interrupt().0.success());
    syncer.interrupt();
    export(&syncer.folder(), folder, &[]);
}
