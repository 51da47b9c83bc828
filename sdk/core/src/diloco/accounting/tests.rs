//! Tests of the books without connections or rounds.

use super::*;
use crate::wire::{Fate, LearnerState, Round, RunId, Serial, Version};

const TERMS: BookTerms = BookTerms {
    context: 4,
    lease_ms: 1_000,
    lease_idle_ms_max: 500,
    identities_max: 2,
    strangers_max: 1_000,
};
const SPEED: Speed = Speed { step_ms: 100.0, step_ms_least: 100.0, batch: 2 };

fn books() -> Books {
    Books::new(TERMS, LeasePool::new(vec![10_000]).unwrap(), Ledger::new(vec![1]))
}

fn enrol(books: &mut Books, identity: u8) -> LearnerId {
    books.enrol(&Identity([identity; 32]), "a", "cpu", None).0
}

fn progress(tokens: u64, leases: Vec<(LeaseId, u32)>) -> Progress {
    let (run, state) = (RunId(1), LearnerState::Training);
    Progress { run, leases, steps: 0, tokens, step_ms: 100.0, loss: f32::NAN, state }
}

#[test]
fn a_lease_lasts_as_long_as_it_should() {
    let mut books = books();
    let anne = enrol(&mut books, 1);
    assert!(books.is_new(anne));
    let grants = books.grant(Millis(0), anne, &SPEED);
    // 1 s at 100 ms a step is 10 steps of 2 windows, of 4 tokens each.
    assert_eq!(grants.iter().map(|grant| grant.windows).collect::<Vec<_>>(), [20]);
    assert_eq!((books.unmerged_tokens(anne, FragmentId(0)), books.is_new(anne)), (80, false));
    assert_eq!(books.grant(Millis(0), anne, &SPEED), [], "it has enough");
    let done = vec![(grants[0].lease, 15)];
    books.report(Millis(700), anne, &progress(60, done), 1e3, true);
    assert_eq!(books.grant(Millis(700), anne, &SPEED)[0].windows, 15, "less than half is left");
}

/// Returns books over `windows` windows in one shard, with one learner, which has a merged update if `is_merged`.
fn small_text(windows: u32, is_merged: bool) -> (Books, LearnerId) {
    let terms = BookTerms { lease_ms: 30_000, lease_idle_ms_max: 60_000, ..TERMS };
    let mut books = Books::new(terms, LeasePool::new(vec![windows]).unwrap(), Ledger::new(vec![1]));
    let anne = enrol(&mut books, 1);
    if is_merged {
        let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 1 };
        let (fragment, serial, round) = (FragmentId(0), Serial(1), Some(Round(1)));
        books.note_update(anne);
        books.settle(&UpdateOutcome { round, fragment, learner: anne, serial, tokens: 1, fate });
    }
    (books, anne)
}

/// Goal: a learner with merged updates never waits for text, even if a pass is very short. Its steps take 60 ms, it
/// reports each second, and it gets leases 200 ms after a report.
#[test]
fn a_short_pass_starves_nobody_that_trains() {
    const BATCH: u32 = 8;
    for steps_a_pass in [3, 22, 100] {
        let (mut books, anne) = small_text(steps_a_pass * BATCH, true);
        let speed = Speed { step_ms: 60.0, step_ms_least: 60.0, batch: BATCH };
        let mut held: VecDeque<(LeaseGrant, u32)> = VecDeque::new();
        let mut seen = std::collections::BTreeSet::new();
        let (mut steps, mut starved) = (0_u32, 0_u32);
        let mut under_way = books.grant(Millis(0), anne, &speed);
        let mut done = BTreeMap::new();
        for tick in 0..2_000_u64 {
            let now = Millis(60 * tick);
            match tick % 17 {
                0 => {
                    let said: Vec<(LeaseId, u32)> =
                        done.iter().map(|(&lease, &done)| (lease, done)).collect();
                    books.report(now, anne, &progress(u64::from(4 * BATCH * steps), said), 1e3, true);
                    under_way.extend(books.grant(now, anne, &speed));
                    assert!(books.leases.leases(anne).len() <= LEASES_HELD_MAX);
                    assert!(books.leases.remaining(anne) <= 8_000 / 60 * BATCH, "it is bounded");
                }
                4 => {
                    for grant in under_way.drain(..) {
                        done.insert(grant.lease, 0);
                        held.push_back((grant, 0));
                    }
                }
                _ => {}
            }
            let ready: u32 = held.iter().map(|(grant, done)| grant.windows - done).sum();
            if ready < BATCH {
                starved += u32::from(tick > 4);
                continue;
            }
            steps += 1;
            for _ in 0..BATCH {
                let (grant, at) = held.front_mut().unwrap();
                assert!(seen.insert((grant.epoch, grant.start + *at)), "a window twice in a pass");
                *at += 1;
                done.insert(grant.lease, *at);
                if *at == grant.windows {
                    held.pop_front();
                }
            }
        }
        assert_eq!(starved, 0, "{steps_a_pass} steps a pass: starved for {starved} of 2,000 steps");
        assert!(steps > 1_990, "{steps}");
    }
}

