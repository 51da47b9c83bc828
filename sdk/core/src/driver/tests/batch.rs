//! A member whose engine takes a different batch from the run's.

use super::*;

#[test]
fn trains_on_what_its_engine_takes_and_says_so() {
    let mut rig = Rig::with(config());
    rig.script.batch = Some(1);
    rig.tell(Input::Timeout);
    assert_eq!(rig.steps_in(60 * SECOND_US), 600, "leases of any batch are enough for it");
    rig.cut();
    rig.run_for(60 * SECOND_US);
    assert_eq!(rig.log.batches, [1, 1], "it says so on each connection");
    let learners: Vec<_> = rig.syncer.learners().collect();
    assert_eq!(learners.iter().map(|learner| learner.batch).collect::<Vec<_>>(), [1]);
    let (trained, merged) = (learners[0].tokens_trained, learners[0].tokens_merged);
    assert!(merged > trained / 2 && trained <= 4 * rig.log.steps, "{merged} of {trained} tokens merged");
}
