//! The world itself: what happens when.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::audit::Audit;
use super::host::{Host, Snapshot};
use super::link::Lane;
use super::machine::Machine;
use super::net::{Conn, Payload};
use super::process::MakeTrainer;
use super::queue::Queue;
use super::{Fault, MachineStatus, Rng, Trace, Violation, WorldSpec};
use crate::diloco::Layout;
use crate::diloco::learner;
use crate::diloco::syncer::{Event, Input, Status, Syncer, SyncerError};
use crate::diloco::{FragmentState, MergeError, MergeOutcome};
use crate::wire::{ConnId, FragmentId, Millis, Version};

/// Events kept until they are taken; the oldest go first.
const EVENTS_MAX: usize = 1 << 20;

/// Something that happens at its time.
#[derive(Debug)]
pub(super) enum Happening {
    Fault(Fault),
    /// A process tries to connect.
    Dial {
        machine: u32,
        life: u32,
    },
    /// Its request reaches the syncer.
    Knock {
        machine: u32,
        life: u32,
    },
    /// The answer reaches the process: a connection, or none.
    Dialled {
        machine: u32,
        life: u32,
        conn: Option<ConnId>,
    },
    ToSyncer {
        conn: ConnId,
        payload: Payload,
    },
    ToLearner {
        conn: ConnId,
        payload: Payload,
    },
    /// One end learns that the connection is gone.
    LostAtSyncer {
        conn: ConnId,
    },
    LostAtLearner {
        conn: ConnId,
    },
    /// A ping reaches the learner's end of the connection, whose kernel and shell answer.
    Ping {
        conn: ConnId,
    },
    Pong {
        conn: ConnId,
    },
    /// The learner's shell finds that nothing came for too long, if the partition still stands.
    Suspect {
        conn: ConnId,
    },
    StepDone {
        machine: u32,
        life: u32,
        step_ms: u64,
    },
    WakeLearner {
        machine: u32,
        life: u32,
        at: Millis,
    },
    WakeSyncer {
        generation: u32,
        at: Millis,
    },
    MergeDone {
        generation: u32,
        result: Box<Result<MergeOutcome, (FragmentId, FragmentState, MergeError)>>,
    },
    /// A request for a fragment reaches the syncer.
    AskFragment {
        machine: u32,
        life: u32,
        fragment: FragmentId,
        version: Version,
    },
    /// Its answer reaches the process.
    FragmentCame {
        machine: u32,
        life: u32,
        fragment: FragmentId,
        answer: Option<(Version, Arc<Vec<f32>>)>,
    },
    /// A request for a shard reaches the syncer.
    AskShard {
        machine: u32,
        life: u32,
        shard: u32,
    },
    ShardCame {
        machine: u32,
        life: u32,
        shard: u32,
        here: bool,
    },
    Snapshot {
        generation: u32,
    },
}

/// A seeded world in virtual time around the real syncer and learner cores.
///
/// One seed and one sequence of calls lead to one history, to the bit: see [`Self::digest`].
pub struct World {
    pub(super) now: Millis,
    pub(super) spec: WorldSpec,
    pub(super) layout: Layout,
    pub(super) make: Box<MakeTrainer>,
    pub(super) queue: Queue<Happening>,
    /// Chance on the network.
    pub(super) rng: Rng,
    pub(super) host: Option<Host>,
    /// Counts syncer processes.
    pub(super) generation: u32,
    pub(super) snapshot: Snapshot,
    pub(super) machines: Vec<Machine>,
    pub(super) conns: BTreeMap<ConnId, Conn>,
    pub(super) conns_made: u64,
    pub(super) audit: Audit,
    pub(super) events: VecDeque<(Millis, Event)>,
    /// `None` while nobody looks.
    pub(super) traces: Option<VecDeque<Trace>>,
    pub(super) finished: bool,
}

