//! Full disks, damaged files, and folders restored from copies: every state that a syncer may resume from.

use archipelago_sim::world::{Ailment, Fault, World};
use archipelago_tests::toys::{Toys, brief, check, for_seeds, learners, status, watch};

/// Returns a world of three toys with a snapshot each second.
fn world(seed: u64) -> World {
    let mut toys = Toys::new(3);
    toys.shell.snapshot_ms = 1_000;
    toys.world(seed)
}

/// Runs until all learners have been merged once more.
fn everyone_is_merged_again(world: &mut World, seed: u64) {
    let merged = |world: &World| learners(world).map(|learner| learner.fates.merged).collect::<Vec<_>>();
    let before = merged(world);
    let again = world.run_until(20_000, 100, |world| {
        let now = merged(world);
        now.len() == 3 && now.iter().zip(&before).all(|(now, before)| now > before)
    });
    check(world, seed);
    assert!(again, "seed {seed}: {}", brief(world));
}

/// Goal: on a full disk no update is merged that could not be stored, and the run goes on once there is space. A syncer
/// that dies then starts only once there is space, and has lost no decision that a learner received.
#[test]
fn a_full_disk_halts_a_run_and_loses_nothing_of_it() {
    for_seeds(20, |seed| {
        let mut world = world(seed);
        watch(&mut world, seed, 10_000);
        let written = status(&world).rounds;
        world.inject(Fault::DiskFails(Some(Ailment::Full)));
        watch(&mut world, seed, 2_000);
        let halted = status(&world).rounds;
        watch(&mut world, seed, 10_000);
        let later = status(&world).rounds;
        assert!(later == halted && later < written + 8, "seed {seed}: {written} → {halted} → {later} rounds");
        world.inject(Fault::DiskFails(None));
        everyone_is_merged_again(&mut world, seed);

        world.inject(Fault::DiskFails(Some(Ailment::Full)));
        watch(&mut world, seed, 2_000);
        let (before, told) = (status(&world).rounds, world.merges_told());
        world.inject(Fault::CrashSyncer);
        world.inject(Fault::RestartSyncer);
        watch(&mut world, seed, 5_000);
        assert!(world.status().is_none(), "seed {seed}: it serves what it cannot remember");
        world.inject(Fault::DiskFails(None));
        watch(&mut world, seed, 1_500);
        let back = status(&world).rounds;
        assert!(back + 8 >= before, "seed {seed}: {before}, then {back}");
        assert!(world.merges_told() >= told && told > 0, "seed {seed}");
        everyone_is_merged_again(&mut world, seed);
    });
}

/// Goal: damaged snapshots cost nothing, even if all are damaged: a replay of the tape from any start gives the same
/// bits.
#[test]
fn a_damaged_snapshot_is_passed_over() {
    for_seeds(20, |seed| {
        let after = |torn: u32| {
            let mut world = world(seed);
            watch(&mut world, seed, 15_000);
            world.inject(Fault::CrashSyncer);
            for _ in 0..torn {
                world.inject(Fault::TearSnapshot);
            }
            watch(&mut world, seed, 2_000);
            world.inject(Fault::RestartSyncer);
            let after = (status(&world).rounds, world.syncer().unwrap().theta());
            everyone_is_merged_again(&mut world, seed);
            after
        };
        let whole = after(0);
        assert!(whole.1.is_some());
        assert_eq!(whole, after(1), "seed {seed}");
        assert_eq!(whole, after(2), "seed {seed}");
    });
}

/// Goal: a version never names two contents, and no learner's Θ̂ differs from the syncer's. This holds if one copy of
/// the folder is restored repeatedly, and if the snapshot of a restart is lost in the next crash.
#[test]
fn a_version_has_one_content_after_any_restore() {
    for_seeds(20, |seed| {
        let mut world = world(seed);
        watch(&mut world, seed, 8_000);
        world.inject(Fault::BackUp);
        for turn in 0..4 {
            watch(&mut world, seed, 4_000);
            world.inject(Fault::CrashSyncer);
            if turn % 2 == 0 {
                world.inject(Fault::PutBack);
            }
            watch(&mut world, seed, 1_500);
            world.inject(Fault::RestartSyncer);
            // Before its first snapshot; the newest of those before it is damaged, too.
            watch(&mut world, seed, 900);
            world.inject(Fault::CrashSyncer);
            world.inject(Fault::TearSnapshot);
            watch(&mut world, seed, 1_500);
            world.inject(Fault::RestartSyncer);
            everyone_is_merged_again(&mut world, seed);
        }
        assert_eq!(status(&world).learners_total, 3, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: a copy of a stopped run contains decisions that a crash left on disk before any learner received them, and a
/// syncer resumes from there.
#[test]
fn a_copy_of_a_crashed_run_has_its_stored_decisions() {
    for_seeds(40, |seed| {
        let mut toys = Toys::new(3);
        (toys.shell.snapshot_ms, toys.shell.sync_ms) = (1_000, 200);
        let mut world = toys.world(seed);
        watch(&mut world, seed, 5_000);
        world.inject(Fault::CrashSyncer);
        world.inject(Fault::BackUp);
        for _ in 0..2 {
            world.inject(Fault::RestartSyncer);
            watch(&mut world, seed, 3_000);
            world.inject(Fault::CrashSyncer);
            world.inject(Fault::PutBack);
        }
        world.inject(Fault::RestartSyncer);
        everyone_is_merged_again(&mut world, seed);
    });
}
