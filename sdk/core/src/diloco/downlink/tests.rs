//! Tests of the downlink to one learner without a syncer.

use super::*;
use crate::wire::RunId;

const CONN: ConnId = ConnId(1);
const P: FragmentId = FragmentId(0);
/// Changes of 50 kB: the first window of a link holds three, and the history four.
const BODY_BYTES: usize = 50_000;
const TERMS: DownlinkTerms = DownlinkTerms {
    fragments: 2,
    policy: DownlinkPolicy {
        window_bytes_min: 16_000,
        window_bytes_first: 128_000,
        unconfirmed_bytes_min: 400_000,
        history_bytes_min: 400_000,
        wait_ms_max: 1_000,
    },
    unconfirmed_bytes_max: 400_000,
    history_bytes_max: 400_000,
};

fn merged(version: u64) -> Merged {
    Merged {
        run: RunId(1),
        fragment: P,
        base: Version(version - 1),
        version: Version(version),
        clock_tokens: 0,
        body: vec![0; BODY_BYTES],
        checksum: 0,
        digest: 0,
    }
}

fn opened() -> Downlink {
    let mut downlink = Downlink::new(TERMS, vec![Version(1); 2]);
    downlink.open(CONN);
    assert_eq!(downlink.trains(Millis(0), CONN), CatchUp::default());
    downlink
}

/// Creates a downlink to one learner that holds version 1 of the first fragment, the newest.
fn followed() -> Downlink {
    let mut downlink = opened();
    assert_eq!(holds(&mut downlink, 0, 1), CatchUp::default());
    downlink
}

fn publish(downlink: &mut Downlink, now: u64, version: u64) -> Recipients {
    downlink.publish(Millis(now), &merged(version), |_| 0.0)
}

fn holds(downlink: &mut Downlink, now: u64, version: u64) -> CatchUp {
    downlink.holds(Millis(now), CONN, P, Version(version), 0.0)
}

fn sent() -> Recipients {
    Recipients { change: vec![CONN], behind: vec![] }
}

fn told() -> Recipients {
    Recipients { change: vec![], behind: vec![CONN] }
}

fn changes(versions: std::ops::RangeInclusive<u64>) -> CatchUp {
    CatchUp { changes: versions.map(merged).collect(), behind: vec![] }
}

fn behind(version: u64) -> CatchUp {
    CatchUp { changes: vec![], behind: vec![(P, Version(version))] }
}

/// Goal: nothing competes with the parameters and the text that a joiner waits for.
#[test]
fn who_does_not_train_yet_is_sent_nothing() {
    let mut downlink = Downlink::new(TERMS, vec![Version(1); 2]);
    downlink.open(CONN);
    assert_eq!(holds(&mut downlink, 0, 1), CatchUp::default());
    assert_eq!(publish(&mut downlink, 10, 2), Recipients::default());
    assert_eq!(publish(&mut downlink, 20, 3), Recipients::default());
    assert_eq!(downlink.trains(Millis(30), CONN), changes(2..=3), "and then all that it missed");
    assert_eq!(downlink.trains(Millis(40), CONN), CatchUp::default());
    assert_eq!(publish(&mut downlink, 50, 4), sent());

    let mut downlink = Downlink::new(TERMS, vec![Version(1); 2]);
    downlink.open(CONN);
    assert_eq!(holds(&mut downlink, 0, 1), CatchUp::default());
    (2..40).for_each(|version| assert_eq!(publish(&mut downlink, version, version), Recipients::default()));
    assert_eq!(downlink.trains(Millis(50), CONN), behind(39), "or that it missed too much");
}

#[test]
fn changes_go_to_those_who_hold_the_fragment() {
    assert_eq!(publish(&mut opened(), 0, 2), Recipients::default(), "it holds nothing yet");
    let mut downlink = followed();
    for version in 2..20 {
        assert_eq!(publish(&mut downlink, version, version), sent());
        assert_eq!(holds(&mut downlink, version, version), CatchUp::default());
    }
    assert_eq!(downlink.unconfirmed_bytes(CONN), 0);
    downlink.close(CONN);
    assert_eq!(publish(&mut downlink, 30, 20), Recipients::default());
}

