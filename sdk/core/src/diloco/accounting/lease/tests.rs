//! Tests of the lease pool without learners.

use std::collections::BTreeSet;

use super::*;

const ANNE: LearnerId = LearnerId(1);
const BERT: LearnerId = LearnerId(2);
const END: Millis = Millis(100);

fn windows(grant: LeaseGrant) -> impl Iterator<Item = (u32, u32, u32)> {
    (grant.start..grant.start + grant.windows).map(move |w| (grant.epoch, grant.shard, w))
}

#[test]
fn grants_each_window_once_an_epoch() {
    let mut pool = LeasePool::new(vec![7, 0, 5]).unwrap();
    assert_eq!(pool.epoch(), 0);
    let mut seen = BTreeSet::new();
    while seen.len() < 24 {
        for window in windows(pool.grant(ANNE, 3, 1, END)) {
            assert!(seen.insert(window), "{window:?} granted twice");
        }
    }
    assert_eq!(seen.iter().filter(|(epoch, ..)| *epoch == 0).count(), 12);
    assert_eq!(pool.epoch(), 1);
    assert_eq!(pool.regranted_windows(), 0);
}

#[test]
fn a_lost_lease_goes_to_another_without_its_done_part() {
    let mut pool = LeasePool::new(vec![100]).unwrap();
    let lost = pool.grant(ANNE, 10, 1, END);
    pool.progress(ANNE, lost.lease, 4, END);
    assert_eq!(pool.expire(Millis(99), END), vec![]);
    let back = pool.expire(Millis(100), END);
    assert_eq!(back, vec![Returned { learner: ANNE, lease: lost.lease, windows: 6 }]);

    let again = pool.grant(BERT, 4, 1, END);
    assert_eq!((again.start, again.windows), (4, 4));
    let rest = pool.grant(BERT, 4, 1, END);
    assert_eq!((rest.start, rest.windows), (8, 2));
    assert_eq!(pool.regranted_windows(), 6);
    assert_eq!(pool.grant(BERT, 4, 1, END).start, 10);
}

#[test]
fn what_came_back_in_pieces_too_small_waits_for_another() {
    let mut pool = LeasePool::new(vec![100]).unwrap();
    let [small, large] = [2, 5].map(|windows| pool.grant(ANNE, windows, 1, END));
    assert_eq!(pool.release(ANNE).len(), 2);
    let grant = pool.grant(BERT, 4, 3, END);
    assert_eq!((grant.start, grant.windows), (large.start, 4));
    assert_eq!(pool.grant(BERT, 4, 3, END).start, 7, "nothing that came back is large enough");
    let [first, second] = [4, 4].map(|windows| pool.grant(BERT, windows, 1, END));
    assert_eq!((first.start, first.windows), (small.start, 2));
    assert_eq!((second.start, second.windows), (large.start + 4, 1));
}

/// A tape names the first piece, or a piece from the middle.
#[test]
fn a_grant_of_a_tape_may_be_any_part_of_what_came_back() {
    let mut pool = LeasePool::new(vec![100]).unwrap();
    pool.grant(ANNE, 10, 1, END);
    pool.release(ANNE);
    let grant =
        |lease, start, windows| LeaseGrant { lease: LeaseId(lease), epoch: 0, shard: 0, start, windows };
    assert_eq!(pool.regrant(BERT, grant(5, 4, 3)), Ok(()));
    assert_eq!(pool.regrant(BERT, grant(6, 5, 3)), Err(LeaseError::OutOfTurn { lease: LeaseId(6) }));
    assert_eq!(pool.regrant(BERT, grant(6, 7, 3)), Ok(()));
    assert_eq!(pool.regrant(BERT, grant(7, 0, 4)), Ok(()));
    assert_eq!(pool.grant(BERT, 4, 1, END).start, 10, "all is out again");
}

#[test]
fn only_its_own_leases_are_withdrawn_from_a_learner() {
    let mut pool = LeasePool::new(vec![100]).unwrap();
    let [first, second, other] = [ANNE, ANNE, BERT].map(|learner| pool.grant(learner, 10, 1, END));
    pool.progress(ANNE, second.lease, 3, END);
    let back = pool.withdraw(ANNE, &[second.lease, other.lease, LeaseId(77)]);
    assert_eq!(back, vec![Returned { learner: ANNE, lease: second.lease, windows: 7 }]);
    assert_eq!((pool.leases(ANNE), pool.leases(BERT)), (vec![first.lease], vec![other.lease]));
}

#[test]
fn a_stranger_cannot_finish_a_lease() {
    let mut pool = LeasePool::new(vec![100]).unwrap();
    let grant = pool.grant(ANNE, 10, 1, END);
    pool.progress(BERT, grant.lease, 10, Millis(1_000));
    assert_eq!(pool.remaining(ANNE), 10);
    assert_eq!(pool.deadline(), Some(END));
    pool.progress(ANNE, grant.lease, u32::MAX, END);
    assert_eq!(pool.remaining(ANNE), 0);
    assert_eq!(pool.deadline(), None);
}

#[test]
fn a_number_from_before_a_restart_is_not_given_again() {
    let mut pool = LeasePool::new(vec![100]).unwrap();
    let snapshot = pool.clone();
    let lost = pool.grant(ANNE, 10, 1, END);
    let mut pool = snapshot;
    pool.reopen(LeaseId(1 << 32));
    let grant = pool.grant(ANNE, 10, 1, END);
    assert_eq!((grant.lease, grant.start), (LeaseId(1 << 32), lost.start));
    pool.reopen(LeaseId(5));
    assert_eq!(pool.expire(END, Millis(150)), [], "its time starts anew");
    assert_eq!(pool.deadline(), Some(Millis(150)));
    assert_eq!(pool.grant(ANNE, 10, 1, END).lease, LeaseId((1 << 32) + 1));
}

#[test]
fn a_grant_of_a_tape_keeps_its_number_which_is_not_given_again() {
    let mut pool = LeasePool::new(vec![100]).unwrap();
    let lease = LeaseId(7);
    let grant = LeaseGrant { lease, epoch: 0, shard: 0, start: 0, windows: 10 };
    assert_eq!(pool.regrant(ANNE, grant), Ok(()));
    let again = LeaseGrant { start: 10, ..grant };
    assert_eq!(pool.regrant(BERT, again), Err(LeaseError::OutOfTurn { lease }));
    assert_eq!(pool.grant(BERT, 10, 1, END).lease, LeaseId(8));
}

#[test]
fn learners_spread_over_shards_and_stay() {
    let mut pool = LeasePool::new(vec![100, 100]).unwrap();
    assert_eq!(pool.grant(ANNE, 5, 1, END).shard, 0);
    assert_eq!(pool.grant(BERT, 5, 1, END).shard, 1);
    assert_eq!(pool.grant(ANNE, 5, 1, END).shard, 0);
    assert_eq!(pool.grant(BERT, 5, 1, END).shard, 1);
}

#[test]
fn no_windows_is_an_error() {
    assert_eq!(LeasePool::new(vec![]), Err(LeaseError::NoWindows));
    assert_eq!(LeasePool::new(vec![0, 0]), Err(LeaseError::NoWindows));
}
