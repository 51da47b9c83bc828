//! A week of a run in virtual time: stored state must not grow with time.
//!
//! `cargo xtask test --only week --count 28` runs that number of days.

use std::env;

use archipelago_core::driver::{Doubling, Waits};
use archipelago_core::wire::Millis;
use archipelago_sim::world::{Fault, Held, LinkSpec, MachineSpec, Rng, World};
use archipelago_tests::toys::{Toys, check, status};

const DAY_MS: u64 = 86_400_000;
/// Number of learners that come and go each day.
const REGULARS: u32 = 3;
/// Number of learners that come once each, for a quarter of an hour, in each week.
const VISITORS: u32 = 60;
/// Number of identities that the syncer remembers, fewer than come.
const IDENTITIES: u32 = 24;

/// Returns the world, and the schedule of arrivals and departures.
fn world(seed: u64, days: u64) -> World {
    let mut rng = Rng::stream(seed, 0x3ee4);
    let mut toys = Toys::new(0);
    for machine in 0..REGULARS + VISITORS {
        let is_regular = machine < REGULARS;
        // Visitors are too slow to be merged, so that the syncer may forget them.
        let step_ms = if is_regular { rng.between(8_000, 20_000) } else { DAY_MS };
        let starts_ms = if is_regular { 0 } else { u64::MAX / 2 };
        let link = LinkSpec { latency_ms: rng.between(5, 200), ..LinkSpec::default() };
        toys.machines.push(MachineSpec { step_ms, starts_ms, link, ..MachineSpec::default() });
    }
    toys.syncer.identities_max = IDENTITIES;
    toys.syncer.silent_ms_max = 180_000;
    toys.syncer.lease_ms = 600_000;
    toys.syncer.lease_idle_ms_max = 3_600_000;
    toys.shell.ping_ms = 60_000;
    toys.shell.snapshot_ms = 600_000;
    let patience = Doubling { first_ms: 300_000, longest_ms: 1_200_000 };
    toys.shell.waits = Waits { patience, ..Waits::default() };
    let mut world = toys.world(seed);
    for day in 0..days {
        let at = |rng: &mut Rng| Millis(day * DAY_MS + rng.below(DAY_MS * 9 / 10));
        for regular in 0..REGULARS {
            let leaves = at(&mut rng);
            let fault = if rng.chance(0.5) { Fault::Leave(regular) } else { Fault::Vanish(regular) };
            world.plan(leaves, fault);
            world.plan(leaves.after(rng.between(60_000, DAY_MS / 10)), Fault::Restart(regular));
        }
        let dies = at(&mut rng);
        world.plan(dies, Fault::CrashSyncer);
        world.plan(dies.after(rng.between(1_000, 60_000)), Fault::RestartSyncer);
        for visitor in (REGULARS..REGULARS + VISITORS).filter(|visitor| u64::from(*visitor) % 7 == day % 7) {
            let comes = at(&mut rng);
            world.plan(comes, Fault::Restart(visitor));
            world.plan(comes.after(900_000), Fault::Kill(visitor));
        }
    }
    world
}

/// Returns the size in bytes of the syncer's next snapshot without parameters.
fn record_bytes(world: &World) -> usize {
    let record = world.syncer().map(|syncer| serde_json::to_vec(&syncer.record_amid()).expect("plain data"));
    record.map_or(0, |record| record.len())
}

/// Goal: in a week with learners that come and go and a daily crash of the syncer, nothing is lost. Each day trains as
/// much as the one before, and the stored state at the end is as large as after the second day.
#[test]
fn a_week_takes_no_more_than_its_second_day() {
    let days =
        env::var("ARCHIPELAGO_TEST_COUNT").map_or(7, |days| days.parse().expect("the count is a number"));
    let seed = 7;
    let mut world = world(seed, days);
    let (mut most, mut rounds) = (Vec::new(), Vec::new());
    for _ in 0..days {
        let (mut held, mut bytes) = (Held::default(), 0);
        for _ in 0..24 * 4 {
            world.run_for(DAY_MS / 24 / 4);
            check(&world, seed);
            held = held.larger(world.held());
            bytes = bytes.max(record_bytes(&world));
            drop(world.take_events());
        }
        let before: u64 = rounds.iter().sum();
        most.push((held, bytes));
        rounds.push(status(&world).rounds - before);
        println!("{held:?}, {bytes} bytes of record, {} rounds", rounds[rounds.len() - 1]);
    }
    let (second, second_bytes) = most[1];
    for (day, &(held, bytes)) in most.iter().enumerate().skip(2) {
        // The number of planned events falls from day to day.
        assert!(held.planned <= second.planned, "day {day}: {held:?}, {second:?}");
        assert!(held.connections <= second.connections + 2, "day {day}: {held:?}, {second:?}");
        assert!(held.messages <= second.messages + 16, "day {day}: {held:?}, {second:?}");
        assert!(held.unsaved <= second.unsaved + 16, "day {day}: {held:?}, {second:?}");
        assert!(held.identities <= IDENTITIES as usize, "day {day}: {held:?}");
        assert!(bytes <= second_bytes * 2, "day {day}: {bytes} bytes, {second_bytes}");
    }
    let least = rounds.iter().min().expect("there are days");
    assert!(*least > 100, "{rounds:?}");
    assert!(status(&world).learners_total <= IDENTITIES);
}
