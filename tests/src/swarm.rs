//! Worlds with random, unusual configurations, crowds and faults, from a seed.

use std::num::NonZeroU32;

use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::diloco::{MergeRule, QuorumPolicy};
use archipelago_core::driver::{Doubling, Waits};
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec, Millis};
use archipelago_sim::world::{
    Ailment, Fault, LinkSpec, Loss, MachineSpec, Rng, ShellSpec, Storm, SyncerPace, Toy, World, WorldSpec,
};

use crate::toys::Toys;

/// Number of parameters of a toy.
const VALUES: u64 = 220;
/// Rate of the slowest link, in bytes per second: 0.25 Mbit/s.
const RATE_MIN: u64 = 31_250;
/// Longest transfer time of all parameters on a link at two bytes each, in milliseconds.
const BASE_MS_MAX: u64 = 10_000;

/// Configuration of a random world.
pub struct Swarm {
    /// Machines, syncer and shells.
    pub toys: Toys,
    /// Exchange between learners and syncer.
    pub exchange: ExchangeSpec,
}

impl Swarm {
    /// Returns the configuration for `seed`, with up to `machines_max` machines.
    ///
    /// # Panics
    /// Never, for any seed.
    #[must_use]
    pub fn of(seed: u64, machines_max: u64) -> Self {
        let mut rng = Rng::stream(seed, 0x5a4);
        let mut toys = Toys::new(0);
        toys.data = (4, rng.between(300, 1_500) as u32);
        toys.shell = shell(&mut rng);
        let count = rng.between(1, machines_max);
        let is_usual = rng.chance(0.2);
        toys.machines = (0..count).map(|_| machine(&mut rng, toys.shell.weight)).collect();
        toys.syncer = if is_usual { SyncerConfig::default() } else { syncer(&mut rng, count as u32) };
        // Links count each body several times, so limits in bytes are scaled down to match.
        let (downlink, weight) = (&mut toys.syncer.downlink, u64::from(toys.shell.weight));
        downlink.window_bytes_min /= weight;
        downlink.window_bytes_first /= weight;
        downlink.unconfirmed_bytes_min /= weight;
        downlink.history_bytes_min /= weight;
        let exchange = if is_usual { usual_exchange() } else { exchange(&mut rng) };
        // The simulation delivers a body as a whole; in reality each of its chunks shows that the peer is alive.
        let value_bytes = if exchange.code == Code::F32 { 4 } else { 1 };
        let body_bytes = value_bytes * VALUES.div_ceil(exchange.fragments.into()) * weight;
        let rates = toys.machines.iter().filter_map(|machine| machine.link.bytes_per_s);
        let silent_ms_min = rates.min().map_or(0, |slowest| 2 * 1_000 * body_bytes / slowest);
        toys.syncer.silent_ms_max = toys.syncer.silent_ms_max.max(silent_ms_min);
        let Doubling { first_ms, longest_ms } = &mut toys.shell.waits.patience;
        *first_ms = (*first_ms).max(silent_ms_min);
        *longest_ms = (*longest_ms).max(*first_ms);
        Self { toys, exchange }
    }

    /// Creates the world.
    ///
    /// # Panics
    /// If the run is invalid.
    #[must_use]
    pub fn world(&self, seed: u64) -> World {
        let toys = &self.toys;
        let (mut run_spec, shards) = Toy::run(seed, toys.data.0, toys.data.1);
        run_spec.exchange = self.exchange;
        let spec = WorldSpec {
            run: archipelago_core::wire::RunId(seed),
            run_spec,
            syncer: toys.syncer,
            theta: vec![0.0; Toy::layout().len()],
            shards,
            machines: toys.machines.clone(),
            shell: toys.shell,
        };
        World::new(seed, spec, Toy::layout(), Box::new(|_| Box::new(Toy::new()))).expect("a run of toys")
    }

