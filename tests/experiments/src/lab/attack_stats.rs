//! Treatment of hostile and honest learners.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use archipelago_core::diloco::syncer::{Event, LeaveCause};
use archipelago_core::wire::{Fate, LearnerId};
use archipelago_sim::world::World;

/// The syncer's treatment of hostile and honest learners until the budget was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttackStats {
    /// Rounds merged before the first reaction to a hostile learner: a refused update, a closed connection or a
    /// suspicion; `None` without any reaction.
    pub after_rounds: Option<u64>,
    /// All hostile learners together.
    pub hostile: Treatment,
    /// All honest learners together.
    pub honest: Treatment,
}

/// Treatment of the updates and connections of some learners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Treatment {
    /// Updates that were merged.
    pub merged: u64,
    /// Sum of their weights over all merges; each merge has a total weight of 1.
    pub weight: f64,
    /// Updates that were refused.
    pub refused: u64,
    /// Connections that the syncer closed.
    pub closed: u64,
    /// Number of times that a learner became suspected of not training.
    pub suspected: u64,
}

impl AttackStats {
    /// Returns the hostile learners' share of the total merge weight, 0 to 1.
    #[must_use]
    pub fn hostile_share(&self) -> f64 {
        let all = self.hostile.weight + self.honest.weight;
        if all > 0.0 { self.hostile.weight / all } else { 0.0 }
    }
}

/// Observer of a world's events.
pub(super) struct Watcher {
    /// Whether each machine is hostile.
    is_hostile: Vec<bool>,
    machines: BTreeMap<LearnerId, u32>,
    rounds: u64,
    pub(super) stats: AttackStats,
}

impl Watcher {
    /// Creates an observer. `is_hostile` has an entry for each machine.
    pub(super) fn new(is_hostile: Vec<bool>) -> Self {
        Self { is_hostile, machines: BTreeMap::new(), rounds: 0, stats: AttackStats::default() }
    }

    /// Processes the events since the last call.
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

    /// Returns true if a learner runs on an honest machine.
    pub(super) fn is_honest(&self, learner: LearnerId) -> bool {
        let machine = self.machines.get(&learner);
        machine.is_some_and(|&machine| !self.is_hostile[machine as usize])
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Merged { .. } => self.rounds += 1,
            Event::Settled { learner, fate: Fate::Merged { weight, .. }, .. } => {
                let treatment = self.treatment(*learner);
                treatment.merged += 1;
                treatment.weight += f64::from(*weight);
            }
            Event::Settled { learner, fate: Fate::Refused(_), .. } => {
                self.treatment(*learner).refused += 1;
                self.see(*learner);
            }
            Event::Doubted { learner, doubt: Some(_) } => {
                self.treatment(*learner).suspected += 1;
                self.see(*learner);
            }
            Event::Left { learner, why: LeaveCause::Closed { .. } } => {
                self.treatment(*learner).closed += 1;
                self.see(*learner);
            }
            _ => {}
        }
    }

    fn treatment(&mut self, learner: LearnerId) -> &mut Treatment {
        let is_honest = self.is_honest(learner);
        if is_honest { &mut self.stats.honest } else { &mut self.stats.hostile }
    }

    fn see(&mut self, learner: LearnerId) {
        if !self.is_honest(learner) {
            self.stats.after_rounds.get_or_insert(self.rounds);
        }
    }
}
