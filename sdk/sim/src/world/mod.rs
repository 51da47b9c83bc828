//! Simulation in virtual time of the real syncer and the real learners, with random numbers from a seed.
//!
//! A [`World`] adds only what surrounds the state machines: machines, links, clocks and disks. It drives
//! `diloco::Syncer` and `driver::LearnerDriver` exactly as the server and the native learner do, with encoded messages.
//! Duty cycles, backoff and timeouts are therefore the real ones. A checker verifies the invariants; see [`Violation`].
//!
//! ```
//! use archipelago_sim::world::{MachineSpec, World};
//!
//! let mut world = World::of_toys(1, vec![MachineSpec::default(); 3]);
//! world.run_for(10_000);
//! world.kill(2);
//! world.run_for(10_000);
//! world.check()?;
//! let status = world.status().expect("the syncer is up");
//! assert_eq!(status.live, 2);
//! assert!(status.participation > 0.9);
//! # Ok::<(), archipelago_sim::world::Violation>(())
//! ```

mod attacks;
mod audit;
mod clock;
mod disk;
mod event;
mod fault;
mod host;
mod link;
mod machine;
mod monitor;
mod net;
mod process;
mod receipt_log;
mod rng;
mod shadow_ledger;
mod spec;
mod step_lineage;
mod tape;
mod toy;
mod trace;
mod violation;

use std::collections::{BTreeMap, VecDeque};

use archipelago_core::diloco::syncer::{Event, Input, Status, Syncer, SyncerError};
use archipelago_core::diloco::trust::ContributionVerdict;
use archipelago_core::diloco::{Entry, Layout, MergeJob, MergeRule, QuorumPolicy};
use archipelago_core::driver;
use archipelago_core::wire::{ConnId, FragmentId, LearnerId};

use audit::Audit;
use disk::{Disk, DiskSnapshot};
use event::WorldEvent;
use host::{SyncerProcess, TapeState};
use link::LinkDirection;
use machine::Machine;
use monitor::WorldMonitor;
use net::Conn;

pub use archipelago_core::wire::Millis;

pub use attacks::Attack;
pub(crate) use clock::Queue;
pub use disk::{Ailment, Loss};
pub use fault::{Fault, Poison, Storm};
pub use link::LinkSpec;
pub use machine::MachineStatus;
pub use monitor::{Harm, LossOf, MonitorSpec};
pub use process::MakeTrainer;
pub use rng::Rng;
pub use spec::{MachineSpec, ShellSpec, SyncerPace, WorldSpec};
pub use tape::Damage;
pub use toy::Toy;
pub use trace::{Cargo, Parcel, Trace};
pub use violation::Violation;

/// Maximum number of events kept for [`World::take_events`]; older ones are discarded.
const EVENTS_MAX: usize = 1 << 20;

/// Simulation in virtual time of the real syncer and the real learners.
///
/// A seed and a sequence of calls determine every bit of the run; see [`Self::digest`].
pub struct World {
    now: Millis,
    spec: WorldSpec,
    layout: Layout,
    make: Box<MakeTrainer>,
    queue: Queue<WorldEvent>,
    /// Random number generator of the network.
    rng: Rng,
    host: Option<SyncerProcess>,
    /// Number of the current syncer process.
    generation: u32,
    disk: Disk,
    record: TapeState,
    /// Whether a syncer is reading its disk to start.
    starting: bool,
    /// Number of completed recoveries.
    recoveries: u64,
    /// Reasons of failed starts, oldest first.
    refusals: Vec<String>,
    /// Time of the syncer's clock when its core was last driven.
    syncer_now: Millis,
    /// Connections that the core has just closed.
    hung_up: Vec<ConnId>,
    /// Connections whose send queue has just overflowed.
    slow: Vec<ConnId>,
    /// Number of connections closed because of a full send queue.
    slow_readers: u64,
    machines: Vec<Machine>,
    conns: BTreeMap<ConnId, Conn>,
    conns_made: u64,
    audit: Audit,
    events: VecDeque<(Millis, Event)>,
    /// Recorded traces; `None` unless tracing is on.
    traces: Option<VecDeque<Trace>>,
    /// Recorded merge jobs; `None` before [`Self::watch_merges`].
    merges: Option<VecDeque<MergeJob>>,
    /// Recorded decisions; `None` before [`Self::watch_entries`].
    entries: Option<Vec<Entry>>,
    /// Latest body of each fragment from any honest learner, if any machine was ever poisoned.
    overheard: BTreeMap<FragmentId, Vec<u8>>,
    /// Loss monitor; `None` unless the loss is watched.
    monitor: Option<WorldMonitor>,
    finished: bool,
}

