//! What became of those who work against a run, and of those who do not.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::world::World;
use archipelago_core::diloco::syncer::{Event, LeaveCause};
use archipelago_core::wire::{Fate, LearnerId};

/// How the syncer treated hostile and honest learners until the budget was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Noticed {
    /// Rounds that had led to a version when an update of a hostile learner was first refused, its connection first
    /// closed, or it first suspected; `None` if none of that ever happened.
    pub after_rounds: Option<u64>,
    /// Hostile learners, all together.
    pub hostile: Treated,
    /// Honest learners, all together.
    pub honest: Treated,
}

/// What became of the updates of some learners, and of their connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Treated {
    /// Updates that were merged.
    pub merged: u64,
    /// Their weight in all merges together, each of which has 1 in all.
    pub weight: f64,
    /// Updates that were refused.
    pub refused: u64,
    /// Connections that the syncer closed.
    pub closed: u64,
    /// How often one of them came to be suspected of not training.
    pub suspected: u64,
}

impl Noticed {
    /// The hostile learners' share of all that was merged, by weight, 0 to 1.
    #[must_use]
    pub fn hostile_share(&self) -> f64 {
        let all = self.hostile.weight + self.honest.weight;
        if all > 0.0 { self.hostile.weight / all } else { 0.0 }
    }
}

/// Follows a world's events.
pub(super) struct Watcher {
    /// By machine.
    is_hostile: Vec<bool>,
    machines: BTreeMap<LearnerId, u32>,
    rounds: u64,
    pub(super) noticed: Noticed,
}

impl Watcher {
    /// Of machines of which these are hostile.
    pub(super) fn new(is_hostile: Vec<bool>) -> Self {
        Self { is_hostile, machines: BTreeMap::new(), rounds: 0, noticed: Noticed::default() }
    }

    /// Takes in what happened since this was asked last.
    pub(super) fn follow(&mut self, world: &mut World) {
        for (_, event) in world.take_events() {
            if let Event::Joined { learner, .. } = &event
                && let Some(machine) = world.machine_of(*learner)
            {
                self.machines.insert(*learner, machine);
            }
            self.note(&event);
        }
    }

    /// Whether a learner runs on a machine that is honest.
    pub(super) fn is_honest(&self, learner: LearnerId) -> bool {
        let machine = self.machines.get(&learner);
        machine.is_some_and(|&machine| !self.is_hostile[machine as usize])
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Merged { .. } => self.rounds += 1,
            Event::Settled { learner, fate: Fate::Merged { weight, .. }, .. } => {
                let treated = self.treated(*learner);
                treated.merged += 1;
                treated.weight += f64::from(*weight);
            }
            Event::Settled { learner, fate: Fate::Refused(_), .. } => {
                self.treated(*learner).refused += 1;
                self.see(*learner);
            }
            Event::Doubted { learner, doubt: Some(_) } => {
                self.treated(*learner).suspected += 1;
                self.see(*learner);
            }
            Event::Left { learner, why: LeaveCause::Closed { .. } } => {
                self.treated(*learner).closed += 1;
                self.see(*learner);
            }
            _ => {}
        }
    }

    fn treated(&mut self, learner: LearnerId) -> &mut Treated {
        let is_honest = self.is_honest(learner);
        if is_honest { &mut self.noticed.honest } else { &mut self.noticed.hostile }
    }

    fn see(&mut self, learner: LearnerId) {
        if !self.is_honest(learner) {
            self.noticed.after_rounds.get_or_insert(self.rounds);
        }
    }
}
