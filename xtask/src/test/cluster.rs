//! Tests of a cluster on real servers: three of NATS and one of S3, in a Python environment below `target`.

use std::path::PathBuf;
use std::process::Command;

use super::Args;
use super::python::Environment;
use super::stages::call;
use crate::cargo::{TEST_PROGRAMS, cargo, root};

/// Name of the stage.
pub const STAGE: &str = "cluster";
/// Variable with the folder of the servers, without which these tests do nothing.
const VARIABLE: &str = "ARCHIPELAGO_TEST_SERVERS";
/// Cluster crate with its server features.
const CRATE: [&str; 5] = ["--locked", "-p", "archipelago-cluster", "--features", "nats-s3"];
/// Tests that start whole clusters of programs.
const MACHINES: [&str; 5] = ["--locked", "-p", "archipelago-tests", "--features", "cluster"];
/// Requirements file of the servers.
const SERVERS: &str = "sdk/cluster/tests/requirements.txt";
/// Example configuration of a NATS server for operators.
const SETTINGS: &str = "syncer-server/deploy/cluster/nats.conf";

/// Lints and tests the feature. `--count` is the number of faults of the longest test, and `--seeds` selects them.
///
/// # Errors
/// A message about the failure.
pub fn test(args: &Args) -> Result<String, String> {
    let bin = servers()?;
    let mut lint = cargo(&["clippy", "--all-targets"]);
    lint.args(CRATE).args(["--", "-D", "warnings"]);
    call(lint)?;
    let mut settings = Command::new(bin.join("nats-server"));
    settings.args(["-t", "-c"]).arg(root().join(SETTINGS)).env("NATS_PASSWORD", "secret");
    call(settings)?;
    let mut test = cargo(&["test"]);
    args.apply(&mut test).args(CRATE).env(VARIABLE, &bin);
    // Each test starts its own servers.
    test.env("RUST_TEST_THREADS", "2");
    call(test)?;
    let mut build = cargo(&["build"]);
    build.args(TEST_PROGRAMS).args(["--features", "syncer-server/cluster"]);
    call(build)?;
    let mut machines = cargo(&["test", "--test", "machines"]);
    machines.args(MACHINES).env(VARIABLE, bin);
    call(machines)
}

/// Returns the folder of the server programs `nats-server` and `moto_server`, which pip installs once.
///
/// # Errors
/// A message if there is no Python, or the download failed.
pub fn servers() -> Result<PathBuf, String> {
    super::python::setup(&Args::default())?;
    let environment = Environment::make("cluster", false)?;
    environment.install(&["-r", &root().join(SERVERS).to_string_lossy()])?;
    let server = environment.program("nats-server");
    Ok(server.parent().ok_or("the Python environment has no folder of programs")?.to_owned())
}
