//! Crashes of the syncer at any time, with loss of unsynced data: no decision that a learner received is lost, no
//! update is merged twice, and errors name damage.
//!
//! `cargo xtask test --only crashes --count 10000` runs that number of crashes instead of the few in a test run, and
//! prints a summary.

use std::env;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_core::wire::Millis;
use archipelago_sim::world::{Ailment, Damage, Fault, Loss, Rng, World};
use archipelago_tests::toys::{brief, check, crowd, for_seeds, status, watch};

/// Number of crashes in one world. Each may be followed by a second one during the restart.
const CRASHES: u64 = 12;

/// Returns the number of worlds for the requested number of crashes, or for about `points` of them.
fn worlds(points: u64) -> u64 {
    let asked =
        env::var("ARCHIPELAGO_TEST_COUNT").ok().map(|asked| asked.parse().expect("the count is a number"));
    asked.unwrap_or(points).div_ceil(CRASHES)
}

/// Returns a crowd with a syncer whose disk is slow.
fn world(seed: u64, rng: &mut Rng) -> World {
    let mut toys = crowd(seed);
    (toys.shell.sync_ms, toys.shell.start_ms) = (rng.between(1, 60), rng.between(0, 60));
    toys.shell.snapshot_ms = rng.between(300, 4_000);
    toys.shell.save_ms = rng.between(0, 400);
    toys.world(seed)
}

/// Draws a crash: a kill, or a power loss.
fn crash(rng: &mut Rng) -> Fault {
    let losses = Loss::ALL.len() as u64;
    let chosen = rng.below(losses + 1);
    if chosen == losses { Fault::CrashSyncer } else { Fault::LosePower(Loss::ALL[chosen as usize]) }
}

/// Crashes the syncer, possibly with damage to a snapshot, and restarts it after a while.
fn crash_and_restart(world: &mut World, rng: &mut Rng, points: &AtomicU64) {
    world.inject(crash(rng));
    points.fetch_add(1, Ordering::Relaxed);
    if rng.chance(0.3) {
        world.inject(Fault::TearSnapshot);
    }
    world.run_for(rng.between(0, 400));
    world.inject(Fault::RestartSyncer);
}

/// Checks that the run goes on in a world without further faults.
fn assert_run_continues(world: &mut World, seed: u64) {
    watch(world, seed, 5_000);
    let rounds = status(world).rounds;
    let goes_on = world.run_until(60_000, 500, |world| status(world).rounds > rounds + 3);
    check(world, seed);
    assert!(goes_on, "seed {seed}: {}", brief(world));
}

/// Goal: after a crash at any time and any loss of unsynced data, the next syncer knows every decision that a learner
/// received. The crash may be followed by a second one during the restart. Nothing is merged twice, and the ledger is
/// exact. Θ, Θ̂ and the momentum equal the replay of the tape to the bit.
#[test]
fn crashes_lose_no_receipt_and_merge_nothing_twice() {
    let (points, doubles, recoveries, told) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    for_seeds(worlds(240), |seed| {
        let mut rng = Rng::stream(seed, 0xc4a5);
        let mut world = world(seed, &mut rng);
        world.run_for(rng.between(1, 4_000));
        for _ in 0..CRASHES {
            world.run_for(rng.between(1, 2_500));
            crash_and_restart(&mut world, &mut rng, &points);
            if rng.chance(0.4) {
                // During the replay of the tape, or before the first row is on disk.
                world.run_for(rng.between(0, 100));
                world.inject(crash(&mut rng));
                points.fetch_add(1, Ordering::Relaxed);
                doubles.fetch_add(1, Ordering::Relaxed);
                world.run_for(rng.between(0, 100));
                world.inject(Fault::RestartSyncer);
            }
            world.run_for(100);
            check(&world, seed);
        }
        assert_eq!(world.refusals(), [""; 0], "seed {seed}: nothing that was synced is damaged");
        assert_run_continues(&mut world, seed);
        recoveries.fetch_add(world.recoveries(), Ordering::Relaxed);
        told.fetch_add(world.merges_told(), Ordering::Relaxed);
    });
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{} crashes, {} of them soon after a start; {} recoveries; {} updates were told merged, 0 lost, 0 merged twice",
        read(&points),
        read(&doubles),
        read(&recoveries),
        read(&told)
    );
    assert!(read(&told) > read(&points), "learners were told of too little to lose");
}

/// Goal: on a disk that fails at times or is full, crashes and power losses at any time lose no decision that a learner
/// received. The run goes on once the disk works.
#[test]
fn a_failing_disk_loses_no_receipt() {
    let (points, failures, told) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    for_seeds(worlds(360), |seed| {
        let mut rng = Rng::stream(seed, 0xfa11);
        let mut world = world(seed, &mut rng);
        world.run_for(rng.between(1, 3_000));
        for _ in 0..CRASHES {
            world.run_for(rng.between(1, 1_500));
            let ailment = Ailment::ALL[rng.below(Ailment::ALL.len() as u64) as usize];
            world.inject(Fault::DiskFails(Some(ailment)));
            world.run_for(rng.between(1, 2_500));
            check(&world, seed);
            if rng.chance(0.4) {
                world.inject(Fault::DiskFails(None));
                world.run_for(rng.between(0, 300));
            }
            crash_and_restart(&mut world, &mut rng, &points);
            if rng.chance(0.5) {
                world.run_for(rng.between(0, 1_200));
                world.inject(crash(&mut rng));
                points.fetch_add(1, Ordering::Relaxed);
                world.inject(Fault::RestartSyncer);
            }
            world.run_for(100);
            check(&world, seed);
        }
        assert_eq!(world.refusals(), [""; 0], "seed {seed}: nothing that was synced is damaged");
        world.inject(Fault::DiskFails(None));
        assert_run_continues(&mut world, seed);
        failures.fetch_add(world.disk_failures(), Ordering::Relaxed);
        told.fetch_add(world.merges_told(), Ordering::Relaxed);
    });
    let (points, failures, told) = (points.into_inner(), failures.into_inner(), told.into_inner());
    println!("{points} crashes, {failures} failures of the disk; {told} updates were told merged, 0 lost");
    assert!(failures > points && told > points, "{failures} failures, {told} told");
}

