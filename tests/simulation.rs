//! Whole runs in virtual time, around the real cores: what holds whatever happens.

use archipelago_core::wire::{Code, Millis};
use archipelago_sim::world::{Fault, Storm, World};
use archipelago_tests::toys::{Toys, brief, check, crowd, for_seeds, learners, loss, status, steps, watch};

/// Goal: whatever fails, and when, no invariant is ever broken; once the faults end, the run goes on,
/// everyone takes part again, and it ends as a whole.
#[test]
fn any_storm_breaks_nothing() {
    for_seeds(600, |seed| {
        let toys = crowd(seed);
        let machines = toys.machines.len() as u32;
        let mut world = toys.world(seed);
        let storm =
            Storm { faults_per_h: 2_400.0, repair_ms_min: 50, repair_ms_max: 6_000, syncer: seed % 2 == 0 };
        for (at, fault) in storm.plan(seed, machines, Millis(500), Millis(16_000)) {
            world.plan(at, fault);
        }
        watch(&mut world, seed, 22_000);
        for machine in 0..machines {
            for repair in [Fault::Restart(machine), Fault::Thaw(machine), Fault::Heal(machine)] {
                world.inject(repair);
            }
            world.inject(Fault::Crawl(machine, 1.0));
        }
        world.inject(Fault::RestartSyncer);
        watch(&mut world, seed, 8_000);
        let before = status(&world);
        let everyone = world.run_until(20_000, 500, |world| status(world).live == machines);
        check(&world, seed);
        assert!(everyone, "seed {seed}: {}", brief(&world));
        let goes_on = world.run_until(40_000, 500, |world| status(world).rounds > before.rounds + 3);
        check(&world, seed);
        assert!(goes_on, "seed {seed}: {} rounds and no more", status(&world).rounds);

        world.inject(Fault::Finish);
        let ended = world.run_until(60_000, 500, |world| world.is_finished());
        check(&world, seed);
        let last = status(&world);
        assert!(ended, "seed {seed}: {}", brief(&world));
        assert_eq!((last.rounds_open, last.updates_pending), (0, 0), "seed {seed}");
    });
}

/// Goal: without faults, nearly all that is trained is merged, whatever the crowd: fast and slow, near and far
/// machines, each takes part with what it has.
#[test]
fn without_faults_nearly_all_training_is_merged() {
    for_seeds(100, |seed| {
        let toys = crowd(seed);
        let mut world = toys.world(seed);
        watch(&mut world, seed, 120_000);
        let status = status(&world);
        assert!(status.participation >= 0.95, "seed {seed}: {}", brief(&world));
        for learner in learners(&world) {
            let share = learner.tokens_merged as f64 / learner.tokens_trained as f64;
            assert!(share >= 0.9, "seed {seed}: {}", brief(&world));
        }
        let loss = loss(&mut world);
        assert!(loss < 0.02, "seed {seed}: {loss}");
    });
}

/// Goal: on a good network the share is that of the last few steps, which are still on their way.
#[test]
fn on_a_good_network_all_but_the_last_steps_are_merged() {
    for_seeds(50, |seed| {
        let mut world = Toys::new(4).world(seed);
        watch(&mut world, seed, 120_000);
        let participation = status(&world).participation;
        assert!(participation >= 0.985, "seed {seed}: {participation}");
    });
}

/// Goal: where steps take now more, now less time, rounds come as often as where each takes as long. Some learners are
/// slower than most, so that the median is no longer in the middle of those that are alike.
#[test]
fn steps_that_scatter_bring_rounds_no_more_seldom() {
    for_seeds(5, |seed| {
        let rounds = |jitter| {
            let mut toys = Toys::new(8);
            for (machine, step_ms) in toys.machines.iter_mut().zip([34, 34, 34, 34, 34, 62, 62, 90]) {
                (machine.step_ms, machine.jitter) = (step_ms, jitter);
            }
            let mut world = toys.world(seed);
            watch(&mut world, seed, 60_000);
            status(&world).rounds as f64
        };
        let (even, scattered) = (rounds(0.0), rounds(0.7));
        assert!(scattered > 0.95 * even, "seed {seed}: {even} → {scattered} rounds");
    });
}

/// Goal: the same seed leads to the same history, faults and all.
#[test]
fn one_seed_is_one_history() {
    let digest = |seed| {
        let toys = crowd(seed);
        let machines = toys.machines.len() as u32;
        let mut world = toys.world(seed);
        let storm = Storm { faults_per_h: 2_400.0, repair_ms_min: 50, repair_ms_max: 6_000, syncer: true };
        for (at, fault) in storm.plan(seed, machines, Millis(500), Millis(16_000)) {
            world.plan(at, fault);
        }
        world.run_for(20_000);
        world.digest()
    };
    let all: Vec<_> = (0..20).map(digest).collect();
    assert_eq!((0..20).map(digest).collect::<Vec<_>>(), all);
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
}