    /// Returns, for each machine, the time in milliseconds within which its learner is merged again if nothing hinders
    /// it.
    ///
    /// It is the sum of these waits:
    /// - the reconnection;
    /// - parameters, text and a few updates on the learner's own link;
    /// - its own steps;
    /// - its turn among the others, for each fragment;
    /// - the learners that a merge waits for.
    #[must_use]
    pub fn patience_ms(&self) -> Vec<u64> {
        let Toys { machines, syncer, shell, data } = &self.toys;
        let shard_bytes = 16 * u64::from(data.1 + 1);
        let base_bytes = 4 * VALUES * u64::from(shell.weight);
        let own_ms = |machine: &MachineSpec| {
            let LinkSpec { latency_ms, jitter_ms, bytes_per_s, loss } = machine.link;
            let transfer_ms = bytes_per_s.map_or(0, |rate| 1_000 * (base_bytes + 4 * shard_bytes) / rate);
            // Lost data is sent again after a doubling wait; six losses in a row are one in a million.
            let resend_ms = if loss > 0.0 { 16 * (2 * latency_ms).max(200) } else { 0 };
            12 * (2 * latency_ms + jitter_ms) + 4 * transfer_ms + resend_ms
        };
        let slowest_ms = machines.iter().map(|machine| machine.step_ms).max().unwrap_or(0) * 2;
        let turn_ms = u64::from(self.exchange.sync_every) * slowest_ms;
        let turns = u64::from((machines.len() as u32).div_ceil(syncer.cohort_max.max(1)));
        let farthest_ms = machines.iter().map(own_ms).max().unwrap_or(0);
        let waits = shell.waits.patience.longest_ms + shell.waits.backoff.longest_ms + syncer.silent_ms_max;
        let common_ms = 10_000 + waits + 4 * turns * turn_ms + syncer.quorum.patience_ms_min;
        machines.iter().map(|machine| common_ms + own_ms(machine) + farthest_ms).collect()
    }

