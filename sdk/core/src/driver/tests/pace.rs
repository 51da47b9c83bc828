//! A member that trains for a share of its time.

use super::*;

fn share(ratio: f64) -> Share {
    Share::new(ratio).unwrap()
}

impl Rig {
    fn pace(&mut self, ratio: f64) {
        let learner = self.member.run().unwrap().1;
        self.syncer(syncer::Input::Pace { learner, share: share(ratio) });
    }
}

#[test]
fn a_quarter_of_the_time_is_a_quarter_of_the_steps() {
    for (duty_permille, ratio, steps) in
        [(250, 1.0, 250), (1_000, 0.25, 250), (500, 0.5, 250), (1_000, 1.0, 1_000)]
    {
        let mut rig = Rig::joined();
        rig.tell(Input::Duty { permille: duty_permille });
        rig.pace(ratio);
        let done = rig.steps_in(100 * SECOND_US);
        assert!(done.abs_diff(steps) <= 3, "{duty_permille} ‰ of {ratio}: {done} of 1,000 steps");
        // The syncer plans with the rest.
        let step_ms = rig.log.reports.last().unwrap().step_ms;
        assert!((step_ms - 100.0 * 1_000.0 / steps as f32).abs() < 10.0, "{step_ms} ms");
    }
}

#[test]
fn work_beyond_the_calls_of_steps_is_rested_for_too() {
    let mut rig = Rig::joined();
    rig.pace(0.5);
    rig.run_for(10 * SECOND_US);
    rig.tell(Input::Worked { us: 3 * SECOND_US });
    assert_eq!(rig.steps_in(2 * SECOND_US), 0);
    assert!(rig.steps_in(4 * SECOND_US) > 5);
}

#[test]
fn a_raised_pace_ends_the_rest_owed_before() {
    let mut rig = Rig::joined();
    rig.pace(0.01);
    rig.tell(Input::Duty { permille: 1 });
    rig.run_for(SECOND_US);
    assert_eq!(rig.steps_in(600 * SECOND_US), 0, "hours of rest are owed");
    rig.tell(Input::Duty { permille: 1_000 });
    assert!(rig.steps_in(SECOND_US) > 0);
}

#[test]
fn a_time_without_data_is_no_rest() {
    let mut rig = Rig::joined();
    rig.pace(0.5);
    // Without a syncer its leases eventually run out.
    rig.script.mute = true;
    while !rig.member.is_starved() {
        rig.run_for(SECOND_US);
    }
    rig.run_for(10 * SECOND_US);
    assert!(rig.member.is_starved());
    rig.member.handle(rig.now_us, Input::Waited { us: 600 * SECOND_US });
    rig.member.handle(rig.now_us, Input::Worked { us: 200_000 });
    assert!(rig.member.deadline(rig.now_us).is_some_and(|at| at <= rig.now_us + 200_000));
    assert!(!rig.member.is_starved(), "it rests now");
}

#[test]
fn a_paused_member_trains_nothing_and_stays_connected() {
    let mut rig = Rig::joined();
    rig.tell(Input::Paused(true));
    assert_eq!((rig.steps_in(600 * SECOND_US), rig.member.state()), (0, LearnerState::Paused));
    assert_eq!(rig.log.disconnects, []);
    rig.tell(Input::Paused(false));
    assert!(rig.steps_in(SECOND_US) >= 9);
    rig.tell(Input::Hidden(true));
    assert_eq!(rig.member.state(), LearnerState::Hidden);
}
