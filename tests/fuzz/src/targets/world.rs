//! Target for a simulated world with any faults in any order.

use archipelago_sim::world::{Ailment, Damage, Fault, Loss, Poison};
use archipelago_tests::swarm::Swarm;

use crate::script::Script;

/// Largest number of machines in a world, and of faults.
const MACHINES_MAX: u64 = 4;
const FAULTS_MAX: usize = 60;
/// Longest time between two faults, in milliseconds.
const GAP_MS_MAX: u64 = 4_000;

/// Runs a script of faults in a world. Every invariant of the world must hold after each fault.
pub fn run(data: &[u8]) {
    let mut script = Script(data);
    let seed = u64::from(script.short());
    let swarm = Swarm::of(seed, MACHINES_MAX);
    let mut world = swarm.world(seed);
    for _ in 0..FAULTS_MAX {
        if script.is_over() {
            break;
        }
        world.run_for(u64::from(script.short()) % GAP_MS_MAX);
        world.inject(fault(&mut script));
        if let Err(violation) = world.check() {
            panic!("seed {seed} at {} ms: {violation}", world.now());
        }
    }
    world.run_for(GAP_MS_MAX);
    if let Err(violation) = world.check() {
        panic!("seed {seed} in the end: {violation}");
    }
}

fn fault(script: &mut Script<'_>) -> Fault {
    let machine = script.below(MACHINES_MAX as usize) as u32;
    let value = script.byte();
    let is_on = value % 2 == 1;
    let losses = [Loss::Kept, Loss::Lost, Loss::Torn, Loss::Stale, Loss::Flipped];
    let faults = [
        Fault::Kill(machine),
        Fault::Vanish(machine),
        Fault::Restart(machine),
        Fault::Restart(machine),
        Fault::Freeze(machine),
        Fault::Thaw(machine),
        Fault::Crawl(machine, f64::from(value) / 16.0 + 0.1),
        Fault::Move(machine, u64::from(value) * 8),
        Fault::Break(machine),
        Fault::Partition(machine),
        Fault::Heal(machine),
        Fault::Swallow(machine),
        Fault::Pause(machine, is_on),
        Fault::Leave(machine),
        Fault::Poison(machine, Poison::ALL.get(usize::from(value) % 12).copied()),
        Fault::CrashSyncer,
        Fault::LosePower(losses[usize::from(value) % losses.len()]),
        Fault::RestartSyncer,
        Fault::RestartSyncer,
        Fault::Damage(Damage::ALL[usize::from(value) % Damage::ALL.len()]),
        Fault::Mend,
        Fault::DiskFails(is_on.then_some(Ailment::ALL[usize::from(value) % Ailment::ALL.len()])),
        Fault::TearSnapshot,
        Fault::BackUp,
        Fault::PutBack,
        Fault::Hide(machine, is_on),
        Fault::Hold(is_on),
        Fault::Pace(machine, (f64::from(value) / 255.0).max(0.001)),
        Fault::Drop(machine, u32::from(value) * 40),
        Fault::Finish,
    ];
    faults[script.below(faults.len())]
}
