//! Tests of rounds: invited learners, pace and patience, and learners that are paused, limited, excluded or suspected.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::*;
use crate::diloco::syncer::{DROP_MS_MAX, Input, Recovery};
use crate::diloco::trust::{ContributionVerdict, TrustLevel};
use crate::diloco::{Entry, Ledger, QuorumPolicy, Suspicion};
use crate::wire::{CloseCode, Fate, Hello, LearnerId, LearnerState, Share, Signature};

/// Goal: each learner is asked for each fragment. With six learners and two per round, the learners and the fragments
/// both repeat after three rounds.
#[test]
fn cohort_covers_every_fragment() {
    let mut pair = Pair::with(&[1.0; 6], SyncerConfig { cohort_max: 2, ..SyncerConfig::default() });
    pair.steps(200);
    let merged = pair.events.iter().filter_map(|event| match event {
        Event::Settled { learner, fragment, fate: Fate::Merged { .. }, .. } => Some((learner.0, fragment.0)),
        _ => None,
    });
    let everyone = (1..=6).flat_map(|learner| (0..FRAGMENTS).map(move |fragment| (learner, fragment)));
    assert_eq!(merged.collect::<BTreeSet<_>>(), everyone.collect());
}

#[test]
fn restarted_run_needs_only_one_learner() {
    let config = SyncerConfig { learners_start: 2, ..SyncerConfig::default() };
    let mut pair = Pair::with(&[1.0, 1.0], config);
    pair.disconnect(1);
    pair.steps(50);
    assert_eq!(pair.syncer.status().rounds, 0, "it needs two to begin");
    pair.connect(1);
    pair.steps(50);
    let (record, states) = (pair.syncer.record().unwrap(), pair.syncer.states().cloned().collect());
    pair.disconnect(0);
    pair.disconnect(1);
    pair.restart((record, states), config, 0);
    let before = pair.syncer.status().rounds;
    pair.connect(0);
    pair.steps(100);
    let after = pair.syncer.status().rounds;
    assert!(after > before + 20 && before > 0, "{before} → {after}");
}

/// Goal: a learner that reconnects during a round is asked again. The quorum needs both learners.
#[test]
fn reconnected_learner_is_asked_again() {
    let updates_min = NonZeroU32::new(2).unwrap();
    let quorum = QuorumPolicy { updates_min, ..QuorumPolicy::default() };
    let mut pair = Pair::with(&[1.0, 1.0], SyncerConfig { quorum, ..SyncerConfig::default() });
    pair.steps(100);
    for island in &mut pair.islands {
        island.held = Some(VecDeque::new());
    }
    while pair.islands.iter().any(|island| island.held.iter().flatten().next().is_none()) {
        pair.steps(1);
    }
    pair.disconnect(1);
    pair.connect(1);
    for i in [0, 1] {
        for encoded in pair.islands[i].held.take().into_iter().flatten() {
            pair.learner(i, encoded);
        }
    }
    let before = pair.merged();
    pair.steps(40);
    let after = pair.merged();
    assert!(after[&2] > before[&2] + 10, "it was waited for until patience was over: {before:?} → {after:?}");
}

/// Goal: rounds get updates even if answers take longer than the initial patience.
#[test]
fn patience_grows_with_answer_times() {
    let mut pair = Pair::new(&[1.0]);
    pair.steps(100);
    // An answer takes 4 s, which is twice the initial patience.
    pair.lags_ms.insert(0, 4_000);
    let (before, given_up) = (pair.merged()[&1], pair.syncer.status().rounds_abandoned);
    pair.steps(2_000);
    let (merged, status) = (pair.merged()[&1] - before, pair.syncer.status());
    // In 20 s with two rounds at a time, only the first rounds are abandoned.
    assert!(merged > 4, "{merged} merges, {status:?}");
    assert!(status.rounds_abandoned - given_up < 6, "{status:?}");
}

const STEPS: u32 = 300;

/// Returns the schedule's tokens that the first learner received last.
fn received_clock(pair: &Pair) -> u64 {
    pair.islands[0].core.received_clock_tokens()
}

/// Returns the outer momentum of the last merge.
fn momentum(pair: &Pair) -> f64 {
    let merge = |entry: &Entry| match entry {
        Entry::Merged(merge) => Some(merge.outer.momentum),
        _ => None,
    };
    pair.tape.entries().iter().rev().find_map(merge).unwrap().into()
}

