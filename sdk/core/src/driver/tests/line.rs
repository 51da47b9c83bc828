//! Tests of connections that do not open, break, or stay silent.

use super::*;
use crate::wire::DecodeError;

#[test]
fn attempts_are_further_and_further_apart() {
    let mut rig = Rig::joined();
    rig.run_for(60 * SECOND_US);
    rig.script.unreachable = true;
    let lost_us = rig.now_us;
    rig.cut();
    let steps = rig.steps_in(20 * SECOND_US);
    assert!(steps > 100, "{steps} steps: it trains on alone");
    rig.run_for(40 * SECOND_US);
    let attempts_us = &rig.log.connects_us[1..];
    let (mut before_us, mut ceiling_ms) = (lost_us, 250);
    for &at_us in attempts_us {
        // The member checks between two steps.
        let (gap_ms, early_ms) = ((at_us - before_us) / 1_000, ceiling_ms / 2);
        assert!((early_ms..=ceiling_ms + STEP_US / 1_000).contains(&gap_ms), "{attempts_us:?}");
        // For 10 s after its last data, shortly before the loss, the syncer is expected back at any moment.
        let is_fresh = at_us < lost_us + 10 * SECOND_US - STEP_US;
        ceiling_ms = (2 * ceiling_ms).min(if is_fresh { 1_000 } else { 15_000 });
        before_us = at_us;
    }
    assert!((15..=31).contains(&attempts_us.len()), "{attempts_us:?}");
    rig.script.unreachable = false;
    let merged = rig.merged();
    rig.run_for(20 * SECOND_US);
    assert!(rig.merged() > merged + 10);
    assert_eq!((rig.log.built_anew, rig.log.hellos.len()), (1, 2), "it is the same learner");
    assert!(rig.log.hellos[1].run.is_some());
}

#[test]
fn attempts_depend_on_the_seed() {
    let attempts = |seed| {
        let mut rig = Rig::with(DriverConfig { seed, ..config() });
        rig.script.unreachable = true;
        rig.run_for(60 * SECOND_US);
        rig.log.connects_us
    };
    assert_eq!(attempts(1), attempts(1));
    assert_ne!(attempts(1)[1..], attempts(2)[1..]);
}

#[test]
fn a_silent_syncer_is_given_up_each_time_later() {
    let mut rig = Rig::joined();
    rig.script.mute = true;
    let from_us = rig.now_us;
    rig.run_for(600 * SECOND_US);
    let gaps_s: Vec<u64> = [0]
        .into_iter()
        .chain(rig.log.disconnects.iter().map(|(at_us, _)| at_us - from_us))
        .collect::<Vec<_>>()
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) / SECOND_US)
        .collect();
    assert_eq!(gaps_s, [60, 120, 240], "{:?}", rig.log.disconnects);
    assert_eq!(rig.log.disconnects[0].1, "nothing was heard for 60 s");
    rig.script.mute = false;
    rig.run_for(500 * SECOND_US);
    assert!(rig.member.awaits(), "it takes part again");
}

#[test]
fn signs_of_life_are_no_silence() {
    let mut rig = Rig::joined();
    rig.script.mute = true;
    for _ in 0..60 {
        rig.run_for(10 * SECOND_US);
        rig.handle(Input::Heard);
    }
    assert_eq!(rig.log.disconnects, []);
}

#[test]
fn silence_is_ignored_while_paused_or_fetching() {
    let mut rig = Rig::joined();
    rig.script.mute = true;
    rig.handle(Input::Paused(true));
    rig.run_for(3_600 * SECOND_US);
    assert_eq!(rig.log.disconnects, []);
    rig.handle(Input::Paused(false));
    rig.run_for(50 * SECOND_US);
    assert_eq!(rig.log.disconnects, [], "what was before the end of the pause does not count");
    rig.run_for(20 * SECOND_US);
    assert_eq!(rig.log.disconnects.len(), 1);

    let mut rig = Rig::with(config());
    rig.script.fragments_lost = true;
    rig.run_for(SECOND_US);
    rig.script.mute = true;
    rig.run_for(3_600 * SECOND_US);
    assert_eq!((rig.log.disconnects.as_slice(), rig.member.phase()), (&[][..], Phase::Training));
}

