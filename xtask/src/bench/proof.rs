//! Comparison of learners' receipts with the syncer's records.
//!
//! Each learner prints its receipts and survives all kills. After the last kill, `syncer-server replay` replays the
//! tape of the killed syncer. It recomputes every merge bit for bit and lists its updates. Then a syncer is started
//! once more, and its ledger is compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Receipt of a learner: its number, the fragment, and the version that contains its update (a string in JSON).
pub type Receipt = (u64, u64, String);

/// Result of the comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Number of receipts for merged updates.
    pub told: u64,
    /// Receipts without a merge on the tape.
    pub acked_lost: u64,
    /// Number of merges on the tape.
    pub merges: u64,
    /// Number of updates in these merges.
    pub updates: u64,
    /// Number of updates in two merges, plus repeated receipts.
    pub merged_twice: u64,
    /// True if the ledger of the restarted syncer equals the tape's: updates of each learner, merges and tokens of the
    /// run.
    pub ledger_exact: bool,
}

/// Returns the receipts among the lines that a learner printed.
pub fn receipts(lines: &[String]) -> Vec<Receipt> {
    let mut learner = None;
    let mut receipts = Vec::new();
    for line in lines {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
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

/// Compares the receipts `told` with the output of `replay` (one line for each merge, and a summary), and with the
/// status and the learners of the restarted syncer.
pub fn prove(told: &[Receipt], replay: &[Value], status: &Value, learners: &[Value]) -> Proof {
    let mut parts: BTreeSet<Receipt> = BTreeSet::new();
    let mut sent: BTreeSet<(u64, u64, u64)> = BTreeSet::new();
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut proof = Proof::default();
    for merge in replay.iter().filter(|line| line["members"].is_array()) {
        proof.merges += 1;
        let (fragment, version) = (merge["fragment"].as_u64(), merge["version"].as_str());
        for part in merge["members"].as_array().into_iter().flatten() {
            let (learner, serial) = (part["learner"].as_u64(), part["serial"].as_u64());
            let (Some(learner), Some(serial), Some(fragment), Some(version)) =
                (learner, serial, fragment, version)
            else {
                continue;
            };
            proof.updates += 1;
            *counts.entry(learner).or_default() += 1;
            parts.insert((learner, fragment, version.to_owned()));
            proof.merged_twice += u64::from(!sent.insert((learner, fragment, serial)));
        }
    }
    let mut once = BTreeSet::new();
    for receipt in told {
        proof.told += 1;
        proof.acked_lost += u64::from(!parts.contains(receipt));
        proof.merged_twice += u64::from(!once.insert(receipt));
    }
    let booked = learners.iter().filter_map(|learner| {
        Some((learner["learner"].as_u64()?, learner.pointer("/fates/merged")?.as_u64()?))
    });
    let booked: BTreeMap<u64, u64> = booked.filter(|(_, merged)| *merged > 0).collect();
    let clock = replay.last().and_then(|last| last["tokensMerged"].as_u64());
    proof.ledger_exact = booked == counts
        && status["rounds"].as_u64() == Some(proof.merges)
        && clock.is_some()
        && clock == status["tokensMerged"].as_u64()
        && proof.merges > 0;
    proof
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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

    fn found(told: &[Receipt], replay: &[Value], clock: u64, merged: [u64; 2]) -> Proof {
        let learners = [1, 2]
            .map(|learner| json!({"learner": learner, "fates": {"merged": merged[learner as usize - 1]}}));
        prove(told, replay, &json!({"tokensMerged": clock, "rounds": 2}), &learners)
    }

    #[test]
    fn each_way_to_be_wrong_is_found() {
        let receipt = |learner, version: &str| (learner, 1, version.to_owned());
        let told = [receipt(1, "1"), receipt(2, "1"), receipt(1, "2")];
        let fine =
            Proof { told: 3, acked_lost: 0, merges: 2, updates: 3, merged_twice: 0, ledger_exact: true };
        assert_eq!(found(&told, &replay(), 24, [2, 1]), fine);
        assert_eq!(found(&[receipt(2, "2")], &replay(), 24, [2, 1]).acked_lost, 1);
        assert_eq!(found(&[receipt(1, "1"), receipt(1, "1")], &replay(), 24, [2, 1]).merged_twice, 1);
        let mut twice = replay();
        twice[1]["members"][0]["serial"] = json!(5);
        assert_eq!(found(&told, &twice, 24, [2, 1]).merged_twice, 1);
        assert!(!found(&told, &replay(), 25, [2, 1]).ledger_exact);
        assert!(!found(&told, &replay(), 24, [2, 2]).ledger_exact);
    }

    #[test]
    fn receipts_are_those_of_merges() {
        let lines = [
            r#"{"event":"welcomed","learner":3}"#,
            r#"{"event":"receipt","fragment":2,"fate":{"merged":{"version":"7","weight":0.5,"tokens":8}}}"#,
            r#"{"event":"receipt","fragment":2,"fate":{"late":"stale_base"}}"#,
        ];
        assert_eq!(receipts(&lines.map(str::to_owned)), [(3, 2, "7".to_owned())]);
    }
}
