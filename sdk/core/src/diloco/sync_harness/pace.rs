//! Adaptation of the pace of rounds to a learner that changes its speed.

use super::*;

/// Runs `before`, then ten seconds with steps of [`STEP_MS`]. Returns the number of merged updates of the only learner
/// in these seconds.
fn merged_after(before: impl FnOnce(&mut Pair)) -> u64 {
    let mut pair = Pair::new(&[1.0]);
    before(&mut pair);
    let merged = |pair: &Pair| pair.merged().values().sum::<u64>();
    let first = merged(&pair);
    pair.step_ms.clear();
    pair.steps(1_000);
    merged(&pair) - first
}

/// Runs a hundred steps of three seconds each.
fn slow(pair: &mut Pair) {
    pair.step_ms.insert(0, 3_000);
    pair.steps(30_000);
    assert!(pair.merged()[&1] >= 8, "its pace is known: {:?}", pair.merged());
}

/// Goal: rounds adapt at once to a machine that speeds up because its cores are free again.
#[test]
fn a_learner_that_speeds_up_is_followed() {
    let (newcomer, faster) = (merged_after(|_| {}), merged_after(slow));
    assert!(10 * faster >= 8 * newcomer, "{faster} of {newcomer} updates");
}

/// Goal: a learner that returns as a new process gets its present pace. Its former pace and its absence do not count.
#[test]
fn a_learner_that_comes_back_faster_is_followed() {
    let back = merged_after(|pair| {
        slow(pair);
        pair.disconnect(0);
        pair.steps(6_000);
        pair.islands[0].core = process(1, 1_000);
        (pair.islands[0].replica, pair.islands[0].leases) = (None, Vec::new());
        pair.connect(0);
    });
    let newcomer = merged_after(|_| {});
    assert!(10 * back >= 8 * newcomer, "{back} of {newcomer} updates");
}
