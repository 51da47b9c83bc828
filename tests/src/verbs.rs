//! Commands of the syncer's program on a run's folder, with or without a running syncer.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::programs::program;

/// Replays the tape in `dir`. Returns the result.
///
/// # Panics
/// If the replay finds a difference.
#[must_use]
pub fn replay(dir: &Path) -> Value {
    replay_by(Command::new(program("syncer-server")), dir)
}

/// As [`replay`], with a given command.
pub(crate) fn replay_by(mut syncer: Command, dir: &Path) -> Value {
    let syncer = syncer.args(["replay", "--json", "--dir"]).arg(dir);
    told(&syncer.output().expect("syncer-server can be started"))
}

/// Copies the run in `dir` to `to`. Returns the program's output.
///
/// # Panics
/// If it cannot be copied.
#[must_use]
pub fn backup(dir: &Path, to: &Path) -> Value {
    told(&run(&["backup".as_ref(), "--json".as_ref(), "--dir".as_ref(), dir.as_ref(), to.as_ref()]))
}

/// Exports the model of the run in `dir` to `out`, with the additional flags `more`.
///
/// # Panics
/// If it cannot be exported.
pub fn export(dir: &Path, out: &Path, more: &[&str]) {
    let mut arguments: Vec<&OsStr> = vec!["export".as_ref(), "--dir".as_ref(), dir.as_ref()];
    arguments.extend(["--out".as_ref(), out.as_os_str()]);
    arguments.extend(more.iter().map(OsStr::new));
    let output = run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the syncer's program with these arguments to its end.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn run(arguments: &[&OsStr]) -> Output {
    Command::new(program("syncer-server")).args(arguments).output().expect("syncer-server can be started")
}

fn told(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}
