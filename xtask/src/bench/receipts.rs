//! Comparison of learners' receipts with the syncer's records.
//!
//! Each learner prints its receipts and survives all kills of the syncer. Then `syncer-server replay` replays the tape.
//! It recomputes every merge bit for bit and lists its updates.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Receipt for a merged update: the learner's number, the fragment, and the version that contains the update (a string
/// in JSON).
pub type Receipt = (u64, u64, String);

/// Result of the comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiptComparison {
    /// Number of receipts for merged updates.
    pub acked: u64,
    /// Receipts without a merge on the tape.
    pub acked_lost: u64,
    /// Number of merges on the tape.
    pub merges: u64,
    /// Number of updates in these merges.
    pub updates: u64,
    /// Number of updates that are in two merges, plus the number of repeated receipts.
    pub merged_twice: u64,
    /// True if the ledger of the restarted syncer equals the tape's: updates of each learner, merges and tokens of the
    /// run.
    pub ledger_exact: bool,
}

impl ReceiptComparison {
    /// Returns the name of each limit, and whether it is met.
    pub fn limits(&self) -> [(&'static str, bool); 4] {
        [
            ("acked", self.acked > 0),
            ("acked_lost", self.acked_lost == 0),
            ("merged_twice", self.merged_twice == 0),
            ("ledger_exact", self.ledger_exact),
        ]
    }

    /// Adds the results to `figures`.
    pub fn add_to(&self, figures: &mut Value) {
        figures["acked"] = self.acked.into();
        figures["acked_lost"] = self.acked_lost.into();
        figures["merges"] = self.merges.into();
        figures["updates"] = self.updates.into();
        figures["merged_twice"] = self.merged_twice.into();
        figures["ledger_exact"] = self.ledger_exact.into();
    }
}

/// Returns the receipts among the lines that a learner printed.
pub fn receipts<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Receipt> {
    let (mut learner, mut receipts) = (None, Vec::new());
    for event in lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        match event["event"].as_str() {
            Some("welcomed") => learner = event["learner"].as_u64(),
            Some("receipt") => {
                let version = event.pointer("/fate/merged/version").and_then(Value::as_str);
                if let (Some(learner), Some(fragment), Some(version)) =
                    (learner, event["fragment"].as_u64(), version)
                {
                    receipts.push((learner, fragment, version.to_owned()));
                }
            }
            _ => {}
        }
    }
    receipts
}

/// Merge on the tape: fragment, version, and the learner and the serial number of each update.
type Merge = (u64, String, Vec<(u64, u64)>);

/// Returns the merges in the output of `replay`.
fn merges(replay: &[Value]) -> Vec<Merge> {
    let part = |part: &Value| Some((part["learner"].as_u64()?, part["serial"].as_u64()?));
    let merge = |line: &Value| {
        let parts = line["members"].as_array()?.iter().filter_map(part).collect();
        Some((line["fragment"].as_u64()?, line["version"].as_str()?.to_owned(), parts))
    };
    replay.iter().filter_map(merge).collect()
}

/// Compares receipts with the output of `replay` (one line for each merge, and a summary), and with the status and the
/// learners of the restarted syncer.
pub fn prove(
    receipts: &[Receipt],
    replay: &[Value],
    status: &Value,
    learners: &[Value],
) -> ReceiptComparison {
    let (mut parts, mut sent, mut counts) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::<u64, u64>::new());
    let mut proof = ReceiptComparison { acked: receipts.len() as u64, ..ReceiptComparison::default() };
    for (fragment, version, updates) in merges(replay) {
        proof.merges += 1;
        for (learner, serial) in updates {
            proof.updates += 1;
            *counts.entry(learner).or_default() += 1;
            parts.insert((learner, fragment, version.clone()));
            proof.merged_twice += u64::from(!sent.insert((learner, fragment, serial)));
        }
    }
    let mut seen = BTreeSet::new();
    for receipt in receipts {
        proof.acked_lost += u64::from(!parts.contains(receipt));
        proof.merged_twice += u64::from(!seen.insert(receipt));
    }
    let booked = learners.iter().filter_map(|learner| {
        Some((learner["learner"].as_u64()?, learner.pointer("/fates/merged")?.as_u64()?))
    });
    let booked: BTreeMap<u64, u64> = booked.filter(|(_, merged)| *merged > 0).collect();
    let tokens = replay.last().and_then(|last| last["tokensMerged"].as_u64());
    proof.ledger_exact = booked == counts
        && status["rounds"].as_u64() == Some(proof.merges)
        && tokens.is_some()
        && tokens == status["tokensMerged"].as_u64()
        && proof.merges > 0;
    proof
}

