//! Effect of claims on the schedule.

use super::*;
use crate::diloco::Entry;
use crate::diloco::syncer::{ContributionVerdict, Input};

const STEPS: u32 = 300;

/// Returns the last clock that the learner received.
fn told(pair: &Pair) -> u64 {
    pair.islands[0].core.heard_tokens()
}

/// Returns the outer momentum of the last merge.
fn momentum(pair: &Pair) -> f64 {
    let merge = |entry: &Entry| match entry {
        Entry::Merged(merge) => Some(merge.outer.momentum),
        _ => None,
    };
    pair.tape.entries().iter().rev().find_map(merge).unwrap().into()
}

/// Goal: one of five learners with inflated claims moves the rates and the outer momentum as two others would, until
/// its updates show that it trains.
#[test]
fn who_claims_much_does_not_rush_the_schedule() {
    // The momentum rises over the whole test. The ratio refers to `total_tokens`, which is 1 here.
    let momentum_warmup_ratio = f64::from(5 * STEPS) * STEP_TOKENS as f64 * 2.0;
    let config = SyncerConfig { momentum_warmup_ratio, ..SyncerConfig::default() };
    let run = |lies: bool| {
        let mut pair = Pair::with(&[1.0; 5], config);
        pair.rusher = lies.then_some(pair.islands[4].conn);
        pair.steps(STEPS);
        pair
    };
    let (honest, mut lied) = (run(false), run(true));
    let share = |pair: &Pair| told(pair) as f64 / (5 * u64::from(STEPS) * STEP_TOKENS) as f64;
    assert!((0.9..=1.0).contains(&share(&honest)), "{}", share(&honest));
    assert!((1.0..1.3).contains(&share(&lied)), "{}", share(&lied));
    let all = lied.syncer.ledger().clock_tokens();
    assert!(all > 2 * told(&lied), "nobody was rushed: {all}");
    let rushed = momentum(&lied) / momentum(&honest);
    assert!((1.0..1.3).contains(&rushed), "{rushed}");

    lied.disconnect(0);
    let schedule = lied.syncer.ledger().schedule_tokens();
    lied.connect(0);
    assert_eq!(told(&lied), schedule, "who comes is told the same");

    let learner = lied.syncer.ledger().find(&Identity([5; 32])).unwrap();
    lied.syncer(Input::ContributionVerdict { learner, regard: ContributionVerdict::Proven });
    lied.steps(STEPS);
    assert!(told(&lied) > 3 * told(&honest), "what it trained counts in the end: {}", told(&lied));
}
