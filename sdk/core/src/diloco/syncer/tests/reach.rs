//! Length and claims together.

use super::*;

/// Goal: a learner with updates a hundred times too long and any number of claimed steps moves a run no farther than an
/// honest learner.
#[test]
fn long_updates_with_claims_of_speed_move_little() {
    let far = |lies: bool| {
        let mut bench = Bench::default();
        let honest = [1, 2, 3, 4].map(|peer| bench.honest(peer));
        let liar = bench.join(5, None);
        for turn in 0..100 {
            bench.pass(2_000);
            for &conn in &honest {
                bench.report_done(conn, HONEST_MS);
                bench.answer(conn, if turn % 2 == 0 { 0.1 } else { -0.1 }, 2, 2 * STEP_TOKENS);
            }
            if lies {
                bench.report_done(liar, 0.011);
                bench.answer(liar, 10.0, u32::MAX, u64::MAX);
            }
        }
        bench.syncer.theta().unwrap().iter().fold(0.0_f32, |most, value| most.max(value.abs()))
    };
    let (clean, found) = (far(false), far(true));
    assert!(found < clean + 100.0 * 0.1, "{clean} → {found}: each merge at most an honest step farther");
}
