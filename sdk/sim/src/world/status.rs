//! What is true of a machine, for tests and pictures.

use serde::Serialize;

use super::World;
use super::machine::Machine;
use archipelago_core::diloco::syncer::LearnerStatus;
use archipelago_core::wire::LearnerId;

impl World {
    /// The machine on which the syncer's `learner` runs; `None` while the syncer is down or does not know it.
    #[must_use]
    pub fn machine_of(&self, learner: LearnerId) -> Option<u32> {
        let name = self.learner(|status| status.learner == learner, |status| status.name.to_owned())?;
        (0..self.machines.len() as u32).find(|machine| Machine::name(*machine) == name)
    }

    /// Tokens of a machine's learner that are merged, as the syncer counts them; 0 while it does not.
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

/// One machine at one moment, whatever the syncer knows of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineStatus {
    /// A learner's process runs.
    pub running: bool,
    /// It stands still.
    pub frozen: bool,
    /// It is cut off from the syncer.
    pub partitioned: bool,
    /// It has a connection, as far as it knows.
    pub connected: bool,
    /// Attempts of its process to connect.
    pub attempts: u32,
    /// A step is being computed.
    pub training: bool,
    /// Why its learner stays away for good, if it does.
    pub stopped: Option<String>,
    /// Why its learner last gave up everything and joined as a newcomer does, if it did.
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
