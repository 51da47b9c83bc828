//! Tests of the roster, without rounds or leases.

use super::*;

const PATIENCE: SilenceLimits = SilenceLimits { silent_ms_max: 1_000, hidden_ms_max: 10_000 };
const ANNE: LearnerId = LearnerId(1);
const BERT: LearnerId = LearnerId(2);
const CARL: LearnerId = LearnerId(3);

fn conn(learner: LearnerId) -> ConnId {
    ConnId(u64::from(learner.0))
}

/// Creates a roster at time 0 of live learners with their claimed step times in milliseconds.
fn roster(live: &[(LearnerId, f32)]) -> Roster {
    let mut roster = Roster::new(PATIENCE, Restrictions::default());
    for &(learner, step_ms) in live {
        roster.open(Millis(0), conn(learner), learner, true);
        roster.ready(conn(learner), 1);
        roster.report(conn(learner), step_ms, f32::NAN, LearnerState::Training);
    }
    roster
}

#[test]
fn session_is_live_from_ready_to_close() {
    let mut roster = roster(&[]);
    roster.open(Millis(5), conn(ANNE), ANNE, true);
    assert_eq!(
        (roster.learner(conn(ANNE)), roster.conn(ANNE), roster.len()),
        (Some(ANNE), Some(conn(ANNE)), 1)
    );
    assert!(!roster.is_live(ANNE));
    assert!(roster.ready(conn(ANNE), 1).is_some_and(|session| session.is_fresh));
    assert!(roster.is_live(ANNE));
    assert_eq!(roster.close(conn(ANNE)), Some(ANNE));
    assert_eq!((roster.close(conn(ANNE)), roster.conn(ANNE), roster.is_live(ANNE)), (None, None, false));
}

#[test]
fn silence_limit_follows_reported_state_and_step_time() {
    let mut roster = roster(&[(ANNE, 10.0), (BERT, 500.0)]);
    let silent = |roster: &Roster, at| roster.silent(Millis(at));
    assert_eq!(silent(&roster, 999), []);
    // Four steps of BERT last 2 s: it sends only between steps.
    assert_eq!(silent(&roster, 1_000), [conn(ANNE)]);
    assert_eq!(roster.deadline(), Some(Millis(1_000)));
    roster.note_activity(Millis(900), conn(ANNE));
    assert_eq!(silent(&roster, 1_899), []);
    assert!(roster.report(conn(ANNE), 10.0, f32::NAN, LearnerState::Hidden), "its state is news");
    assert_eq!(silent(&roster, 2_000), [conn(BERT)]);
    assert_eq!(silent(&roster, 10_900), [conn(ANNE), conn(BERT)]);
}

/// Goal: two learners with false claims that are merged first do not confirm each other's claims.
#[test]
fn false_claims_do_not_confirm_each_other() {
    let mut roster =
        roster(&[(ANNE, 0.125), (BERT, 0.125), (CARL, 100.0), (LearnerId(4), 100.0), (LearnerId(5), 100.0)]);
    for liar in [ANNE, BERT] {
        (0..8).for_each(|_| roster.note_merged(liar, 100_000, Some(0.125)));
    }
    let credited_ms = roster.step_ms_credited(Millis(0), ANNE);
    assert_eq!(credited_ms, 12.5, "eight times as fast as the one in the middle");
    assert_eq!(roster.step_ms_credited(Millis(0), CARL), 100.0);
    assert!(
        roster.step_ms_credited(Millis(60_000), ANNE) < 0.2,
        "who has been there counts by what was merged"
    );
}

#[test]
fn first_claim_is_limited_until_half_of_the_learners_have_claims() {
    let mut roster = roster(&[(ANNE, 0.125)]);
    assert_eq!(roster.step_ms_credited(Millis(0), ANNE), 0.125, "one that is alone is taken at its word");
    for learner in [BERT, CARL, LearnerId(4)] {
        roster.open(Millis(0), conn(learner), learner, true);
    }
    roster.ready(conn(BERT), 1);
    roster.report(conn(BERT), 0.125, f32::NAN, LearnerState::Training);
    assert_eq!(roster.step_ms_credited(Millis(0), ANNE), 0.125, "half of them say so");
    roster.open(Millis(0), conn(LearnerId(5)), LearnerId(5), true);
    assert_eq!(roster.step_ms_credited(Millis(0), ANNE), BELIEVED_MS);
}

#[test]
fn speed_is_believed_as_far_as_the_others_allow() {
    let alone = roster(&[(ANNE, 0.01)]);
    assert_eq!(alone.step_ms_least(ANNE), 0.01, "one that is alone is taken at its word");
    let roster = roster(&[(ANNE, 0.01), (BERT, 5_000.0), (CARL, 5_000.0)]);
    assert_eq!(roster.step_ms_least(ANNE), 5.0, "a thousand times as fast as the others");
    assert_eq!(roster.step_ms_least(BERT), 5_000.0);
    assert_eq!(roster.step_ms(), Some(5_000.0));
    assert_eq!(roster.read_interval_ms(conn(BERT)), 5_000.0, "it listens between steps");
    // Impossible times and losses are ignored.
    let mut roster = roster;
    for step_ms in [f32::NAN, -1.0, 0.0, f32::INFINITY] {
        assert!(!roster.report(conn(CARL), step_ms, f32::INFINITY, LearnerState::Training));
    }
    assert_eq!((roster.session(CARL).map(|carl| carl.step_ms), roster.train_loss()), (Some(5_000.0), None));
}

#[test]
fn exclusion_ends_after_its_time() {
    let mut roster = roster(&[(ANNE, 10.0)]);
    roster.exclude_learner(Millis(100), ANNE, u32::MAX);
    assert_eq!(roster.away_ms(Millis(100), ANNE), Some(DROP_MS_MAX), "never for longer than that");
    roster.exclude_learner(Millis(100), ANNE, 50);
    assert_eq!((roster.away_ms(Millis(120), ANNE), roster.away_ms(Millis(150), ANNE)), (Some(30), None));
    assert!(roster.is_restricted(ANNE));
    assert_eq!(
        (roster.expire_exclusions(Millis(149)), roster.expire_exclusions(Millis(150))),
        (vec![], vec![ANNE])
    );
    assert!(!roster.is_restricted(ANNE), "what is over is forgotten");
    roster.pace(ANNE, Share::new(0.25).unwrap());
    assert_eq!(roster.share(ANNE).ratio(), 0.25);
    roster.pace(ANNE, Share::FULL);
    assert!(!roster.is_restricted(ANNE));
}

#[test]
fn claimed_step_time_extends_silence_up_to_the_hidden_limit() {
    let roster = roster(&[(ANNE, 3_600_000.0)]);
    assert_eq!(roster.silent(Millis(9_999)), []);
    assert_eq!((roster.silent(Millis(10_000)), roster.deadline()), (vec![conn(ANNE)], Some(Millis(10_000))));
}