impl World {
    /// Creates a world at 0 ms. `make` creates the trainer of each process, given the machine's index.
    ///
    /// # Errors
    /// Those of [`Syncer::new`].
    pub fn new(
        seed: u64,
        spec: WorldSpec,
        layout: Layout,
        make: Box<MakeTrainer>,
    ) -> Result<Self, SyncerError> {
        let syncer = Syncer::new(spec.run, spec.run_spec.clone(), spec.syncer, &layout, &spec.theta)?;
        let machines = (0..).zip(&spec.machines).map(|(i, machine)| Machine::new(seed, i, *machine));
        let machines: Vec<Machine> = machines.collect();
        let audit = Audit::new(&syncer);
        let (record, states) = (syncer.record_amid(), syncer.states().cloned().collect());
        let first = DiskSnapshot { seq: 0, record, states };
        let fragments = syncer.fragments().count();
        let mut world = Self {
            now: Millis(0),
            layout,
            make,
            queue: Queue::new(),
            rng: Rng::stream(seed, 1),
            host: None,
            generation: 0,
            disk: Disk::new(first, Rng::stream(seed, 3)),
            record: TapeState::new(0, fragments),
            starting: false,
            recoveries: 0,
            refusals: Vec::new(),
            syncer_now: Millis(0),
            hung_up: Vec::new(),
            slow: Vec::new(),
            slow_readers: 0,
            machines,
            conns: BTreeMap::new(),
            conns_made: 0,
            audit,
            events: VecDeque::new(),
            traces: None,
            merges: None,
            entries: None,
            overheard: BTreeMap::new(),
            monitor: None,
            finished: false,
            spec,
        };
        world.start_host(syncer);
        for machine in 0..world.machines.len() as u32 {
            let starts = Millis(world.spec.machines[machine as usize].starts_ms);
            world.plan(starts, Fault::Restart(machine));
        }
        world.plan_snapshot();
        Ok(world)
    }

    /// Returns the time since the beginning.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Schedules `fault` for `at`; a time in the past means now.
    pub fn plan(&mut self, at: Millis, fault: Fault) {
        self.queue.plan(at.max(self.now), WorldEvent::Fault(fault));
    }

    /// Processes all events of the next `ms` milliseconds.
    pub fn run_for(&mut self, ms: u64) {
        let until = self.now.after(ms);
        while let Some((at, event)) = self.queue.next_until(until) {
            self.now = at;
            self.process_event(event);
        }
        self.now = until;
    }

    /// Advances the time until `done` returns true, or by `ms_max` milliseconds at most. Calls `done` every `every_ms`
    /// milliseconds. Returns true if `done` did.
    pub fn run_until(&mut self, ms_max: u64, every_ms: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now.after(ms_max);
        while !done(self) {
            if self.now >= end {
                return false;
            }
            self.run_for(every_ms.max(1).min(end.since(self.now)));
        }
        true
    }

    /// Returns the syncer's status, or `None` while it is down.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.host.as_ref().map(|host| host.core.status())
    }

    /// Returns the syncer's core, or `None` while it is down.
    #[must_use]
    pub fn syncer(&self) -> Option<&Syncer> {
        self.host.as_ref().map(|host| &host.core)
    }

    /// Returns the true state of each machine, whatever the syncer knows.
    #[must_use]
    pub fn machines(&self) -> Vec<MachineStatus> {
        self.machines.iter().map(MachineStatus::of).collect()
    }

    /// Returns θ of a machine's learner, `[layout.len()]`, if it has joined a run.
    #[must_use]
    pub fn params(&self, machine: u32) -> Option<&[f32]> {
        self.machines.get(machine as usize)?.process.as_ref()?.params()
    }

    /// Returns the number of connections that the syncer closed because the reader was too slow.
    #[must_use]
    pub fn slow_readers(&self) -> u64 {
        self.slow_readers
    }

    /// Returns the number of recoveries from the disk.
    #[must_use]
    pub fn recoveries(&self) -> u64 {
        self.recoveries
    }

    /// Returns the number of failed operations of the syncer's disk.
    #[must_use]
    pub fn disk_failures(&self) -> u64 {
        self.disk.failures
    }

    /// Returns the reasons of failed starts, oldest first. Each names the damage.
    #[must_use]
    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// Returns the number of merged updates whose learners were notified.
    #[must_use]
    pub fn merges_told(&self) -> u64 {
        self.audit.notified_merges()
    }

    /// Returns true if the run has ended and every learner was notified.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Removes and returns the events since the last call, oldest first, at most about a million.
    pub fn take_events(&mut self) -> Vec<(Millis, Event)> {
        self.events.drain(..).collect()
    }

    /// Checks all invariants.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(&self) -> Result<(), Violation> {
        self.audit.verdict()?;
        self.check_starving()?;
        let Some(host) = &self.host else { return Ok(()) };
        let honest = |machine: &Machine| (!machine.forged).then(|| machine.tokens());
        let trained: BTreeMap<String, u64> = (0..)
            .zip(&self.machines)
            .filter_map(|(i, machine)| Some((Machine::name(i), honest(machine)?)))
            .collect();
        self.audit.check_accounts(&host.core, |name| trained.get(name).copied())?;
        for (machine, process) in self.machines.iter().enumerate() {
            let Some(process) = &process.process else { continue };
            self.audit.check_hats(machine as u32, &process.hats())?;
            let (there, machine) = (&self.machines[machine], machine as u32);
            if let Some(lineage) = process.lineage.as_ref().filter(|_| !there.forged) {
                self.audit.check_windows((machine, there.life), lineage)?;
            }
        }
        Ok(())
    }

    /// Returns the SHA-256 of all fates and merges so far, with Θ, Θ̂ and momentum after each merge.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.audit.digest()
    }

    fn keep_event(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back((self.now, event));
    }

    fn learner_input(&mut self, machine: u32, input: driver::Input) {
        let now = self.now;
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        process.take(now, input);
        self.drive_learner(machine);
    }
}

