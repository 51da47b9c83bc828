//! Bodies that a device brings out long after they were asked for.

use std::collections::BTreeSet;

use super::*;
use crate::wire::{FragmentId, Round};

impl Pair {
    /// What the bodies that learner `i` holds back answer.
    fn held(&self, i: usize) -> impl Iterator<Item = (Round, FragmentId)> {
        self.islands[i].held.iter().flatten().map(|input| match input {
            learner::Input::Encoded { round, fragment, .. } => (*round, *fragment),
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

    /// Learner `i` brings out its oldest body.
    fn bring(&mut self, i: usize) {
        let encoded = self.islands[i].held.as_mut().and_then(VecDeque::pop_front).unwrap();
        self.learner(i, encoded);
    }

    /// Updates that came from the learner with this number, whatever became of them.
    fn updates(&self, learner: u32) -> u64 {
        self.syncer.ledger().accounts().find(|(m, _)| m.0 == learner).unwrap().1.updates
    }

    /// Ends the run; every token of every learner must have been merged, and once.
    fn finish_exactly(mut self) {
        for island in &mut self.islands {
            island.held = None;
        }
        self.steps(100);
        self.syncer(syncer::Input::Finish);
        self.steps(1);
        assert!(self.finished);
        for (m, account) in self.syncer.ledger().accounts() {
            let trained = account.trained();
            assert!(trained > 0);
            assert!(account.tokens_merged.iter().all(|&merged| merged == trained), "{m:?}: {account:?}");
        }
        // What an island has on top is what the code rounded away: nothing was added twice or left out.
        for island in &self.islands {
            let hat = island.replica.as_ref().unwrap().hat();
            let apart = island.theta.iter().zip(hat).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 0.01, "{apart}");
        }
    }
}

#[test]
fn a_body_that_comes_after_the_next_version_is_dropped() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    pair.hold(1, 1);
    let before: Vec<_> = pair.islands[1].core.versions().collect();
    let (updates, merged) = (pair.updates(2), pair.merged()[&2]);
    // The other one carries the run on until the body held is of a version that is gone.
    let fragment = loop {
        let versions = pair.islands[1].core.versions().collect::<Vec<_>>();
        let changed = |p: &FragmentId| versions[usize::from(p.0)] != before[usize::from(p.0)];
        if let Some((_, fragment)) = pair.held(1).next().filter(|(_, fragment)| changed(fragment)) {
            break fragment;
        }
        pair.steps(1);
    };
    assert_eq!(pair.held(1).filter(|(_, p)| *p == fragment).count(), 1, "another round overtook it");
    pair.bring(1);
    assert_eq!((pair.updates(2), pair.merged()[&2]), (updates, merged), "a body of an old version went out");
    pair.finish_exactly();
}

#[test]
fn of_two_bodies_of_one_fragment_the_one_asked_for_last_counts() {
    let mut pair = Pair::new(&[1.0]);
    pair.steps(100);
    // Without an answer the first round is given up, and the next asks about the same version.
    pair.hold(0, 2);
    let updates = pair.updates(1);
    let fragments: BTreeSet<_> = pair.held(0).map(|(_, fragment)| fragment).collect();
    while pair.held(0).next().is_some() {
        pair.bring(0);
    }
    assert_eq!(pair.updates(1), updates + fragments.len() as u64, "not one update for each fragment");
    pair.finish_exactly();
}
