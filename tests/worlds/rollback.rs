//! Tests of attribution and rollback: a learner that harms the loss is identified, dropped and remembered, and its
//! updates are rolled back.

use archipelago_core::diloco::TrustLevel;
use archipelago_core::diloco::syncer::Event;
use archipelago_core::wire::{LearnerId, Millis};
use archipelago_sim::world::{Attack, Fault, Harm, LossOf, MachineSpec, MonitorSpec, Poison, Toy, World};
use archipelago_tests::toys::{Toys, brief, check, crowd, for_seeds, loss, watch};

const HONEST: u32 = 6;
/// Machine whose learner becomes hostile once it is trusted.
const TRAITOR: u32 = HONEST;
/// Time in milliseconds at which that learner becomes hostile.
const TURNS_MS: u64 = 60_000;

fn loss_monitor() -> MonitorSpec {
    MonitorSpec { every_ms: 2_000, trial_ms: 20 }
}

/// Irreducible part of the loss, as for natural language. The effect of a toy's noise is small compared with it.
const FLOOR: f64 = 0.1;

fn toy_loss() -> Box<LossOf> {
    Box::new(|theta| FLOOR + f64::from(Toy::loss(theta)))
}

/// Returns a world of honest machines and one that becomes hostile, with loss measurements from the beginning. Updates
/// are not bounded, because the tests are about harm that passes the bounds.
fn betrayed(seed: u64, lie: Attack) -> World {
    let mut toys = Toys::new(0);
    toys.machines = vec![MachineSpec::default(); HONEST as usize + 1];
    toys.syncer.norm_ratio_max = 0.0;
    let mut world = toys.world(seed);
    world.watch_loss(loss_monitor(), toy_loss());
    world.plan(Millis(TURNS_MS), Fault::Poison(TRAITOR, Some(Poison::Lie(lie))));
    world
}

fn learner_on(world: &World, machine: u32) -> LearnerId {
    let learners = world.syncer().expect("it is up").learners();
    let ids: Vec<LearnerId> = learners.map(|learner| learner.learner).collect();
    let mut ids = ids.into_iter();
    ids.find(|&learner| world.machine_of(learner) == Some(machine)).expect("it has joined")
}

/// Waits until a learner is blamed, and returns the attribution.
fn harm(world: &mut World, seed: u64) -> Harm {
    // Poll in short steps: the harm left after some rounds depends on when these begin.
    for _ in 0..2_400 {
        watch(world, seed, 50);
        if let Some(harm) = world.take_harms().into_iter().find(|harm| !harm.culprits.is_empty()) {
            return harm;
        }
    }
    panic!("seed {seed}: nobody was blamed: {}", brief(world))
}

/// Runs until there were `turns` merges for each fragment on average. Recomputed merges of a rollback are not included.
fn run_turns(world: &mut World, seed: u64, turns: usize) {
    let fragments = usize::from(world.syncer().expect("it is up").fragments().count());
    world.take_events();
    let mut versions = 0;
    for _ in 0..1_000 {
        watch(world, seed, 50);
        let is_merge = |event: &Event| matches!(event, Event::Merged { .. });
        versions += world.take_events().iter().filter(|(_, event)| is_merge(event)).count();
        if versions >= turns * fragments {
            return;
        }
    }
    panic!("seed {seed}: the run stands still: {}", brief(world));
}