impl World {
    /// Sets the quorum policy and the merge rule of the syncer, for this process and later ones.
    pub fn retune_syncer(&mut self, quorum: QuorumPolicy, merge: MergeRule) {
        (self.spec.syncer.quorum, self.spec.syncer.merge) = (quorum, merge);
        let Some(host) = &mut self.host else { return };
        host.core.retune(quorum, merge);
        self.syncer_input(Input::Timeout);
    }

    /// Sets step time, jitter and link of machine `index`. The current step and messages in transit are unaffected.
    /// Does nothing if there is no such machine.
    pub fn retune_machine(&mut self, index: u32, step_ms: u64, jitter: f64, link: LinkSpec) {
        let Some(machine) = self.machines.get_mut(index as usize) else { return };
        (machine.spec.step_ms, machine.spec.jitter, machine.spec.link) = (step_ms, jitter, link);
        machine.link.set(link);
    }
}

/// Sizes of a world's collections at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of scheduled events.
    pub planned: usize,
    /// Number of connections with at least one open end.
    pub connections: usize,
    /// Number of messages queued on links.
    pub messages: usize,
    /// Number of decisions that are not yet on the syncer's disk.
    pub unsaved: u64,
    /// Number of learner keys known to the syncer.
    pub identities: usize,
}

impl Held {
    /// Returns the elementwise maximum.
    #[must_use]
    pub fn larger(self, other: Self) -> Self {
        Self {
            planned: self.planned.max(other.planned),
            connections: self.connections.max(other.connections),
            messages: self.messages.max(other.messages),
            unsaved: self.unsaved.max(other.unsaved),
            identities: self.identities.max(other.identities),
        }
    }
}

impl World {
    /// Returns the current sizes of the world's collections.
    pub fn held(&mut self) -> Held {
        let mut messages = 0;
        for machine in &mut self.machines {
            for way in [LinkDirection::Up, LinkDirection::Down] {
                let (control, bulk) = machine.link.lane(way).waiting();
                messages += control + bulk;
            }
        }
        Held {
            planned: self.queue.len(),
            connections: self.conns.len(),
            messages,
            unsaved: self.record.gate.unsaved(),
            identities: self.host.as_ref().map_or(0, |host| host.core.ledger().len()),
        }
    }
}

/// Maximum number of merge jobs kept for [`World::take_merges`]; older ones are discarded.
const MERGES_MAX: usize = 1_024;

impl World {
    /// Begins to keep merge jobs for [`Self::take_merges`], which costs memory.
    pub fn watch_merges(&mut self) {
        self.merges.get_or_insert_default();
    }

    /// Removes and returns the merge jobs since the last call, oldest first, at most 1,024.
    pub fn take_merges(&mut self) -> Vec<MergeJob> {
        self.merges.as_mut().map(|merges| merges.drain(..).collect()).unwrap_or_default()
    }

    /// Begins to keep the syncer's decisions for [`Self::take_entries`], which costs memory.
    pub fn watch_entries(&mut self) {
        self.entries.get_or_insert_default();
    }

    /// Removes and returns the syncer's decisions since the last call, oldest first.
    pub fn take_entries(&mut self) -> Vec<Entry> {
        self.entries.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Passes to the syncer the verdict whether the updates of `learner` show real training.
    pub fn judge(&mut self, learner: LearnerId, verdict: ContributionVerdict) {
        self.syncer_input(Input::ContributionVerdict { learner, verdict });
    }

    fn note_entry(&mut self, entry: &Entry) {
        if let Some(entries) = &mut self.entries {
            entries.push(entry.clone());
        }
    }

    fn note_merge(&mut self, job: &MergeJob) {
        let Some(merges) = &mut self.merges else { return };
        if merges.len() == MERGES_MAX {
            merges.pop_front();
        }
        merges.push_back(job.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(seed: u64, machines: usize) -> World {
        World::of_toys(seed, vec![MachineSpec::default(); machines])
    }

    #[test]
    fn a_world_without_faults_trains_and_merges() {
        let mut world = world(1, 3);
        world.run_for(60_000);
        world.check().unwrap();
        let status = world.status().unwrap();
        assert!(status.participation > 0.97, "{status:#?}");
        assert!(status.rounds > 250, "{status:#?}");
        let loss = Toy::loss(&world.syncer().unwrap().theta().unwrap());
        assert!(loss < 0.05, "{loss}");
    }

    #[test]
    fn one_seed_leads_to_one_history() {
        let digest = |seed| {
            let mut world = world(seed, 3);
            world.run_for(5_000);
            world.kill(1);
            world.run_for(5_000);
            world.digest()
        };
        assert_eq!(digest(5), digest(5));
        assert_ne!(digest(5), digest(6));
    }
}
