//! Replay of runs from their tapes, during each test of the harness and after crashes, and tests of rollbacks.

use std::mem::discriminant;

use super::*;
use crate::diloco::syncer::{Input, Recovery, RecoveryError, Rollback, RollbackJob, RollbackOrder};
use crate::diloco::trust::{CONVICTIONS_MAX, PROBATION_MS, TrustLevel};
use crate::diloco::{Entry, MergeFailure, MergeJob, MergeOutcome, encode_state};
use crate::wire::{CloseCode, LearnerId, Round};

/// Bodies of each round on the tape: the updates of a merge, in order, or the result of a rollback.
type Bodies = BTreeMap<Round, Vec<Arc<Vec<u8>>>>;

/// Tape of a run in memory, and its replay.
pub(super) struct ReplayedTape {
    start: Recovery,
    recovery: Recovery,
    bodies: Bodies,
    entries: Vec<Entry>,
}

impl ReplayedTape {
    pub(super) fn from((record, states): Snapshot, layout: &Layout) -> Self {
        let start = Recovery::new(record, layout, states).unwrap();
        Self { recovery: start.clone(), start, bodies: BTreeMap::new(), entries: Vec::new() }
    }

    pub(super) fn keep(&mut self, job: &MergeJob) {
        self.bodies.insert(job.round, job.updates.iter().map(|update| update.body.shared()).collect());
    }

    /// Runs the rollback `job`, and stores its result.
    pub(super) fn rollback(&mut self, mut job: RollbackJob) -> Result<MergeOutcome, Box<MergeFailure>> {
        for entry in &self.entries {
            job.rollback.follow(entry, bodies_of(&self.bodies, entry)).unwrap();
        }
        let outcome = job.run()?;
        self.bodies.insert(outcome.round, vec![Arc::new(encode_state(&outcome.state))]);
        Ok(outcome)
    }

    pub(super) fn follow(&mut self, entry: &Entry) {
        let json = serde_json::to_string(entry).unwrap();
        let entry: Entry = serde_json::from_str(&json).unwrap();
        follow(&mut self.recovery, &self.bodies, &entry).unwrap_or_else(|error| panic!("{error}: {json}"));
        self.entries.push(entry);
    }

    /// Replays the whole tape into `rollbacks`.
    pub(super) fn follow_all(&self, rollbacks: &mut [Rollback]) {
        for entry in &self.entries {
            for rollback in &mut *rollbacks {
                rollback.follow(entry, bodies_of(&self.bodies, entry)).unwrap();
            }
        }
    }

    /// Replays the whole tape into `recovery`.
    pub(super) fn follow_from(&self, recovery: &mut Recovery) {
        self.entries.iter().for_each(|entry| follow(recovery, &self.bodies, entry).unwrap());
    }

    pub(super) fn start(&self) -> Recovery {
        self.start.clone()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn kinds(&self) -> BTreeSet<&'static str> {
        self.entries.iter().map(Entry::kind).collect()
    }

    pub(super) fn compare(&self, syncer: &Syncer) {
        let Some(mut expected) = syncer.record() else { return };
        let mut actual = self.recovery.record().clone();
        // The replay has neither measured times nor pending updates, and the next fragment is irrelevant.
        for record in [&mut expected, &mut actual] {
            record.leases.reopen(crate::wire::LeaseId(0));
            record.ledger.reopen(0);
            record.timing = Default::default();
            record.next_fragment = FragmentId(0);
        }
        assert!(actual.next_round <= expected.next_round, "{} {}", actual.next_round, expected.next_round);
        actual.next_round = expected.next_round;
        assert_eq!(actual, expected);
        assert!(syncer.states().eq(self.recovery.states()), "the parameters differ");
    }
}

/// Returns a function that returns the bodies of `entry`, one per call.
fn bodies_of(bodies: &Bodies, entry: &Entry) -> impl FnMut(usize) -> Result<Vec<u8>, String> {
    let round = match entry {
        Entry::Merged(merge) => Some(merge.round),
        Entry::RolledBack(rolled_back) => Some(rolled_back.round),
        _ => None,
    };
    let mut kept = round.and_then(|round| bodies.get(&round)).into_iter().flatten();
    move |_| Ok(kept.next().ok_or("nobody kept it")?.to_vec())
}

fn follow(recovery: &mut Recovery, bodies: &Bodies, entry: &Entry) -> Result<(), RecoveryError> {
    recovery.follow(entry, bodies_of(bodies, entry)).map(drop)
}

