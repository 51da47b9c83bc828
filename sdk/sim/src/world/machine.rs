//! Machine of a world: a learner's process and its link to the syncer, and their true state for tests and displays.

use archipelago_core::diloco::learner::LearnerConfig;
use archipelago_core::diloco::syncer::LearnerStatus;
use archipelago_core::driver::{DriverConfig, Waits};
use archipelago_core::rng::key;
use archipelago_core::wire::{Identity, LearnerId, Millis};
use serde::Serialize;

use super::attacks::ForgerState;
use super::clock::DriftingClock;
use super::event::WorldEvent;
use super::link::DuplexLink;
use super::process::Process;
use super::{MachineSpec, Poison, Rng, World};

pub(super) struct Machine {
    pub(super) spec: MachineSpec,
    pub(super) identity: Identity,
    pub(super) link: DuplexLink<WorldEvent>,
    /// Scheduled time of the next transmission in each direction.
    pub(super) pumps: [Option<Millis>; 2],
    pub(super) rng: Rng,
    /// Seed from which each process of the machine derives its own.
    seed: u64,
    /// Incarnation: number of the current process. Events for an earlier process do not reach it.
    pub(super) life: u32,
    pub(super) process: Option<Process>,
    pub(super) crawl: f64,
    pub(super) poison: Option<Poison>,
    /// Whether the machine was ever poisoned. Its token counts are then not checked.
    pub(super) forged: bool,
    pub(super) forger_state: ForgerState,
    /// Whether the learner's owner paused it.
    pub(super) paused: bool,
    /// Maximum time between two merges of its updates in milliseconds, if that is checked.
    pub(super) merged_within_ms: Option<u64>,
    /// Time of the last fault or command that affected the machine.
    pub(super) well_since: Millis,
    /// Time of the last merge of one of its updates.
    pub(super) merged_at: Millis,
    /// Whether the process is stopped (SIGSTOP). Events for it wait in `frozen_out`.
    pub(super) frozen: bool,
    pub(super) frozen_out: Vec<WorldEvent>,
    /// Whether the link is cut. Events on the link wait in `cut_off`.
    pub(super) cut: bool,
    pub(super) cut_off: Vec<WorldEvent>,
    /// Steps and tokens of earlier processes.
    pub(super) steps_before: u64,
    pub(super) tokens_before: u64,
}

impl Machine {
    pub(super) fn new(seed: u64, index: u32, spec: MachineSpec) -> Self {
        let mut rng = Rng::stream(seed, 0x1_0000 + u64::from(index));
        let mut identity = [0; 32];
        identity[..8].copy_from_slice(&rng.bits().to_le_bytes());
        identity[8..16].copy_from_slice(&rng.bits().to_le_bytes());
        Self {
            spec,
            identity: Identity(identity),
            link: DuplexLink::new(spec.link),
            pumps: [None; 2],
            rng,
            seed: key(&[seed, 0x2_0000 + u64::from(index)]),
            life: 0,
            process: None,
            crawl: 1.0,
            poison: None,
            forged: false,
            forger_state: ForgerState::new(Rng::stream(seed, 0x3_0000 + u64::from(index))),
            paused: false,
            merged_within_ms: None,
            well_since: Millis(0),
            merged_at: Millis(0),
            frozen: false,
            frozen_out: Vec::new(),
            cut: false,
            cut_off: Vec::new(),
            steps_before: 0,
            tokens_before: 0,
        }
    }

    /// Returns the name of the learner on machine `index`.
    pub(super) fn name(index: u32) -> String {
        format!("machine {index}")
    }

    /// Starts a process and returns true, unless one runs.
    pub(super) fn start(&mut self, now: Millis, name: String, waits: Waits) -> bool {
        if self.process.is_some() {
            return false;
        }
        self.life += 1;
        let learner = LearnerConfig {
            identity: self.identity,
            name,
            device: "simulated".into(),
            invite: None,
            serial_first: u64::from(self.life) << 32,
        };
        let config = DriverConfig {
            learner,
            contact_ms_max: None,
            reconnect_ms_max: None,
            waits,
            seed: key(&[self.seed, self.life.into()]),
        };
        let (clock, batch) = (DriftingClock::new(now, self.spec.clock_rate), self.spec.batch);
        self.process = Some(Process::new(clock, now, config, batch, self.poison));
        true
    }

