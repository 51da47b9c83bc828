//! Cost for learners of a syncer that crashes and continues from an older snapshot.

use super::*;
use crate::wire::{LearnerId, Version};

impl Pair {
    fn snapshot(&self) -> Snapshot {
        (self.syncer.record().unwrap(), self.syncer.states().cloned().collect())
    }

    /// Crashes the syncer, and restarts it from `snapshot` in a process that starts `started_s` seconds after 1970
    /// began. No learner is connected.
    fn crash(&mut self, snapshot: Snapshot, started_s: u32) {
        for island in &mut self.islands {
            island.connected = false;
            island.core.handle(self.now, learner::Input::Disconnected);
        }
        self.restart(snapshot, SyncerConfig::default(), started_s);
    }

    fn versions(&self) -> Vec<Version> {
        self.syncer.states().map(|state| state.version).collect()
    }
}

#[test]
fn two_restarts_from_one_snapshot_lead_to_versions_of_their_own() {
    let mut pair = Pair::new(&[1.0, 2.0]);
    pair.steps(50);
    let snapshot = pair.snapshot();
    let lives = [1_000, 1_001].map(|started_s| {
        pair.crash(snapshot.clone(), started_s);
        pair.connect(0);
        pair.connect(1);
        pair.steps(50);
        pair.versions()
    });
    assert!(lives[0].iter().zip(&lives[1]).all(|(one, other)| one != other), "{lives:?}");
    assert!(lives[1].iter().all(|version| version.0 >> 32 == 1_001), "{lives:?}");
}

#[test]
fn a_learner_takes_the_number_that_it_has_now() {
    let before_anyone = Pair::new(&[]).snapshot();
    let mut pair = Pair::new(&[1.0, 2.0]);
    pair.steps(50);
    pair.crash(before_anyone, 1_000);
    pair.connect(1);
    pair.connect(0);
    pair.steps(50);
    let numbers: Vec<_> = pair.islands.iter().map(|island| island.core.run().unwrap().1).collect();
    assert_eq!(numbers, [LearnerId(2), LearnerId(1)]);
}

#[test]
fn what_a_learner_whose_enrolment_was_lost_has_learnt_is_not_refused() {
    let before_anyone = Pair::new(&[]).snapshot();
    let mut pair = Pair::new(&[1.0, 2.0]);
    pair.steps(4_000);
    pair.crash(before_anyone, 1_000);
    pair.connect(0);
    pair.connect(1);
    pair.steps(4_000);
    let status = pair.syncer.status();
    assert!(status.fates.refused.is_empty(), "{:?}", status.fates);
    assert!(pair.merged().values().all(|count| *count > 40), "{:?}", pair.merged());
}
