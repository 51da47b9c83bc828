//! Times at which a connection is given up and at which the next attempt is made.

use super::*;
use crate::diloco::learner::LearnerConfig;
use crate::driver::Waits;
use crate::wire::Identity;

const SECOND_US: u64 = 1_000_000;

fn contact() -> Reconnect {
    let learner = LearnerConfig {
        identity: Identity([1; 32]),
        name: String::new(),
        device: String::new(),
        invite: None,
        serial_first: 1,
    };
    let (contact_ms_max, reconnect_ms_max) = (Some(30_000), Some(300_000));
    let waits = Waits::default();
    Reconnect::new(&DriverConfig { learner, contact_ms_max, reconnect_ms_max, waits, seed: 1 }, 1)
}

fn ended(reason: &str) -> Ending<'_> {
    Ending { reason, ..Ending::default() }
}

/// Seconds after `from_s` until the connection is given up, if checked every second; `None` if it lasts an hour.
fn given_up_after(contact: &mut Reconnect, from_s: u64, awaited: bool) -> Option<u64> {
    (0..3_600).find(|after_s| contact.given_up((from_s + after_s) * SECOND_US, awaited).is_some())
}

#[test]
fn a_connection_that_does_not_open_is_given_up() {
    let mut contact = contact();
    assert!(contact.connect(0) && !contact.connect(0));
    assert_eq!(given_up_after(&mut contact, 0, false), Some(10));
}

#[test]
fn silence_is_given_up_where_a_word_is_awaited_and_each_time_later() {
    let mut contact = contact();
    assert!(contact.connect(0));
    contact.opened(0);
    // The greeting is unanswered.
    assert_eq!(given_up_after(&mut contact, 0, false), Some(60));
    contact.end(60 * SECOND_US, &Ending::default());
    assert!(contact.connect(100 * SECOND_US));
    contact.opened(100 * SECOND_US);
    // Signs of life do not answer the greeting.
    contact.heard(200 * SECOND_US);
    assert_eq!(given_up_after(&mut contact, 200, false), Some(120));
    contact.answered(320 * SECOND_US);
    // The learner fetches the parameters for an hour, then takes part.
    assert_eq!(given_up_after(&mut contact, 320, false), None);
    assert!(!contact.is_doubtful(330 * SECOND_US) && contact.is_doubtful(331 * SECOND_US));
    assert_eq!(given_up_after(&mut contact, 3_919, true), Some(240));
    // A step of an hour is not a silence of the peer.
    assert_eq!(contact.given_up(4_200 * SECOND_US, false), None);
    assert_eq!(contact.given_up(7_800 * SECOND_US, true), None);
}

#[test]
fn one_that_looks_only_when_it_has_to_gives_up_at_the_same_time() {
    let mut contact = contact();
    assert!(contact.connect(0));
    contact.opened(0);
    contact.answered(0);
    contact.welcomed(0);
    let mut now_us = 0;
    while contact.given_up(now_us, true).is_none() {
        now_us = contact.deadline(true).unwrap();
    }
    assert_eq!(now_us, 60 * SECOND_US);
}

/// Opens connections and loses them again, as soon as the contact permits.
struct Loser {
    contact: Reconnect,
    now_us: u64,
}

impl Loser {
    /// Connects, runs `life` on the connection, which returns its length in µs, and loses it. Returns the wait before
    /// the next attempt in ms.
    fn lose(&mut self, life: impl FnOnce(&mut Reconnect, u64) -> u64) -> u64 {
        let Self { contact, now_us } = self;
        assert!(contact.connect(*now_us), "{contact:?} at {now_us} µs");
        *now_us += life(contact, *now_us);
        let retry_ms = contact.end(*now_us, &ended("it broke")).unwrap();
        assert!(!contact.connect(*now_us + 1_000 * retry_ms - 1), "{contact:?}");
        *now_us += 1_000 * retry_ms;
        retry_ms
    }
}

/// A connection with immediate admission that lasts `held_us` and has signs of life for `heard_us`.
fn welcomed(heard_us: u64, held_us: u64) -> impl FnOnce(&mut Reconnect, u64) -> u64 {
    move |contact, now_us| {
        contact.opened(now_us);
        contact.answered(now_us);
        contact.welcomed(now_us);
        contact.heard(now_us + heard_us);
        held_us
    }
}

#[test]
fn attempts_are_further_and_further_apart_until_one_was_of_use() {
    let mut loser = Loser { contact: contact(), now_us: 0 };
    for ceiling_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000] {
        let retry_ms = loser.lose(|_, _| 0);
        assert!((ceiling_ms / 2..=ceiling_ms).contains(&retry_ms), "{retry_ms} of {ceiling_ms}");
    }
    // A peer that opens connections without admission, one that falls silent afterwards, and one that fails at once.
    let open = |contact: &mut Reconnect, now_us| {
        contact.opened(now_us);
        contact.heard(now_us + 60 * SECOND_US);
        60 * SECOND_US
    };
    assert!(loser.lose(open) > 7_000);
    assert!(loser.lose(welcomed(0, 60 * SECOND_US)) > 7_000);
    assert!(loser.lose(welcomed(SECOND_US / 2 - 1_000, SECOND_US / 2)) > 7_000);
    // A second of use undoes two doublings, and three seconds undo all of them.
    assert!((1_875..=3_750).contains(&loser.lose(welcomed(SECOND_US, 60 * SECOND_US))));
    assert!(loser.lose(welcomed(3 * SECOND_US, 3 * SECOND_US)) <= 250);
}