/// Goal: what is really encoded and what is only counted leads to the same history.
#[test]
fn encoding_changes_nothing() {
    let digest = |encode| {
        let mut toys = Toys::new(3);
        toys.shell.encode = encode;
        let mut world = toys.world(4);
        world.run_for(20_000);
        world.digest()
    };
    assert_eq!(digest(true), digest(false));
}

/// Goal: the death of a learner is not noticed by the others.
#[test]
fn a_dead_learner_is_not_noticed_by_the_others() {
    for_seeds(50, |seed| {
        let run = |fault: Option<Fault>| {
            let mut world = Toys::new(4).world(seed);
            watch(&mut world, seed, 20_000);
            let before = (steps(&world), status(&world).rounds);
            if let Some(fault) = fault {
                world.inject(fault);
            }
            watch(&mut world, seed, 20_000);
            let steps = steps(&world).iter().zip(before.0).map(|(after, before)| after - before).collect();
            (steps, status(&world).rounds - before.1)
        };
        let (whole, rounds_whole): (Vec<u64>, u64) = run(None);
        for fault in [Fault::Kill(3), Fault::Vanish(3), Fault::Freeze(3), Fault::Partition(3)] {
            let (without, rounds): (Vec<u64>, u64) = run(Some(fault));
            for (machine, (&with, &without)) in whole.iter().zip(&without).enumerate().take(3) {
                let fault = format!("seed {seed}, {fault:?}, machine {machine}: {with} → {without} steps");
                assert!(without.abs_diff(with) <= 2, "{fault}");
            }
            assert!(rounds >= rounds_whole - 3, "seed {seed}, {fault:?}: {rounds_whole} → {rounds} rounds");
        }
    });
}