/// Goal: a learner without merged updates gets an eighth of the text or one batch, regardless of its claims.
#[test]
fn a_stranger_is_not_leased_ahead() {
    for step_ms in [0.0, 0.01, 60.0] {
        let (mut books, anne) = small_text(176, false);
        let speed = Speed { step_ms, step_ms_least: step_ms.max(0.01), batch: 8 };
        books.grant(Millis(0), anne, &speed);
        assert_eq!(books.leases.remaining(anne), 22, "{step_ms}");
        let (mut books, anne) = small_text(176, true);
        books.grant(Millis(0), anne, &speed);
        assert!(books.leases.remaining(anne) <= LEASES_HELD_MAX as u32 * 176, "{step_ms}");
    }
}

#[test]
fn who_claims_to_be_done_too_soon_has_to_wait() {
    let mut books = books();
    let anne = enrol(&mut books, 1);
    let mut leased = 0;
    for _ in 0..1_000 {
        for grant in books.grant(Millis(0), anne, &SPEED) {
            leased += grant.windows;
            books.report(Millis(0), anne, &progress(0, vec![(grant.lease, grant.windows)]), 1e3, true);
        }
    }
    // The largest stock without elapsed time, and one grant more.
    assert!((512..=532).contains(&leased), "{leased}");
}

#[test]
fn what_comes_back_makes_room_for_as_much_and_no_more() {
    let mut books = books();
    let anne = enrol(&mut books, 1);
    let mut done = 0;
    for turn in 0..1_000 {
        for grant in books.grant(Millis(0), anne, &SPEED) {
            if turn % 2 == 0 {
                assert_eq!(books.release(anne).len(), 1);
            } else {
                done += grant.windows;
                books.report(Millis(0), anne, &progress(0, vec![(grant.lease, grant.windows)]), 1e3, true);
            }
        }
    }
    assert!((512..=532).contains(&done), "as much as without coming and going: {done}");
}

#[test]
fn what_is_lost_comes_back_and_is_granted_again() {
    let mut books = books();
    let [anne, bert] = [1, 2].map(|identity| enrol(&mut books, identity));
    let lost = books.grant(Millis(0), anne, &SPEED).remove(0);
    assert_eq!(books.deadline(), Some(Millis(500)));
    assert_eq!(books.expire(Millis(499)), []);
    assert_eq!(books.expire(Millis(500)).len(), 1);
    let again = books.grant(Millis(500), bert, &SPEED).remove(0);
    assert_eq!((again.start, again.windows), (lost.start, lost.windows));
    assert_eq!(books.release(bert).len(), 1);
    assert_eq!(books.restart(bert), [], "nothing is left to come back");
}

/// Learners that come and go may leave pieces of one window each, and the number of leases of a learner is limited.
#[test]
fn pieces_smaller_than_a_batch_starve_nobody() {
    let mut books = books();
    let [anne, bert] = [1, 2].map(|identity| enrol(&mut books, identity));
    assert_eq!(books.grant(Millis(0), anne, &Speed { batch: 4, ..SPEED })[0].windows, 40);
    books.release(anne);
    let slow = Speed { step_ms: 3.6e6, step_ms_least: 3.6e6, batch: 1 };
    for _ in 0..40 {
        books.grant(Millis(0), anne, &slow);
        books.release(anne);
    }
    books.grant(Millis(0), bert, &Speed { batch: 64, ..SPEED });
    assert!(books.leases.remaining(bert) >= 64, "{}", books.leases.remaining(bert));
}

/// This also holds after the syncer has restarted, when the time of the last report is unknown.
#[test]
fn a_restart_lets_nobody_say_more_than_a_lease_holds() {
    let mut books = books();
    let anne = enrol(&mut books, 1);
    books.grant(Millis(0), anne, &SPEED);
    books.report(Millis(0), anne, &progress(u64::MAX, vec![]), 0.01, true);
    assert_eq!(books.ledger.reported(anne), 20, "a lease of 1 s at a hundredth of a token, and twice that");
}

