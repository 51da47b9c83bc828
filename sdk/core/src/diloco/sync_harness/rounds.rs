//! Invited learners of a round, and its patience.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::*;
use crate::diloco::QuorumPolicy;
use crate::wire::Fate;

/// With six learners, two in each round, a turn of all three fragments is as long as a turn of all learners. Still
/// each learner is asked for each fragment.
#[test]
fn a_cohort_moves_on_over_every_fragment() {
    let mut pair = Pair::with(&[1.0; 6], SyncerConfig { cohort_max: 2, ..SyncerConfig::default() });
    pair.steps(200);
    let merged = pair.events.iter().filter_map(|event| match event {
        Event::Settled { learner, fragment, fate: Fate::Merged { .. }, .. } => Some((learner.0, fragment.0)),
        _ => None,
    });
    let everyone = (1..=6).flat_map(|learner| (0..FRAGMENTS).map(move |fragment| (learner, fragment)));
    assert_eq!(merged.collect::<BTreeSet<_>>(), everyone.collect());
}

#[test]
fn a_run_that_has_begun_does_not_wait_for_as_many_learners_again() {
    let config = SyncerConfig { learners_start: 2, ..SyncerConfig::default() };
    let mut pair = Pair::with(&[1.0, 1.0], config);
    pair.disconnect(1);
    pair.steps(50);
    assert_eq!(pair.syncer.status().rounds, 0, "it needs two to begin");
    pair.connect(1);
    pair.steps(50);
    let (record, states) = (pair.syncer.record().unwrap(), pair.syncer.states().cloned().collect());
    pair.disconnect(0);
    pair.disconnect(1);
    pair.restart((record, states), config, 0);
    let before = pair.syncer.status().rounds;
    pair.connect(0);
    pair.steps(100);
    let after = pair.syncer.status().rounds;
    assert!(after > before + 20 && before > 0, "{before} → {after}");
}

/// Both learners are needed and compute, and one loses its connection meanwhile.
#[test]
fn one_that_comes_back_is_asked_again() {
    let updates_min = NonZeroU32::new(2).unwrap();
    let quorum = QuorumPolicy { updates_min, ..QuorumPolicy::default() };
    let mut pair = Pair::with(&[1.0, 1.0], SyncerConfig { quorum, ..SyncerConfig::default() });
    pair.steps(100);
    for island in &mut pair.islands {
        island.held = Some(VecDeque::new());
    }
    while pair.islands.iter().any(|island| island.held.iter().flatten().next().is_none()) {
        pair.steps(1);
    }
    pair.disconnect(1);
    pair.connect(1);
    for i in [0, 1] {
        for encoded in pair.islands[i].held.take().into_iter().flatten() {
            pair.learner(i, encoded);
        }
    }
    let before = pair.merged();
    pair.steps(40);
    let after = pair.merged();
    assert!(after[&2] > before[&2] + 10, "it was waited for until patience was over: {before:?} → {after:?}");
}

/// If patience were fixed, rounds over links with slower answers would never get an update.
#[test]
fn patience_grows_with_the_time_that_answers_take() {
    let mut pair = Pair::new(&[1.0]);
    pair.steps(100);
    // An answer takes 4 s, twice the initial patience.
    pair.lags_ms.insert(0, 4_000);
    let (before, given_up) = (pair.merged()[&1], pair.syncer.status().rounds_abandoned);
    pair.steps(2_000);
    let (merged, status) = (pair.merged()[&1] - before, pair.syncer.status());
    // 20 s, two rounds at a time, the first of which are abandoned.
    assert!(merged > 4, "{merged} merges, {status:?}");
    assert!(status.rounds_abandoned - given_up < 6, "{status:?}");
}
