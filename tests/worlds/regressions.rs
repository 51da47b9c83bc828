//! Problems of users of similar projects. Each is reproduced as a run in virtual time, which must succeed.

use std::num::NonZeroU32;

use archipelago_core::diloco::QuorumPolicy;
use archipelago_core::diloco::syncer::{Event, LeaveCause};
use archipelago_core::wire::{CloseCode, Fate, Millis, Refusal};
use archipelago_sim::world::{Fault, MachineSpec, Poison, World};
use archipelago_tests::toys::{
    Toys, brief, check, fates, for_seeds, learner, learners, loss, status, steps, watch,
};

/// Returns the close codes of connections of the learner on `machine`, in order.
fn closes(world: &World, machine: usize, events: &[(Millis, Event)]) -> Vec<u16> {
    let id = learner(world, machine);
    let codes = events.iter().filter_map(|(_, event)| match event {
        Event::Left { learner, why: LeaveCause::Closed { code, .. } } if Some(*learner) == id => Some(*code),
        _ => None,
    });
    codes.collect()
}

/// Goal: a learner that joins late with fresh parameters takes those of the run, and never passes on its own.
#[test]
fn a_fresh_joiner_never_overwrites_global_state() {
    for_seeds(50, |seed| {
        let mut toys = Toys::new(3);
        toys.machines[2].starts_ms = 40_000;
        let mut world = toys.world(seed);
        watch(&mut world, seed, 39_000);
        let before = loss(&mut world);
        for _ in 0..20 {
            watch(&mut world, seed, 1_000);
            let now = loss(&mut world);
            assert!(now < 2.0 * before + 0.002, "seed {seed} at {} ms: {before} → {now}", world.now());
        }
        assert_eq!(status(&world).live, 3, "seed {seed}");
    });
}

/// Goal: an update of another run closes its connection with that reason, and is not merged.
#[test]
fn two_runs_never_merge_together() {
    for_seeds(20, |seed| {
        let mut world = Toys::new(2).world(seed);
        watch(&mut world, seed, 10_000);
        world.inject(Fault::Poison(1, Some(Poison::WrongRun)));
        world.kill(1);
        world.restart(1);
        world.take_events();
        let begun = world.now();
        watch(&mut world, seed, 20_000);
        let events = world.take_events();
        let stranger = learner(&world, 1);
        // Earlier updates in flight are honest.
        let its =
            fates(&events).filter(|(at, learner, ..)| Some(*learner) == stranger && at.since(begun) > 500);
        assert_eq!(its.count(), 0, "seed {seed}");
        assert_eq!(closes(&world, 1, &events).first(), Some(&CloseCode::WrongRun.into()), "seed {seed}");
    });
}

/// Goal: a fast learner next to a slow one is never dropped, and neither is the slow one.
#[test]
fn slow_and_fast_learners_are_not_dropped() {
    for_seeds(20, |seed| {
        let mut toys = Toys::new(2);
        toys.machines[0].step_ms = 20;
        toys.machines[1].step_ms = 15_000;
        let mut world = toys.world(seed);
        watch(&mut world, seed, 120_000);
        let left = world.take_events().into_iter().find(|(_, event)| matches!(event, Event::Left { .. }));
        assert_eq!(left, None, "seed {seed}");
        assert!(learners(&world).all(|learner| learner.fates.merged > 0), "seed {seed}: {}", brief(&world));
    });
}

/// Goal: a run that is finished while learners train collects their last progress and releases them.
#[test]
fn finishing_collects_the_last_progress() {
    for_seeds(50, |seed| {
        let mut toys = Toys::new(4);
        toys.machines[3].step_ms = 700;
        let mut world = toys.world(seed);
        watch(&mut world, seed, 20_000);
        world.inject(Fault::Finish);
        assert!(world.run_until(15_000, 100, World::is_finished), "seed {seed}: {}", brief(&world));
        check(&world, seed);
        world.run_for(1_000);
        let status = status(&world);
        assert!(status.participation > 0.97, "seed {seed}: {}", status.participation);
        assert_eq!((status.connected, status.rounds_open, status.updates_pending), (0, 0, 0), "seed {seed}");
        assert!(world.machines().iter().all(|machine| machine.stopped.is_some()), "seed {seed}");
    });
}

