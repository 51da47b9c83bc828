//! Connected learners by gateway, as reported by the gateways.

use std::collections::{BTreeMap, BTreeSet};

use super::GatewayId;
use crate::wire::{LearnerId, Millis};

/// Connected learners by gateway.
#[derive(Debug, Default)]
pub(super) struct GatewayMembership(BTreeMap<GatewayId, Crowd>);

#[derive(Debug)]
struct Crowd {
    /// Time of the gateway's last report.
    said: Millis,
    learners: BTreeSet<LearnerId>,
    /// True if a learner waits for the end of a round.
    waits: bool,
}

impl GatewayMembership {
    /// Records a gateway's report. Returns the learners that were connected before and no longer are at any gateway.
    pub(super) fn note(
        &mut self,
        now: Millis,
        gateway: GatewayId,
        learners: BTreeSet<LearnerId>,
        waits: bool,
    ) -> Vec<LearnerId> {
        let before = self.0.insert(gateway, Crowd { said: now, learners, waits });
        let before = before.map(|crowd| crowd.learners).unwrap_or_default();
        let is_there = |learner: &LearnerId| self.0.values().any(|crowd| crowd.learners.contains(learner));
        before.into_iter().filter(|learner| !is_there(learner)).collect()
    }

    /// Removes and returns the gateways that have not reported for `patience_ms`.
    pub(super) fn forget_silent(&mut self, now: Millis, patience_ms: u64) -> Vec<GatewayId> {
        let silent = self.0.extract_if(.., |_, crowd| now.since(crowd.said) >= patience_ms);
        silent.map(|(gateway, _)| gateway).collect()
    }

    /// Returns all connected learners.
    pub(super) fn everybody(&self) -> BTreeSet<LearnerId> {
        self.0.values().flat_map(|crowd| &crowd.learners).copied().collect()
    }

    /// Returns true if any learner waits for the end of a round.
    pub(super) fn waits(&self) -> bool {
        self.0.values().any(|crowd| crowd.waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_to_another_gateway_is_not_gone() {
        let mut crowds = GatewayMembership::default();
        let mut say = |now, gateway, learners: &[u32], waits| {
            let learners = learners.iter().copied().map(LearnerId).collect();
            let gone = crowds.note(Millis(now), GatewayId(gateway), learners, waits);
            (gone, crowds.waits(), crowds.everybody().len())
        };
        assert_eq!(say(0, 1, &[1, 2, 3], false), (vec![], false, 3));
        assert_eq!(say(5, 2, &[2, 4], true), (vec![], true, 4));
        assert_eq!(say(10, 1, &[3], false), (vec![LearnerId(1)], true, 3), "2 is at the other one");
        assert_eq!(say(12, 2, &[4], false), (vec![LearnerId(2)], false, 2));
        assert_eq!(crowds.forget_silent(Millis(19), 10), []);
        assert_eq!(crowds.forget_silent(Millis(20), 10), [GatewayId(1)]);
        assert_eq!(crowds.everybody(), [LearnerId(4)].into());
    }
}