/// Goal: twenty crashes in a row, each after a few seconds and some seconds long, are overcome as fast as the first. No
/// learner stays away for more than a second after the syncer is back.
#[test]
fn the_twentieth_crash_of_a_syncer_is_as_short_as_the_first() {
    for (up_s, down_ms) in [(10, 500), (3, 500), (3, 2_600), (1, 8_000)] {
        let mut loser = Loser { contact: contact(), now_us: 0 };
        for crash in 0..20 {
            let mut away_ms = loser.lose(welcomed(up_s * SECOND_US, up_s * SECOND_US));
            while away_ms < down_ms {
                away_ms += loser.lose(|_, _| 0);
            }
            assert!(away_ms <= down_ms + 1_000, "crash {crash} of {up_s} s: {away_ms} ms of {down_ms}");
        }
    }
}

/// Goal: a learner without a syncer for long does not retry every second.
#[test]
fn a_syncer_that_stays_away_is_tried_less_and_less() {
    let mut loser = Loser { contact: contact(), now_us: 0 };
    let mut away_ms = loser.lose(welcomed(3 * SECOND_US, 3 * SECOND_US));
    while away_ms < 10_000 {
        let retry_ms = loser.lose(|_, _| 0);
        assert!(retry_ms <= 1_000, "{retry_ms} after {away_ms}");
        away_ms += retry_ms;
    }
    for ceiling_ms in [2_000, 4_000, 8_000, 15_000] {
        let retry_ms = loser.lose(|_, _| 0);
        assert!((ceiling_ms / 2..=ceiling_ms).contains(&retry_ms), "{retry_ms} of {ceiling_ms}");
    }
}

/// Goal: a syncer that recovered from an hour of silence is given up after a minute of new silence.
#[test]
fn patience_is_short_again_with_a_syncer_that_is_well_again() {
    let mut contact = contact();
    let mut now_us = 0;
    for patience_s in [60, 120, 240] {
        now_us += 20 * SECOND_US;
        assert!(contact.connect(now_us));
        contact.opened(now_us);
        assert_eq!(given_up_after(&mut contact, now_us / SECOND_US, true), Some(patience_s));
        now_us += patience_s * SECOND_US;
        contact.end(now_us, &Ending::default());
    }
    now_us += 20 * SECOND_US;
    assert!(contact.connect(now_us));
    contact.opened(now_us);
    for _ in 0..61 {
        now_us += SECOND_US;
        contact.answered(now_us);
    }
    assert_eq!(given_up_after(&mut contact, now_us / SECOND_US, true), Some(60));
}

#[test]
fn what_the_syncer_asks_for_comes_first_and_a_lost_device_before_that() {
    let asked = Ending { reason: "dropped", code: Some(CloseCode::Dropped), wait_ms: 20_000 };
    let mut away = contact();
    away.connect(0);
    away.opened(0);
    assert_eq!(away.end(0, &asked), Some(20_000));
    assert_eq!(away.end(0, &asked), None, "there is none any more");
    // The absence begins only after the wait that the syncer asked for.
    assert_eq!(away.too_long(49 * SECOND_US), None);
    assert_eq!(away.too_long(50 * SECOND_US), Some((30_000, "dropped".to_owned())));
    let offline = away.offline(5 * SECOND_US).unwrap();
    assert_eq!(
        (offline.reason, offline.code, offline.retry_ms),
        ("dropped", Some(CloseCode::Dropped), 15_000)
    );
    away.hurry(6 * SECOND_US);
    assert!(away.connect(6 * SECOND_US));

    let mut lost = contact();
    lost.connect(0);
    lost.opened(0);
    lost.postpone(60 * SECOND_US);
    assert_eq!(lost.end(0, &asked), Some(60_000));
    lost.hurry(6 * SECOND_US);
    assert!(!lost.connect(60 * SECOND_US - 1) && lost.connect(60 * SECOND_US));
}

#[test]
fn without_contact_for_too_long() {
    let mut contact = contact();
    contact.connect(0);
    contact.end(0, &ended("nobody answers"));
    assert_eq!(contact.too_long(30 * SECOND_US - 1), None);
    assert_eq!(contact.too_long(30 * SECOND_US), Some((30_000, "nobody answers".to_owned())));
    contact.connect(30 * SECOND_US);
    contact.opened(30 * SECOND_US);
    assert_eq!(
        contact.too_long(30 * SECOND_US),
        Some((30_000, "no answer".to_owned())),
        "it is not taken in"
    );
    assert_eq!(contact.offline(30 * SECOND_US), None, "there is nothing to say");
    contact.welcomed(30 * SECOND_US);
    assert_eq!(contact.too_long(3_600 * SECOND_US), None);
    // After the first admission the limit is longer.
    contact.end(100 * SECOND_US, &ended("it broke"));
    assert_eq!(contact.too_long(400 * SECOND_US - 1), None);
    assert_eq!(contact.too_long(400 * SECOND_US), Some((300_000, "it broke".to_owned())));
}
