//! Liveness with the shipped settings of pace, backoff and patience: every reachable learner takes part again soon, and
//! not all at the same time.

use std::num::NonZeroU32;

use archipelago_core::diloco::syncer::Event;
use archipelago_core::diloco::{Layout, QuorumPolicy};
use archipelago_core::wire::{Fate, Millis, RunId};
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};
use archipelago_sim::world::{Fault, MachineSpec, Toy, World, WorldSpec};
use archipelago_tests::toys::{
    Toys, brief, check, fates, for_seeds, learner, learners, status, steps, watch,
};

/// Returns the times when learners joined or came back, in order.
fn joins(events: &[(Millis, Event)]) -> Vec<Millis> {
    let joins = events.iter().filter(|(_, event)| matches!(event, Event::Joined { .. }));
    joins.map(|(at, _)| *at).collect()
}

/// Returns the number of merged updates of the learner on `machine`.
fn merged(world: &World, machine: usize) -> u64 {
    let id = learner(world, machine);
    learners(world).find(|learner| Some(learner.learner) == id).map_or(0, |learner| learner.fates.merged)
}

/// Runs until the learner on `machine` is merged once more. Returns the time that this took in milliseconds.
fn merged_again(world: &mut World, seed: u64, machine: usize, ms_max: u64) -> u64 {
    let (from, before) = (world.now(), merged(world, machine));
    let again = world.run_until(ms_max, 100, |world| merged(world, machine) > before);
    check(world, seed);
    assert!(again, "seed {seed}: not merged within {ms_max} ms: {}", brief(world));
    world.now().since(from)
}

