//! Disks that fill up, files that are damaged, folders restored from copies: whatever the syncer goes on from.

use archipelago_sim::world::{Fault, World};
use archipelago_tests::toys::{Toys, brief, check, for_seeds, learners, status, watch};

/// Three toys, with a snapshot each second.
fn world(seed: u64) -> World {
    let mut toys = Toys::new(3);
    toys.shell.snapshot_ms = 1_000;
    toys.world(seed)
}

/// Lets time pass until everyone has been merged once more.
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

/// Goal: on a full disk the run goes on; a syncer that dies then does not start before there is room, and goes on from
/// the last snapshot that was written.
#[test]
fn a_full_disk_keeps_a_syncer_from_starting_and_nothing_else() {
    for_seeds(20, |seed| {
        let mut world = world(seed);
        watch(&mut world, seed, 10_000);
        let written = status(&world).rounds;
        world.inject(Fault::DiskFull(true));
        watch(&mut world, seed, 10_000);
        let unwritten = status(&world).rounds;
        assert!(unwritten > written + 40, "seed {seed}: {written} → {unwritten} rounds on a full disk");

        world.inject(Fault::CrashSyncer);
        world.inject(Fault::RestartSyncer);
        watch(&mut world, seed, 5_000);
        assert!(world.status().is_none(), "seed {seed}: it serves what it cannot remember");
        world.inject(Fault::DiskFull(false));
        watch(&mut world, seed, 1_500);
        let back = status(&world).rounds;
        assert!(back + 8 >= written && back < unwritten, "seed {seed}: {written}, {unwritten}, then {back}");
        everyone_is_merged_again(&mut world, seed);
    });
}

/// Goal: a damaged snapshot costs what came after the one before, and nothing more.
#[test]
fn a_damaged_snapshot_is_passed_over() {
    for_seeds(20, |seed| {
        let rounds_after = |torn: bool| {
            let mut world = world(seed);
            watch(&mut world, seed, 15_000);
            world.inject(Fault::CrashSyncer);
            if torn {
                world.inject(Fault::TearSnapshot);
            }
            watch(&mut world, seed, 2_000);
            world.inject(Fault::RestartSyncer);
            let rounds = status(&world).rounds;
            everyone_is_merged_again(&mut world, seed);
            rounds
        };
        let (whole, torn) = (rounds_after(false), rounds_after(true));
        // Five rounds come to an end in the second between two snapshots.
        assert!(torn < whole && torn + 12 >= whole, "seed {seed}: {whole} rounds, or {torn}");
    });
}

/// Goal: no version ever names two contents, and nobody holds another Θ̂ than the syncer: not when one copy of the
/// folder is put back again and again, and not when the snapshot that a restart wrote is lost to the next crash.
#[test]
fn whatever_is_restored_no_version_names_two_things() {
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
            // Before its first snapshot but for the one that it wrote to start with, which is damaged too.
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