/// Goal: when the last learner has left, a run that is finishing ends at once, without further waits.
#[test]
fn the_end_of_a_run_does_not_wait_for_ever() {
    for_seeds(20, |seed| {
        for (before_ms, leave) in
            [(20_000, Fault::Leave as fn(u32) -> Fault), (20_000, Fault::Kill), (0, Fault::Kill)]
        {
            let mut world = Toys::new(2).world(seed);
            watch(&mut world, seed, before_ms);
            world.inject(leave(0));
            world.inject(leave(1));
            watch(&mut world, seed, 1_000);
            world.inject(Fault::Finish);
            let over = world.run_until(5_000, 100, World::is_finished);
            assert!(over, "seed {seed} after {before_ms} ms: {}", brief(&world));
        }
    });
}

/// Goal: with K = 1 and learners that come and go, there is one chain of versions, and no learner trains alone.
#[test]
fn a_quorum_of_one_is_no_solo_run() {
    for_seeds(50, |seed| {
        let mut world = Toys::new(2).world(seed);
        for turn in 0..10 {
            let away = turn % 2;
            world.inject(Fault::Partition(away));
            watch(&mut world, seed, 4_000);
            world.inject(Fault::Heal(away));
            watch(&mut world, seed, 2_000);
        }
        watch(&mut world, seed, 10_000);
        let (a, b) = (world.params(0).unwrap(), world.params(1).unwrap());
        let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 0.5, "seed {seed}: learners are {apart} apart");
        let status = status(&world);
        assert_eq!(status.live, 2, "seed {seed}");
        assert!(status.participation > 0.95, "seed {seed}: {}", brief(&world));
        let loss = loss(&mut world);
        assert!(loss < 0.02, "seed {seed}: {loss}");
    });
}