#[test]
fn failing_fragment_downloads_back_off_and_end_the_member() {
    let mut rig = Rig::with(config());
    rig.script.fragments_lost = true;
    rig.run_for(600 * SECOND_US);
    let asked = rig.log.fetches_us.len() as u64 / u64::from(FRAGMENTS);
    // Retries are finally 32 s apart, with one more for each new connection. The syncer closes silent connections.
    assert!((20..=45).contains(&asked), "{asked} times, first after 1 s and then after up to 32 s");
    assert_eq!(rig.log.ends, [], "it bears it for ever");

    let contact = || DriverConfig { contact_ms_max: Some(30_000), ..config() };
    let mut rig = Rig::with(contact());
    rig.script.fragments_lost = true;
    rig.run_for(60 * SECOND_US);
    let reason = "the test says so".to_owned();
    assert_eq!(rig.log.ends, [End::Unreachable { waited_ms: 30_000, reason }]);

    // Some bytes arrive now and then, as over a bad link.
    let mut rig = Rig::with(contact());
    rig.script.fragments_lost = true;
    for _ in 0..10 {
        rig.run_for(20 * SECOND_US);
        assert!(rig.member.blocked_reason(rig.now_us).is_some());
        rig.handle(Input::Fed);
    }
    rig.script.fragments_lost = false;
    rig.run_for(60 * SECOND_US);
    assert!(
        rig.log.ends.is_empty() && rig.member.awaits() && rig.member.blocked_reason(rig.now_us).is_none()
    );

    // After training, `reconnect_ms_max` applies instead of `contact_ms_max`.
    rig.script.fragments_lost = true;
    rig.goodbye(bye(CloseCode::WrongRun));
    rig.run_for(600 * SECOND_US);
    assert_eq!(rig.log.ends, []);
}

#[test]
fn drain_now_reconnects_at_once() {
    let mut rig = Rig::joined();
    rig.handle(Input::DrainNow);
    assert_eq!(rig.log.disconnects, [], "there is nothing to doubt");
    rig.script.mute = true;
    rig.run_for(11 * SECOND_US);
    rig.handle(Input::DrainNow);
    assert_eq!(rig.log.disconnects.len(), 1);
    assert_eq!(rig.log.disconnects[0].1, "nothing was heard for a while");
    rig.script.mute = false;
    rig.run_for(SECOND_US);
    assert!(rig.member.awaits());

    // `DrainNow` also ends the wait for the next attempt.
    rig.goodbye(Bye { wait_ms: 3_600_000, ..bye(CloseCode::Dropped) });
    rig.conn = None;
    rig.run_for(60 * SECOND_US);
    let connects = rig.log.connects_us.len();
    rig.handle(Input::DrainNow);
    rig.run_for(SECOND_US);
    assert_eq!(rig.log.connects_us.len(), connects + 1);
}

#[test]
fn dropped_member_waits_as_requested_and_reports_the_reason() {
    let mut rig = Rig::joined();
    rig.goodbye(Bye { wait_ms: 30_000, ..bye(CloseCode::Dropped) });
    rig.conn = None;
    let away_us = rig.now_us;
    let offline = rig.member.offline(away_us).unwrap();
    assert_eq!((offline.code, offline.retry_ms), (Some(CloseCode::Dropped), 30_000));
    rig.run_for(60 * SECOND_US);
    let back_us = rig.log.connects_us[1] - away_us;
    assert!((30 * SECOND_US..=30 * SECOND_US + STEP_US).contains(&back_us), "{back_us} µs");
    assert!(rig.member.offline(rig.now_us).is_none() && rig.member.awaits());
}

#[test]
fn events_of_an_abandoned_connection_are_ignored() {
    let mut rig = Rig::joined();
    rig.cut();
    let (hellos, disconnects) = (rig.log.hellos.len(), rig.log.disconnects.len());
    rig.handle(Input::Opened);
    rig.handle(Input::Heard);
    rig.goodbye(bye(CloseCode::Untrusted));
    rig.handle(Input::Closed { code: Some(4_013), reason: String::new() });
    assert_eq!((rig.log.hellos.len(), rig.log.disconnects.len()), (hellos, disconnects));
    assert_eq!((rig.log.ends.as_slice(), rig.member.phase()), (&[][..], Phase::Training));
}

/// Goal: a member sends no `Hello` without a challenge, and at most one on each connection.
#[test]
fn hello_is_sent_once_and_only_after_the_challenge() {
    let mut rig = Rig::joined();
    rig.script.no_challenge = true;
    rig.cut();
    rig.run_for(5 * SECOND_US);
    assert_eq!((rig.log.connects_us.len(), rig.log.hellos.len()), (2, 1));
    rig.handle(Input::Message(Message::Challenge(CHALLENGE)));
    rig.handle(Input::Message(Message::Challenge(CHALLENGE)));
    rig.run_for(SECOND_US);
    let [first, second] = &rig.log.hellos[..] else { panic!("{:?}", rig.log.hellos) };
    assert!(first.run.is_none() && second.run.is_some(), "it was taken in before");
    assert!(rig.log.closes.is_empty() && rig.member.awaits());
}

