//! Verbs of the syncer's program on a run's folder, whether a syncer works in it or not.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::programs::program;

/// Computes the tape in `dir` again; what that finds.
///
/// # Panics
/// If the tape does not lead where it did.
#[must_use]
pub fn replay(dir: &Path) -> Value {
    replay_by(Command::new(program("syncer-server")), dir)
}

/// As [`replay`], by a program that is started in its own way.
pub(crate) fn replay_by(mut syncer: Command, dir: &Path) -> Value {
    let syncer = syncer.args(["replay", "--json", "--dir"]).arg(dir);
    told(&syncer.output().expect("syncer-server can be started"))
}

/// Copies the run in `dir` to `to`; what the program says.
///
/// # Panics
/// If it cannot.
#[must_use]
pub fn backup(dir: &Path, to: &Path) -> Value {
    told(&run(&["backup".as_ref(), "--json".as_ref(), "--dir".as_ref(), dir.as_ref(), to.as_ref()]))
}

/// Takes the model of the run in `dir` home to `out`, with these flags more.
///
/// # Panics
/// If it cannot.
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
