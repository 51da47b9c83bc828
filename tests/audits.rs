//! Audits of real programs on real sockets.
#![cfg(unix)]

use archipelago_tests::processes::{SyncerProcess, number, of_learner, whole_machine};
use serde_json::Value;

/// Every update of whoever agrees is audited; steps are few and quick.
const AUDITED: [&str; 14] = [
    "--preset",
    "tiny",
    "--corpus-bytes",
    "512KiB",
    "--total-tokens",
    "400000",
    "--sync-every",
    "8",
    "--fragments",
    "4",
    "--snapshot-every",
    "1s",
    "--audit",
    "1",
];

fn passed(status: &Value, name: &str) -> f64 {
    of_learner(status, name, "auditsPassed")
}

/// Goal: a learner that agreed passes one audit after the other, beside one that did not, and goes on to do so when the
/// syncer is killed and started again; what it passed before is remembered.
#[test]
fn a_learner_that_agreed_passes_over_a_restart_of_the_syncer() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&AUDITED);
    let (_anne, _bert) = (syncer.learner_on("exact", "anne"), syncer.learner("bert"));
    let status = syncer.wait_until("an audit is passed", |status| {
        passed(status, "anne") >= 3.0 && of_learner(status, "bert", "tokensMerged") > 0.0
    });
    assert_eq!(passed(&status, "bert"), 0.0, "it did not agree");
    syncer.kill();
    syncer.restart();
    let before = passed(&status, "anne");
    let status = syncer.wait_until("more are passed", |status| passed(status, "anne") >= before + 3.0);
    for name in ["anne", "bert"] {
        assert_eq!(of_learner(&status, name, "auditsFailed"), 0.0, "{status:#}");
    }
    assert!(number(&status, "live") >= 2.0, "{status:#}");
}