    /// Returns the faults in `from..until` and their repairs, by time.
    #[must_use]
    pub fn troubles(&self, seed: u64, from: Millis, until: Millis) -> Vec<(Millis, Fault)> {
        let mut rng = Rng::stream(seed, 0x5a5);
        let machines = self.toys.machines.len() as u32;
        let storm =
            Storm { faults_per_h: 1_500.0, repair_ms_min: 50, repair_ms_max: 6_000, syncer: rng.chance(0.5) };
        let mut plan = storm.plan(seed, machines, from, until);
        let at = |rng: &mut Rng| Millis(rng.between(from.0, until.0));
        for _ in 0..rng.below(4) {
            let (begin, machine) = (at(&mut rng), rng.below(machines.into()) as u32);
            let end = begin.after(rng.between(50, 8_000));
            match rng.below(7) {
                0 => plan.extend([(begin, Fault::Hide(machine, true)), (end, Fault::Hide(machine, false))]),
                1 => plan.extend([(begin, Fault::Pace(machine, 0.3)), (end, Fault::Pace(machine, 1.0))]),
                2 => plan.extend([(begin, Fault::Pause(machine, true)), (end, Fault::Pause(machine, false))]),
                3 => {
                    let ailment = Ailment::ALL[rng.below(Ailment::ALL.len() as u64) as usize];
                    plan.extend([(begin, Fault::DiskFails(Some(ailment))), (end, Fault::DiskFails(None))]);
                }
                // All at once, as when a router restarts.
                4 => {
                    plan.extend((0..machines).map(|machine| (begin, Fault::Partition(machine))));
                    plan.extend((0..machines).map(|machine| (end, Fault::Heal(machine))));
                }
                5 => plan.extend(crashes(&mut rng, begin)),
                _ => {
                    plan.extend([(begin, Fault::BackUp), (end, Fault::CrashSyncer), (end, Fault::PutBack)]);
                    plan.push((end.after(rng.between(1_000, 3_000)), Fault::RestartSyncer));
                }
            }
        }
        plan.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Repairs all faults of `world`.
    pub fn repair(&self, world: &mut World) {
        world.inject(Fault::DiskFails(None));
        world.inject(Fault::RestartSyncer);
        for machine in 0..self.toys.machines.len() as u32 {
            for repair in [
                Fault::Restart(machine),
                Fault::Thaw(machine),
                Fault::Heal(machine),
                Fault::Crawl(machine, 1.0),
                Fault::Pace(machine, 1.0),
                Fault::Hide(machine, false),
                Fault::Pause(machine, false),
            ] {
                world.inject(repair);
            }
        }
    }
}

/// Returns two crashes in a row. The second one may come before the first snapshot after the restart. The newest
/// snapshot may be damaged, as in a power loss; the start then takes seconds.
fn crashes(rng: &mut Rng, begin: Millis) -> Vec<(Millis, Fault)> {
    let (mut at, mut plan) = (begin, Vec::new());
    for _ in 0..2 {
        let loss = Loss::ALL[rng.below(Loss::ALL.len() as u64) as usize];
        plan.push((at, if rng.chance(0.5) { Fault::CrashSyncer } else { Fault::LosePower(loss) }));
        if rng.chance(0.5) {
            plan.push((at, Fault::TearSnapshot));
            at = at.after(1_000);
        }
        at = at.after(rng.between(1, 1_000));
        plan.push((at, Fault::RestartSyncer));
        at = at.after(rng.between(0, 2_000));
    }
    plan
}

fn machine(rng: &mut Rng, weight: u32) -> MachineSpec {
    let is_far = rng.chance(0.3);
    let latency_ms = if is_far { rng.between(100, 1_500) } else { rng.between(0, 100) };
    let jitter_ms = rng.between(0, 20 + latency_ms / 4);
    // Log-uniform: each doubling of the rate is equally likely.
    let slowest = RATE_MIN.max(2 * VALUES * u64::from(weight) * 1_000 / BASE_MS_MAX);
    let rate = (slowest << rng.below(6)) + rng.below(slowest);
    let bytes_per_s = rng.chance(0.5).then_some(rate);
    let loss = if rng.chance(0.2) { 0.03 * rng.unit() } else { 0.0 };
    MachineSpec {
        step_ms: rng.between(40, 400),
        jitter: 0.5 * rng.unit(),
        link: LinkSpec { latency_ms, jitter_ms, bytes_per_s, loss },
        starts_ms: if rng.chance(0.3) { rng.between(0, 10_000) } else { 0 },
        // Half a thousandth is more than the drift of a bad crystal.
        clock_rate: if rng.chance(0.5) { 1.0 + 0.001 * (rng.unit() - 0.5) } else { 1.0 },
        batch: None,
    }
}

fn shell(rng: &mut Rng) -> ShellSpec {
    let patience = Doubling { first_ms: rng.between(6_000, 15_000), longest_ms: 20_000 };
    ShellSpec {
        merge_ms: rng.between(0, 150),
        pace: SyncerPace { input_us: rng.between(0, 2_000), ..SyncerPace::default() },
        clock_rate: if rng.chance(0.5) { 1.0 + 0.001 * (rng.unit() - 0.5) } else { 1.0 },
        weight: [1, 1, 100, 700][rng.below(4) as usize],
        socket_bytes: [0, 4 << 10, 64 << 10][rng.below(3) as usize],
        http_failures: if rng.chance(0.2) { 0.1 } else { 0.0 },
        ping_ms: 1_000,
        waits: Waits { backoff: Doubling { first_ms: 100, longest_ms: 2_000 }, patience, ..Waits::default() },
        snapshot_ms: rng.between(500, 5_000),
        save_ms: rng.between(0, 500),
        sync_ms: rng.between(0, 30),
        start_ms: rng.between(0, 200),
        ..ShellSpec::default()
    }
}

fn syncer(rng: &mut Rng, machines: u32) -> SyncerConfig {
    let updates_min = NonZeroU32::new(rng.between(1, 3) as u32).expect("at least 1");
    let grace_ratio = if rng.chance(0.6) { 0.8 } else { rng.unit() };
    let rounds_in_flight = rng.between(1, 4) as u32;
    let whole = SyncerConfig::default();
    SyncerConfig {
        quorum: QuorumPolicy { updates_min, grace_ratio, rounds_in_flight, ..QuorumPolicy::default() },
        merge: match rng.unit() {
            share if share < 0.5 => MergeRule::Radial,
            share if share < 0.7 => MergeRule::Flat,
            _ => MergeRule::Mean,
        },
        cohort_max: if rng.chance(0.3) { rng.between(1, machines.into()) as u32 } else { whole.cohort_max },
        silent_ms_max: rng.between(6_000, 20_000),
        lease_ms: rng.between(2_000, 30_000),
        lease_idle_ms_max: rng.between(15_000, 60_000),
        ..whole
    }
}

/// Returns the default exchange.
fn usual_exchange() -> ExchangeSpec {
    let apply = ApplyPolicy::Keep { residue: true };
    ExchangeSpec { fragments: 8, sync_every: 24, block: 256, code: Code::Int4, apply }
}

fn exchange(rng: &mut Rng) -> ExchangeSpec {
    let code = match rng.below(10) {
        0 => Code::E3m0,
        1 => Code::Int2,
        2 => Code::Int1,
        3 => Code::F32,
        _ => Code::Int4,
    };
    // Not the two policies that remember a position. Another version may arrive before the receipt. The position is
    // then invalid, and its progress would be merged twice.
    let apply = match rng.below(10) {
        0 => ApplyPolicy::Overwrite,
        _ => ApplyPolicy::Keep { residue: true },
    };
    // The last one is the default. A code of 1 bit needs at least 32.
    let block = [32, 64, 256][rng.below(3) as usize];
    ExchangeSpec {
        fragments: rng.between(1, 8) as u16,
        sync_every: rng.between(4, 30) as u32,
        block,
        code,
        apply,
    }
}
