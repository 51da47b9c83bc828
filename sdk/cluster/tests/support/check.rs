//! Invariants of a cluster under all faults: the tape, the inputs of owners and learners, and each merge.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_cluster::Services;
use archipelago_core::cluster::{Record, state_of};
use archipelago_core::diloco::syncer::Remake;
use archipelago_core::diloco::{Entry, MergeEntry, checksum};
use archipelago_core::wire::{FragmentId, LearnerId, Round, Version};

use serde::{Deserialize, Serialize};

use super::learner::Book;
use super::run::Run;

/// Confirmation that an owner received, or notice that it sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// The record is on the tape under this number.
    Appended(FragmentId, u64, Record),
    /// The end of the round was announced.
    Ended(FragmentId, Round),
}

/// Counts of the check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub records: usize,
    pub merges: usize,
    pub takeovers: usize,
    pub updates: usize,
    pub receipts: usize,
}

/// Compares all confirmations and receipts with the tape, and each merge with that of a syncer in one process.
///
/// # Errors
/// A description of the first violation.
pub async fn check(
    run: &Run,
    services: &Services,
    books: &BTreeMap<LearnerId, Book>,
    told: &[Told],
) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut tapes = BTreeMap::new();
    for fragment in run.ids() {
        let tape = services.tape.read(fragment, 0).await.map_err(|error| error.to_string())?;
        counts.records += tape.len();
        counts.takeovers += tape.iter().filter(|record| matches!(record, Record::Took(_))).count();
        tapes.insert(fragment, tape);
    }
    for told in told {
        match told {
            Told::Appended(p, seq, record) if tapes[p].get(*seq as usize - 1) != Some(record) => {
                return Err(format!("record {seq} of {p} was acknowledged and is not on the tape"));
            }
            Told::Ended(p, round) if round.0 > tapes[p].len() as u64 => {
                return Err(format!("the end of round {round} of {p} was told and is not on the tape"));
            }
            Told::Appended(..) | Told::Ended(..) => {}
        }
    }
    check_receipts(&tapes, books, &mut counts)?;
    for (fragment, tape) in &tapes {
        check_merges(run, services, (*fragment, tape), books, &mut counts).await?;
    }
    Ok(counts)
}

fn check_receipts(
    tapes: &BTreeMap<FragmentId, Vec<Record>>,
    books: &BTreeMap<LearnerId, Book>,
    counts: &mut Counts,
) -> Result<(), String> {
    for (learner, book) in books {
        if book.is_confused {
            return Err(format!(
                "learner {learner} was told two things of one update, or of one that is not its"
            ));
        }
        for (&serial, &merged) in &book.told {
            let (p, round, _) = &book.sent[&serial];
            let record = tapes[p].get(round.0 as usize - 1);
            let said = record.map(|record| record.has_merged(*learner, serial).then_some(Version(round.0)));
            if said != Some(merged) {
                return Err(format!(
                    "learner {learner} was told of update {serial}, for round {round} of {p}, that it was merged to \
                     {merged:?}; the tape says {said:?}"
                ));
            }
            counts.receipts += 1;
        }
    }
    Ok(())
}

async fn check_merges(
    run: &Run,
    services: &Services,
    (fragment, tape): (FragmentId, &[Record]),
    books: &BTreeMap<LearnerId, Book>,
    counts: &mut Counts,
) -> Result<(), String> {
    let mut before = Version(0);
    let mut merged = BTreeSet::new();
    let initial: Vec<_> = run.ids().into_iter().map(|p| run.initial(p)).collect();
    let last = vec![Version(tape.len() as u64); initial.len()];
    let remakes = Remake::all(&run.fragments, run.codec, &initial, &BTreeSet::new(), &last);
    let mut alone =
        remakes.into_iter().find(|remake| remake.theta().0 == fragment).expect("it is one of them");
    for (record, seq) in tape.iter().zip(1..) {
        let Record::Merged { merge, state } = record else { continue };
        let MergeEntry { round, base, version, parts, .. } = &**merge;
        if (*base, *version, *round) != (before, Version(seq), Round(seq)) {
            return Err(format!("record {seq} of {fragment} is no version that follows on the one before"));
        }
        before = *version;
        counts.merges += 1;
        let mut bodies = Vec::new();
        for part in parts {
            let what = format!("update {} of learner {}, merged in round {round}", part.serial, part.learner);
            let sent = books.get(&part.learner).and_then(|book| book.sent.get(&part.serial));
            let Some((p, sent_for, body)) = sent else { return Err(format!("{what}, was never sent")) };
            if (*p, sent_for) != (fragment, round) || !merged.insert((part.learner, part.serial)) {
                return Err(format!("{what}, was for another round, or was merged twice"));
            }
            bodies.push(body.clone());
            counts.updates += 1;
        }
        let mut bodies = bodies.into_iter();
        let next = |_| Ok(bodies.next().unwrap_or_default());
        alone.follow(&Entry::Merged((**merge).clone()), next).map_err(|error| error.to_string())?;
        let stored = services.blobs.load(fragment, seq).await.map_err(|error| error.to_string())?;
        let stored = stored.filter(|bytes| checksum(bytes) == *state);
        let theirs = stored.and_then(|bytes| state_of(*version, alone.theta().1.len(), &bytes));
        if theirs.is_none_or(|theirs| *theirs.theta != alone.theta().1) {
            return Err(format!("round {round} of {fragment}, merged in one place, gives something else"));
        }
    }
    Ok(())
}