/// Goal: three merges of each fragment after the attribution, harm by a trusted learner is nearly gone; after four it
/// is gone, also on the learners.
#[test]
fn harm_is_rolled_back_within_four_merges_of_each_fragment() {
    for_seeds(5, |seed| {
        for lie in [Attack::Reaches, Attack::Times(-30)] {
            let mut world = betrayed(seed, lie);
            watch(&mut world, seed, TURNS_MS);
            assert_eq!(
                world.syncer().unwrap().trust(world.now(), learner_on(&world, TRAITOR)),
                TrustLevel::Trusted,
                "seed {seed}"
            );
            let Harm { losses: (good, bad, better), culprits, .. } = harm(&mut world, seed);
            assert_eq!(culprits, [learner_on(&world, TRAITOR)], "seed {seed}, {lie:?}");
            let better = better.unwrap();
            assert!(bad > 1.02 * good && better < good + 0.2 * (bad - good), "{good} {bad} {better}");

            // Honest updates against the harm are merged once more, and momentum continues them for a while. In forty
            // seeds at most a third of the harm was left after three turns, and an eighth after four.
            for (turns, left) in [(3, 0.35), (1, 0.2)] {
                run_turns(&mut world, seed, turns);
                let now = FLOOR + f64::from(loss(&mut world));
                assert!(
                    now < good + f64::max(left * (bad - good), 0.03 * good),
                    "seed {seed}, {lie:?}: {good} → {bad} → {now}"
                );
            }
            for machine in 0..HONEST {
                let theta = world.params(machine).unwrap();
                let theirs = FLOOR + f64::from(Toy::loss(theta));
                assert!(theirs < 1.1 * good + 0.2 * (bad - good), "seed {seed}, machine {machine}: {theirs}");
            }
        }
    });
}

/// Goal: the culprit is dropped, and the next process still rejects it.
#[test]
fn a_culprit_is_sent_away_and_remembered_over_a_restart() {
    for_seeds(5, |seed| {
        let mut world = betrayed(seed, Attack::Reaches);
        watch(&mut world, seed, TURNS_MS);
        harm(&mut world, seed);
        watch(&mut world, seed, 1_000);
        let culprit = learner_on(&world, TRAITOR);
        let trust = |world: &World| world.syncer().unwrap().trust(world.now(), culprit);
        assert_eq!(trust(&world), TrustLevel::Banned, "seed {seed}");
        let before = world.tokens_merged(TRAITOR);
        world.inject(Fault::CrashSyncer);
        world.run_for(200);
        world.inject(Fault::RestartSyncer);
        watch(&mut world, seed, 30_000);
        assert_eq!(trust(&world), TrustLevel::Banned, "seed {seed}");
        assert_eq!(world.tokens_merged(TRAITOR), before, "seed {seed}: nothing of it is merged");
        assert!(loss(&mut world) < 0.05, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: a crash at any time during a rollback loses no decision that a learner received, and the rollback stays in
/// effect.
#[test]
fn crashes_during_a_rollback_lose_nothing() {
    for_seeds(20, |seed| {
        let mut world = betrayed(seed, Attack::Times(-30));
        watch(&mut world, seed, TURNS_MS);
        harm(&mut world, seed);
        // Trials, jobs and rows of all fragments take some tens of milliseconds.
        world.run_for(seed * 13 % 250);
        world.inject(Fault::CrashSyncer);
        world.run_for(300);
        world.inject(Fault::RestartSyncer);
        watch(&mut world, seed, 60_000);
        assert!(world.refusals().is_empty(), "seed {seed}: {:?}", world.refusals());
        assert!(loss(&mut world) < 0.1, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: honest learners are almost never blamed, whether near or far, fast or slow, early or late, or killed and
/// restarted.
#[test]
fn honest_learners_are_hardly_ever_blamed() {
    let (mut blamed, mut learners, mut looks) = (0, 0, 0);
    for seed in 0..240 {
        let toys = crowd(seed);
        let machines = toys.machines.len() as u32;
        let mut world = toys.world(seed);
        world.watch_loss(loss_monitor(), toy_loss());
        for round in 0..6 {
            world.run_for(15_000);
            world.kill(round % machines);
            world.run_for(5_000);
            world.restart(round % machines);
            check(&world, seed);
        }
        blamed += world.take_harms().iter().map(|harm| harm.culprits.len()).sum::<usize>();
        (learners, looks) = (learners + machines as usize, looks + 60);
    }
    println!("{blamed} of {learners} honest learners in {looks} looks");
    assert!(blamed * 100 < learners, "{blamed} of {learners} honest learners in {looks} looks");
}
