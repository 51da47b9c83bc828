//! Tests of a real syncer with learners on disks that fill up, are read-only, fail or hang. The syncer must report the
//! fault, lose no decision that a learner received, and go on by itself.
//!
//! Full and read-only disks are file systems of a few MiB. Those tests are skipped if mounting is not permitted, or
//! with `cargo xtask test --without mounts`. Faults that a mounted file system cannot produce are injected into the
//! program's system calls, on Linux.
#![cfg(unix)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_tests::processes::{SMALL_RUN, SyncerProcess, number, whole_machine};
use archipelago_tests::small_disk::DiskFault;
use archipelago_tests::small_disk::is_left_out;
use archipelago_tests::socket::EventStream;
use archipelago_tests::witness::{assert_known, witness};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Size of the disk in bytes: a snapshot, SQLite's write-ahead log, and some seconds of updates fit on it.
const DISK_BYTES: u64 = 8 * MIB;
/// Time limit for reporting a disk fault, in seconds.
const REPORT_WITHIN_S: f64 = 5.0;
/// Form in which `/v1/events` reports a fault.
const TROUBLE: &str = r#""kind":"trouble""#;
/// Form in which `/v1/events` reports the end of a fault.
const MENDED: &str = r#""kind":"mended""#;

/// Returns the flags of a small run.
fn flags(snapshot_every: &str) -> Vec<&str> {
    [&SMALL_RUN[..], &["--no-eval", "--snapshot-every", snapshot_every]].concat()
}

/// Waits until the syncer reports in its status that the disk cannot be written. Checks that it does so within
/// [`REPORT_WITHIN_S`], is not ready, and reports it to watchers, `troubles` times in total.
fn wait_for_disk_fault(syncer: &mut SyncerProcess, news: &EventStream, troubles: usize) -> Value {
    let status = syncer.wait_until("it says so", |status| !status["disk"]["tapeFault"].is_null());
    let waited_s = number(&status["disk"], "unsavedAgeS");
    assert!(waited_s < REPORT_WITHIN_S, "said after {waited_s} s: {}", status["disk"]);
    assert!(syncer.get("/readyz").is_err(), "it takes no learners");
    syncer.wait_until("its watchers hear of it", |_| news.count(TROUBLE) >= troubles);
    status
}

/// Checks that nothing is merged while the disk cannot be written. Returns the number of rounds before.
fn assert_no_merges(syncer: &mut SyncerProcess) -> f64 {
    let mut last = syncer.try_status().expect("it answers");
    let still = syncer.wait_until("what was under way ends", |status| {
        let is_same =
            number(status, "rounds") <= number(&last, "rounds") && number(status, "roundsOpen") < 0.5;
        last = status.clone();
        is_same
    });
    let later = syncer.wait_until("some seconds pass", |status| {
        number(status, "uptimeS") > number(&still, "uptimeS") + 2.0
    });
    let rounds = number(&still, "rounds");
    assert!(number(&later, "rounds") <= rounds, "{still:#} {later:#}");
    rounds
}

/// Waits until the syncer merges again by itself.
fn wait_for_merges(syncer: &mut SyncerProcess) {
    let rounds = number(&syncer.try_status().expect("it answers"), "rounds");
    syncer.wait_until("it goes on", |status| {
        status["disk"]["tapeFault"].is_null() && number(status, "rounds") > rounds + 20.0
    });
    assert!(syncer.get("/readyz").is_ok());
}

/// Goal: a file system that fills up under load is reported within 5 s, and no update is merged that could not be
/// stored. Once it has space, the run goes on. A kill at that time loses no decision that a learner received. A syncer
/// that stops on a full disk reports that it could not save everything.
#[test]
fn a_file_system_that_fills_up_halts_the_run_and_loses_nothing() {
    if is_left_out() {
        return;
    }
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start_on_small_disk(DISK_BYTES, &flags("1h"));
    let news = EventStream::listen(syncer.address, "/v1/events");
    let mut learners = [syncer.learner("anne"), syncer.learner("bert")];
    let count = Arc::new(AtomicU64::new(0));
    let watching = witness(syncer.address, 0, Arc::clone(&count));
    let full = wait_for_disk_fault(&mut syncer, &news, 1);
    let why = full["disk"]["tapeFault"].as_str().unwrap();
    assert!(["No space left", "full"].iter().any(|words| why.contains(words)), "{why}");
    assert!(count.load(Ordering::Relaxed) > 0, "the witness was told of nothing before");
    assert_no_merges(&mut syncer);
    syncer.small_disk().resize(8 * DISK_BYTES);
    wait_for_merges(&mut syncer);
    syncer.wait_until("its watchers hear of it", |_| news.count(MENDED) >= 1);

    syncer.small_disk().fill();
    wait_for_disk_fault(&mut syncer, &news, 2);
    let rounds = assert_no_merges(&mut syncer);
    syncer.kill();
    let (told, _) = watching.join().unwrap();
    let replayed = syncer.replay();
    assert!(number(&replayed, "merges") >= rounds - 8.0, "{replayed:#}, {rounds} rounds were seen");
    syncer.small_disk().free();
    syncer.restart();
    assert_known(syncer.address, &told, "killed while the disk was full");
    wait_for_merges(&mut syncer);
    assert!(learners.iter_mut().all(|learner| learner.is_running()), "a learner gave up");

    let news = EventStream::listen(syncer.address, "/v1/events");
    syncer.small_disk().fill();
    wait_for_disk_fault(&mut syncer, &news, 1);
    let (code, words) = syncer.stop();
    assert_eq!(code, Some(15), "{words}");
    assert!(words.contains(syncer.folder().to_str().unwrap()), "{words}");
}