/// Comparison with a tape whose oldest part was removed.
pub struct PrunedTapeComparison {
    /// Number of updates on the tape.
    pub updates: u64,
    /// Number of receipts that are recent enough to be on the tape.
    pub acked: u64,
    /// Number of these receipts whose updates are missing on the tape.
    pub acked_lost: u64,
}

/// Compares receipts with the merges that are still on the tape.
pub fn compare_with_kept(receipts: &[Receipt], replay: &[Value]) -> PrunedTapeComparison {
    let mut kept = BTreeSet::new();
    let mut oldest = BTreeMap::<u64, u64>::new();
    let mut updates = 0;
    for (fragment, version, parts) in merges(replay) {
        let Ok(version) = version.parse::<u64>() else { continue };
        oldest.entry(fragment).and_modify(|oldest| *oldest = version.min(*oldest)).or_insert(version);
        updates += parts.len() as u64;
        kept.extend(parts.into_iter().map(|(learner, _)| (learner, fragment, version)));
    }
    let receipts = receipts.iter().filter_map(|(learner, fragment, version)| {
        let version = version.parse().ok()?;
        (version >= *oldest.get(fragment)?).then_some((*learner, *fragment, version))
    });
    let (mut acked, mut acked_lost) = (0, 0);
    for receipt in receipts {
        acked += 1;
        acked_lost += u64::from(!kept.contains(&receipt));
    }
    PrunedTapeComparison { updates, acked, acked_lost }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replay() -> Vec<Value> {
        let merge =
            |version: &str, parts: Value| json!({"fragment": 1, "version": version, "members": parts});
        let part = |learner: u64, serial: u64| json!({"learner": learner, "serial": serial, "tokens": 8});
        vec![
            merge("1", json!([part(1, 5), part(2, 5)])),
            merge("2", json!([part(1, 6)])),
            json!({"tokensMerged": 24}),
        ]
    }

    fn receipt(learner: u64, version: &str) -> Receipt {
        (learner, 1, version.to_owned())
    }

    #[test]
    fn each_error_is_found() {
        let found = |receipts: &[Receipt], replay: &[Value], tokens: u64, merged: [u64; 2]| {
            let learners = [1, 2].map(
                |learner| json!({"learner": learner, "fates": {"merged": merged[learner as usize - 1]}}),
            );
            prove(receipts, replay, &json!({"tokensMerged": tokens, "rounds": 2}), &learners)
        };
        let all = [receipt(1, "1"), receipt(2, "1"), receipt(1, "2")];
        let fine = ReceiptComparison {
            acked: 3,
            acked_lost: 0,
            merges: 2,
            updates: 3,
            merged_twice: 0,
            ledger_exact: true,
        };
        assert_eq!(found(&all, &replay(), 24, [2, 1]), fine);
        assert_eq!(found(&[receipt(2, "2")], &replay(), 24, [2, 1]).acked_lost, 1);
        assert_eq!(found(&[receipt(1, "1"), receipt(1, "1")], &replay(), 24, [2, 1]).merged_twice, 1);
        let mut twice = replay();
        twice[1]["members"][0]["serial"] = json!(5);
        assert_eq!(found(&all, &twice, 24, [2, 1]).merged_twice, 1);
        assert!(!found(&all, &replay(), 25, [2, 1]).ledger_exact);
        assert!(!found(&all, &replay(), 24, [2, 2]).ledger_exact);
    }

    #[test]
    fn receipts_older_than_the_tape_are_ignored() {
        let kept = compare_with_kept(&[receipt(1, "1"), receipt(1, "2"), receipt(2, "2")], &replay()[1..]);
        assert_eq!((kept.updates, kept.acked, kept.acked_lost), (1, 2, 1));
    }

    #[test]
    fn receipts_are_those_of_merges() {
        let lines = [
            r#"{"event":"welcomed","learner":3}"#,
            r#"{"event":"receipt","fragment":2,"fate":{"merged":{"version":"7","weight":0.5,"tokens":8}}}"#,
            r#"{"event":"receipt","fragment":2,"fate":{"late":"stale_base"}}"#,
        ];
        assert_eq!(receipts(lines.into_iter()), [(3, 2, "7".to_owned())]);
    }
}