/// Goal: confirmed orders of the owner (a pause, a learner's limit or drop, the end of the run) hold after any crash.
/// The checker compares the orders on the tape with each syncer that resumes from it.
#[test]
fn crashes_undo_no_order_of_the_owner() {
    let (begun, cut_off) = (AtomicU64::new(0), AtomicU64::new(0));
    for_seeds(worlds(240), |seed| {
        let mut rng = Rng::stream(seed, 0x0e4d);
        let mut world = world(seed, &mut rng);
        let machines = world.machines().len() as u64;
        world.run_for(rng.between(1_000, 6_000));
        let end = rng.below(CRASHES);
        for turn in 0..CRASHES {
            world.run_for(rng.between(1, 1_500));
            let machine = rng.below(machines) as u32;
            world.inject(match rng.below(4) {
                0 => Fault::Hold(true),
                1 => Fault::Hold(false),
                2 => Fault::Pace(machine, rng.between(1, 1_000) as f64 / 1e3),
                _ => Fault::Drop(machine, rng.between(0, 2_000) as u32),
            });
            if turn == end {
                world.inject(Fault::Finish);
            }
            // Before the order is stored, during the last rounds, or later.
            world.run_for(rng.between(0, 250));
            let was_over = world.is_finished();
            world.inject(crash(&mut rng));
            world.run_for(rng.between(0, 200));
            world.inject(Fault::RestartSyncer);
            world.run_for(150);
            check(&world, seed);
            if turn == end && !was_over {
                let is_kept = world.status().is_some_and(|status| status.finished);
                begun.fetch_add(1, Ordering::Relaxed);
                cut_off.fetch_add(u64::from(is_kept), Ordering::Relaxed);
            }
        }
        world.inject(Fault::Hold(false));
        world.inject(Fault::Finish);
        let is_over = |world: &World| world.status().is_some_and(|status| status.finished);
        let ends = world.run_until(60_000, 500, is_over);
        check(&world, seed);
        assert!(ends, "seed {seed}: {}", brief(&world));
    });
    let (begun, cut_off) = (begun.into_inner(), cut_off.into_inner());
    println!("{begun} ends were cut off by a crash; {cut_off} of them were on the tape by then, and came");
    assert!(cut_off > 0, "no end was cut off: {begun}");
}

/// Goal: an error names damage to synced data, or the damage affects only data that recovery does not need and has no
/// effect.
#[test]
fn damage_is_named_or_does_not_matter() {
    let (named, harmless) = (AtomicU64::new(0), AtomicU64::new(0));
    for_seeds(worlds(120), |seed| {
        let mut rng = Rng::stream(seed, 0xda4a);
        let mut world = world(seed, &mut rng);
        world.run_for(rng.between(2_000, 6_000));
        for turn in 0..CRASHES {
            world.run_for(rng.between(500, 2_500));
            world.inject(crash(&mut rng));
            let damage = Damage::ALL[(turn % Damage::ALL.len() as u64) as usize];
            world.inject(Fault::Damage(damage));
            if rng.chance(0.5) {
                world.inject(Fault::TearSnapshot);
                world.inject(Fault::TearSnapshot);
            }
            let refused = world.refusals().len();
            world.inject(Fault::RestartSyncer);
            world.run_for(100);
            check(&world, seed);
            if world.refusals().len() > refused {
                let why = &world.refusals()[refused];
                assert!(world.status().is_none(), "seed {seed}: it serves all the same");
                let names = ["damaged", "row ", "segment"].iter().any(|name| why.contains(name));
                assert!(names, "seed {seed}, {damage:?}: {why}");
                named.fetch_add(1, Ordering::Relaxed);
                world.inject(Fault::Mend);
                let up = world.run_until(3_000, 10, |world| world.status().is_some());
                assert!(up, "seed {seed}: {:?}", world.refusals());
            } else {
                let at = world.now().after(0);
                assert!(world.status().is_some(), "seed {seed} at {at:?}");
                harmless.fetch_add(1, Ordering::Relaxed);
            }
            check(&world, seed);
        }
    });
    let (named, harmless) = (named.into_inner(), harmless.into_inner());
    println!(
        "{named} damages were named, {harmless} were in what was not needed, or there was nothing to damage"
    );
    assert!(named > harmless / 4, "{named} of {}", named + harmless);
}

/// Goal: one seed gives one history, however many crashes there are.
#[test]
fn one_seed_is_one_history() {
    let digest = |seed| {
        let mut rng = Rng::stream(seed, 0xc4a6);
        let mut world = world(seed, &mut rng);
        for _ in 0..4 {
            let at = Millis(world.now().0 + rng.between(1, 2_000));
            world.plan(at, crash(&mut rng));
            world.plan(at.after(rng.between(0, 200)), Fault::RestartSyncer);
            world.run_for(2_500);
        }
        world.digest()
    };
    let all: Vec<_> = (0..6).map(digest).collect();
    assert_eq!((0..6).map(digest).collect::<Vec<_>>(), all);
}
