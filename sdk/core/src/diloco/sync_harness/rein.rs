//! Learners that the owner slows down or sends away, and their return.

use super::*;
use crate::diloco::syncer::DROP_MS_MAX;
use crate::wire::{CloseCode, LearnerId, Share};

const FIRST: LearnerId = LearnerId(1);

fn share(ratio: f64) -> Share {
    Share::new(ratio).unwrap()
}

impl Pair {
    fn pace(&mut self, ratio: f64) {
        self.syncer(syncer::Input::Pace { learner: FIRST, share: share(ratio) });
    }

    fn send_away(&mut self, wait_ms: u32) {
        self.syncer(syncer::Input::Drop { learner: FIRST, wait_ms });
    }

    fn returns_ms(&self) -> Option<u64> {
        self.syncer.returns(self.now, FIRST).map(|at| at.since(self.now))
    }

    fn shares(&self) -> Vec<f64> {
        self.islands.iter().map(|island| island.core.share().ratio()).collect()
    }
}

#[test]
fn a_pace_reaches_its_learner_alone_and_outlives_the_connection() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.pace(0.25);
    assert_eq!(pair.shares(), [0.25, 1.0]);
    let shown: Vec<_> = pair.syncer.learners().map(|learner| learner.share).collect();
    assert_eq!(shown, [share(0.25), Share::FULL]);

    // Sent once: the learner keeps its share, and gets a change when it returns.
    let events = pair.events.len();
    pair.pace(0.25);
    assert_eq!(pair.events.len(), events);
    pair.disconnect(0);
    assert_eq!(pair.shares(), [0.25, 1.0]);
    pair.pace(0.5);
    assert_eq!(pair.shares(), [0.25, 1.0]);
    pair.connect(0);
    assert_eq!(pair.shares(), [0.5, 1.0]);
    pair.pace(1.0);
    assert_eq!(pair.shares(), [1.0, 1.0]);
    let said = pair.events.iter().filter(|event| matches!(event, Event::Paced { learner: FIRST, .. }));
    assert_eq!(said.count(), 3);
}

#[test]
fn who_is_sent_away_returns_in_time_and_is_merged_again() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(50);
    let others = pair.merged()[&2];
    pair.send_away(2_000);
    assert!(!pair.islands[0].connected);
    let bye = pair.islands[0].goodbye.clone().unwrap();
    assert_eq!((bye.code, bye.wait_ms), (CloseCode::Dropped, 2_000));
    let told = bye.reason;
    let merged = pair.merged()[&1];

    // Too early: the same answer with the remaining time. The connection has no session.
    pair.steps(50);
    assert_eq!(pair.returns_ms(), Some(1_500));
    pair.connect(0);
    let again = Bye { wait_ms: 1_500, ..Bye::new(CloseCode::Dropped, told) };
    assert_eq!((pair.islands[0].connected, &pair.islands[0].goodbye), (false, &Some(again)));
    assert_eq!((pair.syncer.status().connected, pair.syncer.status().live), (1, 1));

    // It trains on by itself while the others are merged, and its progress is merged after its return.
    pair.steps(151);
    assert!(pair.islands[0].core.can_train());
    assert_eq!((pair.merged()[&1], pair.returns_ms()), (merged, None));
    assert!(pair.merged()[&2] > others + 20);
    pair.connect(0);
    pair.steps(50);
    assert!(pair.merged()[&1] > merged && pair.syncer.status().live == 2);
    assert!(pair.syncer.status().participation > 0.95, "{}", pair.syncer.status().participation);
}

#[test]
fn an_owner_can_change_its_mind() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.send_away(5_000);
    pair.send_away(0);
    assert_eq!(pair.returns_ms(), None);
    pair.connect(0);
    assert_eq!(pair.syncer.status().connected, 2);
    // Without a restriction, or for an unknown learner, there is no effect.
    let events = pair.events.len();
    pair.send_away(0);
    let nobody = LearnerId(99);
    pair.syncer(syncer::Input::Pace { learner: nobody, share: share(0.5) });
    pair.syncer(syncer::Input::Drop { learner: nobody, wait_ms: 1_000 });
    assert_eq!(pair.events.len(), events);
    assert!(pair.syncer.knows(FIRST) && !pair.syncer.knows(nobody));
    assert_eq!((pair.syncer.share(nobody), pair.syncer.returns(pair.now, nobody)), (Share::FULL, None));
    // The time away is bounded.
    pair.send_away(u32::MAX);
    assert_eq!(pair.returns_ms(), Some(DROP_MS_MAX.into()));
}

/// Goal: the owner's restrictions hold in the next process, and expired ones stay lifted.
#[test]
fn the_owners_hand_outlives_the_syncer() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(50);
    pair.disconnect(0);
    pair.pace(0.125);
    pair.send_away(60_000);
    let restart = |pair: &mut Pair| {
        let (record, states) = (pair.syncer.record().unwrap(), pair.syncer.states().cloned().collect());
        (0..2).for_each(|i| pair.disconnect(i));
        // As stored in a snapshot.
        let record = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
        pair.restart((record, states), SyncerConfig::default(), 0);
        (0..2).for_each(|i| pair.connect(i));
    };
    pair.steps(1_000);
    restart(&mut pair);
    assert_eq!((pair.returns_ms(), pair.syncer.status().connected), (Some(60_000), 1), "it begins anew");
    pair.steps(6_001);
    assert_eq!(pair.returns_ms(), None);
    pair.connect(0);
    assert_eq!((pair.shares(), pair.syncer.status().connected), (vec![0.125, 1.0], 2));
    restart(&mut pair);
    assert_eq!((pair.shares(), pair.syncer.status().connected), (vec![0.125, 1.0], 2));
    pair.pace(1.0);
    restart(&mut pair);
    assert_eq!(pair.shares(), [1.0, 1.0]);
}
