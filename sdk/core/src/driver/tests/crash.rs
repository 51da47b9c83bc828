//! A syncer that crashes and resumes from an older snapshot.

use super::*;
use crate::diloco::FragmentState;
use crate::diloco::syncer::SyncerRecord;

impl Rig {
    fn snapshot(&self) -> (SyncerRecord, Vec<FragmentState>) {
        (self.syncer.record().unwrap(), self.syncer.states().cloned().collect())
    }

    /// Crashes the syncer, which returns at once with the state of `snapshot`.
    fn crash(&mut self, (record, states): (SyncerRecord, Vec<FragmentState>)) {
        self.conn = None;
        let started_s = u32::try_from(self.now_us / SECOND_US).unwrap();
        self.syncer =
            Syncer::restore(record, &self.layout, SyncerConfig::default(), states, started_s).unwrap();
        self.tell(Input::Closed { code: None, reason: "the syncer crashed".to_owned() });
    }

    fn regranted_windows(&self) -> u64 {
        self.syncer.leases().regranted_windows()
    }
}

/// Goal: no learner starves, whichever leases were begun, finished or granted since the snapshot.
#[test]
fn no_crash_starves_a_learner() {
    let mut rig = Rig::joined();
    for age_s in [1, 7, 20, 45, 100, 300] {
        let snapshot = rig.snapshot();
        rig.run_for(age_s * SECOND_US);
        for crash in 0..5 {
            rig.crash(snapshot.clone());
            let steps = rig.steps_in(7 * SECOND_US);
            assert_eq!(steps, 70, "crash {crash}, {age_s} s after the snapshot: it stood still");
        }
    }
    assert!(rig.troubles().is_empty(), "{:?}", rig.troubles());
}

/// Goal: a learner reports a lease that it finished after the snapshot, and its windows are not trained on again.
#[test]
fn what_was_finished_after_the_snapshot_is_not_leased_again() {
    let mut rig = Rig::joined();
    rig.run_for(3 * SECOND_US);
    let snapshot = rig.snapshot();
    let held = rig.syncer.leases().leases(LearnerId(1));
    rig.run_for(100 * SECOND_US);
    assert!(held.iter().all(|lease| !rig.syncer.leases().leases(LearnerId(1)).contains(lease)));
    let reports = rig.log.reports.len();
    rig.crash(snapshot);
    rig.run_for(SECOND_US);
    let first: Vec<_> = rig.log.reports[reports].leases.iter().map(|&(lease, _)| lease).collect();
    assert_eq!(first, held, "it names what it holds of what the syncer knows");
    assert_eq!(rig.regranted_windows(), 0);
    assert!(held.iter().all(|lease| !rig.syncer.leases().leases(LearnerId(1)).contains(lease)));
}

/// Goal: a grant that was lost with its connection is noticed at once.
#[test]
fn a_grant_that_never_came_goes_to_whoever_needs_it() {
    let mut rig = Rig::joined();
    rig.member.supply.feed().unwrap().retain(&[]);
    rig.cut();
    assert!(rig.steps_in(5 * SECOND_US) > 45);
    assert!(rig.regranted_windows() > 0);
}