/// Goal: a syncer that falls silent after its challenge is given up like one that sent no challenge.
#[test]
fn challenge_alone_does_not_end_the_silence() {
    for no_challenge in [true, false] {
        let mut rig = Rig::joined();
        (rig.script.mute, rig.script.no_challenge) = (true, no_challenge);
        rig.cut();
        let before = rig.log.disconnects.len();
        // The member trains on and so checks often; its silence limit is a minute.
        rig.run_for(90 * SECOND_US);
        assert!(rig.log.disconnects.len() > before, "no_challenge: {no_challenge}");
    }
}

#[test]
fn leaves_politely_once_all_that_it_trained_is_merged() {
    let mut rig = Rig::joined();
    rig.handle(Input::Leave);
    rig.handle(Input::Flushed);
    assert!(matches!(rig.member.phase(), Phase::Flushing { .. }));
    let steps: u64 = (0..20).map(|_| rig.steps_in(STEP_US)).sum();
    assert_eq!(steps, 0, "who leaves trains no more");
    let reports = rig.log.reports.len();
    rig.handle(Input::Flushed);
    let (_, account) = rig.syncer.ledger().accounts().next().unwrap();
    assert!(account.tokens_merged.iter().all(|&tokens| tokens == 8 * rig.log.steps), "{account:?}");
    assert_eq!((rig.log.reports.len(), rig.log.byes.len(), rig.log.closes.len()), (reports + 1, 1, 1));
    assert_eq!((rig.log.byes[0].code, rig.log.closes[0].code), (CloseCode::Done, CloseCode::Done));
    rig.handle(Input::Closed { code: Some(CloseCode::Done.into()), reason: String::new() });
    assert_eq!((rig.log.ends.as_slice(), rig.member.phase()), (&[End::Left][..], Phase::Over));
    assert_eq!((rig.log.disconnects.as_slice(), rig.member.deadline(rig.now_us)), (&[][..], None));
}

#[test]
fn leaving_takes_no_longer_than_it_may() {
    let mut rig = Rig::joined();
    rig.script.mute = true;
    let from_us = rig.now_us;
    rig.handle(Input::Leave);
    rig.run_for(60 * SECOND_US);
    assert_eq!((rig.log.ends.as_slice(), rig.log.byes.len()), (&[End::Left][..], 1));
    assert_eq!(rig.now_us - from_us, DELIVERY_US_MAX + CLOSE_US_MAX);

    // Without a connection there is nothing to wait for.
    let mut rig = Rig::joined();
    rig.script.unreachable = true;
    rig.cut();
    rig.handle(Input::Leave);
    assert_eq!((rig.log.ends.as_slice(), rig.log.byes.len()), (&[End::Left][..], 0));
}

#[test]
fn close_codes_reconnect_restart_or_end_the_member() {
    for code in [CloseCode::Restart, CloseCode::Silent, CloseCode::Full, CloseCode::Protocol] {
        let mut rig = Rig::joined();
        rig.goodbye(bye(code));
        rig.run_for(20 * SECOND_US);
        assert_eq!((rig.log.hellos.len(), rig.log.rejoin.len(), rig.log.ends.len()), (2, 0, 0), "{code:?}");
        assert!(rig.member.awaits(), "{code:?}");
    }
    let mut rig = Rig::joined();
    rig.goodbye(bye(CloseCode::WrongRun));
    rig.run_for(20 * SECOND_US);
    assert_eq!((rig.log.rejoin.len(), rig.log.built_anew), (1, 2));
    assert!(rig.log.hellos[1].run.is_none() && rig.member.awaits());

    let mut rig = Rig::joined();
    rig.goodbye(bye(CloseCode::Done));
    assert_eq!(rig.log.ends, [End::Complete(bye(CloseCode::Done))]);
    for code in [CloseCode::Version, CloseCode::Layout, CloseCode::Banned, CloseCode::Invite] {
        let mut rig = Rig::joined();
        rig.goodbye(bye(code));
        assert_eq!(rig.log.ends, [End::Refused(bye(code))]);
        assert!(rig.member.poll().is_none() && rig.member.next_batch(rig.now_us).is_none());
    }
}

#[test]
fn lost_goodbye_is_recovered_from_the_close_code() {
    let mut rig = Rig::joined();
    rig.handle(Input::Closed { code: Some(CloseCode::Banned.into()), reason: "so it is".to_owned() });
    assert_eq!(rig.log.ends, [End::Refused(Bye::new(CloseCode::Banned, "so it is"))]);
}

