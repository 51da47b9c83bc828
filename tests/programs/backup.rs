//! Tests of backups made during a run, and of learners after a return to one.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use archipelago_tests::processes::{SMALL_RUN, SyncerProcess, number, of_learner, whole_machine};
use archipelago_tests::processes::{backup, replay, run};

const LEARNERS: [&str; 2] = ["anne", "bert"];

/// Returns the flags of a small run with five snapshots a second, which keeps nothing that recovery does not need.
fn flags(more: &[&'static str]) -> Vec<&'static str> {
    [&SMALL_RUN[..], &["--snapshot-every", "200ms", "--keep", "0B"], more].concat()
}

/// Goal: a backup made at any time is complete: its tape can be replayed to the bit, and a syncer can resume from it.
#[test]
fn copies_under_load_are_whole() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&flags(&[]));
    let _learners = LEARNERS.map(|name| syncer.learner(name));
    let copies = tempfile::tempdir().unwrap();
    let mut last = 0.0;
    for number_of_copy in 0..12 {
        // Each process begins its own segment of bodies, so some segments are removed, too.
        if number_of_copy % 4 == 0 {
            let rounds = number(&syncer.try_status().unwrap(), "rounds");
            syncer.wait_until("it merges", |status| number(status, "rounds") > rounds + 10.0);
            syncer.kill();
            syncer.restart();
        }
        let rounds = number(&syncer.try_status().unwrap(), "rounds");
        syncer.wait_until("it goes on", |status| number(status, "rounds") > rounds + 3.0);
        let to = copies.path().join(number_of_copy.to_string());
        let copied = backup(&syncer.folder(), &to);
        assert!(number(&copied, "decision") > last, "{copied:#}");
        last = number(&copied, "decision");
        let replayed = replay(&to);
        assert!((number(&replayed, "last") - last).abs() < 0.5, "{replayed:#} {copied:#}");
    }
    let left = fs::read_dir(copies.path()).unwrap().count();
    assert_eq!(left, 12, "nothing is left beside the copies");
}

/// Goal: a backup never overwrites anything, and its secrets stay readable only by their owner.
#[test]
fn a_copy_keeps_secrets_and_is_not_written_over() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&flags(&["--invite", "auto", "--no-eval"]));
    syncer.wait_for_snapshot();
    let copies = tempfile::tempdir().unwrap();
    let (to, dir) = (copies.path().join("some/where"), syncer.folder());
    let copied = backup(&dir, &to);
    assert_eq!(copied["to"], to.to_str().unwrap());
    for name in ["admin.token", "invite.token", "run.json", "tokenizer.json"] {
        let (theirs, ours) = (dir.join(name), to.join(name));
        assert_eq!(fs::read(&theirs).unwrap(), fs::read(&ours).unwrap(), "{name}");
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&theirs), mode(&ours), "{name}");
        assert!(!name.ends_with("token") || mode(&ours) & 0o077 == 0, "{name}");
    }
    let refused = |from: &std::path::Path, code: i32, part: &str| {
        let output = run(&["backup".as_ref(), "--dir".as_ref(), from.as_ref(), to.as_ref()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part), "{said}");
    };
    refused(&dir, 12, "is not empty");
    refused(copies.path(), 16, "no run is in");
}

/// Goal: a run resumes from an older backup. Learners that know more than the backup fetch the parameters again, keep
/// training, and are merged again.
#[test]
fn learners_continue_after_a_return_to_an_older_backup() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&flags(&[]));
    let mut learners = LEARNERS.map(|name| syncer.learner(name));
    syncer.wait_until("both are merged", |status| {
        LEARNERS.iter().all(|name| of_learner(status, name, "tokensMerged") > 0.0)
    });
    let copies = tempfile::tempdir().unwrap();
    let (to, aside, dir) = (copies.path().join("copy"), copies.path().join("aside"), syncer.folder());
    // Rows are deleted only together with the updates that they name.
    for _ in 0..3 {
        syncer.wait_for_snapshot();
    }
    let _ = backup(&dir, &to);
    let copied = replay(&to);
    assert!(number(&copied, "first") < 1.5, "{copied:#}");
    let rounds = number(&syncer.try_status().unwrap(), "rounds");
    let told = syncer.wait_until("they are told more", |status| number(status, "rounds") > rounds + 20.0);
    assert!(number(&told, "tokensMerged") > number(&copied, "tokensMerged"));

    syncer.kill();
    fs::rename(&dir, &aside).unwrap();
    fs::rename(&to, &dir).unwrap();
    syncer.restart();
    let merged = LEARNERS.map(|name| of_learner(&syncer.try_status().unwrap(), name, "tokensMerged"));
    let back = syncer.wait_until("both are merged again", |status| {
        let now = LEARNERS.map(|name| of_learner(status, name, "tokensMerged"));
        now.iter().zip(&merged).all(|(now, before)| *now > before + 10_000.0)
    });
    assert_eq!(back["run"], told["run"]);
    assert!(learners.iter_mut().all(|learner| learner.is_running()), "a learner gave up");
    syncer.kill();
    assert!(number(&replay(&dir), "tokensMerged") > number(&copied, "tokensMerged"));
}