/// Goal: one of five learners with inflated claims advances learning rate and outer momentum only as two others would,
/// until it is proven.
#[test]
fn inflated_claims_do_not_rush_the_schedule() {
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
    let share = |pair: &Pair| received_clock(pair) as f64 / (5 * u64::from(STEPS) * STEP_TOKENS) as f64;
    assert!((0.9..=1.0).contains(&share(&honest)), "{}", share(&honest));
    assert!((1.0..1.3).contains(&share(&lied)), "{}", share(&lied));
    let all = lied.syncer.ledger().clock_tokens();
    assert!(all > 2 * received_clock(&lied), "nobody was rushed: {all}");
    let rushed = momentum(&lied) / momentum(&honest);
    assert!((1.0..1.3).contains(&rushed), "{rushed}");

    lied.disconnect(0);
    let schedule = lied.syncer.ledger().schedule_tokens();
    lied.connect(0);
    assert_eq!(received_clock(&lied), schedule, "who comes is told the same");

    let learner = lied.syncer.ledger().find(&Identity([5; 32])).unwrap();
    lied.syncer(Input::ContributionVerdict { learner, verdict: ContributionVerdict::Proven });
    lied.steps(STEPS);
    assert!(
        received_clock(&lied) > 3 * received_clock(&honest),
        "what it trained counts in the end: {}",
        received_clock(&lied)
    );
}

/// Runs `before` with a single learner, then ten seconds with steps of [`STEP_MS`]. Returns the number of updates
/// merged in these seconds.
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

/// Goal: rounds adapt at once to a single learner that becomes faster.
#[test]
fn rounds_follow_a_learner_that_speeds_up() {
    let (newcomer, faster) = (merged_after(|_| {}), merged_after(slow));
    assert!(10 * faster >= 8 * newcomer, "{faster} of {newcomer} updates");
}

/// Goal: rounds adapt at once to a learner that returns as a new, faster process, whatever its former pace and absence.
#[test]
fn rounds_follow_a_learner_that_returns_faster() {
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

#[test]
fn paused_run_neither_launches_nor_leases() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(50);
    pair.syncer(Input::Hold(true));
    // Rounds in flight are completed.
    pair.steps(50);
    let (events, status) = (pair.events.len(), pair.syncer.status());
    let leased = |pair: &Pair| pair.islands.iter().map(|island| island.leases.len()).collect::<Vec<_>>();
    let leases = leased(&pair);
    assert!(status.paused && status.rounds_open == 0 && status.rounds > 0);
    pair.steps(500);
    let later = pair.syncer.status();
    assert_eq!((later.rounds, later.tokens_trained), (status.rounds, status.tokens_trained));
    assert_eq!((leased(&pair), &pair.events[events..]), (leases, &[][..]));
    assert!(pair.islands.iter().all(|island| island.core.state() == LearnerState::Held));

    // The pause outlives a restart, and returning learners are informed.
    let (record, states) = (pair.syncer.record().unwrap(), pair.syncer.states().cloned().collect());
    pair.disconnect(0);
    pair.disconnect(1);
    pair.restart((record, states), SyncerConfig::default(), 0);
    pair.connect(0);
    pair.connect(1);
    pair.steps(50);
    let later = pair.syncer.status();
    assert_eq!((later.paused, later.rounds, later.live), (true, status.rounds, 2));
    assert!(pair.islands.iter().all(|island| island.core.state() == LearnerState::Held));

    pair.syncer(Input::Hold(false));
    pair.steps(100);
    let later = pair.syncer.status();
    assert!(!later.paused && later.rounds > status.rounds + 40, "{} → {}", status.rounds, later.rounds);
    assert!(pair.islands.iter().all(|island| island.core.can_train()));
}

#[test]
fn welcome_has_the_tokens_of_the_account() {
    let mut pair = Pair::new(&[1.0]);
    pair.steps(100);
    let account =
        pair.syncer.learners().next().map(|learner| (learner.tokens_trained, learner.tokens_merged));
    let hello = Hello {
        run: None,
        layout: None,
        identity: Identity([1; 32]),
        signature: Signature::NONE,
        name: String::new(),
        device: String::new(),
        invite: None,
    };
    pair.syncer.handle(pair.now, Input::Message(ConnId(9), Message::Hello(hello)));
    let welcome = std::iter::from_fn(|| pair.syncer.poll()).find_map(|output| match output {
        syncer::Output::Send(ConnId(9), Message::Welcome(welcome)) => Some(welcome),
        _ => None,
    });
    let told = welcome.map(|welcome| (welcome.tokens_trained, welcome.tokens_merged));
    assert_eq!(told, account);
    assert!(told > Some((100, 100)), "{told:?}");
}

const FIRST: LearnerId = LearnerId(1);

fn share(ratio: f64) -> Share {
    Share::new(ratio).unwrap()
}

impl Pair {
    fn pace(&mut self, ratio: f64) {
        self.syncer(Input::Pace { learner: FIRST, share: share(ratio) });
    }

    fn exclude_learner(&mut self, wait_ms: u32) {
        self.syncer(Input::Drop { learner: FIRST, wait_ms });
    }