/// Runs a syncer through most kinds of entries: learners that join, leave, send inflated claims, are limited and
/// excluded, a pause, and the end of the run. Returns the run, and its replay at the start.
fn eventful() -> (Pair, Recovery) {
    let mut pair = Pair::new(&[1.0, 2.0, 3.0]);
    let start = pair.tape.start.clone();
    pair.steps(100);
    pair.disconnect(1);
    pair.steps(300);
    pair.connect(1);
    pair.boaster = Some(pair.islands[2].conn);
    pair.steps(100);
    pair.syncer(Input::Hold(true));
    pair.steps(10);
    pair.syncer(Input::Hold(false));
    let learner = LearnerId(1);
    pair.syncer(Input::Pace { learner, share: crate::wire::Share::try_from(500).unwrap() });
    pair.syncer(Input::Drop { learner, wait_ms: 1_000 });
    pair.steps(7_000);
    pair.syncer(Input::Finish);
    pair.steps(20);
    assert!(pair.finished);
    (pair, start)
}

#[test]
fn replay_of_the_tape_gives_the_same_state() {
    let (pair, start) = eventful();
    let kinds = pair.tape.kinds();
    let expected = [
        "dropped",
        "enrolled",
        "finished",
        "finishing",
        "held",
        "leased",
        "merged",
        "paced",
        "reported",
        "returned",
    ];
    assert!(expected.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");

    // Replays again from the start, then from the first record with fragment states of the middle.
    let mut again = start.clone();
    let half = pair.tape.entries.len() / 2;
    let mut states = None;
    for (n, entry) in pair.tape.entries.iter().enumerate() {
        follow(&mut again, &pair.tape.bodies, entry).unwrap();
        if n == half {
            states = Some(again.states().to_vec());
        }
    }
    assert_eq!(again.into_parts(), pair.tape.recovery.clone().into_parts());
    let (record, _) = start.into_parts();
    let mut again = Recovery::new(record, &pair.layout, states.unwrap()).unwrap();
    for entry in &pair.tape.entries {
        follow(&mut again, &pair.tape.bodies, entry).unwrap();
    }
    assert_eq!(again.into_parts(), pair.tape.recovery.clone().into_parts());
}

/// Goal: if the syncer crashes after the end of the run has begun, the next process ends the run as soon as it can
/// store that, since it has no learners to wait for.
#[test]
fn end_of_the_run_outlives_the_syncer() {
    let (pair, start) = eventful();
    let entries = &pair.tape.entries;
    let begun = entries.iter().position(|entry| entry.kind() == "finishing").unwrap();
    assert!(entries[begun..].iter().any(|entry| entry.kind() == "finished"));
    let mut again = start;
    entries[..=begun].iter().for_each(|entry| follow(&mut again, &pair.tape.bodies, entry).unwrap());
    let record = serde_json::to_vec(again.record()).unwrap();
    assert!(serde_json::from_slice::<SyncerRecord>(&record).unwrap().finishing, "a snapshot has it, too");

    let mut syncer = Syncer::resume(again, &pair.layout, SyncerConfig::default(), 0).unwrap();
    let now = Millis(5);
    syncer.handle(now, Input::Stall(true));
    assert!(!syncer.is_over() && syncer.deadline(now) != Some(now.after(1)), "it cannot be kept");
    syncer.handle(now, Input::Stall(false));
    let mut kinds = Vec::new();
    while let Some(output) = syncer.poll() {
        if let syncer::Output::Record(entry) = output {
            kinds.push(entry.kind());
        }
    }
    assert_eq!((syncer.is_over(), kinds), (true, vec!["began", "finished"]));
    assert_ne!(syncer.deadline(now), Some(now.after(1)));
}

/// Goal: a process that resumes a run whose end has begun ends it without any input except `Timeout`.
#[test]
fn end_of_the_run_needs_no_learner() {
    let (pair, start) = eventful();
    let (mut record, states) = start.into_parts();
    record.finishing = true;
    let mut syncer = Syncer::restore(record, &pair.layout, SyncerConfig::default(), states, 0).unwrap();
    let at = syncer.deadline(Millis(0)).expect("it has something to do");
    syncer.handle(at, Input::Timeout);
    assert!(syncer.is_over());
}

#[test]
fn invalid_tapes_are_reported() {
    let (pair, start) = eventful();
    let run = |entries: &[Entry], bodies: &Bodies| {
        let mut again = start.clone();
        entries.iter().try_for_each(|entry| follow(&mut again, bodies, entry))
    };
    let without = |kind: &str| {
        let mut entries = pair.tape.entries.clone();
        let at = entries.iter().position(|entry| entry.kind() == kind).unwrap();
        entries.remove(at);
        entries
    };
    let bodies = &pair.tape.bodies;
    assert_eq!(run(&pair.tape.entries, bodies), Ok(()));
    assert!(matches!(run(&without("merged"), bodies), Err(RecoveryError::Gap { .. })));
    assert!(matches!(run(&without("leased"), bodies), Err(RecoveryError::Lease(_))));
    assert!(matches!(run(&pair.tape.entries, &BTreeMap::new()), Err(RecoveryError::Missing(..))));

    let mut flipped = bodies.clone();
    let body = &mut flipped.values_mut().next().unwrap()[0];
    Arc::make_mut(body)[3] ^= 1;
    assert!(matches!(run(&pair.tape.entries, &flipped), Err(RecoveryError::Damaged(..))));

    let mut other = pair.tape.entries.clone();
    let mut merges = other
        .iter_mut()
        .filter_map(|entry| if let Entry::Merged(merge) = entry { Some(merge) } else { None });
    let merge = merges.find(|merge| merge.parts.len() > 1).unwrap();
    merge.parts[0].weight *= 1.5;
    let version = merge.version;
    match run(&other, bodies) {
        Err(RecoveryError::Diverged { version: at, .. }) => assert_eq!(at, version),
        other => panic!("{:?}", other.map_err(|error| discriminant(&error))),
    }
}

/// Index of the learner whose updates do harm.
const CULPRIT: usize = 2;

impl Pair {
    fn states(&self) -> Vec<FragmentState> {
        self.syncer.states().cloned().collect()
    }

    fn id(&self, i: usize) -> LearnerId {
        self.syncer.ledger().find(&Identity([i as u8 + 1; 32])).unwrap()
    }

    fn trust(&self, i: usize) -> TrustLevel {
        self.syncer.trust(self.now, self.id(i))
    }

    fn undo(&mut self, from: Vec<FragmentState>) {
        let culprits = vec![self.id(CULPRIT)];
        self.syncer(Input::Rollback(Box::new(RollbackOrder { from, after: 0, culprits })));
    }

    /// Returns the mean of Θ.
    fn mean(&self) -> f32 {
        let theta = self.syncer.theta().unwrap();
        theta.iter().sum::<f32>() / theta.len() as f32
    }

    /// Creates a run of two learners with target 1, which a learner with target −40 joins later. Returns the run and
    /// its fragment states from before that.
    fn harmed_run() -> (Self, Vec<FragmentState>) {
        let mut pair = Self::new(&[1.0, 1.0, -40.0]);
        pair.disconnect(CULPRIT);
        pair.steps(400);
        let from = pair.states();
        pair.connect(CULPRIT);
        pair.steps(100);
        (pair, from)
    }
}

#[test]
fn rollback_removes_all_updates_of_the_culprit() {
    let (mut pair, from) = Pair::harmed_run();
    let (well, ill) = (from[0].theta[0], pair.mean());
    assert!(ill < well - 0.1, "{well} {ill}");
    let until: Vec<_> = pair.states().iter().map(|state| state.version).collect();
    let expected: Vec<_> = {
        let without = BTreeSet::from([pair.id(CULPRIT)]);
        let codec = pair.syncer.verifier().codec();
        let mut rollbacks = Rollback::all(&pair.fragments, codec, &from, &without, &until);
        pair.tape.follow_all(&mut rollbacks);
        assert!(rollbacks.iter().all(|rollback| rollback.is_done()));
        rollbacks.iter().map(|rollback| rollback.theta().1.to_vec()).collect()
    };
    pair.undo(from);
    // Fragments without a round in flight are rolled back at once.
    let states = pair.states();
    let rolled_back = pair.tape.entries().iter().filter_map(|entry| match entry {
        Entry::RolledBack(rolled_back) => Some(rolled_back),
        _ => None,
    });
    let at_once: Vec<_> =
        rolled_back.map(|rolled_back| (usize::from(rolled_back.fragment.0), rolled_back.base)).collect();
    assert!(!at_once.is_empty());
    for (p, base) in at_once {
        assert_eq!((base, &*states[p].theta), (until[p], &expected[p]));
    }
    pair.steps(100);
    assert!(pair.mean() > 0.8 * well, "{well} {ill} {}", pair.mean());
    for island in pair.islands.iter().take(CULPRIT) {
        let mean = island.theta.iter().sum::<f32>() / island.theta.len() as f32;
        assert!(mean > 0.7 * well, "learners follow: {mean}");
    }
}

#[test]
fn culprit_is_excluded_and_passes_probation_again() {
    let (mut pair, from) = Pair::harmed_run();
    assert_eq!((pair.trust(0), pair.trust(CULPRIT)), (TrustLevel::Trusted, TrustLevel::Newcomer));
    pair.undo(from.clone());
    assert_eq!(pair.trust(CULPRIT), TrustLevel::Banned);
    let bye = pair.islands[CULPRIT].goodbye.clone().unwrap();
    assert_eq!((bye.code, bye.wait_ms), (CloseCode::Dropped, PROBATION_MS as u32));
    pair.now = pair.now.after(1_000);
    pair.connect(CULPRIT);
    assert!(!pair.islands[CULPRIT].connected, "it is not taken in before its time");
    let again = pair.islands[CULPRIT].goodbye.clone().unwrap();
    assert_eq!((&again.reason, again.wait_ms), (&bye.reason, PROBATION_MS as u32 - 1_000));

    pair.now = pair.now.after(PROBATION_MS);
    // No learner sent anything during that time.
    (0..=CULPRIT).for_each(|i| pair.connect(i));
    pair.steps(50);
    assert!(pair.islands[CULPRIT].connected);
    assert_eq!(pair.trust(CULPRIT), TrustLevel::Convicted);

    pair.undo(pair.states());
    pair.now = pair.now.after(PROBATION_MS);
    pair.connect(CULPRIT);
    assert!(!pair.islands[CULPRIT].connected, "{CONVICTIONS_MAX} times is enough");
    assert_eq!(pair.trust(CULPRIT), TrustLevel::Banned);
    let learner = pair.id(CULPRIT);
    pair.syncer(Input::Drop { learner, wait_ms: 0 });
    (0..=CULPRIT).for_each(|i| pair.connect(i));
    pair.steps(50);
    assert!(pair.islands[CULPRIT].connected, "the owner let it back");
    assert_eq!(pair.trust(CULPRIT), TrustLevel::Newcomer);
}

#[test]
fn conviction_outlives_the_syncer() {
    let (mut pair, from) = Pair::harmed_run();
    let (learner, start) = (pair.id(CULPRIT), pair.tape.start());
    pair.undo(from);
    let mut again: Recovery = start;
    pair.tape.follow_from(&mut again);
    let account = again.record().ledger.account(learner).unwrap();
    assert_eq!(
        (account.trust.convictions(), again.record().restrictions.wait_ms(learner)),
        (1, PROBATION_MS as u32)
    );
    let json = serde_json::to_string(&again.record().ledger).unwrap();
    assert!(json.contains("\"harms\":1"), "a snapshot has it");
}

#[test]
fn rollback_without_known_culprits_or_states_is_ignored() {
    let (mut pair, from) = Pair::harmed_run();
    let (entries, culprits) = (pair.tape.entries().len(), vec![LearnerId(99)]);
    pair.syncer(Input::Rollback(Box::new(RollbackOrder { from: from.clone(), after: 0, culprits })));
    let culprits = vec![pair.id(CULPRIT)];
    pair.syncer(Input::Rollback(Box::new(RollbackOrder { from: from[1..].to_vec(), after: 0, culprits })));
    let is_about_it = |entry: &Entry| matches!(entry, Entry::RolledBack(_) | Entry::Blamed { .. });
    assert!(!pair.tape.entries()[entries..].iter().any(is_about_it));
}

/// Goal: a rollback has no effect with a host that has no tape.
#[test]
fn rollback_without_a_tape_leaves_fragments_unchanged() {
    struct Deaf;
    impl syncer::Host for Deaf {
        fn send(&mut self, _: &[ConnId], _: Message) {}
        fn close(&mut self, _: ConnId, _: Bye) {}
        fn merge(&mut self, _: MergeJob) {}
        fn note(&mut self, _: &Syncer, _: Event) {}
        fn finished(&mut self) {}
    }
    let (mut pair, from) = Pair::harmed_run();
    let (before, culprits) = (pair.states(), vec![pair.id(CULPRIT)]);
    pair.syncer.drive(
        pair.now,
        Input::Rollback(Box::new(RollbackOrder { from, after: 0, culprits })),
        &mut Deaf,
    );
    assert_eq!(pair.states(), before);
}