#[test]
fn what_there_is_no_room_for_waits_in_the_history_that_all_share() {
    let mut downlink = followed();
    (2..=4).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), sent()));
    (5..=6).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), Recipients::default()));
    assert_eq!(downlink.unconfirmed_bytes(CONN), 150_000);
    // The first confirmation makes room for one change, and for another one since no change was slow.
    assert_eq!(holds(&mut downlink, 10, 2), changes(5..=6));
    assert_eq!(holds(&mut downlink, 10, 6), CatchUp::default());
    assert_eq!(publish(&mut downlink, 10, 7), sent());
}

#[test]
fn who_confirms_nothing_is_sent_no_more_than_the_bound() {
    let mut downlink = followed();
    (2..=4).for_each(|version| assert_eq!(publish(&mut downlink, 0, version), sent()));
    assert_eq!(publish(&mut downlink, 0, 5), Recipients::default());
    assert_eq!(publish(&mut downlink, 1_001, 6), told(), "that was too long");
    assert_eq!(publish(&mut downlink, 1_001, 7), Recipients::default(), "it is told once");
    assert_eq!(downlink.unconfirmed_bytes(CONN), 150_000);
    assert!(downlink.is_thin(Millis(1_001), CONN));
}

#[test]
fn one_with_long_steps_has_longer() {
    let mut downlink = followed();
    (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
    assert_eq!(downlink.publish(Millis(1_900), &merged(6), |_| 500.0), Recipients::default());
    assert_eq!(downlink.publish(Millis(2_100), &merged(7), |_| 500.0), told());
}

#[test]
fn who_fetched_a_version_gets_what_followed_on_it() {
    let mut downlink = opened();
    (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
    assert_eq!(holds(&mut downlink, 0, 3), changes(4..=5));
    // Version 1 is older than the history, and version 9 is of another timeline.
    for version in [0, 9] {
        let mut downlink = opened();
        (2..=6).for_each(|version| drop(publish(&mut downlink, 0, version)));
        assert_eq!(holds(&mut downlink, 0, version), behind(6));
    }
}

/// Goal: changes that were held back during a rest do not cause another rest.
#[test]
fn a_rest_does_not_count_as_waiting() {
    let of = |fragment, version| Merged { fragment: FragmentId(fragment), ..merged(version) };
    let mut downlink = Downlink::new(DownlinkTerms { fragments: 3, ..TERMS }, vec![Version(1); 3]);
    downlink.open(CONN);
    for fragment in 0..3 {
        downlink.holds(Millis(0), CONN, FragmentId(fragment), Version(1), 0.0);
    }
    downlink.trains(Millis(0), CONN);
    (2..=5).for_each(|version| drop(publish(&mut downlink, 0, version)));
    assert_eq!(publish(&mut downlink, 1_001, 6), told());
    holds(&mut downlink, 1_100, 4);
    assert_eq!(downlink.publish(Millis(2_000), &of(1, 2), |_| 0.0), told(), "it rests");
    let mut later = (2..20).map(|version| downlink.publish(Millis(20_000), &of(2, version), |_| 0.0));
    assert_eq!(later.next(), Some(sent()));
    assert_eq!(
        later.find(|audience| *audience != sent()),
        Some(Recipients::default()),
        "it waits, and no more"
    );
    drop(later);
    assert!(!downlink.is_thin(Millis(20_000), CONN));
}

#[test]
fn after_a_rest_changes_are_tried_again_and_longer_rests_follow() {
    let mut downlink = followed();
    let (mut now, mut version) = (0, 1);
    let mut rests = Vec::new();
    for _ in 0..3 {
        // Nothing is confirmed before the learner is told that it is behind.
        while publish(&mut downlink, now, version + 1) != told() {
            (version, now) = (version + 1, now + 500);
        }
        version += 1;
        let from = now;
        while downlink.is_thin(Millis(now), CONN) {
            now += 1_000;
            assert_eq!(holds(&mut downlink, now, version), CatchUp::default());
            if downlink.is_thin(Millis(now), CONN) {
                version += 1;
                assert_eq!(publish(&mut downlink, now, version), told());
            }
        }
        rests.push((now - from) / 1_000);
    }
    assert_eq!(rests, [15, 30, 60]);
}