    fn returns_ms(&self) -> Option<u64> {
        self.syncer.returns(self.now, FIRST).map(|at| at.since(self.now))
    }

    fn shares(&self) -> Vec<f64> {
        self.islands.iter().map(|island| island.core.share().ratio()).collect()
    }
}

#[test]
fn share_limit_reaches_its_learner_and_outlives_the_connection() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.pace(0.25);
    assert_eq!(pair.shares(), [0.25, 1.0]);
    let shown: Vec<_> = pair.syncer.learners().map(|learner| learner.share).collect();
    assert_eq!(shown, [share(0.25), Share::FULL]);

    // An unchanged limit is not sent again. A changed one reaches a disconnected learner when it returns.
    let events = pair.events.len();
    pair.pace(0.25);
    assert_eq!(pair.events.len(), events);
    pair.disconnect(0);
    assert_eq!(pair.shares(), [0.25, 1.0]);
    pair.pace(0.5);
    assert_eq!(pair.shares(), [0.25, 1.0]);
    pair.connect(0);
    assert_eq!(pair.shares(), [0.5, 1.0]);
    pair.pace(1.0);
    assert_eq!(pair.shares(), [1.0, 1.0]);
    let said = pair.events.iter().filter(|event| matches!(event, Event::Paced { learner: FIRST, .. }));
    assert_eq!(said.count(), 3);
}

#[test]
fn excluded_learner_returns_in_time_and_is_merged_again() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(50);
    let others = pair.merged()[&2];
    pair.exclude_learner(2_000);
    assert!(!pair.islands[0].connected);
    let bye = pair.islands[0].goodbye.clone().unwrap();
    assert_eq!((bye.code, bye.wait_ms), (CloseCode::Dropped, 2_000));
    let told = bye.reason;
    let merged = pair.merged()[&1];

    // Before the time is over, the learner is turned away again with the remaining time, and has no session.
    pair.steps(50);
    assert_eq!(pair.returns_ms(), Some(1_500));
    pair.connect(0);
    let again = Bye { wait_ms: 1_500, ..Bye::new(CloseCode::Dropped, told) };
    assert_eq!((pair.islands[0].connected, &pair.islands[0].goodbye), (false, &Some(again)));
    assert_eq!((pair.syncer.status().connected, pair.syncer.status().live), (1, 1));

    // The learner trains without a connection while the other is merged, and its progress is merged after its return.
    pair.steps(151);
    assert!(pair.islands[0].core.can_train());
    assert_eq!((pair.merged()[&1], pair.returns_ms()), (merged, None));
    assert!(pair.merged()[&2] > others + 20);
    pair.connect(0);
    pair.steps(50);
    assert!(pair.merged()[&1] > merged && pair.syncer.status().live == 2);
    assert!(pair.syncer.status().participation > 0.95, "{}", pair.syncer.status().participation);
}

#[test]
fn exclusion_can_be_lifted_and_is_bounded() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.exclude_learner(5_000);
    pair.exclude_learner(0);
    assert_eq!(pair.returns_ms(), None);
    pair.connect(0);
    assert_eq!(pair.syncer.status().connected, 2);
    // To lift a missing restriction has no effect, and neither have orders about an unknown learner.
    let events = pair.events.len();
    pair.exclude_learner(0);
    let nobody = LearnerId(99);
    pair.syncer(Input::Pace { learner: nobody, share: share(0.5) });
    pair.syncer(Input::Drop { learner: nobody, wait_ms: 1_000 });
    assert_eq!(pair.events.len(), events);
    assert!(pair.syncer.knows(FIRST) && !pair.syncer.knows(nobody));
    assert_eq!((pair.syncer.share(nobody), pair.syncer.returns(pair.now, nobody)), (Share::FULL, None));
    // The time of an exclusion is bounded.
    pair.exclude_learner(u32::MAX);
    assert_eq!(pair.returns_ms(), Some(DROP_MS_MAX.into()));
}

/// Goal: restrictions hold in the next process of the syncer, and lifted ones stay lifted.
#[test]
fn restrictions_outlive_the_syncer() {
    let mut pair = Pair::new(&[1.0, 3.0]);
    pair.steps(50);
    pair.disconnect(0);
    pair.pace(0.125);
    pair.exclude_learner(60_000);
    let restart = |pair: &mut Pair| {
        let (record, states) = (pair.syncer.record().unwrap(), pair.syncer.states().cloned().collect());
        (0..2).for_each(|i| pair.disconnect(i));
        // A snapshot stores the record as JSON.
        let record = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
        pair.restart((record, states), SyncerConfig::default(), 0);
        (0..2).for_each(|i| pair.connect(i));
    };
    pair.steps(1_000);
    restart(&mut pair);
    assert_eq!((pair.returns_ms(), pair.syncer.status().connected), (Some(60_000), 1), "it begins again");
    pair.steps(6_001);
    assert_eq!(pair.returns_ms(), None);
    pair.connect(0);
    assert_eq!((pair.shares(), pair.syncer.status().connected), (vec![0.125, 1.0], 2));
    restart(&mut pair);
    assert_eq!((pair.shares(), pair.syncer.status().connected), (vec![0.125, 1.0], 2));
    pair.pace(1.0);
    restart(&mut pair);
    assert_eq!(pair.shares(), [1.0, 1.0]);
}

