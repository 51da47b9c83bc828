//! Simulated run with faults: `cargo run -p archipelago-sim --example killed_island`.
//!
//! Four machines train in virtual time. One is killed and restarted, and one is disconnected for a while. The other two
//! are unaffected: they take as many steps as without faults. The same seed gives the same run bit for bit.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use archipelago_sim::world::{Fault, MachineSpec, Millis, Violation, World};

fn main() -> Result<(), Violation> {
    let (calm, troubled) = (steps(false)?, steps(true)?);
    println!("steps without a fault: {calm:?}");
    println!("with machines 0 and 1 in trouble: {troubled:?}");
    Ok(())
}

/// Returns the number of steps that each machine takes in a minute.
fn steps(trouble: bool) -> Result<Vec<u64>, Violation> {
    let mut world = World::of_toys(1, vec![MachineSpec::default(); 4]);
    if trouble {
        world.plan(Millis(10_000), Fault::Kill(0));
        world.plan(Millis(30_000), Fault::Restart(0));
        world.plan(Millis(20_000), Fault::Partition(1));
        world.plan(Millis(40_000), Fault::Heal(1));
    }
    world.run_for(60_000);
    // The check fails if an update was lost, merged twice, or left without a fate.
    world.check()?;
    Ok(world.machines().iter().map(|machine| machine.steps).collect())
}

#[test]
fn other_machines_are_unaffected() {
    let (calm, troubled) =
        (steps(false).expect("no rule is broken"), steps(true).expect("no rule is broken"));
    assert!(troubled[0] < calm[0] * 3 / 4, "it was gone for a third of the time: {troubled:?}");
    assert!(troubled[1] > calm[1] * 9 / 10, "who is cut off trains on alone: {troubled:?}");
    for other in 2..4 {
        assert!(troubled[other] * 100 >= calm[other] * 99, "{calm:?}, {troubled:?}");
    }
}