/// Goal: a connection that is open but carries nothing is given up after a minute, and no earlier; the learner is then
/// merged within 20 s. The second time the limit is two minutes.
#[test]
fn a_connection_that_carries_nothing_is_given_up_when_patience_ends() {
    for_seeds(20, |seed| {
        let mut world = Toys::new(3).world(seed);
        watch(&mut world, seed, 10_000);
        for patience_ms in [60_000, 120_000] {
            world.inject(Fault::Swallow(1));
            watch(&mut world, seed, patience_ms - 11_000);
            let attempts = world.machines()[1].attempts;
            watch(&mut world, seed, 5_000);
            assert_eq!(world.machines()[1].attempts, attempts, "seed {seed}: too early");
            merged_again(&mut world, seed, 1, 26_000);
            assert_eq!(world.machines()[1].attempts, attempts + 1, "seed {seed}");
        }
        watch(&mut world, seed, 20_000);
        assert!(status(&world).participation > 0.9, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: every learner is merged again within half a minute after a partition of any length. The partition may be
/// shorter than the syncer's patience, longer than that, or longer than the learner's own.
#[test]
fn a_reachable_learner_is_merged_again() {
    for_seeds(20, |seed| {
        for away_ms in [5_000, 40_000, 150_000] {
            let mut world = Toys::new(3).world(seed);
            watch(&mut world, seed, 10_000);
            world.inject(Fault::Partition(1));
            world.inject(Fault::Partition(2));
            watch(&mut world, seed, away_ms);
            // Two and a half minutes exceed the learner's patience, and it opens another connection.
            let seeks = world.machines()[1].attempts > 1;
            assert_eq!(seeks, away_ms > 60_000, "seed {seed}: {:?}", world.machines()[1]);
            world.inject(Fault::Heal(1));
            world.inject(Fault::Heal(2));
            for machine in [1, 2] {
                merged_again(&mut world, seed, machine, 30_000);
            }
            assert_eq!(status(&world).live, 3, "seed {seed}: {}", brief(&world));
        }
    });
}

/// Goal: if the quorum is all learners, a stalled hidden page makes the others wait once for each fragment, not in each
/// round. The page belongs to the quorum again once it continues.
#[test]
fn a_hidden_page_that_stands_still_costs_each_fragment_one_wait() {
    for_seeds(20, |seed| {
        let mut toys = Toys::new(3);
        toys.syncer.quorum.updates_min = NonZeroU32::new(3).unwrap();
        let mut world = toys.world(seed);
        watch(&mut world, seed, 9_000);
        world.inject(Fault::Hide(2, true));
        watch(&mut world, seed, 1_000);
        let rounds_in = |world: &mut World, ms| {
            let before = status(world).rounds;
            watch(world, seed, ms);
            status(world).rounds - before
        };
        let with_it = rounds_in(&mut world, 20_000);
        world.inject(Fault::Freeze(2));
        watch(&mut world, seed, 20_000);
        let without_it = rounds_in(&mut world, 20_000);
        assert_eq!(status(&world).live, 3, "seed {seed}: it is not given up");
        assert!(5 * without_it > 4 * with_it, "seed {seed}: {without_it} rounds, {with_it} before");
        world.inject(Fault::Thaw(2));
        merged_again(&mut world, seed, 2, 10_000);
    });
}

/// Goal: learners that lost their syncer together come back within 16 s of its return, rarely two at the same time. In
/// the meantime they make few attempts.
#[test]
fn learners_do_not_come_back_in_lockstep() {
    for_seeds(10, |seed| {
        let mut toys = Toys::new(0);
        toys.machines = vec![MachineSpec { jitter: 0.0, ..MachineSpec::default() }; 16];
        let mut world = toys.world(seed);
        watch(&mut world, seed, 70_000);
        world.inject(Fault::CrashSyncer);
        world.run_for(60_000);
        for machine in world.machines() {
            // After a healthy minute the backoff begins with 0.25 s and stays at most 1 s for 10 s. Then it doubles
            // each time: 10 s hold 11 to 22 attempts, and the other 50 s 4 to 9.
            assert!((15..=31).contains(&machine.attempts), "seed {seed}: {machine:?}");
        }
        world.take_events();
        world.inject(Fault::RestartSyncer);
        let everyone = world.run_until(17_000, 500, |world| status(world).connected == 16);
        assert!(everyone, "seed {seed}: {} of 16", status(&world).connected);
        let joins = joins(&world.take_events());
        let crowded = |at: &Millis| joins.iter().filter(|other| other.0.abs_diff(at.0) <= 100).count();
        let most = joins.iter().map(crowded).max();
        assert!(most <= Some(5), "seed {seed}: {most:?} of 16 within 100 ms of another: {joins:?}");
        assert!(joins[15].since(joins[0]) > 5_000, "seed {seed}: {joins:?}");

        // A connection that lasted a minute is healthy: after the next loss the learner reconnects at once.
        watch(&mut world, seed, 70_000);
        world.inject(Fault::Break(3));
        let ms = merged_again(&mut world, seed, 3, 3_000);
        assert!(ms < 3_000, "seed {seed}: {ms} ms");
    });
}

/// Goal: a learner with a limited duty cycle takes that fraction of the steps, within a hundredth, and is merged as
/// reliably as before. Without the limit, it returns to full speed at once.
#[test]
fn a_paced_learner_takes_its_share_of_the_steps() {
    for_seeds(20, |seed| {
        for (share, part) in [(0.25, 4.0), (0.1, 10.0)] {
            let mut world = Toys::new(2).world(seed);
            watch(&mut world, seed, 20_000);
            world.inject(Fault::Pace(1, share));
            watch(&mut world, seed, 5_000);
            let before = steps(&world);
            watch(&mut world, seed, 200_000);
            let done: Vec<u64> =
                steps(&world).iter().zip(&before).map(|(after, before)| after - before).collect();
            let ratio = part * done[1] as f64 / done[0] as f64;
            assert!((ratio - 1.0).abs() < 0.03, "seed {seed}: {done:?} steps at {share}");
            assert!(status(&world).participation > 0.97, "seed {seed}: {}", brief(&world));
            world.inject(Fault::Pace(1, 1.0));
            let before = steps(&world)[1];
            watch(&mut world, seed, 1_000);
            assert!(steps(&world)[1] - before >= 8, "seed {seed}: it still rests");
        }
    });
}

/// Toy whose training fails in its `fails_at`-th step.
struct FailingTrainer {
    toy: Toy,
    steps: u32,
    fails_at: Option<u32>,
    device: bool,
}

impl Trainer for FailingTrainer {
    fn layout(&self) -> &Layout {
        self.toy.layout()
    }

    fn params(&self) -> &[f32] {
        self.toy.params()
    }

    fn params_mut(&mut self) -> &mut [f32] {
        self.toy.params_mut()
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        self.steps += 1;
        match self.fails_at == Some(self.steps) {
            true if self.device => Err(EngineError::Lost { reason: "the test says so".to_owned() }),
            true => Err(EngineError::NotFinite { loss: f32::NAN, grad_norm: f32::NAN }),
            false => self.toy.step(tokens, lr),
        }
    }

    fn describe(&self) -> String {
        "frail".to_owned()
    }
}

/// Goal: a learner whose training diverges, or whose device is lost, starts again as a newcomer and is merged again. A
/// learner whose device is lost repeatedly ends.
#[test]
fn a_learner_whose_training_fails_starts_again() {
    let frail = |seed, failures: u32, device| {
        let toys = Toys::new(2);
        let (run_spec, shards) = Toy::run(seed, 4, 4_000);
        let (syncer, shell, machines) = (toys.syncer, toys.shell, toys.machines);
        let theta = vec![0.0; Toy::layout().len()];
        let spec = WorldSpec { run: RunId(seed), run_spec, syncer, theta, shards, machines, shell };
        let mut made = 0;
        let make = move |machine| -> Box<dyn Trainer> {
            made += u32::from(machine == 1);
            // If it fails repeatedly, it fails before any of its updates can be merged.
            let fails_at = (machine == 1 && made <= failures).then_some(if failures > 1 { 1 } else { 100 });
            Box::new(FailingTrainer { toy: Toy::new(), steps: 0, fails_at, device })
        };
        World::new(seed, spec, Toy::layout(), Box::new(make)).expect("a run of toys")
    };
    for_seeds(10, |seed| {
        for device in [false, true] {
            let mut world = frail(seed, 1, device);
            watch(&mut world, seed, 12_000);
            assert!(world.machines()[1].afresh.is_some(), "seed {seed}: {:?}", world.machines()[1]);
            merged_again(&mut world, seed, 1, 5_000);
            assert_eq!(status(&world).learners_total, 2, "seed {seed}: it is the same learner");
        }
        let mut world = frail(seed, 100, true);
        watch(&mut world, seed, 140_000);
        let machine = &world.machines()[1];
        assert!(machine.stopped.is_some(), "seed {seed}: {machine:?}");
        assert_eq!(status(&world).live, 1, "seed {seed}: {}", brief(&world));
    });
}

/// Goal: a run that needs all learners goes on as soon as the last one is back, and stalls no longer than that.
#[test]
fn a_run_that_needs_all_learners_continues_with_the_last() {
    for_seeds(20, |seed| {
        let mut toys = Toys::new(2);
        let updates_min = NonZeroU32::new(2).expect("it is not 0");
        toys.syncer.quorum = QuorumPolicy { updates_min, ..QuorumPolicy::default() };
        let mut world = toys.world(seed);
        watch(&mut world, seed, 20_000);
        world.inject(Fault::Break(1));
        merged_again(&mut world, seed, 1, 5_000);
        world.take_events();
        watch(&mut world, seed, 10_000);
        let events = world.take_events();
        let merges = fates(&events).filter(|(.., fate)| matches!(fate, Fate::Merged { .. })).count();
        assert!(merges > 40, "seed {seed}: {merges} merges in 10 s");
    });
}