/// Index of the suspected learner.
const SUSPECT: usize = 2;

fn suspect(pair: &Pair) -> LearnerId {
    pair.syncer.ledger().find(&Identity([SUSPECT as u8 + 1; 32])).unwrap()
}

/// Returns the credited merged tokens of the suspect, and those of all learners.
fn tokens(pair: &Pair) -> (u64, u64) {
    let ledger = pair.syncer.ledger();
    (ledger.tokens_merged(ledger.account(suspect(pair)).unwrap()), ledger.clock_tokens())
}

/// Returns the largest share of the suspect in the merges from entry number `from` on.
fn share_max(pair: &Pair, from: usize) -> f64 {
    let share = |entry: &Entry| {
        let Entry::Merged(merge) = entry else { return None };
        let all = merge.absent + merge.parts.iter().map(|part| part.weight).sum::<f64>();
        Some(merge.parts.iter().find(|part| part.learner == suspect(pair))?.weight / all)
    };
    pair.tape.entries()[from..].iter().filter_map(share).fold(0.0, f64::max)
}

/// Goal: a suspect has almost no weight in merges and is credited no tokens until it is cleared. It is not sent away.
#[test]
fn suspect_has_no_credit_until_it_is_cleared() {
    let mut pair = Pair::new(&[1.0, 1.0, 1.0]);
    pair.steps(400);
    let learner = suspect(&pair);
    assert_eq!(pair.syncer.trust(pair.now, learner), TrustLevel::Trusted);
    let ((own, clock), entries) = (tokens(&pair), pair.tape.entries().len());
    pair.syncer(Input::ContributionVerdict {
        learner,
        verdict: ContributionVerdict::Suspected(Suspicion { looks: 24 }),
    });
    assert_eq!(pair.syncer.trust(pair.now, learner), TrustLevel::Suspected);
    pair.steps(100);
    let (its, all) = tokens(&pair);
    assert_eq!(its, own, "nothing more is to its credit");
    let moved = all - clock;
    assert!((2 * 80 * STEP_TOKENS..=2 * 101 * STEP_TOKENS).contains(&moved), "two of three count: {moved}");
    let share = share_max(&pair, entries);
    assert!(share > 0.0 && share < 1e-5, "{share}");
    assert!(pair.islands[SUSPECT].connected);

    let entries = pair.tape.entries().len();
    pair.syncer(Input::ContributionVerdict { learner, verdict: ContributionVerdict::Proven });
    assert_eq!(pair.syncer.trust(pair.now, learner), TrustLevel::Trusted, "it had proved itself before");
    pair.steps(100);
    let (now, _) = tokens(&pair);
    assert!((own + 80 * STEP_TOKENS..=own + 102 * STEP_TOKENS).contains(&now), "{own} {now}");
    assert!(share_max(&pair, entries) > 0.2);
}

#[test]
fn suspicion_outlives_the_syncer() {
    let mut pair = Pair::new(&[1.0, 1.0, 1.0]);
    let (learner, start) = (suspect(&pair), pair.tape.start());
    pair.steps(50);
    for _ in 0..2 {
        // A repeated suspicion is not recorded.
        pair.syncer(Input::ContributionVerdict {
            learner,
            verdict: ContributionVerdict::Suspected(Suspicion { looks: 24 }),
        });
    }
    let is_about_it = |entry: &&Entry| matches!(entry, Entry::Doubted { .. });
    assert_eq!(pair.tape.entries().iter().filter(is_about_it).count(), 1);
    pair.steps(50);
    let mut again: Recovery = start;
    pair.tape.follow_from(&mut again);
    let ledger = &again.record().ledger;
    assert_eq!(ledger.suspicion(learner), Some(Suspicion { looks: 24 }));
    assert_eq!(ledger.clock_tokens(), pair.syncer.ledger().clock_tokens());
    let kept: Ledger = serde_json::from_str(&serde_json::to_string(ledger).unwrap()).unwrap();
    assert_eq!(
        (kept.suspicion(learner), kept.clock_tokens()),
        (ledger.suspicion(learner), ledger.clock_tokens())
    );
}
