//! Whoever fills the door of a syncer: real processes, and sockets that say nothing.

#![cfg(unix)]

use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use archipelago_tests::processes::{SyncerProcess, number, of_learner, whole_machine};

const FLAGS: [&str; 7] =
    ["--preset", "tiny", "--corpus-bytes", "200kB", "--no-eval", "--snapshot-every", "1s"];

/// How long the door is kept full: longer than a silent connection is waited for, and ten snapshots.
const FULL: Duration = Duration::from_secs(12);

/// Goal: who opens sockets and says nothing, again and again, as many as the system allows the syncer, keeps neither
/// the learner that is there from training, nor the run from being saved, nor anybody out once they are gone.
#[test]
fn a_door_full_of_silent_sockets_harms_nobody_inside() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start_with_descriptors(128, &FLAGS);
    let mut learner = syncer.learner("inside");
    let before = syncer.wait_until("a merge", |status| number(status, "rounds") > 0.0);

    let mut silent: Vec<TcpStream> = Vec::new();
    let (tries, mut turned_away) = (120, 0);
    for turn in 0..tries {
        // The oldest go, and many more come in their place than there is room for.
        let gone = silent.len().saturating_sub(400);
        silent.drain(..gone);
        for _ in 0..40 {
            silent.extend(TcpStream::connect_timeout(&syncer.address, Duration::from_millis(200)));
        }
        // The oldest take their places along, so that now and then somebody else finds one.
        if turn % 10 == 9 && syncer.get("/v1/status").is_err() {
            turned_away += 1;
        }
        sleep(FULL / tries);
    }
    assert!(turned_away > 0, "the door was never full");
    drop(silent);

    let after = syncer
        .wait_until("room at the door", |status| number(status, "rounds") > number(&before, "rounds") + 10.0);
    assert_eq!((number(&after, "live"), number(&after, "learnersTotal")), (1.0, 1.0), "{after}");
    // It never had to come back.
    assert!(of_learner(&after, "inside", "connectedS") > FULL.as_secs_f64(), "{after}");
    let disk = &after["disk"];
    assert!(disk["tapeFault"].is_null() && disk["snapshotFault"].is_null(), "{disk}");
    assert!(number(disk, "snapshotAgeS") < 6.0, "{disk}");
    let _newcomer = syncer.learner("newcomer");
    syncer.wait_until("the newcomer", |status| number(status, "live") == 2.0);
    learner.kill();
}