    /// Ends the running process, if there is one.
    pub(super) fn kill(&mut self) -> Option<Process> {
        let process = self.process.take()?;
        self.steps_before += process.steps;
        self.tokens_before += process.tokens;
        self.frozen = false;
        self.frozen_out.clear();
        Some(process)
    }

    /// Returns the process of incarnation `life`, if it still runs.
    pub(super) fn alive(&mut self, life: u32) -> Option<&mut Process> {
        self.process.as_mut().filter(|_| self.life == life)
    }

    /// Draws the duration of the next step, in milliseconds, at least 1.
    pub(super) fn step_ms(&mut self) -> u64 {
        let around = 1.0 + self.spec.jitter * (2.0 * self.rng.unit() - 1.0);
        ((self.spec.step_ms as f64 * self.crawl * around) as u64).max(1)
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps_before + self.process.as_ref().map_or(0, |process| process.steps)
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens_before + self.process.as_ref().map_or(0, |process| process.tokens)
    }
}

impl World {
    /// Returns the machine on which `learner` runs. Returns `None` while the syncer is down or if it does not know the
    /// learner.
    #[must_use]
    pub fn machine_of(&self, learner: LearnerId) -> Option<u32> {
        let name = self.learner(|status| status.learner == learner, |status| status.name.to_owned())?;
        (0..self.machines.len() as u32).find(|machine| Machine::name(*machine) == name)
    }

    /// Returns the merged tokens of the machine's learner, as the syncer counts them; 0 if it has no count.
    #[must_use]
    pub fn tokens_merged(&self, machine: u32) -> u64 {
        let name = Machine::name(machine);
        self.learner(|status| status.name == name, |status| status.tokens_merged).unwrap_or(0)
    }

    fn learner<T>(
        &self,
        is: impl Fn(&LearnerStatus<'_>) -> bool,
        read: impl Fn(&LearnerStatus<'_>) -> T,
    ) -> Option<T> {
        self.syncer()?.learners().find(|status| is(status)).map(|status| read(&status))
    }
}

/// True state of one machine at one time, whatever the syncer knows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineStatus {
    /// Whether a learner's process runs.
    pub running: bool,
    /// Whether the process is stopped (SIGSTOP).
    pub frozen: bool,
    /// Whether the link to the syncer is cut.
    pub partitioned: bool,
    /// Whether the learner has a connection, as far as it knows.
    pub connected: bool,
    /// Number of connection attempts of the current process.
    pub attempts: u32,
    /// Whether a step is being computed.
    pub training: bool,
    /// Reason why the learner stopped for good, if it did.
    pub stopped: Option<String>,
    /// Reason why the learner last discarded its state and joined again, if it did.
    pub afresh: Option<String>,
    /// Number of steps of all processes so far.
    pub steps: u64,
    /// Number of tokens in these steps.
    pub tokens: u64,
    /// Training loss of the last step, in nats per token.
    pub loss: Option<f32>,
}

impl MachineStatus {
    pub(super) fn of(machine: &Machine) -> Self {
        let process = machine.process.as_ref();
        Self {
            running: process.is_some(),
            frozen: machine.frozen,
            partitioned: machine.cut,
            connected: process.is_some_and(|process| process.conn.is_some()),
            attempts: process.map_or(0, |process| process.attempts),
            training: process.is_some_and(|process| process.is_stepping()),
            stopped: process.and_then(|process| process.stopped.as_ref()).map(|bye| bye.reason.clone()),
            afresh: process.and_then(|process| process.afresh.clone()),
            steps: machine.steps(),
            tokens: machine.tokens(),
            loss: process.map(|process| process.loss).filter(|loss| loss.is_finite()),
        }
    }
}
