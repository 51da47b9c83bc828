//! Tests of a cluster on real servers: three of NATS and one of S3, in a Python environment below `target`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use super::python::Environment;
use crate::cargo::{TEST_PROGRAMS, cargo, root};
use crate::web::call;

/// Cluster crate with its server features.
const CRATE: [&str; 5] = ["--locked", "-p", "archipelago-cluster", "--features", "nats-s3"];
/// Tests that start whole clusters of programs.
const MACHINES: [&str; 5] = ["--locked", "-p", "archipelago-tests", "--features", "cluster"];
/// Requirements file of the servers.
const SERVERS: &str = "sdk/cluster/tests/requirements.txt";
/// Example configuration of a NATS server for operators.
const SETTINGS: &str = "syncer-server/deploy/cluster/nats.conf";

/// Lints and tests the feature if `CLUSTER_TESTS=yes`. `CLUSTER_FAULTS` is the number of faults in the storm, 12 by
/// default, and `CLUSTER_SEED` selects them.
///
/// # Errors
/// A message about the failure.
pub fn test() -> Result<String, String> {
    if env::var("CLUSTER_TESTS").map_or(true, |value| value != "yes") {
        return Ok("left out: CLUSTER_TESTS=yes adds it".to_owned());
    }
    let bin = servers()?;
    let mut lint = cargo(&["clippy", "--all-targets"]);
    lint.args(CRATE).args(["--", "-D", "warnings"]);
    call(&mut lint)?;
    let mut settings = Command::new(bin.join("nats-server"));
    settings.args(["-t", "-c"]).arg(root().join(SETTINGS)).env("NATS_PASSWORD", "secret");
    call(&mut settings)?;
    let mut test = cargo(&["test"]);
    test.args(CRATE).env("CLUSTER_BIN", &bin);
    // Each test starts its own servers.
    test.env("RUST_TEST_THREADS", "2");
    call(&mut test)?;
    let mut build = cargo(&["build"]);
    build.args(TEST_PROGRAMS).args(["--features", "syncer-server/cluster"]);
    call(&mut build)?;
    let mut machines = cargo(&["test", "--test", "machines"]);
    machines.args(MACHINES).env("CLUSTER_BIN", bin);
    call(&mut machines)?;
    Ok(String::new())
}

/// Returns the folder of the server programs `nats-server` and `moto_server`, which pip installs once.
///
/// # Errors
/// A message if there is no Python, or the download failed.
pub fn servers() -> Result<PathBuf, String> {
    super::python::setup()?;
    let environment = Environment::make("cluster", false)?;
    environment.install(&["-r", &root().join(SERVERS).to_string_lossy()])?;
    let server = environment.program("nats-server");
    Ok(server.parent().ok_or("the environment has no folder of programs")?.to_owned())
}
