//! Treatment of a learner that is suspected of not training.

use super::*;
use crate::diloco::syncer::{ContributionVerdict, Input, Recovery, Trust};
use crate::diloco::{Entry, Ledger, Suspicion};
use crate::wire::LearnerId;

/// Index of the suspected learner.
const SUSPECT: usize = 2;

fn suspect(pair: &Pair) -> LearnerId {
    pair.syncer.ledger().find(&Identity([SUSPECT as u8 + 1; 32])).unwrap()
}

/// Returns the credited tokens of the suspect, and those of the clock.
fn tokens(pair: &Pair) -> (u64, u64) {
    let ledger = pair.syncer.ledger();
    (ledger.tokens_merged(ledger.account(suspect(pair)).unwrap()), ledger.clock_tokens())
}

/// Returns the largest share of the suspect in the merges since an entry.
fn share_max(pair: &Pair, from: usize) -> f64 {
    let share = |entry: &Entry| {
        let Entry::Merged(merge) = entry else { return None };
        let all = merge.absent + merge.parts.iter().map(|part| part.weight).sum::<f64>();
        Some(merge.parts.iter().find(|part| part.learner == suspect(pair))?.weight / all)
    };
    pair.tape.entries()[from..].iter().filter_map(share).fold(0.0, f64::max)
}

/// Goal: a suspect moves neither merge nor clock, and earns nothing, until it is cleared. It is never sent away.
#[test]
fn a_suspect_earns_nothing_until_it_is_cleared() {
    let mut pair = Pair::new(&[1.0, 1.0, 1.0]);
    pair.steps(400);
    let learner = suspect(&pair);
    assert_eq!(pair.syncer.trust(pair.now, learner), Trust::Trusted);
    let ((own, clock), entries) = (tokens(&pair), pair.tape.entries().len());
    pair.syncer(Input::ContributionVerdict {
        learner,
        regard: ContributionVerdict::Suspected(Suspicion { looks: 24 }),
    });
    assert_eq!(pair.syncer.trust(pair.now, learner), Trust::Suspect);
    pair.steps(100);
    let (its, all) = tokens(&pair);
    assert_eq!(its, own, "nothing more is to its credit");
    let moved = all - clock;
    assert!((2 * 80 * STEP_TOKENS..=2 * 101 * STEP_TOKENS).contains(&moved), "two of three count: {moved}");
    let share = share_max(&pair, entries);
    assert!(share > 0.0 && share < 1e-5, "{share}");
    assert!(pair.islands[SUSPECT].connected);

    let entries = pair.tape.entries().len();
    pair.syncer(Input::ContributionVerdict { learner, regard: ContributionVerdict::Proven });
    assert_eq!(pair.syncer.trust(pair.now, learner), Trust::Trusted, "it had proved itself before");
    pair.steps(100);
    let (now, _) = tokens(&pair);
    assert!((own + 80 * STEP_TOKENS..=own + 102 * STEP_TOKENS).contains(&now), "{own} {now}");
    assert!(share_max(&pair, entries) > 0.2);
}

#[test]
fn what_is_suspected_is_remembered_by_the_next_process() {
    let mut pair = Pair::new(&[1.0, 1.0, 1.0]);
    let (learner, start) = (suspect(&pair), pair.tape.start());
    pair.steps(50);
    for _ in 0..2 {
        // A repeated suspicion is not on the tape.
        pair.syncer(Input::ContributionVerdict {
            learner,
            regard: ContributionVerdict::Suspected(Suspicion { looks: 24 }),
        });
    }
    let is_about_it = |entry: &&Entry| matches!(entry, Entry::Doubted { .. });
    assert_eq!(pair.tape.entries().iter().filter(is_about_it).count(), 1);
    pair.steps(50);
    let mut again: Recovery = start;
    pair.tape.follow_from(&mut again);
    let ledger = &again.record().ledger;
    assert_eq!(ledger.doubt(learner), Some(Suspicion { looks: 24 }));
    assert_eq!(ledger.clock_tokens(), pair.syncer.ledger().clock_tokens());
    let kept: Ledger = serde_json::from_str(&serde_json::to_string(ledger).unwrap()).unwrap();
    assert_eq!((kept.doubt(learner), kept.clock_tokens()), (ledger.doubt(learner), ledger.clock_tokens()));
}
