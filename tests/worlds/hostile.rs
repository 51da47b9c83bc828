//! Learners that follow the protocol but lie, next to honest ones. The tests bound the harm that they do to a run.

use archipelago_core::wire::Code;
use archipelago_sim::world::{Attack, Fault, MachineSpec, Poison, World};
use archipelago_tests::toys::{Toys, brief, for_seeds, learners, loss, status, watch};

const HONEST: usize = 4;

/// Returns a world of honest machines and `liars` machines that attack by `lie` from the beginning. `change` edits its
/// settings.
fn world(seed: u64, liars: usize, lie: Attack, change: impl FnOnce(&mut Toys)) -> World {
    let mut toys = Toys::new(HONEST);
    for i in 0..liars {
        let starts_ms = 5_000 + 10 * i as u64;
        toys.machines.push(MachineSpec { starts_ms, ..MachineSpec::default() });
    }
    change(&mut toys);
    let mut world = toys.world(seed);
    for liar in HONEST..HONEST + liars {
        world.inject(Fault::Poison(liar as u32, Some(Poison::Lie(lie))));
    }
    world
}

/// Goal: false claims of idle learners about their steps neither stop a run nor drive its schedule, before its
/// beginning or during it.
#[test]
fn claims_of_idle_learners_do_not_move_the_schedule() {
    for_seeds(5, |seed| {
        for at_once in [false, true] {
            let rounds = |liars, lie| {
                let start = |toys: &mut Toys| {
                    if at_once {
                        toys.machines.iter_mut().for_each(|machine| machine.starts_ms = 0);
                    }
                };
                let mut world = world(seed, liars, lie, start);
                watch(&mut world, seed, 60_000);
                assert_eq!(status(&world).live as usize, HONEST + liars, "seed {seed}");
                status(&world).rounds as f64
            };
            let clean = rounds(0, Attack::Mute);
            for lie in [Attack::Crawls, Attack::Boasts] {
                let found = rounds(5, lie);
                assert!(
                    found > 0.8 * clean && found < 1.3 * clean,
                    "seed {seed}, {lie:?}, at once: {at_once}: {clean} → {found} rounds"
                );
            }
        }
    });
}

/// Goal: ready learners that never answer do not displace other learners from the rounds.
#[test]
fn silent_learners_do_not_displace_others_from_rounds() {
    for_seeds(5, |seed| {
        let run = |liars| {
            let mut world = world(seed, liars, Attack::Mute, |toys| toys.syncer.cohort_max = 8);
            watch(&mut world, seed, 60_000);
            let status = status(&world);
            (status.rounds as f64, status.participation, brief(&world))
        };
        let (clean, ..) = run(0);
        let (rounds, participation, brief) = run(60);
        assert!(rounds > 0.8 * clean && participation > 0.9, "seed {seed}: {clean} rounds → {brief}");
    });
}

/// Goal: a learner's claims about its training do not change the fraction of merged training.
#[test]
fn claims_do_not_change_participation() {
    for_seeds(5, |seed| {
        let participation = |liars| {
            let mut world = world(seed, liars, Attack::Inflates, |_| {});
            watch(&mut world, seed, 60_000);
            status(&world).participation
        };
        let (clean, found) = (participation(0), participation(3));
        assert!((clean - found).abs() < 0.01, "seed {seed}: {clean} → {found}");
    });
}

/// Goal: a learner that sends zeros and claims unlimited steps advances the run's clock only by a bounded factor, even
/// over a long time. Honest updates are still merged, and the loss still falls.
#[test]
fn a_free_rider_does_not_end_a_run() {
    for (seeds, ms) in [(5, 60_000), (1, 1_800_000)] {
        for_seeds(seeds, |seed| {
            let run = |liars| {
                let mut world = world(seed, liars, Attack::Rides, |_| {});
                watch(&mut world, seed, ms);
                let honest = learners(&world).filter(|learner| learner.name != "machine 4");
                let honest: u64 = honest.map(|learner| learner.tokens_merged).sum();
                (status(&world).tokens_merged as f64, honest as f64, loss(&mut world))
            };
            let (clean, _, _) = run(0);
            let (clock, honest, loss) = run(1);
            // It is credited like eight honest learners, two times all four together, and more in its first seconds.
            assert!(
                clock < 3.6 * clean && honest > 0.95 * clean,
                "seed {seed}, {ms} ms: {clean} → {clock}, {honest}"
            );
            assert!(loss < 0.02, "seed {seed}: {loss}");
        });
    }
}

/// Goal: next to slow learners, two learners that claim the maximum of steps cannot set the pace of the rounds, which
/// would shrink honest updates. After the first minutes they are credited like at most twenty honest ones.
#[test]
fn claims_next_to_slow_learners_set_no_pace() {
    for_seeds(5, |seed| {
        let run = |liars| {
            let mut world = world(seed, liars, Attack::Claims, |toys| {
                let slow = |machine: &mut MachineSpec| (machine.starts_ms, machine.step_ms) = (0, 2_000);
                toys.machines.iter_mut().for_each(slow);
            });
            let found = |world: &World| {
                let tokens = |i: usize| world.tokens_merged(i as u32) as f64;
                [status(world).rounds as f64, tokens(0), tokens(HONEST)]
            };
            watch(&mut world, seed, 300_000);
            let before = found(&world);
            watch(&mut world, seed, 600_000);
            let after = found(&world);
            [0, 1, 2].map(|at| after[at] - before[at])
        };
        let ([clean, ..], [rounds, honest, liar]) = (run(0), run(2));
        assert!(rounds < 1.5 * clean, "seed {seed}: {clean} → {rounds} rounds");
        assert!(liar < 20.0 * honest, "seed {seed}: {liar} beside {honest}");
    });
}

