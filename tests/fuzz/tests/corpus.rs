//! Tests of the stored corpus and variations of it: no target may panic.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::panic::catch_unwind;

use archipelago_fuzz::{Target, read, target, vary};

/// Runs each stored input of `name`, and `variations` variations of all of them.
fn check(name: &str, variations: u64) {
    let Target { run, .. } = target(name).unwrap();
    let kept = read(name).unwrap();
    assert!(kept.len() >= 5, "little is kept for {name}");
    let varied = (0..variations).map(|seed| {
        let at = |by: u64| &kept[((seed + by) % kept.len() as u64) as usize];
        vary(at(0), at(seed / 7), seed)
    });
    for input in kept.iter().cloned().chain(varied) {
        if catch_unwind(|| run(&input)).is_err() {
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            panic!("{name} fails with {hex}");
        }
    }
}

#[test]
fn frames_of_a_peer() {
    check("wire", 5_000);
}

#[test]
fn bodies_of_updates() {
    check("codec", 5_000);
}

#[test]
fn shards_of_data() {
    check("shard", 2_000);
}

#[test]
fn a_settings_file() {
    check("settings", 200);
}

#[test]
fn a_model_to_begin_with() {
    check("model", 50);
}

#[test]
fn files_to_begin_with() {
    check("import", 100);
}

#[test]
fn the_folder_of_a_run() {
    check("tape", 60);
}

#[test]
fn a_syncer_that_says_anything() {
    check("learner", 1_000);
}

#[test]
fn peers_that_say_anything() {
    check("peer", 1_000);
}

#[test]
fn a_world_of_faults() {
    check("world", 100);
}
