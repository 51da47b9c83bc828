//! Tests of the exit codes of `demo`, and of the guard. The guard ends a program when its own standard input closes.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test: the helper may panic")]

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Runs the demo with `flags`. Returns its exit code and the last line of its standard error.
fn demo(flags: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_syncer-server"))
        .arg("demo")
        .args(flags)
        .env_clear()
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn a_missing_program_is_one_sentence() {
    let (code, said) = demo(&["--headless", "--learner", "no/such/program"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no/such/program") && said.contains("--learner"), "{said}");
}

#[test]
fn a_wrong_flag_is_code_2() {
    assert_eq!(demo(&["--classroom", "--headless"]).0, Some(2));
    assert_eq!(demo(&["--public-url", "https://a/"]).0, Some(2));
    assert_eq!(demo(&["--for", "0s"]).0, Some(2));
    assert_eq!(demo(&["--headless", "--learners", "0"]).0, Some(1));
}

/// Starts a guard with `flags` whose program is a shell that runs `script`. Returns the guard, the script's process id,
/// and the folder with its output.
fn guarded(script: &str, flags: &[&str], folder: &str) -> (Child, String, PathBuf) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut guard = Command::new(env!("CARGO_BIN_EXE_syncer-server"))
        .arg("guard")
        .args(flags)
        .args(["--stdout".into(), folder.join("out"), "--stderr".into(), folder.join("err"), "--".into()])
        .args(["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut pid = String::new();
    BufReader::new(guard.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    (guard, pid.trim().to_owned(), folder)
}

#[test]
fn guard_kills_its_program_when_the_pipe_closes() {
    let (mut guard, pid, _) = guarded("exec sleep 600", &[], "dies");
    assert!(is_alive(&pid));
    drop(guard.stdin.take());
    assert_eq!(guard.wait().unwrap().code(), Some(137));
    assert!(!is_alive(&pid));
}

#[test]
fn guard_with_children_kills_the_programs_children() {
    let (mut guard, _, folder) = guarded("sleep 600 & echo $!; wait", &["--children"], "children");
    let child = loop {
        let said = fs::read_to_string(folder.join("out")).unwrap_or_default();
        match said.strip_suffix('\n') {
            Some(pid) => break pid.to_owned(),
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    assert!(is_alive(&child));
    drop(guard.stdin.take());
    guard.wait().unwrap();
    // Only the system reaps an orphan, which may take a moment.
    for _ in 0..500 {
        if !is_alive(&child) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{child} is still there");
}

/// Returns true if the process `pid` runs. A zombie does not.
fn is_alive(pid: &str) -> bool {
    let state = match fs::read_to_string("/proc/self/stat") {
        // `pid (name) state …`
        Ok(_) => fs::read_to_string(format!("/proc/{pid}/stat"))
            .map(|stat| stat.rsplit(") ").next().unwrap_or_default().to_owned())
            .unwrap_or_default(),
        Err(_) => {
            let output = Command::new("ps").args(["-o", "state=", "-p", pid]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
    };
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn guard_passes_on_exit_code_and_output() {
    let (mut guard, _, folder) = guarded("echo out; echo err >&2; exit 7", &[], "ends");
    let _open = guard.stdin.take();
    assert_eq!(guard.wait().unwrap().code(), Some(7));
    assert_eq!(fs::read_to_string(folder.join("out")).unwrap(), "out\n");
    assert_eq!(fs::read_to_string(folder.join("err")).unwrap(), "err\n");
}