impl World {
    /// A world that begins at 0 ms. `make` makes the trainer of each process, given its machine.
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
        let snapshot = Snapshot::of(&syncer, audit.books()).expect("nothing is being merged yet");
        let mut world = Self {
            now: Millis(0),
            layout,
            make,
            queue: Queue::new(),
            rng: Rng::stream(seed, 1),
            host: Some(Host::new(syncer, Millis(0))),
            generation: 0,
            snapshot,
            machines,
            conns: BTreeMap::new(),
            conns_made: 0,
            audit,
            events: VecDeque::new(),
            traces: None,
            finished: false,
            spec,
        };
        for machine in 0..world.machines.len() as u32 {
            let starts = Millis(world.spec.machines[machine as usize].starts_ms);
            world.plan(starts, Fault::Restart(machine));
        }
        world.plan_snapshot();
        Ok(world)
    }

    /// The time, in milliseconds from the beginning.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Plans `fault` for `at`, or for now if that has passed.
    pub fn plan(&mut self, at: Millis, fault: Fault) {
        self.queue.plan(at.max(self.now), Happening::Fault(fault));
    }

    /// Lets `ms` milliseconds pass.
    pub fn run_for(&mut self, ms: u64) {
        let until = self.now.after(ms);
        while let Some((at, happening)) = self.queue.next_until(until) {
            self.now = at;
            self.happen(happening);
        }
        self.now = until;
    }

    /// Lets time pass until `done`, asked every `every_ms`, or until `ms_max` have passed. Whether it
    /// was done.
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

    /// The syncer's account of the run; `None` while it is down.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.host.as_ref().map(|host| host.core.status())
    }

    /// The syncer's core; `None` while it is down.
    #[must_use]
    pub fn syncer(&self) -> Option<&Syncer> {
        self.host.as_ref().map(|host| &host.core)
    }

    /// What is true of each machine, whatever the syncer knows of it.
    #[must_use]
    pub fn machines(&self) -> Vec<MachineStatus> {
        self.machines.iter().map(MachineStatus::of).collect()
    }

    /// θ of a machine's learner, `[layout.len()]`, if it has one.
    #[must_use]
    pub fn params(&self, machine: u32) -> Option<&[f32]> {
        self.machines.get(machine as usize)?.process.as_ref()?.params()
    }

    /// Whether the run ended: everyone was told, nothing more comes.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Events since this was asked last, the oldest first; at most about a million are kept.
    pub fn take_events(&mut self) -> Vec<(Millis, Event)> {
        self.events.drain(..).collect()
    }

    /// The first invariant that was broken, if any.
    ///
    /// # Errors
    /// Each variant of [`Violation`].
    pub fn check(&self) -> Result<(), Violation> {
        self.audit.verdict()?;
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
        }
        Ok(())
    }

    /// SHA-256 of all that was decided and merged so far: every fate, and Θ and Θ̂ after every merge.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.audit.digest()
    }

    pub(super) fn note(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back((self.now, event));
    }

    fn happen(&mut self, happening: Happening) {
        let Some(happening) = self.hold_up(happening) else { return };
        match happening {
            Happening::Fault(fault) => self.inject(fault),
            Happening::Dial { machine, life } => self.dial(machine, life),
            Happening::Knock { machine, life } => self.knock(machine, life),
            Happening::Dialled { machine, life, conn } => self.dialled(machine, life, conn),
            Happening::ToSyncer { conn, payload } => self.deliver_up(conn, payload),
            Happening::ToLearner { conn, payload } => self.deliver_down(conn, payload),
            Happening::LostAtSyncer { conn } => self.lost_at_syncer(conn),
            Happening::LostAtLearner { conn } => self.lost_at_learner(conn),
            Happening::Ping { conn } => self.ping(conn),
            Happening::Pong { conn } => self.pong(conn),
            Happening::Suspect { conn } => self.suspect(conn),
            Happening::StepDone { machine, life, step_ms } => self.step_done(machine, life, step_ms),
            Happening::WakeLearner { machine, life, at } => self.wake_learner(machine, life, at),
            Happening::WakeSyncer { generation, at } => self.wake_syncer(generation, at),
            Happening::MergeDone { generation, result } => self.merge_done(generation, *result),
            Happening::AskFragment { machine, life, fragment, version } => {
                self.ask_fragment(machine, life, fragment, version);
            }
            Happening::FragmentCame { machine, life, fragment, answer } => {
                self.fragment_came(machine, life, fragment, answer);
            }
            Happening::AskShard { machine, life, shard } => self.ask_shard(machine, life, shard),
            Happening::ShardCame { machine, life, shard, here } => {
                self.shard_came(machine, life, shard, here)
            }
            Happening::Snapshot { generation } => self.take_snapshot(generation),
        }
    }

    /// Puts aside what a frozen process or a cut link cannot take now; gives back the rest.
    fn hold_up(&mut self, happening: Happening) -> Option<Happening> {
        let Some((machine, passes_link, reaches_process)) = self.involved(&happening) else {
            return Some(happening);
        };
        let machine = &mut self.machines[machine as usize];
        if passes_link && machine.cut {
            machine.cut_off.push(happening);
        } else if reaches_process && machine.frozen {
            machine.frozen_out.push(happening);
        } else {
            return Some(happening);
        }
        None
    }

    /// The machine that `happening` is about, whether it comes over its link, and whether its process
    /// must act.
    fn involved(&self, happening: &Happening) -> Option<(u32, bool, bool)> {
        let of = |conn: &ConnId| self.conns.get(conn).map(|conn| conn.machine);
        match happening {
            Happening::Dial { machine, .. } => Some((*machine, false, true)),
            Happening::Knock { machine, .. } => Some((*machine, true, false)),
            Happening::Dialled { machine, .. } => Some((*machine, true, true)),
            Happening::ToSyncer { conn, .. }
            | Happening::LostAtSyncer { conn }
            | Happening::Pong { conn } => Some((of(conn)?, true, false)),
            Happening::ToLearner { conn, .. }
            | Happening::LostAtLearner { conn }
            | Happening::Ping { conn } => Some((of(conn)?, true, true)),
            Happening::StepDone { machine, .. } | Happening::WakeLearner { machine, .. } => {
                Some((*machine, false, true))
            }
            Happening::AskFragment { machine, .. } | Happening::AskShard { machine, .. } => {
                Some((*machine, true, false))
            }
            Happening::FragmentCame { machine, .. } | Happening::ShardCame { machine, .. } => {
                Some((*machine, true, true))
            }
            Happening::Suspect { .. }
            | Happening::Fault(_)
            | Happening::WakeSyncer { .. }
            | Happening::MergeDone { .. }
            | Happening::Snapshot { .. } => None,
        }
    }

    /// When `bytes` sent now on a lane of `machine`'s link arrive.
    pub(super) fn arrival(&mut self, machine: u32, lane: Lane, bytes: u64) -> Millis {
        self.machines[machine as usize].link.send(self.now, lane, bytes, &mut self.rng)
    }

    pub(super) fn host_input(&mut self, input: Input) {
        let Some(host) = &mut self.host else { return };
        let clock = host.clock(self.now);
        host.core.handle(clock, input);
        self.drive_host();
    }

    pub(super) fn learner_input(&mut self, machine: u32, input: learner::Input) {
        let now = self.now;
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        process.take(now, input);
        self.drive_learner(machine);
    }
}
