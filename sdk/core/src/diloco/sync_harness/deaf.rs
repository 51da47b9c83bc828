//! Learners that receive messages but no parameters.

use super::learner::HandsIn;
use super::*;
use crate::diloco::{checksum, halves};
use crate::wire::{FragmentId, Merged, Version};

/// Creates two learners, the first of which holds another Θ̂ than the syncer published.
fn one_drifted() -> Pair {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(50);
    let wrong: Vec<_> = pair.fragments.ids().map(|p| (p, vec![0.5; pair.fragments.len(p)])).collect();
    let Island { replica, theta, .. } = &mut pair.islands[0];
    for (fragment, values) in wrong {
        replica.as_mut().unwrap().load(fragment, &values, true, theta).unwrap();
    }
    pair
}

/// Goal: a wrong Θ̂ is fetched again, and the questions of the meantime are answered. Only progress on the wrong Θ̂
/// is lost.
#[test]
fn a_base_that_drifted_is_mended() {
    let mut pair = one_drifted();
    let before = pair.merged()[&1];
    pair.steps(100);
    assert!(pair.merged()[&1] > before + 40, "{before} → {:?}", pair.merged());
    let (_, account) = pair.syncer.ledger().accounts().next().unwrap();
    let least = account.tokens_merged.iter().min().unwrap();
    assert!(*least > before + 40, "{before} → {account:?}: each fragment of it is merged again");
}

/// Goal: this also holds if the connection is lost first.
#[test]
fn a_base_that_drifted_is_mended_after_a_lost_connection_too() {
    let mut pair = one_drifted();
    pair.deaf.insert(0);
    pair.steps(50);
    let before = pair.merged()[&1];
    pair.disconnect(0);
    pair.deaf.clear();
    pair.connect(0);
    pair.steps(100);
    assert!(pair.merged()[&1] > before + 40, "{before} → {:?}", pair.merged());
    for fragment in pair.fragments.ids() {
        let held = pair.islands[0].replica.as_ref().unwrap().digest(fragment);
        assert_eq!(held, halves::digest(&pair.syncer.hat(fragment).unwrap().1), "{fragment}");
    }
}

/// Goal: a learner that leaves with an update on its way also sends its later progress. This holds even if the update
/// is merged before the learner holds the version.
#[test]
fn one_that_leaves_hands_in_what_follows_on_an_update_that_is_under_way() {
    let mut pair = Pair::new(&[1.0, 1.0]);
    pair.steps(100);
    pair.lags_ms.insert(1, 5 * STEP_MS);
    pair.steps(30);
    pair.deaf.insert(1);
    pair.learner(1, learner::Input::Paused(true));
    pair.islands[1].core.hand_in(pair.now);
    pair.learner(1, learner::Input::Timeout);
    let over = (0..50).any(|_| {
        pair.steps(1);
        pair.islands[1].core.hands_in() == HandsIn::Nothing
    });
    assert!(pair.islands[1].core.tokens_unsettled().all(|tokens| tokens == 0), "all of it was settled");
    let (_, account) = pair.syncer.ledger().accounts().nth(1).unwrap();
    let trained = account.trained();
    assert!(over && account.tokens_merged.iter().all(|&merged| merged == trained), "{over}, {account:?}");
}

/// Goal: a learner that gets older parameters than requested, as from a cache that lags, waits before it asks again.
#[test]
fn a_fetch_that_brings_less_than_was_asked_for_is_tried_again_later() {
    let mut pair = Pair::new(&[1.0]);
    pair.steps(20);
    let fragment = FragmentId(0);
    let (held, hat) = pair.syncer.hat(fragment).map(|(version, hat)| (version, hat.to_vec())).unwrap();
    let body = vec![1];
    let after_a_gap = Merged {
        run: RunId(7),
        fragment,
        base: Version(held.0 + 1),
        version: Version(held.0 + 2),
        clock_tokens: 0,
        checksum: checksum(&body),
        body,
        digest: 0,
    };
    let mut fetches = |after_ms, input| {
        pair.now = pair.now.after(after_ms);
        let core = &mut pair.islands[0].core;
        core.handle(pair.now, input);
        std::iter::from_fn(|| core.poll()).filter(|out| matches!(out, learner::Output::Fetch { .. })).count()
    };
    assert_eq!(fetches(0, learner::Input::Message(Message::Merged(after_a_gap))), 1);
    let old = || learner::Input::Fetched { fragment, version: held, values: hat.clone() };
    assert_eq!(fetches(0, old()), 0, "at once");
    assert_eq!(fetches(500, learner::Input::Timeout), 0);
    assert_eq!(fetches(500, learner::Input::Timeout), 1);
    assert_eq!(fetches(0, old()), 0, "as often as it is so");
}
