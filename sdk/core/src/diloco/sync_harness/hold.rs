//! Runs that their owner pauses, and messages to a returning learner.

use super::*;
use crate::wire::{Hello, LearnerState, Signature};

#[test]
fn a_held_run_launches_and_leases_nothing() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(50);
    pair.syncer(syncer::Input::Hold(true));
    // Rounds in flight end.
    pair.steps(50);
    let (events, status) = (pair.events.len(), pair.syncer.status());
    let leased = |pair: &Pair| pair.islands.iter().map(|island| island.leases.len()).collect::<Vec<_>>();
    let leases = leased(&pair);
    assert!(status.paused && status.rounds_open == 0 && status.rounds > 0);
    pair.steps(500);
    let later = pair.syncer.status();
    assert_eq!((later.rounds, later.tokens_trained), (status.rounds, status.tokens_trained));
    assert_eq!((leased(&pair), &pair.events[events..]), (leases, &[][..]));
    assert!(pair.islands.iter().all(|island| island.core.state() == LearnerState::Held));

    // The pause holds after a restart, and returning learners are told.
    let (record, states) = (pair.syncer.record().unwrap(), pair.syncer.states().cloned().collect());
    pair.disconnect(0);
    pair.disconnect(1);
    pair.restart((record, states), SyncerConfig::default(), 0);
    pair.connect(0);
    pair.connect(1);
    pair.steps(50);
    let later = pair.syncer.status();
    assert_eq!((later.paused, later.rounds, later.live), (true, status.rounds, 2));
    assert!(pair.islands.iter().all(|island| island.core.state() == LearnerState::Held));

    pair.syncer(syncer::Input::Hold(false));
    pair.steps(100);
    let later = pair.syncer.status();
    assert!(!later.paused && later.rounds > status.rounds + 40, "{} → {}", status.rounds, later.rounds);
    assert!(pair.islands.iter().all(|island| island.core.can_train()));
}

#[test]
fn a_welcome_tells_the_account_so_far() {
    let mut pair = Pair::new(&[1.0]);
    pair.steps(100);
    let account =
        pair.syncer.learners().next().map(|learner| (learner.tokens_trained, learner.tokens_merged));
    let hello = Hello {
        run: None,
        layout: None,
        identity: Identity([1; 32]),
        signature: Signature::NONE,
        name: String::new(),
        device: String::new(),
        invite: None,
    };
    pair.syncer.handle(pair.now, syncer::Input::Message(ConnId(9), Message::Hello(hello)));
    let welcome = std::iter::from_fn(|| pair.syncer.poll()).find_map(|output| match output {
        syncer::Output::Send(ConnId(9), Message::Welcome(welcome)) => Some(welcome),
        _ => None,
    });
    let told = welcome.map(|welcome| (welcome.tokens_trained, welcome.tokens_merged));
    assert_eq!(told, account);
    assert!(told > Some((100, 100)), "{told:?}");
}