/// Goal: a member recovers by itself after refused updates, and ends if the refusals continue.
#[test]
fn too_many_refusals_heal_once_an_hour() {
    const HOUR_US: u64 = 3_600 * SECOND_US;
    let mut rig = Rig::joined();
    for (rejoin, waits_us) in [(1, 0), (2, HOUR_US)] {
        rig.run_for(waits_us);
        rig.goodbye(bye(CloseCode::Untrusted));
        rig.run_for(20 * SECOND_US);
        assert_eq!((rig.log.rejoin.len(), rig.log.ends.len()), (rejoin, 0));
        assert!(rig.log.hellos.last().is_some_and(|hello| hello.run.is_none()) && rig.member.awaits());
    }
    rig.goodbye(bye(CloseCode::Untrusted));
    assert_eq!(
        (rig.log.rejoin.len(), rig.log.ends.as_slice()),
        (2, &[End::Refused(bye(CloseCode::Untrusted))][..])
    );
}

#[test]
fn invalid_bytes_end_the_connection_with_a_goodbye() {
    let mut rig = Rig::joined();
    rig.handle(Input::Garbled(DecodeError::Tag { found: 99 }));
    assert_eq!((rig.log.byes.len(), rig.log.disconnects.len(), rig.log.ends.len()), (1, 1, 0));
    let mut rig = Rig::joined();
    rig.handle(Input::Garbled(DecodeError::Version { found: 99 }));
    let [End::Refused(bye)] = &rig.log.ends[..] else { panic!("{:?}", rig.log.ends) };
    assert_eq!((bye.code, rig.log.byes.len()), (CloseCode::Version, 1));
}

#[test]
fn failed_engine_is_rebuilt_and_keeps_the_owners_settings() {
    let mut rig = Rig::joined();
    rig.handle(Input::Hidden(true));
    rig.handle(Input::Duty { permille: 500 });
    rig.handle(Input::Failed { device_lost: false, reason: "not a number".to_owned() });
    assert_eq!((rig.log.rejoin.as_slice(), rig.log.disconnects.len()), (&["not a number".to_owned()][..], 1));
    rig.run_for(SECOND_US);
    assert_eq!((rig.log.built_anew, rig.member.state()), (2, LearnerState::Hidden));
    assert_eq!((&rig.log.hellos[1].run, rig.log.hellos[1].identity), (&None, Identity([1; 32])));
    let steps = rig.steps_in(60 * SECOND_US);
    assert!(steps.abs_diff(300) < 5, "{steps} steps");
}

#[test]
fn device_losses_back_off_and_then_end_the_member() {
    let lose = |rig: &mut Rig| rig.handle(Input::Failed { device_lost: true, reason: "gone".to_owned() });
    let mut rig = Rig::joined();
    for ceiling_s in [1, 2, 4, 8, 16, 32, 60] {
        let (lost_us, connects) = (rig.now_us, rig.log.connects_us.len());
        lose(&mut rig);
        // No other event makes it reconnect earlier.
        rig.handle(Input::DrainNow);
        rig.script.mute = true;
        while rig.log.connects_us.len() == connects {
            rig.run_for(SECOND_US / 10);
        }
        let away_us = rig.log.connects_us[connects] - lost_us;
        assert!(
            (ceiling_s * SECOND_US / 2..=ceiling_s * SECOND_US).contains(&away_us),
            "{away_us} of {ceiling_s} s"
        );
        rig.script.mute = false;
    }
    lose(&mut rig);
    assert_eq!(rig.log.ends, [End::DeviceLost]);

    let mut rig = Rig::joined();
    for _ in 0..20 {
        lose(&mut rig);
        rig.run_for(20 * SECOND_US);
    }
    assert_eq!(rig.log.ends, [], "with merges in between it is borne");
}

#[test]
fn membership_ends_after_the_contact_limit() {
    let config = DriverConfig { contact_ms_max: Some(20_000), reconnect_ms_max: Some(100_000), ..config() };
    let mut rig = Rig::with(config.clone());
    rig.run_for(SECOND_US);
    rig.script.unreachable = true;
    rig.cut();
    rig.run_for(3_600 * SECOND_US);
    let [End::Unreachable { waited_ms, reason }] = &rig.log.ends[..] else { panic!("{:?}", rig.log.ends) };
    // It was admitted before it was cut off.
    assert_eq!((waited_ms / 1_000, reason.as_str()), (100, "nobody answers"));

    let mut rig = Rig::with(config);
    rig.script.unreachable = true;
    rig.run_for(3_600 * SECOND_US);
    assert!(
        matches!(&rig.log.ends[..], [End::Unreachable { waited_ms: 20_000..20_100, .. }]),
        "{:?}",
        rig.log.ends
    );
}