/// Goal: after a restart of the syncer, which loses the recent rates, a free rider still advances the clock by a
/// bounded factor.
#[test]
fn a_restart_does_not_help_a_free_rider() {
    for_seeds(3, |seed| {
        let clock = |liars| {
            let mut world = world(seed, liars, Attack::Rides, |_| {});
            watch(&mut world, seed, 60_000);
            world.inject(Fault::CrashSyncer);
            world.run_for(500);
            world.inject(Fault::RestartSyncer);
            watch(&mut world, seed, 60_000);
            status(&world).tokens_merged as f64
        };
        let (clean, found) = (clock(0), clock(1));
        // Without a restart the factor is three. A lease of half a minute at eight times the pace comes on top.
        assert!(found < 4.6 * clean, "seed {seed}: {clean} → {found}");
    });
}

/// Goal: if half of a young run sends updates with inverted signs and five times the length, the run recovers after
/// they leave.
#[test]
fn a_run_half_of_which_was_hostile_recovers() {
    for_seeds(3, |seed| {
        let mut toys = Toys::new(HONEST);
        let comes = MachineSpec { starts_ms: 12_000, ..MachineSpec::default() };
        toys.machines.extend([comes; 4]);
        let mut world = toys.world_with(seed, |run| run.exchange.code = Code::F32);
        for liar in 4..8 {
            world.inject(Fault::Poison(liar, Some(Poison::Lie(Attack::Times(-5)))));
        }
        watch(&mut world, seed, 42_000);
        let during = loss(&mut world);
        for liar in 4..8 {
            world.inject(Fault::Leave(liar));
        }
        watch(&mut world, seed, 60_000);
        let after = loss(&mut world);
        println!("seed {seed}: {during} → {after}");
        assert!(after < 0.05, "seed {seed}: {during} → {after}");
    });
}

/// Goal: many newcomers that join together and are merged quickly have only a newcomer's weight while they are new.
#[test]
fn a_crowd_of_newcomers_does_not_take_over_within_seconds() {
    for_seeds(3, |seed| {
        let mut toys = Toys::new(2);
        let comes = MachineSpec { starts_ms: 240_000, ..MachineSpec::default() };
        toys.machines.extend([comes; 6]);
        let mut world = toys.world_with(seed, |run| run.exchange.code = Code::F32);
        for liar in 2..8 {
            world.inject(Fault::Poison(liar, Some(Poison::Lie(Attack::Times(-5)))));
        }
        watch(&mut world, seed, 240_000);
        let mut worst = 0.0_f32;
        for _ in 0..40 {
            watch(&mut world, seed, 5_000);
            worst = worst.max(loss(&mut world));
        }
        assert_eq!(status(&world).live, 8, "seed {seed}");
        assert!(worst < 0.05, "seed {seed}: {worst}");
    });
}

/// Goal: a learner whose updates were thirty times too long for a while is merged again once they are normal.
#[test]
fn a_learner_is_merged_again_after_refusals() {
    for_seeds(5, |seed| {
        let mut world = Toys::new(3).world(seed);
        watch(&mut world, seed, 20_000);
        world.inject(Fault::Poison(2, Some(Poison::Huge)));
        watch(&mut world, seed, 4_000);
        let refused =
            |world: &World| learners(world).map(|one| one.fates.refused.values().sum::<u64>()).max();
        assert!(refused(&world) >= Some(4), "seed {seed}: {}", brief(&world));
        let sent_away = |world: &World| refused(world) >= Some(16);
        assert!(world.run_until(60_000, 100, sent_away), "seed {seed}: {}", brief(&world));
        world.inject(Fault::Poison(2, None));
        let merged =
            |world: &World| learners(world).find(|one| one.name == "machine 2").map(|one| one.fates.merged);
        let before = merged(&world);
        watch(&mut world, seed, 60_000);
        assert!(merged(&world) > before.map(|merged| merged + 20), "seed {seed}: {}", brief(&world));
        assert!(world.machines()[2].stopped.is_none(), "seed {seed}");
    });
}

/// Goal: updates far longer than their steps allow move a merge hardly more than honest ones. With inverted signs from
/// a quarter of the learners, the run does not diverge, and no learner is dropped for a burst.
#[test]
fn long_updates_do_not_make_a_run_diverge() {
    for_seeds(5, |seed| {
        for (honest, liars, factor) in [(4, 1, 12), (4, 1, -12), (6, 2, -5)] {
            let mut world = Toys::new(honest + liars).world_with(seed, |run| run.exchange.code = Code::F32);
            watch(&mut world, seed, 20_000);
            for liar in honest..honest + liars {
                world.inject(Fault::Poison(liar as u32, Some(Poison::Lie(Attack::Times(factor)))));
            }
            let mut worst = 0.0_f32;
            for _ in 0..40 {
                watch(&mut world, seed, 1_000);
                worst = worst.max(loss(&mut world));
            }
            let name = format!("seed {seed}, {liars} of {} times {factor}", honest + liars);
            assert!(worst < 0.05, "{name}: {worst}");
            assert_eq!(status(&world).live as usize, honest + liars, "{name}: nobody is sent away");
        }
    });
}
