//! Whole runs in virtual time, around the real cores: properties that hold in every case.

use archipelago_core::wire::{Code, Millis};
use archipelago_sim::world::{Fault, Storm, World};
use archipelago_tests::toys::{Toys, brief, check, crowd, for_seeds, learners, loss, status, steps, watch};

/// Goal: no fault at any time breaks an invariant. After the faults, the run goes on, all learners take part again, and
/// the run ends completely.
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

/// Goal: without faults, nearly all training is merged for any crowd: fast and slow, near and far machines each
/// contribute in proportion.
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

/// Goal: on a good network only the last few steps, which are still in flight, are not merged.
#[test]
fn on_a_good_network_all_but_the_last_steps_are_merged() {
    for_seeds(50, |seed| {
        let mut world = Toys::new(4).world(seed);
        watch(&mut world, seed, 120_000);
        let participation = status(&world).participation;
        assert!(participation >= 0.985, "seed {seed}: {participation}");
    });
}

/// Goal: if step times vary, rounds are as frequent as with constant step times. Some learners are stragglers, so that
/// the median lies outside the middle of the similar ones.
#[test]
fn varying_step_times_do_not_make_rounds_rarer() {
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

/// Goal: the same seed gives the same history, including faults.
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

/// Goal: really encoding messages gives the same history as only counting their bytes.
#[test]
fn encoding_does_not_change_the_history() {
    let digest = |encode| {
        let mut toys = Toys::new(3);
        toys.shell.encode = encode;
        let mut world = toys.world(4);
        world.run_for(20_000);
        world.digest()
    };
    assert_eq!(digest(true), digest(false));
}

/// Goal: the death of a learner does not affect the others.
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

/// Goal: while a run is paused nothing moves, whatever happens in the meantime, and then it goes on.
#[test]
fn a_paused_run_stands_still_and_continues() {
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

/// Goal: the outer momentum of a merge follows the run's clock and is not its final value.
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

/// Goal: the owner slows one learner down and drops another. The others are still merged, and both are merged again,
/// whatever happens in the meantime.
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
        // It received the time of its return once, and does not retry earlier.
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

/// Goal: a very slow learner contributes in proportion, and holds up no other.
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

/// Goal: a partitioned learner keeps training, and its progress is merged once it is back.
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
            // Leases last 30 s; after that it has nothing to train on.
            assert!(alone >= away_ms.min(15_000) / 100 - 5, "seed {seed}: {alone} steps in {away_ms} ms");
            world.inject(Fault::Heal(1));
            watch(&mut world, seed, 40_000);
            let status = status(&world);
            assert_eq!(status.live, 3, "seed {seed}");
            assert!(status.participation > 0.97, "seed {seed}, {away_ms} ms: {}", brief(&world));
        }
    });
}

/// Goal: the queue for one learner is bounded. A slow reader is dropped, and is merged again once it can be reached.
#[test]
fn a_slow_reader_is_sent_away_and_comes_back() {
    for_seeds(20, |seed| {
        let mut toys = Toys::new(2);
        // Only the outbox holds messages: two rounds of five fragments fit, which two seconds of merges fill.
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

/// Goal: with K = 1, a run of one or several learners stays one run and learns, with every code.
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
