//! The guard, as a process.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test: the helper may panic")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// A guarded shell that runs `script`, and its process id.
fn guarded(script: &str, folder: &str) -> (Child, String, PathBuf) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut guard = Command::new(env!("CARGO_BIN_EXE_archipelago-demo"))
        .arg("guard")
        .args(["--stdout".into(), folder.join("out"), "--stderr".into(), folder.join("err"), "--".into()])
        .args(["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pid = String::new();
    BufReader::new(guard.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    (guard, pid.trim().to_owned(), folder)
}

#[test]
fn the_program_dies_with_the_pipe() {
    let (mut guard, pid, _) = guarded("exec sleep 600", "dies");
    let alive = || Command::new("kill").args(["-0", &pid]).stderr(Stdio::null()).status().unwrap().success();
    assert!(alive());
    drop(guard.stdin.take());
    assert_eq!(guard.wait().unwrap().code(), Some(137));
    assert!(!alive());
}

#[test]
fn the_programs_end_and_words_come_through() {
    let (mut guard, _, folder) = guarded("echo out; echo err >&2; exit 7", "ends");
    let _open = guard.stdin.take();
    assert_eq!(guard.wait().unwrap().code(), Some(7));
    assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "out\n");
    assert_eq!(fs::read_to_string(folder.join("err")).unwrap(), "err\n");
}
