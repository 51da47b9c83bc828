//! Tests of the program on its own, without source or toolchain.
#![expect(clippy::unwrap_used, reason = "a test: the helper may panic")]

use std::process::Command;

/// Returns the exit code of the demo with these flags, and its last message.
fn demo(flags: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_archipelago-demo")).args(flags).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn a_missing_program_is_one_sentence() {
    let (code, said) = demo(&["--headless", "--syncer", "no/such/program"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no/such/program") && said.contains("--syncer"), "{said}");
}

#[test]
fn a_wrong_flag_is_code_2() {
    assert_eq!(demo(&["--classroom", "--headless"]).0, Some(2));
    assert_eq!(demo(&["--no-such-flag"]).0, Some(2));
    assert_eq!(demo(&["--headless", "--learners", "0"]).0, Some(1));
}