/// Goal: two halves that are cut off in turn never both commit.
#[test]
fn two_flapping_halves_never_both_commit() {
    for_seeds(50, |seed| {
        let mut world = Toys::new(4).world(seed);
        for turn in 0..30 {
            for machine in 0..4 {
                let away = machine / 2 == turn % 2;
                world.inject(if away { Fault::Partition(machine) } else { Fault::Heal(machine) });
            }
            watch(&mut world, seed, 700);
        }
        for machine in 0..4 {
            world.inject(Fault::Heal(machine));
        }
        watch(&mut world, seed, 15_000);
        let status = status(&world);
        assert_eq!(status.live, 4, "seed {seed}");
        assert!(status.participation > 0.9, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: learners that vanished silently do not hold up the quorum: the remaining learner goes on alone.
#[test]
fn a_ghost_cannot_hold_the_quorum() {
    for_seeds(50, |seed| {
        for gone in [Fault::Vanish as fn(u32) -> Fault, Fault::Freeze, Fault::Partition] {
            let mut toys = Toys::new(3);
            let updates_min = NonZeroU32::new(3).unwrap();
            toys.syncer.quorum = QuorumPolicy { updates_min, ..QuorumPolicy::default() };
            let mut world = toys.world(seed);
            watch(&mut world, seed, 20_000);
            world.inject(gone(1));
            world.inject(gone(2));
            let before = status(&world).rounds;
            watch(&mut world, seed, 18_000);
            let ghostly = status(&world).rounds;
            let fault = gone(1);
            assert!(ghostly > before + 4, "seed {seed}, {fault:?}: {before} → {ghostly} rounds with ghosts");
            watch(&mut world, seed, 10_000);
            let (middle, live) = (status(&world).rounds, status(&world).live);
            watch(&mut world, seed, 20_000);
            let after = status(&world).rounds;
            assert!(
                live == 1 && after > middle + 80,
                "seed {seed}, {fault:?}: {middle} → {after} rounds, {live} live"
            );
        }
    });
}

/// Goal: a frozen learner stops no round.
#[test]
fn a_frozen_learner_does_not_stop_rounds() {
    for_seeds(50, |seed| {
        let mut world = Toys::new(3).world(seed);
        watch(&mut world, seed, 20_000);
        for _ in 0..5 {
            world.inject(Fault::Freeze(2));
            let before = status(&world).rounds;
            watch(&mut world, seed, 6_000);
            let after = status(&world).rounds;
            assert!(after >= before + 24, "seed {seed}: {before} → {after} rounds");
            world.inject(Fault::Thaw(2));
            watch(&mut world, seed, 4_000);
        }
        let status = status(&world);
        assert!(status.live == 3 && status.participation > 0.97, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: the leases of a learner that never comes back go to others, and only windows that it had not reported are
/// trained again.
#[test]
fn a_lost_lease_is_issued_again() {
    for_seeds(50, |seed| {
        let mut toys = Toys::new(2);
        toys.data = (2, 400);
        toys.syncer.lease_idle_ms_max = 5_000;
        let mut world = toys.world(seed);
        watch(&mut world, seed, 5_000);
        world.kill(1);
        watch(&mut world, seed, 40_000);
        let events = world.take_events();
        let returned: u32 = events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::LeaseReturned { windows, .. } => Some(windows),
                _ => None,
            })
            .sum();
        let status = status(&world);
        assert!(status.regranted_windows > 0, "seed {seed}: {}", brief(&world));
        assert!(status.regranted_windows <= u64::from(returned), "seed {seed}: {returned} came back");
        // A machine takes 100 ms for a step of 4 windows; the epoch has 798.
        assert!(status.epoch >= 1, "seed {seed}: still in epoch {}", status.epoch);
    });
}

/// Goal: a host that fails repeatedly can neither drain the lease pool nor take work from others.
#[test]
fn one_faulty_host_cannot_drain_the_lease_pool() {
    for_seeds(20, |seed| {
        let mut toys = Toys::new(2);
        toys.data = (2, 400);
        let mut world = toys.world(seed);
        watch(&mut world, seed, 2_000);
        let before = steps(&world)[0];
        for _ in 0..60 {
            world.kill(1);
            world.restart(1);
            watch(&mut world, seed, 500);
        }
        let done = steps(&world)[0] - before;
        assert!(done > 280, "seed {seed}: {done} steps in 30 s beside a faulty host");
    });
}

/// Goal: a syncer that is killed and restarted resumes with its momentum, versions and rounds.
#[test]
fn a_restart_keeps_momentum_and_step() {
    for_seeds(50, |seed| {
        let mut toys = Toys::new(3);
        toys.shell.snapshot_ms = 1_000;
        let mut world = toys.world(seed);
        watch(&mut world, seed, 20_000);
        let before = status(&world);
        world.inject(Fault::CrashSyncer);
        let steps_before = steps(&world);
        watch(&mut world, seed, 3_000);
        let alone: Vec<u64> = steps(&world).iter().zip(&steps_before).map(|(now, then)| now - then).collect();
        assert!(alone.iter().all(|&steps| steps >= 28), "seed {seed}: {alone:?} steps without a syncer");

        world.inject(Fault::RestartSyncer);
        let momentum = world.syncer().unwrap().states().flat_map(|state| state.momentum.iter());
        assert!(momentum.filter(|value| **value != 0.0).count() > 150, "seed {seed}");
        let back = status(&world);
        assert!(back.rounds + 8 >= before.rounds, "seed {seed}: {} → {}", before.rounds, back.rounds);
        assert!(back.tokens_merged > 0, "seed {seed}");

        watch(&mut world, seed, 15_000);
        let after = status(&world);
        assert_eq!(after.live, 3, "seed {seed}");
        assert!(after.rounds > back.rounds + 40, "seed {seed}: {} → {}", back.rounds, after.rounds);
        assert_eq!(after.learners_total, 3, "seed {seed}: identities are kept");
        assert!(after.fates.refused.is_empty(), "seed {seed}: {:?}", after.fates);
        // At most a snapshot interval of merges, 1 s of 23, was lost.
        assert!(after.participation > 0.93, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: every forged update gets the fate that names its fault. The forger is credited at most the tokens that it can
/// have trained, and the other learners' run is not affected.
#[test]
fn poison_is_refused_with_its_reason() {
    let refused = |refusal| Some(Fate::Refused(refusal));
    for poison in Poison::ALL {
        let (fate, close) = match poison {
            Poison::NotFinite => (refused(Refusal::NotFinite), Some(CloseCode::Untrusted)),
            Poison::Huge => (refused(Refusal::Norm), Some(CloseCode::Untrusted)),
            Poison::Shape => (refused(Refusal::Shape), Some(CloseCode::Untrusted)),
            Poison::BitFlip => (refused(Refusal::Checksum), Some(CloseCode::Untrusted)),
            Poison::Replay => (refused(Refusal::Unsettled), None),
            Poison::WrongRun => (None, Some(CloseCode::WrongRun)),
            // Progress is the same from any base, and tokens are credited as far as they can have been trained.
            Poison::StaleBase | Poison::Inflation | Poison::Lie(_) => (None, None),
            Poison::Empty => (refused(Refusal::Empty), Some(CloseCode::Untrusted)),
            Poison::NoFragment => (None, Some(CloseCode::Protocol)),
        };
        for_seeds(20, |seed| {
            let mut world = Toys::new(3).world(seed);
            watch(&mut world, seed, 20_000);
            world.inject(Fault::Poison(2, Some(poison)));
            world.kill(2);
            world.take_events();
            let (begun, before) = (world.now(), world.machines()[2].tokens);
            world.restart(2);
            watch(&mut world, seed, 25_000);

            let (events, forger) = (world.take_events(), learner(&world, 2));
            // Earlier updates in flight are honest.
            let its: Vec<Fate> = fates(&events)
                .filter(|(at, learner, ..)| Some(*learner) == forger && at.since(begun) > 500)
                .map(|(.., fate)| fate)
                .collect();
            let name = format!("seed {seed}, {poison:?}: {its:?}");
            if let Some(fate) = fate {
                assert!(its.contains(&fate), "{name}");
                let merges = its.iter().any(|fate| matches!(fate, Fate::Merged { .. }));
                assert_eq!(merges, poison == Poison::Replay, "{name}");
            }
            let closed = closes(&world, 2, &events).first().copied();
            // A replaying learner reports refused windows again until no lease covers them.
            let unleased = poison == Poison::Replay && closed == Some(CloseCode::Untrusted.into());
            assert!(unleased || closed == close.map(u16::from), "{name}, {closed:?}");
            if poison == Poison::Inflation {
                let trained = world.machines()[2].tokens - before;
                let counted = learners(&world).map(|learner| learner.tokens_merged).max();
                assert!(counted < Some(2 * (trained + before)), "{name}");
            }
            let loss = loss(&mut world);
            assert!(loss < 0.02, "{name}: loss {loss}");
        });
    }
}

/// Goal: a forger with too many refusals is dropped with that reason, and the fates before name the fault.
#[test]
fn a_forger_is_dropped() {
    for_seeds(20, |seed| {
        let mut world = Toys::new(2).world(seed);
        watch(&mut world, seed, 20_000);
        world.inject(Fault::Poison(1, Some(Poison::BitFlip)));
        world.kill(1);
        world.restart(1);
        world.take_events();
        watch(&mut world, seed, 60_000);
        let events = world.take_events();
        let forger = learner(&world, 1);
        let its: Vec<Fate> = fates(&events)
            .filter(|(_, learner, ..)| Some(*learner) == forger)
            .map(|(.., fate)| fate)
            .collect();
        let refused = its.iter().filter(|fate| **fate == Fate::Refused(Refusal::Checksum)).count();
        assert_eq!(refused, 32, "seed {seed}: it begins afresh once: {its:?}");
        assert_eq!(closes(&world, 1, &events), vec![u16::from(CloseCode::Untrusted); 2], "seed {seed}");
        assert!(world.machines()[1].stopped.is_some(), "seed {seed}: it must not come back by itself");
    });
}

/// Goal: a second process with the same identity takes over; the first one is closed, and nothing is counted twice.
#[test]
fn the_same_identity_is_one_learner() {
    for_seeds(20, |seed| {
        let mut world = Toys::new(2).world(seed);
        watch(&mut world, seed, 10_000);
        for _ in 0..5 {
            world.inject(Fault::Vanish(1));
            world.restart(1);
            watch(&mut world, seed, 5_000);
        }
        let status = status(&world);
        assert_eq!((status.learners_total, status.connected), (2, 2), "seed {seed}: {}", brief(&world));
    });
}

/// Goal: any number of learners may come and go; the syncer admits as many as its limit.
#[test]
fn a_full_run_rejects_further_learners() {
    let seed = 1;
    let mut toys = Toys::new(0);
    toys.machines = vec![MachineSpec::default(); 5];
    toys.syncer.learners_max = 3;
    let mut world = toys.world(seed);
    watch(&mut world, seed, 20_000);
    assert_eq!(status(&world).connected, 3);
    world.inject(Fault::Leave(0));
    world.inject(Fault::Leave(1));
    watch(&mut world, seed, 40_000);
    assert!(status(&world).connected >= 2, "{}", brief(&world));
}
