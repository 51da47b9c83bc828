//! Test of a syncer whose connections are exhausted by silent sockets, with real processes.

#![cfg(unix)]

use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use archipelago_tests::processes::{SyncerProcess, number, of_learner, whole_machine};

const FLAGS: [&str; 7] =
    ["--preset", "tiny", "--corpus-bytes", "200kB", "--no-eval", "--snapshot-every", "1s"];

/// Duration of the flood: longer than the limit for silent connections, and ten snapshots.
const FULL: Duration = Duration::from_secs(12);

/// Goal: a peer that repeatedly opens as many silent sockets as the syncer can hold does no lasting harm. The connected
/// learner keeps training, the run is saved, and others can connect after the flood.
#[test]
fn silent_sockets_harm_no_connected_learner() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start_with_descriptors(128, &FLAGS);
    let mut learner = syncer.learner("inside");
    let before = syncer.wait_until("a merge", |status| number(status, "rounds") > 0.0);

    let mut silent: Vec<TcpStream> = Vec::new();
    let (tries, mut turned_away) = (120, 0);
    for turn in 0..tries {
        // The oldest sockets close, and more sockets are opened than the syncer can hold.
        let gone = silent.len().saturating_sub(400);
        silent.drain(..gone);
        for _ in 0..40 {
            silent.extend(TcpStream::connect_timeout(&syncer.address, Duration::from_millis(200)));
        }
        // Closing the oldest sockets frees connections, so that another peer occasionally gets one.
        if turn % 10 == 9 && syncer.get("/v1/status").is_err() {
            turned_away += 1;
        }
        sleep(FULL / tries);
    }
    assert!(turned_away > 0, "the connections were never exhausted");
    drop(silent);

    let after = syncer.wait_until("room for new connections", |status| {
        number(status, "rounds") > number(&before, "rounds") + 10.0
    });
    assert_eq!((number(&after, "live"), number(&after, "learnersTotal")), (1.0, 1.0), "{after}");
    // The learner never had to reconnect.
    assert!(of_learner(&after, "inside", "connectedS") > FULL.as_secs_f64(), "{after}");
    let disk = &after["disk"];
    assert!(disk["tapeFault"].is_null() && disk["snapshotFault"].is_null(), "{disk}");
    assert!(number(disk, "snapshotAgeS") < 6.0, "{disk}");
    let _newcomer = syncer.learner("newcomer");
    syncer.wait_until("the newcomer", |status| number(status, "live") == 2.0);
    learner.kill();
}
