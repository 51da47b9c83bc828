//! Rollback of a learner's influence on a run.

use super::*;
use crate::diloco::syncer::{HARMS_MAX, Input, Recovery, Remake, Trust, Undo};
use crate::diloco::{Entry, PROBATION_MS};
use crate::wire::{CloseCode, LearnerId};

/// Index of the learner that pulls the others away.
const CULPRIT: usize = 2;

impl Pair {
    fn states(&self) -> Vec<FragmentState> {
        self.syncer.states().cloned().collect()
    }

    fn id(&self, i: usize) -> LearnerId {
        self.syncer.ledger().find(&Identity([i as u8 + 1; 32])).unwrap()
    }

    fn trust(&self, i: usize) -> Trust {
        self.syncer.trust(self.now, self.id(i))
    }

    fn undo(&mut self, from: Vec<FragmentState>) {
        let culprits = vec![self.id(CULPRIT)];
        self.syncer(Input::Undo(Box::new(Undo { from, after: 0, culprits })));
    }

    /// Returns the mean of Θ.
    fn mean(&self) -> f32 {
        let theta = self.syncer.theta().unwrap();
        theta.iter().sum::<f32>() / theta.len() as f32
    }

    /// Creates two learners with target 1, and one that pulls towards −40 and joins later. Returns the fragments
    /// before it joins.
    fn led_astray() -> (Self, Vec<FragmentState>) {
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
fn a_run_goes_on_as_if_the_culprit_had_never_sent_anything() {
    let (mut pair, from) = Pair::led_astray();
    let (well, ill) = (from[0].theta[0], pair.mean());
    assert!(ill < well - 0.1, "{well} {ill}");
    let until: Vec<_> = pair.states().iter().map(|state| state.version).collect();
    let expected: Vec<_> = {
        let without = BTreeSet::from([pair.id(CULPRIT)]);
        let codec = pair.syncer.verifier().codec();
        let mut remakes = Remake::all(&pair.fragments, codec, &from, &without, &until);
        pair.tape.follow_all(&mut remakes);
        assert!(remakes.iter().all(|remake| remake.is_done()));
        remakes.iter().map(|remake| remake.theta().1.to_vec()).collect()
    };
    pair.undo(from);
    // Fragments without a round in flight are merged again at once.
    let states = pair.states();
    let remade = pair.tape.entries().iter().filter_map(|entry| match entry {
        Entry::Remade(remade) => Some(remade),
        _ => None,
    });
    let at_once: Vec<_> = remade.map(|remade| (usize::from(remade.fragment.0), remade.base)).collect();
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
fn a_culprit_is_sent_away_and_proves_itself_anew() {
    let (mut pair, from) = Pair::led_astray();
    assert_eq!((pair.trust(0), pair.trust(CULPRIT)), (Trust::Trusted, Trust::Probation));
    pair.undo(from.clone());
    assert_eq!(pair.trust(CULPRIT), Trust::Out);
    let bye = pair.islands[CULPRIT].goodbye.clone().unwrap();
    assert_eq!((bye.code, bye.wait_ms), (CloseCode::Dropped, PROBATION_MS as u32));
    pair.connect(CULPRIT);
    assert!(!pair.islands[CULPRIT].connected, "it is not taken in before its time");

    pair.now = pair.now.after(PROBATION_MS);
    // No learner sent anything during that time.
    (0..=CULPRIT).for_each(|i| pair.connect(i));
    pair.steps(50);
    assert!(pair.islands[CULPRIT].connected);
    assert_eq!(pair.trust(CULPRIT), Trust::Suspect);

    pair.undo(pair.states());
    pair.now = pair.now.after(PROBATION_MS);
    pair.connect(CULPRIT);
    assert!(!pair.islands[CULPRIT].connected, "{HARMS_MAX} times is enough");
    assert_eq!(pair.trust(CULPRIT), Trust::Out);
    let learner = pair.id(CULPRIT);
    pair.syncer(Input::Drop { learner, wait_ms: 0 });
    (0..=CULPRIT).for_each(|i| pair.connect(i));
    pair.steps(50);
    assert!(pair.islands[CULPRIT].connected, "the owner let it back");
    assert_eq!(pair.trust(CULPRIT), Trust::Probation);
}

#[test]
fn what_was_blamed_is_remembered_by_the_next_process() {
    let (mut pair, from) = Pair::led_astray();
    let (learner, start) = (pair.id(CULPRIT), pair.tape.start());
    pair.undo(from);
    let mut again: Recovery = start;
    pair.tape.follow_from(&mut again);
    let account = again.record().ledger.account(learner).unwrap();
    assert_eq!((account.harms, again.record().reins.wait_ms(learner)), (1, PROBATION_MS as u32));
    let json = serde_json::to_string(&again.record().ledger).unwrap();
    assert!(json.contains("\"harms\":1"), "a snapshot has it");
}

#[test]
fn nothing_is_undone_for_nobody_or_from_nowhere() {
    let (mut pair, from) = Pair::led_astray();
    let (entries, culprits) = (pair.tape.entries().len(), vec![LearnerId(99)]);
    pair.syncer(Input::Undo(Box::new(Undo { from: from.clone(), after: 0, culprits })));
    let culprits = vec![pair.id(CULPRIT)];
    pair.syncer(Input::Undo(Box::new(Undo { from: from[1..].to_vec(), after: 0, culprits })));
    let is_about_it = |entry: &Entry| matches!(entry, Entry::Remade(_) | Entry::Blamed { .. });
    assert!(!pair.tape.entries()[entries..].iter().any(is_about_it));
}

/// A host without a tape returns the fragments unchanged.
#[test]
fn without_a_tape_the_fragments_stay_as_they_are() {
    struct Deaf;
    impl syncer::Host for Deaf {
        fn send(&mut self, _: &[ConnId], _: Message) {}
        fn close(&mut self, _: ConnId, _: Bye) {}
        fn merge(&mut self, _: crate::diloco::MergeJob) {}
        fn note(&mut self, _: &Syncer, _: Event) {}
        fn finished(&mut self) {}
    }
    let (mut pair, from) = Pair::led_astray();
    let (before, culprits) = (pair.states(), vec![pair.id(CULPRIT)]);
    pair.syncer.drive(pair.now, Input::Undo(Box::new(Undo { from, after: 0, culprits })), &mut Deaf);
    assert_eq!(pair.states(), before);
}