/// Goal: a syncer does not start if it could not write, names the file, and starts once it can.
#[test]
fn an_unwritable_disk_is_named_at_the_start() {
    if is_left_out() {
        return;
    }
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start_on_small_disk(DISK_BYTES, &flags("1h"));
    let _learner = syncer.learner("anne");
    let merged = |status: &Value| number(status, "rounds") > 20.0;
    let rounds = number(&syncer.wait_until("something is merged", merged), "rounds");
    syncer.interrupt();
    let refused = |syncer: &SyncerProcess| {
        let words = syncer.refused(15);
        assert!(words.contains(syncer.folder().to_str().unwrap()), "{words}");
    };
    syncer.small_disk().fill();
    refused(&syncer);
    syncer.small_disk().free();
    syncer.small_disk().set_read_only(true);
    refused(&syncer);
    syncer.small_disk().set_read_only(false);
    syncer.restart();
    assert!(number(&syncer.try_status().unwrap(), "rounds") >= rounds);
    wait_for_merges(&mut syncer);
}

/// Goal: failed snapshots are reported and do not affect the run, because its tape goes on.
#[test]
fn failed_snapshots_are_reported_and_the_run_continues() {
    if is_left_out() {
        return;
    }
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start_on_small_disk(8 * DISK_BYTES, &flags("500ms"));
    let _learner = syncer.learner("anne");
    wait_for_merges(&mut syncer);
    let is_short = |status: &Value| status["alerts"][0]["kind"] == "diskNearlyFull";
    let status = syncer.wait_until("it says that its disk is nearly full", is_short);
    assert!(status["alerts"][0]["text"].as_str().unwrap().contains("free some space"), "{status:#}");
    syncer.small_disk().set_folder_read_only("snapshots", true);
    let status = syncer.wait_until("it says so", |status| !status["disk"]["snapshotFault"].is_null());
    assert!(status["disk"]["tapeFault"].is_null(), "{status:#}");
    wait_for_merges(&mut syncer);
    assert!(syncer.get("/metrics").unwrap().contains("\narchipelago_snapshot_fault 1\n"));
    assert!(syncer.get("/v1/log").unwrap().contains(TROUBLE));
    syncer.wait_until("there is an alert", |status| status["alerts"][0]["kind"] == "diskFault");
    syncer.kill();
    syncer.small_disk().set_folder_read_only("snapshots", false);
    let replayed = syncer.replay();
    syncer.restart();
    assert!(number(&syncer.try_status().unwrap(), "rounds") >= number(&replayed, "merges"));
    syncer.wait_for_snapshot();
    assert!(syncer.try_status().unwrap()["disk"]["snapshotFault"].is_null());
}

/// Goal: a disk that becomes read-only, loses writes, or hangs is reported within 5 s, and no decision that a learner
/// received is lost. The run goes on once the disk works again. A start on a faulty disk names the fault, too.
#[test]
fn a_disk_that_fails_halts_the_run_and_loses_nothing() {
    if std::env::consts::OS != "linux" {
        return;
    }
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start_on_faulty_disk(&flags("1h"));
    let news = EventStream::listen(syncer.address, "/v1/events");
    let mut learners = [syncer.learner("anne"), syncer.learner("bert")];
    let count = Arc::new(AtomicU64::new(0));
    let watching = witness(syncer.address, 0, Arc::clone(&count));
    syncer.wait_until("the witness is merged", |_| count.load(Ordering::Relaxed) > 8);
    for (nth, fault) in [DiskFault::ReadOnly, DiskFault::SyncFails, DiskFault::Hangs].into_iter().enumerate()
    {
        syncer.faulty_disk().set(fault);
        wait_for_disk_fault(&mut syncer, &news, nth + 1);
        assert_no_merges(&mut syncer);
        syncer.faulty_disk().set(DiskFault::None);
        wait_for_merges(&mut syncer);
    }
    syncer.faulty_disk().set(DiskFault::SyncFails);
    wait_for_disk_fault(&mut syncer, &news, 4);
    syncer.kill();
    let (told, _) = watching.join().unwrap();
    syncer.faulty_disk().set(DiskFault::ReadOnly);
    let words = syncer.refused(15);
    assert!(words.contains(syncer.folder().to_str().unwrap()), "{words}");
    syncer.faulty_disk().set(DiskFault::None);
    let replayed = syncer.replay();
    syncer.restart();
    assert_known(syncer.address, &told, "killed while the disk failed");
    assert!(number(&syncer.try_status().unwrap(), "rounds") >= number(&replayed, "merges"));
    wait_for_merges(&mut syncer);
    assert!(learners.iter_mut().all(|learner| learner.is_running()), "a learner gave up");
    syncer.faulty_disk().set(DiskFault::ReadOnly);
    let (code, words) = syncer.stop();
    assert_eq!(code, Some(15), "{words}");
    assert!(words.contains(syncer.folder().to_str().unwrap()), "{words}");
}
