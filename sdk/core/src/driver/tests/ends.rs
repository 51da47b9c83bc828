//! A member that leaves, starts over, or ends.

use super::*;
use crate::wire::DecodeError;

#[test]
fn leaves_politely_once_all_that_it_trained_is_merged() {
    let mut rig = Rig::joined();
    rig.tell(Input::Leave);
    rig.tell(Input::Flushed);
    assert!(matches!(rig.member.phase(), Phase::Flushing { .. }));
    let steps: u64 = (0..20).map(|_| rig.steps_in(STEP_US)).sum();
    assert_eq!(steps, 0, "who leaves trains no more");
    let reports = rig.log.reports.len();
    rig.tell(Input::Flushed);
    let (_, account) = rig.syncer.ledger().accounts().next().unwrap();
    assert!(account.tokens_merged.iter().all(|&tokens| tokens == 8 * rig.log.steps), "{account:?}");
    assert_eq!((rig.log.reports.len(), rig.log.byes.len(), rig.log.closes.len()), (reports + 1, 1, 1));
    assert_eq!((rig.log.byes[0].code, rig.log.closes[0].code), (CloseCode::Done, CloseCode::Done));
    rig.tell(Input::Closed { code: Some(CloseCode::Done.into()), reason: String::new() });
    assert_eq!((rig.log.ends.as_slice(), rig.member.phase()), (&[End::Left][..], Phase::Over));
    assert_eq!((rig.log.disconnects.as_slice(), rig.member.deadline(rig.now_us)), (&[][..], None));
}

#[test]
fn leaving_takes_no_longer_than_it_may() {
    let mut rig = Rig::joined();
    rig.script.mute = true;
    let from_us = rig.now_us;
    rig.tell(Input::Leave);
    rig.run_for(60 * SECOND_US);
    assert_eq!((rig.log.ends.as_slice(), rig.log.byes.len()), (&[End::Left][..], 1));
    assert_eq!(rig.now_us - from_us, HAND_IN_US_MAX + FAREWELL_US_MAX);

    // Without a connection there is nothing to wait for.
    let mut rig = Rig::joined();
    rig.script.unreachable = true;
    rig.cut();
    rig.tell(Input::Leave);
    assert_eq!((rig.log.ends.as_slice(), rig.log.byes.len()), (&[End::Left][..], 0));
}

#[test]
fn goodbyes_bring_it_back_make_it_new_or_end_it() {
    for code in [CloseCode::Restart, CloseCode::Silent, CloseCode::Full, CloseCode::Protocol] {
        let mut rig = Rig::joined();
        rig.goodbye(bye(code));
        rig.run_for(20 * SECOND_US);
        assert_eq!((rig.log.hellos.len(), rig.log.afresh.len(), rig.log.ends.len()), (2, 0, 0), "{code:?}");
        assert!(rig.member.awaits(), "{code:?}");
    }
    let mut rig = Rig::joined();
    rig.goodbye(bye(CloseCode::WrongRun));
    rig.run_for(20 * SECOND_US);
    assert_eq!((rig.log.afresh.len(), rig.log.built_anew), (1, 2));
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
fn a_goodbye_that_was_lost_is_known_by_its_number() {
    let mut rig = Rig::joined();
    rig.tell(Input::Closed { code: Some(CloseCode::Banned.into()), reason: "so it is".to_owned() });
    assert_eq!(rig.log.ends, [End::Refused(Bye::new(CloseCode::Banned, "so it is"))]);
}

/// Goal: a member recovers by itself from a period of refused updates, and ends if the refusals continue.
#[test]
fn too_many_refusals_heal_once_an_hour() {
    const HOUR_US: u64 = 3_600 * SECOND_US;
    let mut rig = Rig::joined();
    for (afresh, waits_us) in [(1, 0), (2, HOUR_US)] {
        rig.run_for(waits_us);
        rig.goodbye(bye(CloseCode::Untrusted));
        rig.run_for(20 * SECOND_US);
        assert_eq!((rig.log.afresh.len(), rig.log.ends.len()), (afresh, 0));
        assert!(rig.log.hellos.last().is_some_and(|hello| hello.run.is_none()) && rig.member.awaits());
    }
    rig.goodbye(bye(CloseCode::Untrusted));
    assert_eq!(
        (rig.log.afresh.len(), rig.log.ends.as_slice()),
        (2, &[End::Refused(bye(CloseCode::Untrusted))][..])
    );
}

#[test]
fn a_peer_that_speaks_otherwise_is_told_and_left() {
    let mut rig = Rig::joined();
    rig.tell(Input::Garbled(DecodeError::Tag { found: 99 }));
    assert_eq!((rig.log.byes.len(), rig.log.disconnects.len(), rig.log.ends.len()), (1, 1, 0));
    let mut rig = Rig::joined();
    rig.tell(Input::Garbled(DecodeError::Version { found: 99 }));
    let [End::Refused(bye)] = &rig.log.ends[..] else { panic!("{:?}", rig.log.ends) };
    assert_eq!((bye.code, rig.log.byes.len()), (CloseCode::Version, 1));
}

#[test]
fn an_engine_that_fails_begins_anew_and_the_owners_wishes_stay() {
    let mut rig = Rig::joined();
    rig.tell(Input::Hidden(true));
    rig.tell(Input::Duty { permille: 500 });
    rig.tell(Input::Failed { device_lost: false, reason: "not a number".to_owned() });
    assert_eq!((rig.log.afresh.as_slice(), rig.log.disconnects.len()), (&["not a number".to_owned()][..], 1));
    rig.run_for(SECOND_US);
    assert_eq!((rig.log.built_anew, rig.member.state()), (2, LearnerState::Hidden));
    assert_eq!((&rig.log.hellos[1].run, rig.log.hellos[1].identity), (&None, Identity([1; 32])));
    let steps = rig.steps_in(60 * SECOND_US);
    assert!(steps.abs_diff(300) < 5, "{steps} steps");
}

#[test]
fn a_lost_device_is_waited_for_and_given_up_in_the_end() {
    let lose = |rig: &mut Rig| rig.tell(Input::Failed { device_lost: true, reason: "gone".to_owned() });
    let mut rig = Rig::joined();
    for ceiling_s in [1, 2, 4, 8, 16, 32, 60] {
        let (lost_us, connects) = (rig.now_us, rig.log.connects_us.len());
        lose(&mut rig);
        // No other event brings it back earlier.
        rig.tell(Input::DrainNow);
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
fn nobody_is_sought_for_ever() {
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
