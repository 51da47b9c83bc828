//! Bodies that a device delivers long after the question.

use super::*;
use crate::wire::{FragmentId, Serial};

impl Pair {
    /// Returns the serial numbers and fragments of the bodies that learner `i` holds back.
    fn held(&self, i: usize) -> impl Iterator<Item = (Serial, FragmentId)> {
        self.islands[i].held.iter().flatten().map(|input| match input {
            learner::Input::Encoded { serial, fragment, .. } => (*serial, *fragment),
            other => panic!("{other:?}"),
        })
    }

    /// Steps with all bodies of learner `i` held back, until there are `count` of one fragment.
    fn hold(&mut self, i: usize, count: usize) {
        self.islands[i].held = Some(VecDeque::new());
        let held = |pair: &Self, p| pair.held(i).filter(|(_, fragment)| *fragment == p).count();
        while !self.fragments.ids().any(|p| held(self, p) == count) {
            self.steps(1);
        }
    }

    /// Delivers the oldest body of learner `i`.
    fn bring(&mut self, i: usize) {
        let encoded = self.islands[i].held.as_mut().and_then(VecDeque::pop_front).unwrap();
        self.learner(i, encoded);
    }

    /// Returns the number of updates from this learner, regardless of their fates.
    fn updates(&self, learner: u32) -> u64 {
        self.syncer.ledger().accounts().find(|(m, _)| m.0 == learner).unwrap().1.updates
    }

    /// Ends the run, and checks that every token of every learner was merged exactly once.
    fn finish_exactly(mut self) {
        for i in 0..self.islands.len() {
            for encoded in self.islands[i].held.take().into_iter().flatten() {
                self.learner(i, encoded);
            }
        }
        self.lags_ms.clear();
        self.steps(500);
        self.syncer(syncer::Input::Finish);
        self.steps(1);
        assert!(self.finished);
        for (m, account) in self.syncer.ledger().accounts() {
            let trained = account.trained();
            assert!(trained > 0);
            assert!(account.tokens_merged.iter().all(|&merged| merged == trained), "{m:?}: {account:?}");
        }
        // An island differs only by the rounding of the code: nothing was added twice or left out.
        for island in &self.islands {
            let hat = island.replica.as_ref().unwrap().hat();
            let apart = island.theta.iter().zip(hat).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 0.01, "{apart}");
        }
    }
}

#[test]
fn a_body_that_comes_after_the_next_version_is_part_of_the_one_after_that() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    pair.hold(1, 1);
    let fragment = pair.held(1).next().unwrap().1;
    let before: Vec<_> = pair.islands[1].core.versions().collect();
    let changed = |pair: &Pair| {
        let versions = pair.islands[1].core.versions().collect::<Vec<_>>();
        versions[usize::from(fragment.0)] != before[usize::from(fragment.0)]
    };
    // The other learner carries the run on until the held body is of an old version.
    while !changed(&pair) {
        pair.steps(1);
    }
    let (updates, merged) = (pair.updates(2), pair.merged()[&2]);
    pair.bring(1);
    assert_eq!((pair.updates(2), pair.merged()[&2]), (updates + 1, merged), "it waits for a round");
    pair.steps(20);
    assert_eq!(pair.merged()[&2], merged + 1);
    pair.finish_exactly();
}

/// Goal: with any round trip, all progress is merged, and no update is late.
#[test]
fn a_far_learner_is_merged_as_surely_as_a_near_one() {
    for lag_ms in [30, 80, 300, 3_000] {
        let mut pair = Pair::new(&[1.0, 1.0]);
        pair.lags_ms.insert(1, lag_ms);
        pair.steps(900);
        let account = |pair: &Pair, learner: usize| {
            let (_, account) = pair.syncer.ledger().accounts().nth(learner).unwrap();
            (account.fates.clone(), pair.syncer.ledger().tokens_merged(account), account.trained())
        };
        let (fates, merged, trained) = account(&pair, 1);
        assert_eq!((fates.late.len(), fates.refused.len()), (0, 0), "{lag_ms} ms: {fates:?}");
        // Its training since the last answer is still to come.
        let steps_open = 2 * lag_ms / STEP_MS + 20;
        assert!(merged + steps_open * STEP_TOKENS > trained, "{lag_ms} ms: {merged} of {trained}");
        let (near, ..) = account(&pair, 0);
        assert!(near.merged > 400, "{lag_ms} ms: the near one waits for nobody: {near:?}");
        pair.finish_exactly();
    }
}

/// Goal: a learner that leaves properly loses no progress.
#[test]
fn one_that_leaves_hands_in_what_it_has() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(150);
    pair.islands[1].core.hand_in(pair.now);
    while let Some(output) = pair.islands[1].core.poll() {
        pair.obey_learner(1, output);
    }
    let said = |pair: &Pair| pair.syncer.ledger().accounts().nth(1).unwrap().1.tokens_trained;
    let at_first = said(&pair);
    pair.islands[1].core.leave(pair.now);
    while let Some(output) = pair.islands[1].core.poll() {
        pair.obey_learner(1, output);
    }
    assert_eq!(said(&pair), at_first, "it is known at once what it trained");
    // Merged tokens and those that the syncer has received are all its tokens.
    let unsettled: Vec<_> = pair.islands[1].core.tokens_unsettled().collect();
    let (_, account) = pair.syncer.ledger().accounts().nth(1).unwrap();
    let handed_in: Vec<_> = account.tokens_merged.iter().zip(&unsettled).map(|(a, b)| a + b).collect();
    assert!(unsettled.iter().any(|&tokens| tokens > 0), "{unsettled:?}");
    assert_eq!(handed_in, vec![account.trained(); unsettled.len()], "{account:?}");
    pair.islands[1].connected = false;
    pair.steps(30);
    let (_, account) = pair.syncer.ledger().accounts().nth(1).unwrap();
    let trained = account.trained();
    assert!(trained > 0 && account.tokens_merged.iter().all(|&merged| merged == trained), "{account:?}");
}

/// Goal: if a connection is lost after an update was sent, its fate is settled at the reconnection.
#[test]
fn a_lost_connection_neither_loses_nor_doubles_an_update() {
    for away in [0, 1, 7, 40] {
        let mut pair = Pair::new(&[1.0, 1.0]);
        pair.lags_ms.insert(1, 50);
        for _ in 0..20 {
            pair.steps(13);
            pair.disconnect(1);
            if away % 2 == 0 {
                // Updates on their way are lost with the connection.
                let conn = pair.islands[1].conn;
                pair.under_way.retain(|(_, other, _)| *other != conn);
            }
            pair.steps(away);
            pair.connect(1);
        }
        pair.finish_exactly();
    }
}
