//! Whole runs in virtual time with random, unusual configurations, links and faults: properties that hold in every
//! case.
//!
//! `cargo xtask test --only swarm --seeds FROM..UNTIL` runs those seeds instead of the few in a test run. The
//! configuration of a single seed is printed.

use archipelago_core::wire::Millis;
use archipelago_sim::world::Fault;
use archipelago_tests::swarm::Swarm;
use archipelago_tests::toys::{brief, check, for_seeds_in, seeds, status, watch};

/// Goal: no configuration, crowd or fault breaks an invariant. Each step of a learner is merged once, or its loss has a
/// recorded reason, and each learner gets its receipts. After the faults, each learner is merged repeatedly, within a
/// time that follows from its link and its steps, unless the run's policy ignores late updates.
#[test]
fn no_world_breaks_an_invariant_and_all_learners_are_merged() {
    let seeds = seeds(300);
    let is_shown = seeds.end - seeds.start == 1;
    for_seeds_in(seeds, |seed| {
        let swarm = Swarm::of(seed, 5);
        let mut world = swarm.world(seed);
        let troubles = swarm.troubles(seed, Millis(500), Millis(12_000));
        if is_shown {
            println!("seed {seed}: {:?} {:#?} {troubles:?}", swarm.exchange, swarm.toys);
        }
        for (at, fault) in troubles {
            world.plan(at, fault);
        }
        watch(&mut world, seed, 20_000);
        swarm.repair(&mut world);
        let patience_ms = swarm.patience_ms();
        let longest_ms = patience_ms.iter().copied().max().unwrap_or(0);
        // If learners overwrite their parameters with the merged ones, a late answer has nothing left to add. A learner
        // with a latency above the grace window may then never be in time.
        if swarm.exchange.apply.is_additive() {
            world.expect_merges(&patience_ms);
        }
        watch(&mut world, seed, longest_ms + 20_000);
        assert_eq!(
            world.slow_readers(),
            0,
            "seed {seed}: what is on the way to a learner is bounded by its link"
        );

        world.inject(Fault::Finish);
        let ended = world.run_until(300_000, 500, |world| world.is_finished());
        check(&world, seed);
        assert!(ended, "seed {seed}: {}", brief(&world));
        let last = status(&world);
        assert_eq!((last.rounds_open, last.updates_pending), (0, 0), "seed {seed}");
    });
}

/// Goal: the same seed gives the same history.
#[test]
fn one_seed_is_one_history() {
    let digest = |seed| {
        let swarm = Swarm::of(seed, 4);
        let mut world = swarm.world(seed);
        for (at, fault) in swarm.troubles(seed, Millis(500), Millis(8_000)) {
            world.plan(at, fault);
        }
        world.run_for(12_000);
        world.digest()
    };
    let all: Vec<_> = (0..10).map(digest).collect();
    assert_eq!((0..10).map(digest).collect::<Vec<_>>(), all);
}
