//! The true state of machines, for tests and pictures.

use serde::Serialize;

use super::World;
use super::machine::Machine;
use archipelago_core::diloco::syncer::LearnerStatus;
use archipelago_core::wire::LearnerId;

impl World {
    /// Returns the machine on which `learner` runs; `None` while the syncer is down or does not know the learner.
    #[must_use]
    pub fn machine_of(&self, learner: LearnerId) -> Option<u32> {
        let name = self.learner(|status| status.learner == learner, |status| status.name.to_owned())?;
        (0..self.machines.len() as u32).find(|machine| Machine::name(*machine) == name)
    }

    /// Returns the merged tokens of a machine's learner by the syncer's count; 0 if the syncer has no count.
    #[must_use]
    pub fn tokens_merged(&self, machine: u32) -> u64 {
        let name = Machine::name(machine);
        self.learner(|status| status.name == name, |status| status.tokens_merged).unwrap_or(0)
    }

    fn learner<T>(
        &self,
        is: impl Fn(&LearnerStatus<'_>) -> bool,
        say: impl Fn(&LearnerStatus<'_>) -> T,
    ) -> Option<T> {
        self.syncer()?.learners().find(|status| is(status)).map(|status| say(&status))
    }
}

/// The true state of one machine at one moment, independent of the syncer's knowledge.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineStatus {
    /// Whether a learner's process runs.
    pub running: bool,
    /// Whether the process is stopped (SIGSTOP).
    pub frozen: bool,
    /// Whether the link to the syncer is cut.
    pub partitioned: bool,
    /// Whether it has a connection, as far as it knows.
    pub connected: bool,
    /// Connection attempts of its process.
    pub attempts: u32,
    /// Whether a step is being computed.
    pub training: bool,
    /// Reason of its learner's permanent stop, if any.
    pub stopped: Option<String>,
    /// Reason of its learner's last fresh start, if any.
    pub afresh: Option<String>,
    /// Steps of all its processes so far.
    pub steps: u64,
    /// Tokens of those steps.
    pub tokens: u64,
    /// Training loss of the last step.
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