#[test]
fn a_word_for_what_is_trained_is_believed_as_far_as_time_allows() {
    let mut books = books();
    let anne = enrol(&mut books, 1);
    assert_eq!(books.grant(Millis(0), anne, &SPEED)[0].windows, 20, "80 tokens");
    books.count_from(Millis(0), anne);
    let mut believed = |at, said| {
        books.report(Millis(at), anne, &progress(said, vec![]), 0.1, true);
        books.ledger.reported(anne)
    };
    // A tenth of a token in a millisecond, and twice that with the slack.
    assert_eq!(believed(100, 75), 20);
    assert_eq!(believed(100, 75), 20, "no time has passed");
    assert_eq!(believed(300, 75), 60, "what is left over is believed as time passes");
    assert_eq!(believed(1_300, 75), 75, "never more than it says");
}

/// The learner trains and is merged, and repeatedly leaves before it reports the finished windows of its lease.
#[test]
fn processes_that_are_lost_leave_no_debt() {
    let mut books = books();
    let anne = enrol(&mut books, 1);
    for process in 0..10 {
        books.grant(Millis(0), anne, &SPEED);
        assert_eq!(books.unmerged_tokens(anne, FragmentId(0)), 80, "process {process}");
        let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 24 };
        let (fragment, serial, round) = (FragmentId(0), Serial(process), Some(Round(1)));
        books.settle(&UpdateOutcome { round, fragment, learner: anne, serial, tokens: 24, fate });
        books.restart(anne);
        assert_eq!(books.unmerged_tokens(anne, FragmentId(0)), 0, "nothing is leased any more");
    }
}

#[test]
fn what_a_learner_that_came_back_does_not_name_comes_back() {
    let mut books = books();
    let [anne, bert] = [1, 2].map(|identity| enrol(&mut books, identity));
    let held = books.grant(Millis(0), anne, &SPEED).remove(0);
    books.report(Millis(100), anne, &progress(60, vec![(held.lease, 15)]), 1e3, true);
    let lost = books.grant(Millis(100), anne, &SPEED).remove(0);
    let of_bert = books.grant(Millis(100), bert, &SPEED).remove(0);
    assert_eq!(books.report(Millis(100), anne, &progress(60, vec![]), 1e3, true), [], "nothing is in doubt");
    books.doubt(anne);
    let news = books.grant(Millis(200), anne, &SPEED);
    assert_eq!(news, [], "what is in doubt counts");
    assert_eq!(books.report(Millis(200), anne, &progress(60, vec![]), 1e3, false), [], "it is not here yet");
    let named = progress(64, vec![(held.lease, 16)]);
    let back = books.report(Millis(200), anne, &named, 1e3, true);
    assert_eq!(back, [Returned { learner: anne, lease: lost.lease, windows: lost.windows }]);
    assert_eq!(books.unmerged_tokens(anne, FragmentId(0)), 80, "20 windows of 4 tokens are left");
    assert_eq!(books.leased(bert), [of_bert.lease]);
    let again = books.grant(Millis(200), anne, &SPEED).remove(0);
    assert_eq!((again.start, again.windows), (lost.start, lost.windows), "it is supplied at once");
    assert_eq!(
        books.report(Millis(300), anne, &progress(64, vec![]), 1e3, true),
        [],
        "that was the first report"
    );
}

#[test]
fn coming_and_going_earns_nothing() {
    let mut books = books();
    let anne = enrol(&mut books, 1);
    for round in 0..100 {
        assert!(!books.grant(Millis(round), anne, &SPEED).is_empty());
        match round % 3 {
            0 => drop(books.release(anne)),
            1 => drop(books.restart(anne)),
            _ => {
                books.doubt(anne);
                books.report(Millis(round), anne, &progress(0, vec![]), 1e3, true);
            }
        }
        assert_eq!(books.unmerged_tokens(anne, FragmentId(0)), 0);
    }
}

#[test]
fn one_that_came_to_nothing_makes_room() {
    let mut books = books();
    let [anne, bert] = [1, 2].map(|identity| enrol(&mut books, identity));
    let full = BooksFull::Identities { identities_max: 2 };
    assert_eq!(books.make_room(|learner| learner == anne), Err(full), "the last one keeps its number");
    assert_eq!(books.make_room(|_| false), Ok(Some(anne)));
    assert_eq!(books.make_room(|_| false), Ok(None), "there is room now");
    let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 1 };
    let (round, serial, fragment) = (Some(Round(1)), Serial(1), FragmentId(0));
    let settled = UpdateOutcome { round, fragment, learner: bert, serial, tokens: 1, fate };
    books.note_update(bert);
    books.settle(&settled);
    enrol(&mut books, 3);
    assert_eq!(books.make_room(|_| false), Err(full), "one that was merged is remembered");
}