/// Goal: while the owner holds a run nothing moves, whatever happens meanwhile, and then it goes on.
#[test]
fn a_held_run_stands_still_and_goes_on() {
    for_seeds(50, |seed| {
        let mut world = Toys::new(3).world(seed);
        watch(&mut world, seed, 30_000);
        world.inject(Fault::Hold(true));
        watch(&mut world, seed, 10_000);
        let (before, done) = (status(&world), steps(&world));
        assert!(
            before.paused && before.rounds_open == 0 && before.rounds > 0,
            "seed {seed}: {}",
            brief(&world)
        );
        world.inject(Fault::Break(1));
        world.inject(Fault::Kill(2));
        watch(&mut world, seed, 60_000);
        world.inject(Fault::Restart(2));
        watch(&mut world, seed, 60_000);
        assert_eq!((status(&world).rounds, steps(&world)), (before.rounds, done), "seed {seed}");
        world.inject(Fault::Hold(false));
        watch(&mut world, seed, 60_000);
        assert!(status(&world).rounds > before.rounds + 100, "seed {seed}: {}", brief(&world));
        assert!(status(&world).participation > 0.9, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: the outer momentum of a merge is what the run's clock says, not what it will be in the end.
#[test]
fn outer_momentum_rises_with_the_run() {
    let digest = |momentum, warmup_ratio| {
        let mut toys = Toys::new(2);
        (toys.syncer.outer.momentum, toys.syncer.momentum_warmup_ratio) = (momentum, warmup_ratio);
        let mut world = toys.world(1);
        world.run_for(20_000);
        world.digest()
    };
    assert_ne!(digest(0.6, 0.0), digest(0.6, 0.2));
    assert_ne!(digest(0.6, 0.2), digest(0.0, 0.0), "it does rise");
    assert_eq!(digest(0.0, 0.0), digest(0.0, 0.2), "there is nothing to rise");
}

/// Goal: the owner slows one learner down and sends another away; the others are merged on, and both are
/// merged again, whatever happens meanwhile.
#[test]
fn an_owner_slows_and_drops_single_learners() {
    for_seeds(50, |seed| {
        let mut world = Toys::new(3).world(seed);
        watch(&mut world, seed, 30_000);
        let before = steps(&world);
        watch(&mut world, seed, 20_000);
        let full = steps(&world)[0] - before[0];

        world.inject(Fault::Pace(0, 0.25));
        world.inject(Fault::Drop(1, 20_000));
        world.inject(Fault::Break(0));
        let (before, rounds) = (steps(&world), status(&world).rounds);
        watch(&mut world, seed, 19_000);
        let slowed = steps(&world)[0] - before[0];
        assert!(slowed * 3 < full && slowed * 6 > full, "seed {seed}: {slowed} of {full} steps");
        assert!(status(&world).rounds > rounds + 10, "seed {seed}: {}", brief(&world));
        // It was told once, and does not knock before its time.
        assert_eq!(status(&world).live, 2, "seed {seed}: {}", brief(&world));
        watch(&mut world, seed, 5_000);
        assert_eq!(status(&world).live, 3, "seed {seed}: {}", brief(&world));

        world.inject(Fault::Pace(0, 1.0));
        watch(&mut world, seed, 60_000);
        let (before, merged) = (steps(&world), learners(&world).map(|learner| learner.fates.merged));
        let merged: Vec<_> = merged.collect();
        watch(&mut world, seed, 20_000);
        let again = steps(&world)[0] - before[0];
        assert!(again * 10 > full * 9, "seed {seed}: {again} of {full} steps");
        let later = learners(&world).map(|learner| learner.fates.merged);
        assert!(later.zip(merged).all(|(later, merged)| later > merged), "seed {seed}: {}", brief(&world));
        assert!(status(&world).participation > 0.9, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: a crawling learner takes part with what it has, and holds nobody up.
#[test]
fn a_crawling_learner_is_still_merged() {
    for_seeds(50, |seed| {
        let mut toys = Toys::new(3);
        toys.machines[2].step_ms = 3_000;
        let mut world = toys.world(seed);
        watch(&mut world, seed, 120_000);
        let status = status(&world);
        let slow = learners(&world).find(|learner| learner.name == "machine 2").unwrap();
        let (merged, trained) = (slow.tokens_merged as f64, slow.tokens_trained as f64);
        assert!(merged > 0.5 * trained, "seed {seed}: {slow:#?}");
        assert!(status.rounds > 550, "seed {seed}: {} rounds", status.rounds);
    });
}

/// Goal: a learner that is cut off trains on, and what it did meanwhile is merged once it is back.
#[test]
fn a_partition_heals() {
    for_seeds(50, |seed| {
        for away_ms in [3_000, 12_000, 45_000] {
            let mut world = Toys::new(3).world(seed);
            watch(&mut world, seed, 10_000);
            world.inject(Fault::Partition(1));
            let before = steps(&world)[1];
            watch(&mut world, seed, away_ms);
            let alone = steps(&world)[1] - before;
            // Leases are for 30 s; beyond that it has nothing to train on.
            assert!(alone >= away_ms.min(15_000) / 100 - 5, "seed {seed}: {alone} steps in {away_ms} ms");
            world.inject(Fault::Heal(1));
            watch(&mut world, seed, 40_000);
            let status = status(&world);
            assert_eq!(status.live, 3, "seed {seed}");
            assert!(status.participation > 0.97, "seed {seed}, {away_ms} ms: {}", brief(&world));
        }
    });
}

/// Goal: what waits for one learner is bounded: who reads too slowly is sent away, and is merged again once it can be
/// reached.
#[test]
fn a_slow_reader_is_sent_away_and_comes_back() {
    for_seeds(20, |seed| {
        let mut toys = Toys::new(2);
        // Nothing but the outbox: two turns of five fragments, for which two seconds of merges are enough.
        (toys.shell.socket_bytes, toys.shell.bulk_messages_min) = (0, 0);
        let mut world = toys.world(seed);
        watch(&mut world, seed, 10_000);
        world.inject(Fault::Partition(1));
        watch(&mut world, seed, 6_000);
        assert_eq!((world.slow_readers(), status(&world).live), (1, 1), "seed {seed}: {}", brief(&world));
        world.inject(Fault::Heal(1));
        let merged = |world: &World| learners(world).map(|learner| learner.fates.merged).collect::<Vec<_>>();
        let before = merged(&world);
        watch(&mut world, seed, 15_000);
        assert!(
            merged(&world).iter().zip(before).all(|(now, before)| *now > before),
            "seed {seed}: {}",
            brief(&world)
        );
        assert_eq!(world.slow_readers(), 1, "seed {seed}");
    });
}

/// Goal: one learner, or any number, however the code rounds: K = 1 stays one run and learns.
#[test]
fn every_code_and_crowd_learns() {
    for code in [Code::Int4, Code::E3m0, Code::F32] {
        for machines in [1, 2, 8] {
            let seed = 3;
            let mut world = Toys::new(machines).world_with(seed, |run| run.exchange.code = code);
            watch(&mut world, seed, 60_000);
            let loss = loss(&mut world);
            assert!(loss < 0.02, "{code:?}, {machines} machines: {loss}");
        }
    }
}
