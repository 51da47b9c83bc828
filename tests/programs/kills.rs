//! Tests of a killed syncer: its knowledge after a restart, and its tape.
#![cfg(unix)]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_tests::processes::{SyncerProcess, newest_snapshot, number, whole_machine};
use archipelago_tests::witness::{LastMerged, assert_known, witness};

/// Flags of a small run that takes no snapshot but its first.
const FLAGS: [&str; 13] = [
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
    "1h",
    "--no-eval",
];

/// Goal: a syncer that is killed at any time and restarted knows every update that a receipt called merged. Its tape
/// replays to the same state to the bit.
#[test]
fn kills_lose_no_merged_receipt() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&FLAGS);
    let mut others = [syncer.learner("anne"), syncer.learner("bert")];
    let (mut told, mut serial) = (LastMerged::new(), 0);
    for kill in 0..6 {
        let count = Arc::new(AtomicU64::new(0));
        let watching = witness(syncer.address, serial, Arc::clone(&count));
        syncer.wait_until("the witness is merged", |_| count.load(Ordering::Relaxed) > 8 + 3 * kill);
        syncer.kill();
        let (newly_told, last) = watching.join().unwrap();
        told.extend(newly_told);
        serial = last;
        let replayed = syncer.replay();
        assert!(number(&replayed, "merges") >= 8.0, "{replayed:#}");

        let folder = syncer.folder().join("snapshots");
        let before = newest_snapshot(&folder);
        syncer.restart();
        // However short a process lives, it starts where the last one ended, not where the first one began.
        syncer.wait_until("what it followed is saved", |_| newest_snapshot(&folder) > before);
        let status = syncer.try_status().unwrap();
        assert!(number(&status, "rounds") >= number(&replayed, "merges"), "{replayed:#} {status:#}");
        assert_known(syncer.address, &told, &format!("kill {kill}"));
    }
    assert!(others.iter_mut().all(|learner| learner.is_running()), "a learner gave up");
}

/// Goal: a run that began with a model folder and is killed as soon as it answers resumes without that folder. Its tape
/// replays from the folder's parameters to the same state to the bit.
#[test]
fn a_run_from_a_folder_needs_only_its_own_after_a_kill() {
    let _machine = whole_machine();
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/init");
    let copy = tempfile::tempdir().unwrap();
    let model = copy.path().join("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(format!("{golden}/model")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    let text = format!("{golden}/text.txt");
    let from_folder = ["--init", model.to_str().unwrap()];
    let settings =
        ["--data", &text, "--held-out", "0.3", "--batch", "2", "--snapshot-every", "1h", "--no-eval"];
    let mut syncer = SyncerProcess::start(&[&from_folder[..], &settings].concat());
    let run = syncer.try_status().unwrap()["run"].clone();
    syncer.kill();
    fs::remove_dir_all(&model).unwrap();
    syncer.restart_with(&settings);
    let mut serial = 0;
    for is_without_snapshots in [false, true] {
        assert_eq!(syncer.try_status().unwrap()["run"], run);
        let count = Arc::new(AtomicU64::new(0));
        let watching = witness(syncer.address, serial, Arc::clone(&count));
        syncer.wait_until("the witness is merged", |_| count.load(Ordering::Relaxed) > 8);
        syncer.kill();
        serial = watching.join().unwrap().1;
        let replayed = syncer.replay();
        assert!(number(&replayed, "merges") > 8.0 && number(&replayed, "first") <= 1.0, "{replayed:#}");
        if !is_without_snapshots {
            fs::remove_dir_all(syncer.folder().join("snapshots")).unwrap();
        }
        syncer.restart_with(&settings);
    }
}

/// Goal: a run with missing or damaged files does not start from scratch over the rest, and names the file.
#[test]
fn missing_and_damaged_files_are_named() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&FLAGS);
    let _learner = syncer.learner("anne");
    syncer.wait_until("something is merged", |status| number(status, "rounds") > 20.0);
    syncer.interrupt();
    let folder = syncer.folder();
    let refused = |file: &str| {
        let said = syncer.refused(14);
        assert!(said.contains(file), "{said}");
    };
    let without = |file: &str, named: &str| {
        let (path, aside) = (folder.join(file), folder.join("aside"));
        fs::rename(&path, &aside).unwrap();
        refused(named);
        fs::rename(&aside, &path).unwrap();
    };
    without("run.json", "run.json");
    without("tape.sqlite", "tape.sqlite");
    // Bodies of updates alone do not make a new run either.
    let aside = folder.join("aside-too");
    fs::rename(folder.join("snapshots"), &aside).unwrap();
    without("tape.sqlite", "tape.sqlite");
    fs::remove_dir_all(folder.join("snapshots")).unwrap_or_default();
    fs::rename(&aside, folder.join("snapshots")).unwrap();
    let newest = |ending: &str, sub: &str| {
        let paths = fs::read_dir(folder.join(sub)).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|found| found == ending)).max().unwrap()
    };

    // Without any snapshot the tape is enough; the replay then finds a flipped bit in an update.
    for _ in 0..2 {
        fs::remove_file(newest("safetensors", "snapshots")).unwrap();
    }
    let bodies = newest("bodies", "bodies");
    let good = fs::read(&bodies).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    fs::write(&bodies, bad).unwrap();
    refused("(merged): ");
    refused(bodies.to_str().unwrap());
    refused("the update of learner 1 is damaged");
    fs::write(&bodies, good).unwrap();
    syncer.restart();
    assert!(number(&syncer.try_status().unwrap(), "rounds") > 20.0);
}

/// Goal: a full disk is reported at once, and no update is merged that could not be stored. The run goes on by itself
/// once the disk has space.
#[test]
fn a_full_disk_halts_the_run_until_there_is_space() {
    let _machine = whole_machine();
    // Maximum file size in bytes: a snapshot and some seconds of updates fit.
    let mut syncer = SyncerProcess::start_with_files_up_to(3 << 20, &FLAGS);
    let mut learner = syncer.learner("anne");
    let full = syncer.wait_until("the disk is full", |status| !status["disk"]["tapeFault"].is_null());
    assert!(syncer.get("/readyz").is_err(), "it takes no learners");
    // Work in progress ends, and then nothing moves.
    let settled = |syncer: &mut SyncerProcess| {
        let mut last = full.clone();
        syncer.wait_until("nothing is under way", |status| {
            let is_same =
                number(status, "rounds") <= number(&last, "rounds") && number(status, "roundsOpen") < 0.5;
            last = status.clone();
            is_same
        })
    };
    let still = settled(&mut syncer);
    syncer.wait_until("some seconds pass", |status| {
        number(status, "uptimeS") > number(&still, "uptimeS") + 3.0
    });
    let later = syncer.try_status().unwrap();
    assert!(number(&later, "rounds") <= number(&still, "rounds"), "{still:#} {later:#}");

    syncer.lift_file_limit();
    let rounds = number(&later, "rounds");
    syncer.wait_until("it goes on", |status| {
        status["disk"]["tapeFault"].is_null() && number(status, "rounds") > rounds + 20.0
    });
    assert!(learner.is_running());
    assert!(syncer.get("/readyz").is_ok());
    syncer.kill();
    assert!(number(&syncer.replay(), "merges") > rounds, "all that was merged is on the tape");
}
